#!/usr/bin/env bash
# Scores a set as scripts/inference.sh does, with the same words and variables (see its --help), and keeps no
# predictions.
#
# usage: [VARIABLE=value...] bash scripts/evaluation.sh [DATA_DIR [MODEL_CONFIG [OUTPUT_DIR [CHECKPOINT]]]] [--flag...]
#                                                       [--dry-run] [--help]
#
# example: CHECKPOINT=results/QuartzNet_best_checkpoint.pt DATASET=test-clean bash scripts/evaluation.sh
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
parse_common "$@"
export DRY_RUN PREDICTION_FILE=
exec bash "$here/inference.sh" "${ARGS[@]}"
