#!/usr/bin/env bash
# Measures the latency and throughput of answering SQuAD's questions over models, sequence lengths, batch sizes and
# precisions.
#
# usage: [VARIABLE=value...] bash scripts/finetune_inference_benchmark.sh [task] [--quick] [--flag=value...] [--dry-run]
#                                                                         [--help]
#
#   task (squad)
#   --quick: BERT-tiny, batches of 1 and 4 and the questions of 24 batches, which takes minutes on a CPU
#
#   MODELS           "base large"
#   SEQ_LENGTHS      "128 384"
#   BATCH_SIZES      "1 2 4 8" sequences
#   PRECISIONS       "amp noamp" (fp16 and tf32 on a GPU, bf16 and fp32 on a CPU; or fp16, bf16, tf32, fp32)
#   NUM_EVAL_ITERATIONS  questions of so many batches (1024)
#   USE_XLA          true; false where nvidia-smi shows no GPU
#   SQUAD_DIR        questions (default: DATA_DIR/download/squad/v1.1, else made from library documentation)
#   INIT_CHECKPOINT  weights (default: those in BERT_DIR as in run_squad_inference.sh, else random, which are as fast)
#   RESULTS_DIR      default: /results where it is writable, else results
#   VOCAB_FILE, BERT_CONFIG, BERT_DIR, DATA_DIR, SEED, BERT_PYTHON: as for run_squad.sh
#   Sequences are padded to the whole length, as published; --bucket measures what the data need. One process.
#
#   Left in RESULTS_DIR: a folder for each run, bert_<model>_inf_sl_<S>_prec_--<precision>_bs_<B>; and from all such
#   folders there squad_inference_benchmark.md, .csv, _latency.png, _throughput.png, and for each model
#   squad_inference_benchmark_bert_<model>.log. A run that fails is named there, the others go on, and the exit status
#   tells.
#
# examples: finetune_inference_benchmark.sh squad
#           finetune_inference_benchmark.sh --quick
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/finetuning.sh"
source "$here/finetune_benchmark.sh"
parse_common "$@"
find_bert_python

take_benchmark_words 1 "${ARGS[@]}"
set -- "${POSITIONAL[@]}"
task=${1:-squad}
[[ $task == squad ]] ||
    die "task must be squad, not '$task' (biobert/biobert_finetune_inference_benchmark.sh has others)"
models="base large" iterations=1024
[[ $quick == false ]] || { models=tiny && iterations=24; }
MODELS=${MODELS:-$models} iterations=${NUM_EVAL_ITERATIONS:-$iterations}
require_positive_integers iterations
precision=fp32 # the sweep sets it for each run
use_xla=${USE_XLA:-}
num_gpu=1
read_machine_words 1
read_grid "128 384" "1 2 4 8" "1 4"
for bert_model in $MODELS; do read_bert_config; done # a model that is not known is told before the first run

begin_benchmark "$(default_results)"
find_benchmark_questions dev $((iterations * largest_batch))

predict() {
    finetune bert_tf.run_squad \
        --do_predict \
        --predict_file="$questions_file" \
        --predict_batch_size="$batch_size" \
        --num_eval_iterations="$iterations" \
        --doc_stride=128 \
        --allow_random_weights
}

EXTRA=(--nobucket "${EXTRA[@]}")
for bert_model in $MODELS; do
    find_benchmark_weights "$(finetuned_folder)"
    for seq_length in $SEQ_LENGTHS; do
        for batch_size in $BATCH_SIZES; do
            for mode in $PRECISIONS; do
                read_mode "$mode"
                measure "bert_${bert_model}_inf_sl_${seq_length}_prec_--${mode}_bs_$batch_size" predict
            done
        done
    done
done
end_benchmark inference "$task"
