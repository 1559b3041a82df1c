#!/usr/bin/env bash
# Fine-tunes BERT on SQuAD 1.1 or 2.0, answers the questions of the development set, and scores the answers.
#
# usage: run_squad.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 batch_size (8)                   2 learning_rate (5e-6)            3 precision (fp16; bf16, tf32, fp32)
#    4 use_xla (true)                   5 num_gpu (8)                     6 seq_length (384)
#    7 doc_stride (128)                 8 bert_model (large; base, tiny)  9 squad_version (1.1; 2.0)
#   10 init_checkpoint (the pre-trained weights of bert_model)           11 epochs (2.0)
#   Batch size and learning rate are per GPU. --flag=value words go to run_squad.py. Where nvidia-smi shows no GPU the
#   defaults of words 3 to 5 are bf16 (fp32 on CPUs without bf16), false and 1; where it shows fewer, num_gpu is that.
#
#   init_checkpoint is the prefix of a TensorFlow checkpoint, an output folder of ours, a Hugging Face folder, or none
#   (random weights); its vocabulary and model file lie beside it.
#   BERT_DIR         folder of the pre-trained weights (default: large
#                    DATA_DIR/download/nvidia_pretrained/bert_tf_pretraining_large_lamb, base
#                    DATA_DIR/download/google_pretrained_weights/uncased_L-12_H-768_A-12, tiny none)
#   VOCAB_FILE, BERT_CONFIG   instead of vocab.txt and bert_config.json beside the weights
#   SQUAD_DIR        train-v<version>.json and dev-v<version>.json (default: DATA_DIR/download/squad/v<version>)
#   RESULTS_DIR      checkpoints, answers, scores and the log; the same folder again resumes
#                    (default: /results/<tag>_<date> where /results is writable, else results/<tag>_<date>)
#   NUM_ACCUMULATION_STEPS (1), SEED, DATA_DIR (data), BERT_PYTHON
#
# examples: run_squad.sh 10 5e-6 fp16 true 8 384 128 large 1.1 results/phase_2/model.ckpt-1564 2.0
#           run_squad.sh $(source scripts/configs/squad_config.sh && dgxa100_8gpu_fp16)
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/finetuning.sh"
parse_common "$@"
find_bert_python

split_words 11 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
batch_size=${1:-8}
learning_rate=${2:-5e-6}
precision=${3:-}
use_xla=${4:-}
num_gpu=${5:-}
seq_length=${6:-384}
doc_stride=${7:-128}
bert_model=${8:-large}
squad_version=${9:-1.1}
init_checkpoint=${10:-}
epochs=${11:-2.0}
require_positive_integers batch_size seq_length doc_stride
require_positive_numbers learning_rate epochs
read_machine_words 8
read_global_batch
read_squad
require_questions "$squad_dir/train-v$squad_version.json" "$squad_dir/dev-v$squad_version.json"
find_weights "$(pretrained_folder)"
training_flags

tag=tf_bert_finetuning_squad_${bert_model}_${precision}_gbs${gbs}
read_results "$tag"

train() {
    log "results: $RESULTS_DIR"
    log "weights: $init_checkpoint"
    describe_training
    finetune bert_tf.run_squad "${train_flags[@]}" \
        --save_checkpoints_steps=1000 \
        --train_file="$squad_dir/train-v$squad_version.json" \
        --do_predict \
        --predict_file="$squad_dir/dev-v$squad_version.json" \
        --predict_batch_size="$batch_size" \
        --doc_stride="$doc_stride" \
        "${squad_flags[@]}"
}

logged "$RESULTS_DIR/$tag.$date.log" train
