#!/usr/bin/env bash
# Answers questions about a text with a model that run_squad.sh trained: at a prompt, by arguments, or JSON to JSON.
#
# usage: bash scripts/answer.sh MODEL_DIR [--flag...] [--dry-run] [--help]
#
#   MODEL_DIR   the results folder of run_squad.sh
#   Without further flags a prompt asks for a text and questions about it.
#   --context TEXT, or --context_file FILE, and --question TEXT (as often as needed)   one-shot
#   --json FILE ("-": stdin)   SQuAD's form or {"context": "...", "questions": ["..."]}; answers as JSON on stdout
#   --init_checkpoint, --vocab_file, --bert_config_file   other weights than MODEL_DIR's
#   All flags: python -m bert_tf.answer --help. BERT_PYTHON: the interpreter.
#
# examples: bash scripts/answer.sh results/squad
#           bash scripts/answer.sh results/squad --context "The house has two doors." --question "How many doors?"
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]})) || die "MODEL_DIR is missing: the results folder of run_squad.sh (see --help)"
find_bert_python
run "$PYTHON_BERT" -m bert_tf.answer "${ARGS[@]}"
