#!/usr/bin/env bash
# Fine-tunes BERT on a GLUE task and scores its development set.
#
# usage: run_glue.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 task_name (MRPC; CoLA, MNLI, SST-2, QQP, QNLI, RTE, STS-B, WNLI, XNLI)          2 batch_size (16)
#    3 learning_rate (3e-6)             4 precision (fp16; bf16, tf32, fp32)           5 use_xla (true)
#    6 num_gpu (8)                      7 seq_length (128)                8 doc_stride (64; has no effect)
#    9 bert_model (large; base, tiny)  10 epochs (3.0)                   11 warmup_proportion (0.1)
#   12 init_checkpoint (the pre-trained weights of bert_model)
#   Batch size and learning rate are per GPU. --flag=value words go to run_classifier.py (--do_predict writes GLUE's
#   submission files, --optimizer_type=adam takes the place of LAMB).
#
#   GLUE_DIR         folder with a folder for each task (default: DATA_DIR/download/glue, else DATA_DIR/download)
#   RESULTS_DIR      checkpoints, scores and the log; the same folder again resumes
#                    (default: /results/<tag>_<date> where /results is writable, else results/<tag>_<date>)
#   BERT_DIR, VOCAB_FILE, BERT_CONFIG, NUM_ACCUMULATION_STEPS, SEED, DATA_DIR, BERT_PYTHON, init_checkpoint and the
#   defaults of words 4 to 6 where there is no GPU: as for run_squad.sh
#
# example: run_glue.sh MRPC 16 3e-6 fp16 true 8 128 64 base 3.0 0.1 none
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/finetuning.sh"
OWN_FLAGS+=(warmup_proportion)
parse_common "$@"
find_bert_python

split_words 12 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
task_name=${1:-MRPC}
batch_size=${2:-16}
learning_rate=${3:-3e-6}
precision=${4:-}
use_xla=${5:-}
num_gpu=${6:-}
seq_length=${7:-128}
bert_model=${9:-large}
epochs=${10:-3.0}
warmup_proportion=${11:-0.1}
init_checkpoint=${12:-}
require_positive_integers batch_size seq_length
require_positive_numbers learning_rate epochs
read_machine_words 8
read_global_batch
find_glue
find_weights "$(pretrained_folder)"
training_flags

tag=tf_bert_finetuning_glue_${task_name}_${bert_model}_${precision}_gbs${gbs}
read_results "$tag"

train() {
    log "results: $RESULTS_DIR"
    log "weights: $init_checkpoint"
    describe_training
    finetune bert_tf.run_classifier "${train_flags[@]}" \
        --task_name="$task_name" \
        --data_dir="$task_dir" \
        --do_eval \
        --warmup_proportion="$warmup_proportion"
}

logged "$RESULTS_DIR/$tag.$date.log" train
