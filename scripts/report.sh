#!/usr/bin/env bash
# Makes one self-contained HTML page about a run, or a comparison of several: curves, scores, samples, configuration.
#
# usage: bash scripts/report.sh RUN... [--output FILE] [--dry-run] [--help]
#
#   RUN        a folder that a launcher left, with all folders in it that hold a log
#   --output   default: RUN/report.html, for several runs report.html in the folder that holds them all
#   Of several runs those that differ in the seed only form a group, shown with mean and standard deviation.
#
# examples: bash scripts/report.sh results/quickstart_bert
#           bash scripts/report.sh results/seed_1 results/seed_2 results/other_1 results/other_2
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]})) || die "RUN is missing: a folder that a launcher left (see --help)"
# The report needs neither framework: either environment does.
if [[ -n ${BERT_PYTHON:-} || -x $ROOT/.venv/bert/bin/python ]]; then
    find_bert_python
    python=$PYTHON_BERT
else
    find_asr_python
    python=$PYTHON_ASR
fi
run "$python" -m runkit.report "${ARGS[@]}"
