#!/usr/bin/env bash
# BERT pre-training with Adam in a single phase.
#
# usage: run_pretraining_adam.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 train_batch_size (16)            2 eval_batch_size (8)             3 learning_rate (1e-4)
#    4 precision (fp16; bf16, tf32, fp32)   5 use_xla (true)              6 num_gpus (8)
#    7 warmup_steps (10000)             8 train_steps (1144000)           9 save_checkpoints_steps (5000)
#   10 bert_model (large; base, tiny)  11 num_accumulation_steps (1)     12 seq_len (512)
#   13 max_pred_per_seq (80)
#   Batch size and learning rate are per GPU. --flag=value words go to run_pretraining.py.
#
#   DATA_DIR, RESULTS_DIR, SOURCES, BERT_CONFIG, INIT_CHECKPOINT, SEED, MAX_EVAL_STEPS, BERT_PYTHON:
#   as for run_pretraining_lamb.sh; checkpoints and log go to RESULTS_DIR itself
#
# example: run_pretraining_adam.sh 16 8 1e-4 bf16 true 1 1000 20000 1000 base 16 128 20
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/pretraining.sh"
parse_common "$@"
find_bert_python
take_adam_words "${ARGS[@]}"

tag=tf_bert_pretraining_adam_${bert_model}_${precision}_gbs${gbs}
date=$(date +%y%m%d%H%M%S)
RESULTS_DIR=${RESULTS_DIR:-$(default_results)/${tag}_$date}

init_flags=()
if [[ -n ${INIT_CHECKPOINT:-} ]]; then
    init_checkpoint_flag "$INIT_CHECKPOINT" || die "INIT_CHECKPOINT: there is no $INIT_CHECKPOINT.index"
fi

train() {
    log "results: $RESULTS_DIR"
    describe training "$train_steps" "$train_batch_size" "$num_accumulation_steps" "$warmup_steps" "$learning_rate"
    pretrain "$RESULTS_DIR" "$seq_len" "$max_pred_per_seq" \
        --optimizer_type=adam \
        --train_batch_size="$train_batch_size" \
        --num_accumulation_steps="$num_accumulation_steps" \
        --num_train_steps="$train_steps" \
        --num_warmup_steps="$warmup_steps" \
        --learning_rate="$learning_rate" \
        "${init_flags[@]}"
}

logged "$RESULTS_DIR/$tag.$date.log" train
