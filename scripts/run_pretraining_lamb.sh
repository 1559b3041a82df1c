#!/usr/bin/env bash
# Two-phase BERT pre-training with NVLAMB: phase 1 at sequence length 128, phase 2 at 512 from phase 1's weights.
#
# usage: run_pretraining_lamb.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 train_batch_size_phase1 (64)     2 train_batch_size_phase2 (8)     3 eval_batch_size (8)
#    4 learning_rate_phase1 (7.5e-4)    5 learning_rate_phase2 (5e-4)     6 precision (fp16; bf16, tf32, fp32)
#    7 use_xla (true)                   8 num_gpus (8)                    9 warmup_steps_phase1 (2000)
#   10 warmup_steps_phase2 (200)       11 train_steps (7820)             12 save_checkpoints_steps (100)
#   13 num_accumulation_steps_phase1 (128)   14 num_accumulation_steps_phase2 (512)   15 bert_model (large; base, tiny)
#   Batch sizes and learning rates are per GPU. --flag=value words go to run_pretraining.py in both phases.
#
#   --plan tells memory, disk, updates and every problem of both phases and starts nothing; --plan=probe and
#   --plan=SEQUENCES_A_SECOND tell the time too (docs/planning.md).
#
#   DATA_DIR         folder the data stage filled (default: data)
#   RESULTS_DIR      phase_1, phase_2 and the log; the same folder again resumes
#                    (default: /results/<tag>_<date> where /results is writable, else results/<tag>_<date>)
#   SOURCES          datasets, or folders with training/ and test/, comma-separated (default: what the data stage made)
#   BERT_CONFIG      model file instead of configs/bert/<bert_model>.json
#   INIT_CHECKPOINT  weights phase 1 starts from
#   SEED, MAX_EVAL_STEPS, BERT_PYTHON
#
# examples: run_pretraining_lamb.sh 64 8 8 7.5e-4 5e-4 fp16 true 8
#           run_pretraining_lamb.sh $(source scripts/configs/pretrain_config.sh && dgxa100_8gpu_fp16)
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/pretraining.sh"
parse_common "$@"
find_bert_python
take_lamb_words "${ARGS[@]}"

tag=tf_bert_pretraining_lamb_${bert_model}_${precision}_gbs1${gbs_phase1}_gbs2${gbs_phase2}
date=$(date +%y%m%d%H%M%S)
RESULTS_DIR=${RESULTS_DIR:-$(default_results)/${tag}_$date}
export DATA_DIR RESULTS_DIR DRY_RUN

run_phases() {
    log "results: $RESULTS_DIR"
    describe_phase1
    describe_phase2
    local status=0
    bash "$here/run_pretraining_lamb_phase1.sh" "${ARGS[@]}" || status=$?
    if [[ $status == 0 || $PLANNING == true ]]; then # a plan tells the problems of both
        env -u INIT_CHECKPOINT PHASE_1_PLANNED="$PLANNING" \
            bash "$here/run_pretraining_lamb_phase2.sh" "${ARGS[@]}" || status=$?
    fi
    return "$status"
}

if [[ $DRY_RUN != true ]]; then # phase 2's records are wanted now, not when phase 1 is through
    find_records 128 20
    find_records 512 80
fi
logged "$RESULTS_DIR/$tag.$date.log" run_phases
