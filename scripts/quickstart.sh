#!/usr/bin/env bash
# From nothing but Python and bash to a first trained model, without any download of data.
#
# usage: bash scripts/quickstart.sh [bert|asr|all] [--dry-run] [--help]
#
#   bert   environment, text that ships with Python, two-phase pre-training of a tiny BERT, evaluation; then questions
#          about that text, some of which it does not answer: fine-tuning, answers, their scores;
#          minutes on two CPU cores; the figures are left in results/quickstart_bert/summary.json
#   asr    environment, speech made on the spot, training of a small QuartzNet, its word error rate on voices and
#          sentences that it has not heard, transcription of one file; minutes on two CPU cores; the figures are left
#          in results/quickstart_asr/summary.json
#   all    both (default)
#
#   BERT_PYTHON, ASR_PYTHON   interpreters that have the packages already; set-up is then left out
#   DATA_DIR                  where the data stage of bert works (default: data)
#
# A second call keeps environment and data, and trains anew.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/pretraining.sh"
source "$here/asr.sh"
source "$here/configs/pretrain_config.sh"
parse_common "$@"
((${#ARGS[@]} <= 1)) || die "one of bert, asr, all is wanted, not '${ARGS[*]}'"
export DATA_DIR DRY_RUN

stage() { log "== $1 ($SECONDS s since the start)"; }

# The tiny model with the vocabulary of the records: write_model_config TRAINING_FOLDER TARGET.
write_model_config() {
    "$PYTHON_BERT" - "$1/manifest.json" "$ROOT/configs/bert/tiny.json" "$2" <<'END'
import sys
from runkit.files import read_json, write_json

manifest, tiny, target = sys.argv[1:]
write_json(target, read_json(tiny) | {"vocab_size": read_json(manifest)["vocab_size"]})
END
}

quickstart_bert() {
    local results=$ROOT/results/quickstart_bert vocabulary=$DATA_DIR/vocab/embedded/vocab.txt words
    if [[ -z ${BERT_PYTHON:-} ]]; then
        stage "environment"
        bash "$here/setup.sh" bert
    fi
    find_bert_python

    stage "data"
    run bash "$ROOT/data/create_datasets_from_start.sh" embedded
    export SOURCES=embedded
    find_records 128 20

    stage "pre-training"
    run rm -rf "$results"
    run write_model_config "$train_dirs" "$results/bert_config.json"
    read -ra words <<<"$(cpu_tiny)"
    RESULTS_DIR=$results BERT_CONFIG=$results/bert_config.json bash "$here/run_pretraining_lamb.sh" "${words[@]}" \
        --display_loss_steps=60 --max_eval_steps=0

    stage "questions"
    run "$PYTHON_BERT" -m data.embedded_questions --output_dir "$DATA_DIR/embedded_questions"

    stage "fine-tuning"
    SQUAD_DIR=$DATA_DIR/embedded_questions VOCAB_FILE=$vocabulary BERT_CONFIG=$results/bert_config.json \
        RESULTS_DIR=$results/squad bash "$here/run_squad.sh" 32 1e-3 fp32 false 1 160 64 tiny 2.0 \
        "$results/phase_2" 8 --max_query_length=32 --display_loss_steps=150

    stage "summary"
    run "$PYTHON_BERT" -m bert_tf.summary "$results"
    run "$PYTHON_BERT" -m runkit.report "$results"
    log "ask the model about a text of yours: bash scripts/answer.sh $results/squad"
}

quickstart_asr() {
    local results=$ROOT/results/quickstart_asr epochs=24 amp=true checkpoint weights files text
    if [[ -z ${ASR_PYTHON:-} ]]; then
        stage "environment"
        bash "$here/setup.sh" asr
    fi
    find_asr_python
    unset TRAIN_MANIFESTS VAL_MANIFESTS CHECKPOINT LOG_FILE BATCH_SIZE MAX_DURATION PAD_TO_MAX_DURATION PAD_LEADING \
        EPOCHS_THIS_JOB PRE_ALLOCATE DISTRIBUTED NUM_STEPS
    export NUM_GPUS=1 DALI_DEVICE=none
    read_device 1 none
    export CPU
    # CPUs without bf16 arithmetic compute it slower than fp32.
    [[ $CPU == false ]] || has_bf16_cpu || amp=false

    stage "speech"
    run "$PYTHON_ASR" -m data.embedded_speech --output_dir "$CORPUS"

    stage "training"
    run rm -rf "$results"
    GPU_BATCH_SIZE=16 GRAD_ACCUMULATION=1 AMP=$amp OPTIMIZER=adamw LEARNING_RATE=0.003 WEIGHT_DECAY=0.01 \
        LR_POLICY=cosine WARMUP_EPOCHS=1 HOLD_EPOCHS=0 EPOCHS=$epochs EMA=0.99 SEED=0 SAVE_FREQUENCY=10 \
        EVAL_FREQUENCY=625 PREDICTION_FREQUENCY=625 \
        TRAIN_MANIFESTS=librispeech-train-wav.json VAL_MANIFESTS=librispeech-dev-wav.json \
        bash "$here/train.sh" "$CORPUS" quartznet_quickstart "$results/training" --log_frequency 125
    checkpoint=$results/training/QuartzNet_epoch${epochs}_checkpoint.pt

    stage "test"
    for weights in test test_ema; do
        [[ $weights == test ]] && ema=false || ema=true
        EMA=$ema DATASET=test PREDICTION_FILE='' \
            bash "$here/evaluation.sh" "$CORPUS" quartznet_quickstart "$results/$weights" "$checkpoint"
    done

    stage "transcription of one file"
    files=("$CORPUS"/test/*/*/*.flac)
    text=$(grep -h "^$(basename "${files[0]}" .flac) " "${files[0]%/*}"/*.trans.txt) || true
    log "spoken: ${text#* }"
    bash "$here/inference.sh" "$CORPUS" '' "$results/transcription" "$checkpoint" --transcribe_wav "${files[0]}"

    stage "summary"
    run "$PYTHON_ASR" -m jasper_pt.summary "$results"
    run "$PYTHON_ASR" -m runkit.report "$results"
}

case ${ARGS[0]:-all} in
    bert) quickstart_bert ;;
    asr) quickstart_asr ;;
    all)
        quickstart_bert
        quickstart_asr
        ;;
    *) die "unknown argument '${ARGS[0]}': one of bert, asr, all is wanted" ;;
esac
