#!/usr/bin/env bash
# Finds the options of the beam search that make the fewest errors on a development set: the network runs once, and its
# log-probabilities are decoded with each setting. The best go to OUTPUT_DIR/decoder.yaml (DECODER_CONFIG of
# inference.sh), the table to OUTPUT_DIR/decoder.yaml.csv.
#
# usage: [VARIABLE=value...] bash scripts/tune_decoder.sh [DATA_DIR [MODEL_CONFIG [OUTPUT_DIR [CHECKPOINT]]]] [--flag...]
#                                                         [--dry-run] [--help]
#
#   --flag words go to jasper_pt/tune_decoder.py as they are. Variables are those of inference.sh (see its --help), and
#   DATASET (dev-other; dev where DATA_DIR has such a set), VAL_MANIFESTS
#   LM (n-gram model; 'python -m jasper_pt.build_lm' makes one), LEXICON, HOTWORDS
#   SEARCH (coordinate): or grid
#   LOGITS_FILE (OUTPUT_DIR/<DATASET>.logits.safetensors); where it is there already, the network does not run
#
# example: CHECKPOINT=mine.pt LM=3gram.arpa DATASET=dev bash scripts/tune_decoder.sh data/mine '' results/mine
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/asr.sh"
parse_common "$@"
find_asr_python
take_words "${ARGS[@]}"
read_device 1 gpu
read_folders

DATASET=${DATASET:-$(default_set dev-other dev)} SEARCH=${SEARCH:-coordinate}
LOGITS_FILE=${LOGITS_FILE:-$OUTPUT_DIR/$DATASET.logits.safetensors}
[[ $SEARCH == coordinate || $SEARCH == grid ]] || die "SEARCH must be coordinate or grid, not '$SEARCH'"
val_manifests=()
find_manifests val_manifests "${VAL_MANIFESTS:-$(manifest_names "$DATASET")}"
require_manifests "${val_manifests[@]}"

if [[ ! -f $LOGITS_FILE ]]; then
    # The words of this script are for the tuner; those of the network come as variables, which it has too.
    plain=(env -u DECODER -u DECODER_CONFIG -u LM -u LM_ALPHA -u LM_BETA -u BEAM_WIDTH -u LEXICON -u HOTWORDS
        "DATA_DIR=$DATA_DIR" "OUTPUT_DIR=$OUTPUT_DIR" "DATASET=$DATASET" "LOGITS_FILE=$LOGITS_FILE" NUM_GPUS=1
        PREDICTION_FILE= "CPU=$CPU" "DALI_DEVICE=$DALI_DEVICE")
    [[ -z ${MODEL_CONFIG:-} ]] || plain+=("MODEL_CONFIG=$MODEL_CONFIG")
    [[ -z ${CHECKPOINT:-} ]] || plain+=("CHECKPOINT=$CHECKPOINT")
    run "${plain[@]}" bash "$here/inference.sh"
fi
NUM_GPUS=1 launch=()
flags=(
    "--logits=$LOGITS_FILE" "--dataset_dir=$DATA_DIR" "--search=$SEARCH" "--output=$OUTPUT_DIR/decoder.yaml"
    ${LM:+"--lm=$LM"} ${LEXICON:+"--lexicon=$LEXICON"} ${HOTWORDS:+"--hotwords=$HOTWORDS"}
    --manifests "${val_manifests[@]}"
)
start jasper_pt.tune_decoder "${flags[@]}"
