#!/usr/bin/env bash
# Transcribes and scores a set of LibriSpeech, or of any manifest; or measures latency (NUM_STEPS).
#
# usage: [VARIABLE=value...] bash scripts/inference.sh [DATA_DIR [MODEL_CONFIG [OUTPUT_DIR [CHECKPOINT]]]] [--flag...]
#                                                      [--dry-run] [--help]
#
#   --flag words go to jasper_pt/run_inference.py as they are, behind everything else. With --transcribe_wav FILE or
#   --transcribe_filelist PATH... among them no data set is needed. --times shows when each word is said;
#   --output_format txt json ctm srt vtt (any of them) writes such files to OUTPUT_DIR/transcripts (docs/transcripts.md).
#   DATA_DIR (/datasets/LibriSpeech)   OUTPUT_DIR (/results)
#   CHECKPOINT (pretrained_models/quartznet_en/nvidia_quartznet_210504.pt | /checkpoints/jasper_fp16.pt)
#   MODEL_CONFIG (what a given CHECKPOINT was saved with, else configs/quartznet15x5_speedp-online-1.15_speca.yaml)
#                      decides the defaults given as QuartzNet | Jasper
#   DATASET (test-other; test where DATA_DIR has such a set); VAL_MANIFESTS (librispeech-<DATASET>-wav.json): files of DATA_DIR or paths
#   PREDICTION_FILE (OUTPUT_DIR/<DATASET>.predictions; set but empty: none), LOGITS_FILE (none)
#   CPU (true where nvidia-smi shows no GPU), NUM_GPUS (1), AMP (false), BATCH_SIZE (64), EMA (true), SEED (0)
#   CUDNN_BENCHMARK (false), DALI_DEVICE (gpu where DALI is installed, else none), PAD_LEADING (0 | 16 frames)
#   MAX_DURATION (of the model config, seconds), PAD_TO_MAX_DURATION (false)
#   NUM_STEPS (0; above: time so many batches), NUM_WARMUP_STEPS (0)
#   NNODES, RDZV_ENDPOINT, RDZV_ID: several machines, as for train.sh
#   LOG_FILE (OUTPUT_DIR/nvlog_infer.json), DISTRIBUTED, OMP_NUM_THREADS, ASR_PYTHON
#   DECODER (greedy): or beam, a CTC prefix beam search (docs/decoding.md), with
#     LM (n-gram model, ARPA or KenLM binary), LM_ALPHA (0.5), LM_BETA (0), BEAM_WIDTH (100), LEXICON (words allowed),
#     HOTWORDS (words preferred), DECODER_CONFIG (all of these, as tune_decoder.sh writes them): files and numbers; none
#
# examples: CHECKPOINT=results/QuartzNet_best_checkpoint.pt DATASET=dev-clean bash scripts/inference.sh
#           CHECKPOINT=mine.pt MODEL_CONFIG=quartznet5x5 bash scripts/inference.sh --transcribe_wav speech.flac
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/asr.sh"
parse_common "$@"
find_asr_python
take_words "${ARGS[@]}"
given_config=false # a checkpoint of this recipe knows its own
[[ -z ${MODEL_CONFIG:-} && -n ${CHECKPOINT:-} ]] || given_config=true
read_model
read_device 1 gpu
read_folders

CHECKPOINT=${CHECKPOINT-$(published_checkpoint)}
pad_leading=0
[[ $FAMILY == quartznet ]] || pad_leading=16
DATASET=${DATASET:-$(default_set test-other test)}
scoring=true
[[ " ${EXTRA[*]}" != *" --transcribe_"* ]] || scoring=false
[[ $scoring == false ]] || PREDICTION_FILE=${PREDICTION_FILE-$OUTPUT_DIR/$DATASET.predictions}
AMP=${AMP:-false} BATCH_SIZE=${BATCH_SIZE:-64} EMA=${EMA:-true} SEED=${SEED:-0} PAD_LEADING=${PAD_LEADING:-$pad_leading}
CUDNN_BENCHMARK=${CUDNN_BENCHMARK:-false} NUM_STEPS=${NUM_STEPS:-0} NUM_WARMUP_STEPS=${NUM_WARMUP_STEPS:-0}
LOG_FILE=${LOG_FILE:-$OUTPUT_DIR/nvlog_infer.json}
require_booleans AMP EMA CUDNN_BENCHMARK
require_positive_integers BATCH_SIZE
require_counts NUM_STEPS NUM_WARMUP_STEPS PAD_LEADING SEED
[[ -z $CHECKPOINT || -f $CHECKPOINT || $DRY_RUN == true ]] ||
    die "CHECKPOINT=$CHECKPOINT does not exist: set CHECKPOINT to a trained model, or fetch the published one with" \
        "'bash scripts/download_quartznet.sh'; set but empty, the weights are random"
read_durations input_val

flags=(
    "--output_dir=$OUTPUT_DIR" "--log_file=$LOG_FILE"
    "${device_flags[@]}" "--batch_size=$BATCH_SIZE" "--seed=$SEED" "--pad_leading=$PAD_LEADING"
    "--steps=$NUM_STEPS" "--warmup_steps=$NUM_WARMUP_STEPS"
    ${CHECKPOINT:+"--ckpt=$CHECKPOINT"} ${PREDICTION_FILE:+"--save_predictions=$PREDICTION_FILE"}
    ${LOGITS_FILE:+"--save_logits=$LOGITS_FILE"}
    "${overrides[@]}"
    ${DECODER:+"--decoder=$DECODER"} ${DECODER_CONFIG:+"--decoder_config=$DECODER_CONFIG"}
    ${LM:+"--lm=$LM"} ${LM_ALPHA:+"--lm_alpha=$LM_ALPHA"} ${LM_BETA:+"--lm_beta=$LM_BETA"}
    ${BEAM_WIDTH:+"--beam_width=$BEAM_WIDTH"} ${LEXICON:+"--lexicon=$LEXICON"} ${HOTWORDS:+"--hotwords=$HOTWORDS"}
)
[[ $given_config == false ]] || flags+=("--model_config=$MODEL_CONFIG")
[[ $AMP == false ]] || flags+=(--amp)
[[ $EMA == false || -z $CHECKPOINT ]] || flags+=(--ema)
if [[ $CUDNN_BENCHMARK == true ]]; then flags+=(--cudnn_benchmark); else flags+=(--no-cudnn_benchmark); fi
if [[ $scoring == true ]]; then
    val_manifests=()
    find_manifests val_manifests "${VAL_MANIFESTS:-$(manifest_names "$DATASET")}"
    require_manifests "${val_manifests[@]}"
    flags+=("--dataset_dir=$DATA_DIR" --val_manifests "${val_manifests[@]}")
fi
start jasper_pt.run_inference "${flags[@]}"
