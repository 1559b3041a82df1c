#!/usr/bin/env bash
# Scores a BERT that was fine-tuned on a GLUE task on the task's development set.
#
# usage: run_glue_inference.sh [WORD...] [--flag=value...] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 task_name (MRPC; the others: run_glue.sh --help)       2 init_checkpoint (the weights in BERT_DIR)
#    3 batch_size (32)                  4 precision (fp16; bf16, tf32, fp32)           5 use_xla (true)
#    6 seq_length (128)                 7 doc_stride (64; has no effect)               8 bert_model (large; base, tiny)
#   init_checkpoint: an output folder of run_glue.sh, the prefix of a TensorFlow checkpoint, a Hugging Face folder, or
#   none (random weights, to measure speed). One process. --flag=value words go to run_classifier.py (--do_predict
#   writes GLUE's submission files).
#
#   RESULTS_DIR      scores and the log (default: /results/<tag>_<date> where /results is writable, else
#                    results/<tag>_<date>)
#   GLUE_DIR, BERT_DIR, VOCAB_FILE, BERT_CONFIG, DATA_DIR, SEED, BERT_PYTHON, and the defaults of words 4 and 5 where
#   there is no GPU: as for run_glue.sh
#
# example: run_glue_inference.sh MRPC results/mrpc 32 bf16 false 128 64 base
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/finetuning.sh"
parse_common "$@"
find_bert_python

split_words 8 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
task_name=${1:-MRPC}
init_checkpoint=${2:-}
batch_size=${3:-32}
precision=${4:-}
use_xla=${5:-}
seq_length=${6:-128}
bert_model=${8:-large}
num_gpu=1
require_positive_integers batch_size seq_length
read_machine_words 1
find_glue
find_weights "$(pretrained_folder)"
allow_random_weights

tag=tf_bert_finetuning_glue_${task_name}_${bert_model}_inf_${precision}_gbs${batch_size}_ckpt_$(checkpoint_tag)
read_results "$tag"

evaluate() {
    log "results: $RESULTS_DIR"
    log "weights: $init_checkpoint"
    finetune bert_tf.run_classifier \
        --task_name="$task_name" \
        --data_dir="$task_dir" \
        --do_eval \
        --eval_batch_size="$batch_size" \
        --predict_batch_size="$batch_size" \
        "${random_flags[@]}"
}

logged "$RESULTS_DIR/$tag.$date.log" evaluate
