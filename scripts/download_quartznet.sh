#!/usr/bin/env bash
# The published QuartzNet model of a language, from NGC.
#
# usage: [VARIABLE=value...] bash scripts/download_quartznet.sh [LANGUAGE] [--dry-run] [--help]
#
#   LANGUAGE    en (nvidia_quartznet_210504.pt); ca, de, es, fr, it, pl, ru, zh (stt_<language>_quartznet15x5.nemo)
#               (default: en)
#   MODEL_DIR   where it goes (default: pretrained_models/quartznet_<LANGUAGE>)
#   NGC_MIRROR  URL or folder in place of NGC's, with the same paths below it: <model>/versions/<version>/zip
#   ASR_PYTHON  the interpreter (default: .venv/asr)
#
#   A model that is there is kept, and an interrupted download is gone on with.
#
# example: bash scripts/download_quartznet.sh de
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]} <= 1)) || die "one word is wanted, LANGUAGE, not '${ARGS[*]}'"
[[ ${LANGUAGE:-} != *[_:.]* ]] || LANGUAGE=en # a list of locales, which desktops keep in a variable of this name
LANGUAGE=${ARGS[0]:-${LANGUAGE:-en}}
[[ $LANGUAGE =~ ^(en|ca|de|es|fr|it|pl|ru|zh)$ ]] ||
    die "there is no published QuartzNet for '$LANGUAGE'; there is one for en, ca, de, es, fr, it, pl, ru, zh"
find_asr_python

flags=(--model_dir "${MODEL_DIR:-pretrained_models/quartznet_$LANGUAGE}")
[[ -z ${NGC_MIRROR:-} ]] || flags+=(--mirror "$NGC_MIRROR")
run "$PYTHON_ASR" -m data.quartznet "$LANGUAGE" "${flags[@]}"
