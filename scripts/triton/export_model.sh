#!/usr/bin/env bash
# Exports a trained model and puts it into a Triton model repository.
#
# usage: export_model.sh [bert] [WORD...] [--flag=value...] [--dry-run] [--help]
#        [VARIABLE=value...] export_model.sh asr [--flag=value...] [--dry-run] [--help]
#
#   bert: models NAME (token ids to logits) and NAME-squad (question and text to the answer). Words (default):
#    1 init_checkpoint (NVIDIA's fine-tuned weights where data_download.sh put them, else the quickstart's)
#    2 batch_size (8)     3 precision (fp32; int8: quantised; fp16, bf16 and tf32 are for the server's runtime to choose)
#    4 use_xla (taken and without effect)   5 seq_length (as trained)   6 doc_stride (as trained)
#    7 BERT_DIR (folder of vocab.txt and bert_config.json; default: beside the weights)
#    8 triton_model_version (1)             9 triton_model_name (bert)
#   10 triton_dyn_batching_delay (0)       11 triton_engine_count (1)   12 triton_model_overwrite (False)
#   PREDICT_FILE   SQuAD JSON, on which the export is checked (default: the embedded questions)
#
#   asr: models NAME (sound to words) and NAME-onnx (features to log-probabilities).
#   CHECKPOINT_PATH   (default: the quickstart's)      MODEL_NAME (jasper)     MODEL_VERSION (1)
#   BATCH_SIZE (8)    DYNAMIC_DELAY (0, ms)            NUM_ENGINES (1)         PRECISION (fp32, int8)
#   EMA (true: the averaged weights)                   OVERWRITE (false)
#   DATA_DIR, DATASET   where the utterances are on which the export is checked, and which manifest:
#                       DATA_DIR/librispeech-DATASET-wav.json (default: dev of the embedded speech)
#
#   MODEL_REPOSITORY   where the models go (default: triton_models in the results folder)
#   EXPORT_DIR         where the export goes (default: triton_export/NAME in the results folder)
#   --flag=value       of the repository's maker: --backend=onnxruntime, --max_seconds, --decoder_config, ...; all:
#                      .venv/serving/bin/python -m bert_tf.serving.repository --help (jasper_pt.serving.repository)
#
# examples: bash scripts/triton/export_model.sh bert results/squad 8 fp32 false 384 128 '' 1 bert 5
#           DYNAMIC_DELAY=5 bash scripts/triton/export_model.sh asr --backend=onnxruntime
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse_common "$@"
take_recipe "${ARGS[@]}"
find_serving_python
export_flags=()

if [[ $RECIPE == bert ]]; then
    find_bert_python
    split_flags 12 "${WORDS[@]}"
    set -- "${POSITIONAL[@]}"
    published=${BERT_PREP_WORKING_DIR:-${DATA_DIR:-$ROOT/data}}/download/nvidia_pretrained/bert_tf_squad11_large_384
    # shellcheck disable=SC2034 # use_xla is read by its name
    init_checkpoint=${1:-$published/model.ckpt} batch_size=${2:-8} precision=${3:-fp32} use_xla=${4:-false}
    seq_length=${5:-} doc_stride=${6:-} bert_dir=${7:-} version=${8:-1} name=${9:-bert} delay=${10:-0} engines=${11:-1}
    overwrite=${12:-false}
    if [[ -z ${1:-} && ! -f $published/model.ckpt.index ]]; then
        init_checkpoint=$ROOT/results/quickstart_bert/squad
    fi
    [[ $DRY_RUN == true || -e $init_checkpoint || -f $init_checkpoint.index ]] ||
        die "there is no model $init_checkpoint: give init_checkpoint, or make one with 'bash scripts/quickstart.sh bert'"
    [[ $DRY_RUN == true || -f $PREDICT_FILE ]] ||
        die "PREDICT_FILE=$PREDICT_FILE does not exist: name a SQuAD file on which the export is checked"
    require_booleans use_xla
    for pair in "max_seq_length=$seq_length" "doc_stride=$doc_stride" ${bert_dir:+"vocab_file=$bert_dir/vocab.txt"} \
        ${bert_dir:+"bert_config_file=$bert_dir/bert_config.json"}; do
        [[ $pair == *= ]] || export_flags+=("--$pair")
    done
    exporter=("$PYTHON_BERT" -m bert_tf.run_export "--init_checkpoint=$init_checkpoint" "--predict_file=$PREDICT_FILE"
        "${export_flags[@]}")
    maker=bert_tf.serving.repository
else
    find_asr_python
    split_flags 0 "${WORDS[@]}"
    CHECKPOINT_PATH=${CHECKPOINT_PATH:-$ROOT/results/quickstart_asr/training}
    manifest=$SPEECH_DIR/librispeech-${DATASET:-dev}-wav.json
    batch_size=${BATCH_SIZE:-8} precision=${PRECISION:-fp32} version=${MODEL_VERSION:-1} name=${MODEL_NAME:-jasper}
    delay=${DYNAMIC_DELAY:-0} engines=${NUM_ENGINES:-1} overwrite=${OVERWRITE:-false} EMA=${EMA:-true}
    [[ $DRY_RUN == true || -e $CHECKPOINT_PATH ]] ||
        die "there is no model $CHECKPOINT_PATH: set CHECKPOINT_PATH, or make one with 'bash scripts/quickstart.sh asr'"
    [[ $DRY_RUN == true || -f $manifest ]] ||
        die "there is no $manifest: set DATA_DIR and DATASET to utterances on which the export is checked"
    require_booleans EMA
    [[ $EMA == false ]] || export_flags+=(--ema)
    exporter=("$PYTHON_ASR" -m jasper_pt.run_export "--ckpt=$CHECKPOINT_PATH" "--val_manifests=$manifest"
        "--dataset_dir=$SPEECH_DIR" "${export_flags[@]}")
    maker=jasper_pt.serving.repository
fi

overwrite=${overwrite,,}
require_positive_integers batch_size version engines
require_booleans overwrite
model_file=model.onnx
case $precision in
    fp32) ;;
    int8) exporter+=(--int8) model_file=model_int8.onnx ;;
    fp16 | bf16 | tf32)
        log "note: the exported model is fp32; $precision is for the server's runtime (docs/serving.md)"
        ;;
    *) die "precision must be fp32, int8, fp16, bf16 or tf32, not '$precision'" ;;
esac
EXPORT_DIR=${EXPORT_DIR:-$(default_results)/triton_export/$name}
flags=("--triton_model_name=$name" "--triton_model_version=$version" "--triton_max_batch_size=$batch_size"
    "--triton_dyn_batching_delay=$delay" "--triton_engine_count=$engines" "--onnx_file=$model_file")
[[ $overwrite == false ]] || flags+=(--triton_model_overwrite)

run "${exporter[@]}" "--output_dir=$EXPORT_DIR"
run "$PYTHON_SERVING" -m "$maker" "$EXPORT_DIR" "$MODEL_REPOSITORY" "${flags[@]}" "${EXTRA[@]}"
