#!/usr/bin/env bash
# The published training runs, each under its published name: the links beside this file.
#
# usage: [VARIABLE=value...] bash scripts/platform/<platform>_<model>_<precision>_<n>GPU.sh [word or --flag of train.sh...]
#                                                                                           [--dry-run] [--help]
#
#   The name says platform, model, precision (AMP; TF32 and FP32 are without it) and GPUs; the table in preset.sh adds
#   what fits on one GPU there. Variables that are set already win. All else is as scripts/train.sh --help says.
#
# example: DATA_DIR=/data/LibriSpeech bash scripts/platform/DGXA100_QuartzNet_AMP_8GPU.sh
set -euo pipefail
scripts=$(dirname "${BASH_SOURCE[0]}")/..
# shellcheck source-path=SCRIPTDIR/..
source "$scripts/lib.sh"
parse_common "$@"

# Utterances of an update on one GPU, and the passes they are split into.
name=${0##*/}
case ${name%.sh} in
    DGXA100_QuartzNet_AMP_8GPU | DGXA100_QuartzNet_TF32_8GPU) batch=144 accumulation=2 ;;
    DGX2_QuartzNet_AMP_8GPU | DGX2_QuartzNet_FP32_8GPU) batch=144 accumulation=4 ;;
    DGX2_QuartzNet_AMP_16GPU | DGX2_QuartzNet_FP32_16GPU) batch=72 accumulation=2 ;;
    DGXA100_Jasper_AMP_8GPU | DGX1-32GB_Jasper_AMP_8GPU | DGX2_Jasper_AMP_8GPU) batch=64 accumulation=1 ;;
    DGX2_Jasper_AMP_16GPU | DGX2_Jasper_FP32_16GPU) batch=64 accumulation=1 ;;
    DGXA100_Jasper_TF32_8GPU | DGX1-32GB_Jasper_FP32_8GPU | DGX2_Jasper_FP32_8GPU) batch=64 accumulation=2 ;;
    DGX1-16GB_Jasper_AMP_8GPU | DGX1-16GB_Jasper_FP32_8GPU) batch=64 accumulation=4 ;;
    *) die "$name is no published run: start one of the links beside it, such as DGXA100_QuartzNet_AMP_8GPU.sh" ;;
esac
IFS=_ read -r _ model precision gpus <<<"${name%.sh}"
amp=false
[[ $precision != AMP ]] || amp=true
[[ $model != Jasper ]] || export MODEL_CONFIG=${MODEL_CONFIG:-configs/jasper10x5dr_speedp-online_speca.yaml}
[[ -n ${GPU_BATCH_SIZE:-} ]] || export BATCH_SIZE=${BATCH_SIZE:-$batch}
export AMP=${AMP:-$amp} CPU=${CPU:-false} NUM_GPUS=${NUM_GPUS:-${gpus%GPU}} DRY_RUN
export GRAD_ACCUMULATION=${GRAD_ACCUMULATION:-${GRAD_ACCUMULATION_STEPS:-$accumulation}}
exec bash "$scripts/train.sh" "${ARGS[@]}"
