#!/usr/bin/env bash
# Lint and tests: ruff, shellcheck, pytest. The last line is pytest's summary.
#
# usage: bash scripts/test.sh [pytest argument...] [--dry-run] [--help]
#
# examples: bash scripts/test.sh
#           bash scripts/test.sh tests/runkit -k store
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
export DRY_RUN
cd "$ROOT"

bash scripts/setup.sh dev
find_bert_python

log "== ruff"
run .venv/dev/bin/ruff check .

log "== shellcheck"
mapfile -t shells < <(find . \( -name .git -o -name .venv -o -name results \) -prune -o \
    -type f \( -name '*.sh' -o -path ./.ci/run \) -print | sort)
((${#shells[@]})) || die "no shell scripts found under $ROOT"
run .venv/dev/bin/shellcheck "${shells[@]}"
log "${#shells[@]} scripts"

log "== pytest"
export TF_CPP_MIN_LOG_LEVEL=2
run "$PYTHON_BERT" -m pytest -n 2 "${ARGS[@]}"
