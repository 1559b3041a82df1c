#!/usr/bin/env bash
# Measures inference latency over batch sizes and durations, and writes the published table.
#
# usage: [VARIABLE=value...] bash scripts/inference_benchmark.sh [DATA_DIR [MODEL_CONFIG [OUTPUT_DIR [CHECKPOINT]]]]
#                                                                [--flag...] [--dry-run] [--help]
#
#   For each of MAX_DURATION_SEQ ("2 7 16.7" seconds) and each of BATCH_SIZE_SEQ ("1 2 4 8 16"): NUM_WARMUP_STEPS (10)
#   batches, then NUM_STEPS (500; on the CPU 50) that are timed. Utterances up to the duration are taken, and padded
#   to it (PAD_TO_MAX_DURATION true). One process.
#   CHECKPOINT (the published model; where it is not there, random weights: the time is the same), DATASET (test-other)
#   AMP (false), CUDNN_BENCHMARK (true), DALI_DEVICE (cpu where DALI is installed, else none), PAD_LEADING (0), CPU
#   and all else: as in scripts/inference.sh
#   Where DATA_DIR is not given and there is no /datasets/LibriSpeech, synthetic speech is made and taken, and results
#   go to results/asr_benchmark.
#
#   Left in OUTPUT_DIR: a log of each run, perf-infer_dali-<device>_amp-<bool>_dur<D>_bs<B>.json, and from all such
#   logs there perf-infer.md, .csv and .png. Run it with AMP=true and with AMP=false into the same OUTPUT_DIR to have
#   the speed-up.
#
# example: BATCH_SIZE_SEQ="1 4" MAX_DURATION_SEQ="2 7" AMP=true bash scripts/inference_benchmark.sh
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/asr.sh"
parse_common "$@"
find_asr_python
take_words "${ARGS[@]}"
given_config=${MODEL_CONFIG:-}
read_model
NUM_GPUS=1
read_device 1 cpu
read_benchmark_folders

steps=500
if [[ $CPU == true && -z ${NUM_STEPS:-} ]]; then
    steps=50
    log "note: on the CPU NUM_STEPS is $steps (published: 500)"
fi
if [[ -z ${CHECKPOINT+set} && -f $(published_checkpoint) ]]; then
    CHECKPOINT=$(published_checkpoint)
    given_config=$MODEL_CONFIG
elif [[ -z ${CHECKPOINT:-} ]]; then
    log "note: no CHECKPOINT, so the weights are random"
fi
AMP=${AMP:-false} NUM_STEPS=${NUM_STEPS:-$steps}
require_booleans AMP
require_positive_integers NUM_STEPS
for BATCH_SIZE in ${BATCH_SIZE_SEQ:=1 2 4 8 16}; do require_positive_integers BATCH_SIZE; done
for MAX_DURATION in ${MAX_DURATION_SEQ:=2 7 16.7}; do require_positive_numbers MAX_DURATION; done

export DATA_DIR MODEL_CONFIG=$given_config DRY_RUN CPU DALI_DEVICE NUM_GPUS AMP NUM_STEPS
export CHECKPOINT=${CHECKPOINT:-} PREDICTION_FILE='' NUM_WARMUP_STEPS=${NUM_WARMUP_STEPS:-10}
export CUDNN_BENCHMARK=${CUDNN_BENCHMARK:-true} PAD_TO_MAX_DURATION=${PAD_TO_MAX_DURATION:-true}
export PAD_LEADING=${PAD_LEADING:-0}

for MAX_DURATION in $MAX_DURATION_SEQ; do
    for BATCH_SIZE in $BATCH_SIZE_SEQ; do
        name=perf-infer_dali-${DALI_DEVICE}_amp-${AMP}_dur${MAX_DURATION}_bs$BATCH_SIZE
        log "== $name"
        export MAX_DURATION BATCH_SIZE
        log_file=$OUTPUT_DIR/$name.json
        OUTPUT_DIR=$OUTPUT_DIR/runs/$name LOG_FILE=$log_file bash "$here/inference.sh" "${EXTRA[@]}" ||
            note_failure $? "$name"
    done
done
run "$PYTHON_ASR" -m jasper_pt.benchmark_tables inference "$OUTPUT_DIR"
stop_if_failed
