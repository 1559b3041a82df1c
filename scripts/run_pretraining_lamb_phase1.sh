#!/usr/bin/env bash
# Phase 1 of BERT pre-training with NVLAMB: sequence length 128, nine tenths of train_steps.
#
# usage: run_pretraining_lamb_phase1.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   The 15 words and the environment of run_pretraining_lamb.sh (see its --help); writes RESULTS_DIR/phase_1
#   (RESULTS_DIR by default: /results where it is writable, else results).
#
# example: RESULTS_DIR=results/base run_pretraining_lamb_phase1.sh 64 8 8 7.5e-4 5e-4 bf16 true 1 2000 200 7820 100 1024 4096 base
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/pretraining.sh"
parse_common "$@"
find_bert_python
take_lamb_words "${ARGS[@]}"
RESULTS_DIR=${RESULTS_DIR:-$(default_results)}

init_flags=()
if [[ -n ${INIT_CHECKPOINT:-} ]]; then
    init_checkpoint_flag "$INIT_CHECKPOINT" || die "INIT_CHECKPOINT: there is no $INIT_CHECKPOINT.index"
fi
describe_phase1
pretrain "$RESULTS_DIR/phase_1" 128 20 \
    --train_batch_size="$train_batch_size_phase1" \
    --num_accumulation_steps="$num_accumulation_steps_phase1" \
    --num_train_steps="$steps_phase1" \
    --num_warmup_steps="$warmup_steps_phase1" \
    --learning_rate="$learning_rate_phase1" \
    "${init_flags[@]}"
