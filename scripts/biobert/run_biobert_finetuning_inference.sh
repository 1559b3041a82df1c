#!/usr/bin/env bash
# Predicts the test set of a BioBERT task with a fine-tuned model.
#
# usage: run_biobert_finetuning_inference.sh [WORD...] [--flag=value...] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 task (ner_bc5cdr-chem; ner_bc5cdr-disease, rel_chemprot)           2 init_checkpoint (the weights in BERT_DIR)
#    3 bert_model (base)                4 cased (false)                   5 precision (fp16; bf16, tf32, fp32)
#    6 use_xla (true)                   7 batch_size (16)
#   init_checkpoint: an output folder of ner_bc5cdr-chem.sh and its like, the prefix of a TensorFlow checkpoint, a
#   Hugging Face folder, or none (random weights, to measure speed). One process. --flag=value words go to run_ner.py or
#   run_re.py.
#
#   SEQ_LENGTH       sequence length (default: 128, rel_chemprot 512)
#   RESULTS_DIR      predictions, scores and the log (default: /results/<tag>_<date> where /results is writable, else
#                    results/<tag>_<date>)
#   BERT_DIR, DATASET_DIR, VOCAB_FILE, BERT_CONFIG, DATA_DIR, SEED, BERT_PYTHON, and the defaults of words 5 and 6 where
#   there is no GPU: as for ner_bc5cdr-chem.sh
#
# example: run_biobert_finetuning_inference.sh ner_bc5cdr-chem results/chem base false bf16 false 16
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../lib.sh"
source "$here/../finetuning.sh"
source "$here/biobert.sh"
OWN_FLAGS+=(do_predict eval_batch_size predict_batch_size do_lower_case)
parse_common "$@"
find_bert_python

split_words 7 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
task=${1:-ner_bc5cdr-chem}
init_checkpoint=${2:-}
bert_model=${3:-base}
cased=${4:-false}
precision=${5:-}
use_xla=${6:-}
batch_size=${7:-16}
num_gpu=1
seq_length=128
[[ $task != rel_chemprot ]] || seq_length=512
seq_length=${SEQ_LENGTH:-$seq_length}
require_positive_integers batch_size seq_length
read_cased
read_machine_words 1
read_biobert_task "$task"
find_weights "$(biobert_folder)"
case_flags=("${cased_flags[@]}")
allow_random_weights

tag=tf_bert_biobert_${task}_inference_${bert_model}_${casing}_${precision}_bs${batch_size}_ckpt_$(checkpoint_tag)
read_results "$tag"

predict() {
    log "results: $RESULTS_DIR"
    log "weights: $init_checkpoint"
    finetune "$module" \
        --task_name="$task_name" \
        --data_dir="$task_dir" \
        --do_predict \
        --predict_batch_size="$batch_size" \
        "${random_flags[@]}"
}

logged "$RESULTS_DIR/$tag.$date.log" predict
