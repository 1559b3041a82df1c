#!/usr/bin/env bash
# Measures the latency and throughput of predicting a BioBERT task's test set over sequence lengths, batch sizes and
# precisions.
#
# usage: [VARIABLE=value...] bash scripts/biobert/biobert_finetune_inference_benchmark.sh [WORD...] [--quick]
#                                                                          [--flag=value...] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 task (ner_bc5cdr-chem; ner_bc5cdr-disease, rel_chemprot)    2 bert_model (base)    3 cased (false)
#   --quick: BERT-tiny and batches of 8 and 32
#
#   SEQ_LENGTHS ("128 512"), BATCH_SIZES ("8 32 64" sequences), PRECISIONS ("amp noamp"), USE_XLA (true; false without a
#   GPU), DATASET_DIR as for ner_bc5cdr-chem.sh
#   INIT_CHECKPOINT  weights (default: those in BERT_DIR as in ner_bc5cdr-chem.sh, else random, which are as fast;
#                    these need VOCAB_FILE)
#   RESULTS_DIR      default: tf_bert_biobert_<task>_inference_benchmark_<model>_<casing>_<date> in /results where it is
#                    writable, else in results
#   VOCAB_FILE, BERT_CONFIG, BERT_DIR, DATA_DIR, SEED, BERT_PYTHON: as for ner_bc5cdr-chem.sh
#   Sequences are padded to the whole length, as published; --bucket measures what the data need. One process.
#
#   Left in RESULTS_DIR: a folder for each run; and from all such folders there <task>_inference_benchmark.md, .csv,
#   _latency.png, _throughput.png, and <task>_inference_benchmark_bert_<model>.log. A run that fails is named there, the
#   others go on, and the exit status tells.
#
# example: biobert_finetune_inference_benchmark.sh ner_bc5cdr-chem base false
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../lib.sh"
source "$here/../finetuning.sh"
source "$here/../finetune_benchmark.sh"
source "$here/biobert.sh"
OWN_FLAGS+=(do_lower_case)
parse_common "$@"
find_bert_python

take_benchmark_words 3 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
bert_model=base
[[ $quick == false ]] || bert_model=tiny
task=${1:-ner_bc5cdr-chem}
bert_model=${2:-$bert_model}
cased=${3:-false}
precision=fp32 # the sweep sets it for each run
use_xla=${USE_XLA:-}
num_gpu=1
read_cased
read_machine_words 1
read_grid "128 512" "8 32 64" "8 32"
read_biobert_task "$task"

name=tf_bert_biobert_${task}_inference_benchmark_${bert_model}_${casing}_$(date +%y%m%d%H%M%S)
begin_benchmark "$(default_results)/$name"
find_benchmark_weights "$(biobert_folder)"
case_flags=("${cased_flags[@]}")

predict() {
    finetune "$module" \
        --task_name="$task_name" \
        --data_dir="$task_dir" \
        --do_predict \
        --predict_batch_size="$batch_size" \
        --allow_random_weights
}

EXTRA=(--nobucket "${EXTRA[@]}")
for seq_length in $SEQ_LENGTHS; do
    for batch_size in $BATCH_SIZES; do
        for mode in $PRECISIONS; do
            read_mode "$mode"
            measure "bert_${bert_model}_inf_sl_${seq_length}_prec_--${mode}_bs_$batch_size" predict
        done
    done
done
end_benchmark inference "$task"
