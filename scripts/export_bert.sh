#!/usr/bin/env bash
# Exports a fine-tuned BERT as ONNX and SavedModel, checked against the model on real examples.
#
# usage: bash scripts/export_bert.sh MODEL_DIR --output_dir DIR [--predict_file FILE | --data_dir DIR] [--flag...]
#                                    [--dry-run] [--help]
#
#   MODEL_DIR             output folder of run_squad.sh, run_glue.sh or a BioBERT task
#   --predict_file FILE   questions (SQuAD JSON): for a model that answers questions
#   --data_dir DIR        the task's files: for the other models
#   --int8                also a quantised model, with its scores
#   All flags: python -m bert_tf.run_export --help. BERT_PYTHON: the interpreter.
#
# example: bash scripts/export_bert.sh results/squad --predict_file dev-v1.1.json --output_dir results/export --int8
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]})) || die "what to export is missing: MODEL_DIR, --output_dir, --predict_file or --data_dir (see --help)"
find_bert_python
run "$PYTHON_BERT" -m bert_tf.run_export "${ARGS[@]}"
