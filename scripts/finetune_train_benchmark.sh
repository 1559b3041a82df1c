#!/usr/bin/env bash
# Measures fine-tuning throughput on SQuAD over sequence lengths, batch sizes and precisions.
#
# usage: [VARIABLE=value...] bash scripts/finetune_train_benchmark.sh [WORD...] [--quick] [--flag=value...] [--dry-run]
#                                                                     [--help]
#
#   words, in this order (default):
#    1 bert_model (large; base, tiny)    2 use_xla (true)    3 num_gpu (8)    4 task (squad)
#   --quick: BERT-tiny, batches of 1 and 4 and 20 updates, which takes minutes on a CPU. Where nvidia-smi shows no GPU
#   the defaults of words 2 and 3 are false and 1; where it shows fewer, num_gpu is that.
#
#   SEQ_LENGTHS      "128 384" (the stride is 64 at 128, else 128)
#   BATCH_SIZES      "1 2 4" sequences on a GPU
#   PRECISIONS       "amp noamp" (fp16 and tf32 on a GPU, bf16 and fp32 on a CPU; or fp16, bf16, tf32, fp32)
#   BENCHMARK_STEPS  200 updates a run, of which the first do not count (published: 2 epochs of SQuAD)
#   SQUAD_DIR        questions (default: DATA_DIR/download/squad/v1.1, else made from library documentation)
#   INIT_CHECKPOINT  weights (default: those in BERT_DIR as in run_squad.sh, else random, which are as fast)
#   RESULTS_DIR      default: /results where it is writable, else results
#   VOCAB_FILE, BERT_CONFIG, BERT_DIR, DATA_DIR, SEED, BERT_PYTHON: as for run_squad.sh
#   Sequences are padded to the whole length, as published; --bucket measures what the data need.
#
#   Left in RESULTS_DIR: a folder for each run, bert_<model>_gpu_<G>_sl_<S>_prec_--<precision>_bs_<B>, without
#   checkpoints; and from all such folders there squad_training_benchmark.md, .csv, .png, and the published
#   squad_training_benchmark_bert_<model>_gpu_<G>.log. A run that fails is named there, the others go on, and the exit
#   status tells.
#
# examples: finetune_train_benchmark.sh large true 8 squad
#           finetune_train_benchmark.sh --quick
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/finetuning.sh"
source "$here/finetune_benchmark.sh"
parse_common "$@"
find_bert_python

take_benchmark_words 4 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
bert_model=large steps=200
[[ $quick == false ]] || { bert_model=tiny && steps=20; }
bert_model=${1:-$bert_model}
precision=fp32 # the sweep sets it for each run
use_xla=${2:-}
num_gpu=${3:-}
task=${4:-squad}
[[ $task == squad ]] || die "task must be squad, not '$task' (biobert/biobert_finetune_training_benchmark.sh has others)"
steps=${BENCHMARK_STEPS:-$steps}
require_positive_integers steps
read_machine_words 8
read_grid "128 384" "1 2 4" "1 4"
num_accumulation_steps=1 learning_rate=5e-6

begin_benchmark "$(default_results)"
find_benchmark_questions train $((steps * largest_batch * num_gpu))
find_benchmark_weights "$(pretrained_folder)"

train() {
    finetune bert_tf.run_squad "${train_flags[@]}" \
        --save_checkpoints_steps=1000000 \
        --train_file="$questions_file" \
        --doc_stride="$stride"
}

EXTRA=(--nobucket "${EXTRA[@]}")
for seq_length in $SEQ_LENGTHS; do
    stride=128
    ((seq_length > 128)) || stride=64
    for batch_size in $BATCH_SIZES; do
        # As many epochs of the questions that there are as make the updates; the half guards against rounding.
        epochs=$(LC_ALL=C awk -v s="$steps" -v b=$((batch_size * num_gpu)) -v n="$n_questions" \
            'BEGIN { printf "%.9f", (s + 0.5) * b / n }')
        training_flags
        for mode in $PRECISIONS; do
            read_mode "$mode"
            measure "bert_${bert_model}_gpu_${num_gpu}_sl_${seq_length}_prec_--${mode}_bs_$batch_size" train
        done
    done
done
end_benchmark train "$task"
