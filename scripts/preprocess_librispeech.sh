#!/usr/bin/env bash
# Manifests of LibriSpeech for the launchers, straight from its FLAC files; or, as once published, from WAV copies.
#
# usage: [VARIABLE=value...] bash scripts/preprocess_librispeech.sh [SPEED...] [--dry-run] [--help]
#
#   DATA_DIR    where scripts/download_librispeech.sh left <subset>/ (default: /datasets/LibriSpeech);
#               librispeech-<subset>-wav.json go there, whatever the format of the files they name
#   SUBSETS     which; any folder of DATA_DIR in LibriSpeech layout will do (default: the seven of LibriSpeech, as far
#               as they are there)
#   WAV         true converts to WAV in <subset>-wav/, three times the size of FLAC (default: false; true with SPEEDS)
#   SPEEDS      speeds of further WAV copies of the train-* subsets, also as words (default: none; published: 0.9 1.1)
#   ASR_PYTHON  the interpreter (default: .venv/asr)
#
#   Files that an interrupted conversion left whole are kept.
#
# examples: DATA_DIR=data/LibriSpeech bash scripts/preprocess_librispeech.sh
#           bash scripts/preprocess_librispeech.sh 0.9 1.1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
DATA_DIR=${DATA_DIR:-/datasets/LibriSpeech}
read -ra speeds <<<"${ARGS[*]:-${SPEEDS:-}}"
WAV=${WAV:-$( ((${#speeds[@]})) && echo true || echo false)}
[[ $WAV =~ ^(true|false)$ ]] || die "WAV must be true or false, not '$WAV'"
[[ $WAV == true || ${#speeds[@]} == 0 ]] || die "SPEEDS needs WAV=true: copies at other speeds are WAV files"
[[ $DRY_RUN == true || -d $DATA_DIR ]] ||
    die "DATA_DIR=$DATA_DIR does not exist: bash scripts/download_librispeech.sh makes it, or set DATA_DIR to yours"
find_asr_python

subsets=()
if [[ -n ${SUBSETS:-} ]]; then
    read -ra subsets <<<"$SUBSETS"
else
    for subset in dev-clean dev-other test-clean test-other train-clean-100 train-clean-360 train-other-500; do
        [[ $DRY_RUN != true && ! -d $DATA_DIR/$subset ]] || subsets+=("$subset")
    done
    ((${#subsets[@]})) || die "DATA_DIR=$DATA_DIR has none of LibriSpeech's subsets: name its folders in SUBSETS"
fi

for subset in "${subsets[@]}"; do
    flags=()
    if [[ $WAV == true ]]; then
        flags=(--wav_dir "$DATA_DIR/$subset-wav")
        [[ $subset != train* || ${#speeds[@]} == 0 ]] || flags+=(--speeds "${speeds[@]}")
    fi
    run "$PYTHON_ASR" -m data.librispeech manifest "$DATA_DIR/$subset" "$DATA_DIR/librispeech-$subset-wav.json" "${flags[@]}"
done
