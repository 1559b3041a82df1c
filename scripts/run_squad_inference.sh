#!/usr/bin/env bash
# Answers the questions of SQuAD's development set with a fine-tuned BERT, and scores the answers.
#
# usage: run_squad_inference.sh [WORD...] [--flag=value...] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 init_checkpoint (NVIDIA's fine-tuned weights of bert_model)        2 batch_size (8)
#    3 precision (fp16; bf16, tf32, fp32)   4 use_xla (true)              5 seq_length (384)
#    6 doc_stride (128)                 7 bert_model (large; base, tiny)  8 squad_version (1.1; 2.0)
#   init_checkpoint: an output folder of run_squad.sh, the prefix of a TensorFlow checkpoint, a Hugging Face folder, or
#   none (random weights, to measure speed). One process. --flag=value words go to run_squad.py.
#
#   BERT_DIR         folder of fine-tuned weights (default: DATA_DIR/download/nvidia_pretrained/bert_tf_squad11_large_384,
#                    base .../bert_tf_squad11_base_128, tiny none)
#   RESULTS_DIR      answers, scores and the log (default: /results/<tag>_<date> where /results is writable, else
#                    results/<tag>_<date>)
#   VOCAB_FILE, BERT_CONFIG, SQUAD_DIR, DATA_DIR, SEED, BERT_PYTHON, and the defaults of words 3 and 4 where there is no
#   GPU: as for run_squad.sh
#
# example: run_squad_inference.sh results/squad 8 bf16 false 384 128 base 1.1
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/finetuning.sh"
parse_common "$@"
find_bert_python

split_words 8 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
init_checkpoint=${1:-}
batch_size=${2:-8}
precision=${3:-}
use_xla=${4:-}
seq_length=${5:-384}
doc_stride=${6:-128}
bert_model=${7:-large}
squad_version=${8:-1.1}
num_gpu=1
require_positive_integers batch_size seq_length doc_stride
read_machine_words 1
read_squad
require_questions "$squad_dir/dev-v$squad_version.json"
find_weights "$(finetuned_folder)"
allow_random_weights

tag=tf_bert_finetuning_squad_${bert_model}_inf_${precision}_gbs${batch_size}_ckpt_$(checkpoint_tag)
read_results "$tag"

predict() {
    log "results: $RESULTS_DIR"
    log "weights: $init_checkpoint"
    finetune bert_tf.run_squad \
        --do_predict \
        --predict_file="$squad_dir/dev-v$squad_version.json" \
        --predict_batch_size="$batch_size" \
        --doc_stride="$doc_stride" \
        "${squad_flags[@]}" "${random_flags[@]}"
}

logged "$RESULTS_DIR/$tag.$date.log" predict
