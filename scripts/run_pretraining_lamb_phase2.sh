#!/usr/bin/env bash
# Phase 2 of BERT pre-training with NVLAMB: sequence length 512, from the weights that phase 1 ended with.
#
# usage: run_pretraining_lamb_phase2.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   The 15 words and the environment of run_pretraining_lamb.sh (see its --help), the same as given to phase 1;
#   writes RESULTS_DIR/phase_2 (RESULTS_DIR by default: /results where it is writable, else results).
#   INIT_CHECKPOINT takes the place of RESULTS_DIR/phase_1/model.ckpt-<updates of phase 1>.
#
# example: RESULTS_DIR=results/base run_pretraining_lamb_phase2.sh 64 8 8 7.5e-4 5e-4 bf16 true 1 2000 200 7820 100 1024 4096 base
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/pretraining.sh"
parse_common "$@"
find_bert_python
take_lamb_words "${ARGS[@]}"
RESULTS_DIR=${RESULTS_DIR:-$(default_results)}

checkpoint=${INIT_CHECKPOINT:-$RESULTS_DIR/phase_1/model.ckpt-$steps_phase1}
init_checkpoint_flag "$checkpoint" ||
    die "phase 2 starts from phase 1's weights, and there is no $checkpoint.index:" \
        "run phase 1 with the same words and RESULTS_DIR, or set INIT_CHECKPOINT"
if [[ ${PHASE_1_PLANNED:-false} == true && ! -f $checkpoint.index ]]; then
    log "note: phase 2 starts from $checkpoint, which phase 1 is going to make"
    init_flags=()
fi
describe_phase2
pretrain "$RESULTS_DIR/phase_2" 512 80 \
    --train_batch_size="$train_batch_size_phase2" \
    --num_accumulation_steps="$num_accumulation_steps_phase2" \
    --num_train_steps="$steps_phase2" \
    --num_warmup_steps="$warmup_steps_phase2" \
    --learning_rate="$learning_rate_phase2" \
    "${init_flags[@]}"
