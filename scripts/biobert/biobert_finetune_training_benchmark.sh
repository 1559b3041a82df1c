#!/usr/bin/env bash
# Measures fine-tuning throughput on a BioBERT task over sequence lengths, batch sizes and precisions.
#
# usage: [VARIABLE=value...] bash scripts/biobert/biobert_finetune_training_benchmark.sh [WORD...] [--quick]
#                                                                          [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 task (ner_bc5cdr-chem; ner_bc5cdr-disease, rel_chemprot)    2 num_gpu (2)    3 bert_model (base)
#    4 cased (false)
#   --quick: BERT-tiny, batches of 8 and 32 and a fiftieth of an epoch. Where nvidia-smi shows no GPU the default of
#   num_gpu is 1; where it shows fewer, num_gpu is that.
#
#   SEQ_LENGTHS ("128 512"), BATCH_SIZES ("8 32 64" sequences on a GPU), PRECISIONS ("amp noamp"), USE_XLA (true; false
#   without a GPU), EPOCHS (2), DATASET_DIR as for ner_bc5cdr-chem.sh
#   INIT_CHECKPOINT  weights (default: those in BERT_DIR as in ner_bc5cdr-chem.sh, else random, which are as fast;
#                    these need VOCAB_FILE)
#   RESULTS_DIR      default: tf_bert_biobert_<task>_training_benchmark_<model>_<casing>_num_gpu_<G>_<date> in /results
#                    where it is writable, else in results
#   VOCAB_FILE, BERT_CONFIG, BERT_DIR, DATA_DIR, SEED, BERT_PYTHON: as for ner_bc5cdr-chem.sh
#   Sequences are padded to the whole length, as published; --bucket measures what the data need.
#
#   Left in RESULTS_DIR: a folder for each run, without checkpoints; and from all such folders there
#   <task>_training_benchmark.md, .csv, .png, and the published <task>_training_benchmark_bert_<model>_gpu_<G>.log. A
#   run that fails is named there, the others go on, and the exit status tells.
#
# example: biobert_finetune_training_benchmark.sh ner_bc5cdr-chem 2 base false
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../lib.sh"
source "$here/../finetuning.sh"
source "$here/../finetune_benchmark.sh"
source "$here/biobert.sh"
OWN_FLAGS+=(do_lower_case)
parse_common "$@"
find_bert_python

take_benchmark_words 4 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
bert_model=base epochs=2
[[ $quick == false ]] || { bert_model=tiny && epochs=0.02; }
task=${1:-ner_bc5cdr-chem}
num_gpu=${2:-}
bert_model=${3:-$bert_model}
cased=${4:-false}
epochs=${EPOCHS:-$epochs}
precision=fp32 # the sweep sets it for each run
use_xla=${USE_XLA:-}
require_positive_numbers epochs
read_cased
read_machine_words 2
read_grid "128 512" "8 32 64" "8 32"
read_biobert_task "$task"
num_accumulation_steps=1 learning_rate=5e-6

name=tf_bert_biobert_${task}_training_benchmark_${bert_model}_${casing}_num_gpu_${num_gpu}_$(date +%y%m%d%H%M%S)
begin_benchmark "$(default_results)/$name"
find_benchmark_weights "$(biobert_folder)"
case_flags=("${cased_flags[@]}")

train() {
    finetune "$module" "${train_flags[@]}" --save_checkpoints_steps=1000000 --task_name="$task_name" --data_dir="$task_dir"
}

EXTRA=(--nobucket "${EXTRA[@]}")
for seq_length in $SEQ_LENGTHS; do
    for batch_size in $BATCH_SIZES; do
        training_flags
        for mode in $PRECISIONS; do
            read_mode "$mode"
            measure "bert_${bert_model}_gpu_${num_gpu}_sl_${seq_length}_prec_--${mode}_bs_$batch_size" train
        done
    done
done
end_benchmark train "$task"
