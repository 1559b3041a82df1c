#!/usr/bin/env bash
# LibriSpeech from openslr.org: fetched, verified, unpacked. The same call goes on after an interruption.
#
# usage: [VARIABLE=value...] bash scripts/download_librispeech.sh [DATA_DIR] [--dry-run] [--help]
#
#   DATA_DIR       where <subset>/ and <subset>.tar.gz go (default: /datasets/LibriSpeech)
#   SUBSETS        which: dev-clean dev-other test-clean test-other (0.3 GB each), train-clean-100 (6 GB),
#                  train-clean-360 (23 GB), train-other-500 (30 GB) (default: all)
#   KEEP_ARCHIVES  false removes each archive once it is unpacked (default: true)
#   MIRROR         URL or folder that holds <subset>.tar.gz, in place of openslr.org and its mirrors
#   ASR_PYTHON     the interpreter (default: .venv/asr)
#
#   Room for the archive and what is in it is needed; whole subsets that are there are kept. Proxies are taken from
#   https_proxy and no_proxy. What comes next: scripts/preprocess_librispeech.sh
#
# example: SUBSETS="train-clean-100 dev-clean" bash scripts/download_librispeech.sh data/LibriSpeech
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]} <= 1)) || die "one word is wanted, DATA_DIR, not '${ARGS[*]}'"
DATA_DIR=${ARGS[0]:-${DATA_DIR:-/datasets/LibriSpeech}}
KEEP_ARCHIVES=${KEEP_ARCHIVES:-true}
[[ $KEEP_ARCHIVES =~ ^(true|false)$ ]] || die "KEEP_ARCHIVES must be true or false, not '$KEEP_ARCHIVES'"
find_asr_python

flags=()
if [[ -n ${SUBSETS:-} ]]; then
    read -ra subsets <<<"$SUBSETS"
    flags+=(--subsets "${subsets[@]}")
fi
[[ -z ${MIRROR:-} ]] || flags+=(--mirror "$MIRROR")
[[ $KEEP_ARCHIVES == true ]] || flags+=(--remove_archives)
run "$PYTHON_ASR" -m data.librispeech download "$DATA_DIR" "${flags[@]}"
