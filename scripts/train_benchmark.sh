#!/usr/bin/env bash
# Measures training throughput over numbers of GPUs and accumulation steps, and writes the published table.
#
# usage: [VARIABLE=value...] bash scripts/train_benchmark.sh [DATA_DIR [MODEL_CONFIG [OUTPUT_DIR]]] [--flag...]
#                                                            [--plan] [--dry-run] [--help]
#
#   QuartzNet: for each of NUM_GPUS_SEQ ("8 4 1") and each of GRAD_ACC_SEQ ("4 2"), utterances of a pass on a GPU =
#   ACC_BATCH_SIZE (144) / accumulation steps x 8 / GPUs, so that the global batch is ACC_BATCH_SIZE x 8 whatever the
#   hardware. BENCHMARK_EPOCHS (20) x GPUs / 8 epochs are measured, at least 2, after one that is not.
#   Jasper: for each of NUM_GPUS_SEQ ("1 4 8") and each of BATCH_SIZE_SEQ ("32"), utterances of an update on a GPU,
#   with GRAD_ACCUMULATION_STEPS (1); EPOCHS_THIS_JOB (2), of which the last is measured.
#
#   BENCHMARK_STEPS    measure epochs of so many updates, and evaluate on one batch (default: the whole set)
#   TRAIN_MANIFESTS (librispeech-train-clean-100-wav.json), AMP (false), EMA (0), LEARNING_RATE (0.0001),
#   PRE_ALLOCATE ("1408 1920" frames; set but empty: none), CPU, DALI_DEVICE and all else: as in scripts/train.sh
#   On the CPU smaller defaults hold: NUM_GPUS_SEQ "1 2", ACC_BATCH_SIZE 4, GRAD_ACC_SEQ "2 4", BATCH_SIZE_SEQ "4",
#   BENCHMARK_EPOCHS 2, BENCHMARK_STEPS 2, no PRE_ALLOCATE. Where DATA_DIR is not given and there is no
#   /datasets/LibriSpeech, synthetic speech is made and taken, and results go to results/asr_benchmark.
#
#   Left in OUTPUT_DIR: a log of each run, perf-train_dali-<device>_amp-<bool>_1x<gpus>x<batch>x<accumulation>.json
#   (Jasper: ..._ngpus<gpus>_bs<batch>.json), and from all such logs there perf-train.md, .csv and .png. Run it with
#   AMP=true and with AMP=false into the same OUTPUT_DIR to have the speed-up, and with 1 process for weak scaling.
#
# examples: NUM_GPUS_SEQ="8 4 1" AMP=true bash scripts/train_benchmark.sh
#           ACC_BATCH_SIZE=4 GRAD_ACC_SEQ="2 4" NUM_GPUS_SEQ="1 2" bash scripts/train_benchmark.sh
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/asr.sh"
parse_common "$@"
find_asr_python
take_words "${ARGS[@]}"
read_model
NUM_GPUS=1 read_device 1 gpu # the sequences set the number of each run
read_benchmark_folders

if [[ $CPU == true ]]; then
    gpus_seq="1 2" acc_batch=4 grad_acc_seq="2 4" batch_seq=4 measured_epochs=2 steps=2 pre_allocate=
else
    gpus_seq="8 4 1" acc_batch=144 grad_acc_seq="4 2" batch_seq=32 measured_epochs=20 steps=0 pre_allocate="1408 1920"
    [[ $FAMILY == quartznet ]] || gpus_seq="1 4 8" pre_allocate=
fi
AMP=${AMP:-false}
BENCHMARK_STEPS=${BENCHMARK_STEPS:-$steps}
require_booleans AMP
require_counts BENCHMARK_STEPS

# All runs, worked out and checked before the first starts: "gpus batch accumulation measured_epochs all_epochs name".
runs=()
prefix=perf-train_dali-${DALI_DEVICE}_amp-$AMP
for gpus in ${NUM_GPUS_SEQ:-$gpus_seq}; do
    require_positive_integers gpus
    if [[ $FAMILY == quartznet ]]; then
        for accumulation in ${GRAD_ACC_SEQ:-$grad_acc_seq}; do
            acc_batch=${ACC_BATCH_SIZE:-$acc_batch} measured_epochs=${BENCHMARK_EPOCHS:-$measured_epochs}
            require_positive_integers accumulation acc_batch measured_epochs
            ((acc_batch * 8 % (accumulation * gpus) == 0)) ||
                die "ACC_BATCH_SIZE x 8 = $acc_batch x 8 = $((acc_batch * 8)) utterances cannot be dealt to" \
                    "$gpus GPUs (NUM_GPUS_SEQ) x $accumulation accumulation steps (GRAD_ACC_SEQ) evenly"
            batch=$((acc_batch * 8 / (accumulation * gpus)))
            measured=$((measured_epochs * gpus / 8))
            ((measured >= 2)) || measured=2
            ((measured <= measured_epochs)) || measured=$measured_epochs
            name=${prefix}_1x${gpus}x${batch}x$accumulation
            runs+=("$gpus $batch $accumulation $measured $((measured + 1)) $name")
        done
    else
        [[ -z ${ACC_BATCH_SIZE:-}${GRAD_ACC_SEQ:-} ]] ||
            die "ACC_BATCH_SIZE and GRAD_ACC_SEQ are QuartzNet's; with Jasper set BATCH_SIZE_SEQ and GRAD_ACCUMULATION_STEPS"
        for batch in ${BATCH_SIZE_SEQ:-$batch_seq}; do
            accumulation=${GRAD_ACCUMULATION_STEPS:-1} epochs=${EPOCHS_THIS_JOB:-2}
            require_positive_integers batch accumulation epochs
            ((batch % accumulation == 0)) ||
                die "a batch of $batch (BATCH_SIZE_SEQ) is not divisible by GRAD_ACCUMULATION_STEPS=$accumulation"
            name=${prefix}_ngpus${gpus}_bs$batch
            runs+=("$gpus $((batch / accumulation)) $accumulation ${BENCHMARK_EPOCHS:-1} $epochs $name")
        done
    fi
    NUM_GPUS=$gpus
    [[ $CPU == true ]] || require_gpus
done

export DATA_DIR MODEL_CONFIG DRY_RUN CPU DALI_DEVICE AMP
export TRAIN_MANIFESTS=${TRAIN_MANIFESTS:-$(manifest_names "$(default_set train-clean-100 train)")}
export EPOCHS=${EPOCHS:-100000} SAVE_FREQUENCY=${SAVE_FREQUENCY:-100000} EVAL_FREQUENCY=${EVAL_FREQUENCY:-100000}
export PREDICTION_FREQUENCY=${PREDICTION_FREQUENCY:-100000} RESUME=false EMA=${EMA:-0}
export LEARNING_RATE=${LEARNING_RATE:-0.0001} PRE_ALLOCATE=${PRE_ALLOCATE-$pre_allocate}
unset CHECKPOINT BATCH_SIZE GRAD_ACCUMULATION_STEPS

train() { # gpus batch accumulation measured_epochs all_epochs name
    local few=() log_file=$OUTPUT_DIR/$6.json
    if ((BENCHMARK_STEPS)); then
        few=(--override_config "input_train.audio_dataset.max_utts=$((BENCHMARK_STEPS * $1 * $2 * $3))"
            --override_config "input_val.audio_dataset.max_utts=$2")
    fi
    NUM_GPUS=$1 GPU_BATCH_SIZE=$2 GRAD_ACCUMULATION=$3 BENCHMARK_EPOCHS=$4 EPOCHS_THIS_JOB=$5 \
        OUTPUT_DIR=$OUTPUT_DIR/runs/$6 LOG_FILE=$log_file \
        bash "$here/train.sh" --no_save "${few[@]}" "${EXTRA[@]}"
}

for index in "${!runs[@]}"; do
    read -ra words <<<"${runs[index]}"
    log "== run $((index + 1)) of ${#runs[@]}: ${words[-1]}"
    train "${words[@]}" || note_failure $? "${words[-1]}"
done
run "$PYTHON_ASR" -m jasper_pt.benchmark_tables train "$OUTPUT_DIR"
stop_if_failed
