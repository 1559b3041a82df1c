#!/usr/bin/env bash
# Finds out when the words of known texts are said, and writes subtitles or other forms with times.
#
# usage: [VARIABLE=value...] bash scripts/align.sh AUDIO TEXT [AUDIO TEXT...] [--flag...] [--dry-run] [--help]
#
#   AUDIO: a sound file of any format and length; TEXT: a text file with what is said in it.
#   --flag words go to jasper_pt/align.py as they are: --text WORDS in place of the one TEXT, or --manifests FILE...
#   CHECKPOINT (pretrained_models/quartznet_en/nvidia_quartznet_210504.pt), a .pt or .nemo file
#   FORMATS (srt json): any of txt json ctm srt vtt
#   OUTPUT_DIR (results/): the files are put into alignments/ there
#   CPU (true where nvidia-smi shows no GPU), EMA (true), OMP_NUM_THREADS, ASR_PYTHON
#
# example: CHECKPOINT=results/QuartzNet_best_checkpoint.pt bash scripts/align.sh chapter1.mp3 chapter1.txt
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/asr.sh"
parse_common "$@"
find_asr_python
EXTRA=("${ARGS[@]}") PLANNING=false
((${#EXTRA[@]})) || die "what is to be aligned? AUDIO TEXT..., see --help"
FAMILY=quartznet
CHECKPOINT=${CHECKPOINT:-$(published_checkpoint)}
FORMATS=${FORMATS:-srt json} OUTPUT_DIR=${OUTPUT_DIR:-results/} EMA=${EMA:-true} NUM_GPUS=1 DALI_DEVICE=none
require_booleans EMA
[[ -f $CHECKPOINT || $DRY_RUN == true ]] ||
    die "CHECKPOINT=$CHECKPOINT does not exist: set CHECKPOINT to a trained model, or fetch the published one with" \
        "'bash scripts/download_quartznet.sh'"
read_device 1 none

read -ra formats <<<"$FORMATS"
flags=(--output_format "${formats[@]}" "--ckpt=$CHECKPOINT" "--output_dir=$OUTPUT_DIR")
[[ $CPU == false ]] || flags+=(--cpu)
[[ $EMA == true ]] || flags+=(--no-ema)
start jasper_pt.align "${flags[@]}"
