#!/usr/bin/env bash
# Lint and tests: ruff, shellcheck, pytest in the environment of each recipe. The last line counts all tests.
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
bash scripts/install_test_packages.sh
if command -v g++ >/dev/null && command -v make >/dev/null; then
    bash scripts/install_horovod.sh --cpu
else
    log "no g++ or make, so no Horovod: tests of several BERT processes will skip"
fi
find_bert_python
find_asr_python

log "== ruff"
run .venv/dev/bin/ruff check .

log "== shellcheck"
mapfile -t shells < <(find . \( -name .git -o -name .venv -o -name results \) -prune -o \
    -type f \( -name '*.sh' -o -name '*.sub' -o -path ./.ci/run \) -print | sort)
((${#shells[@]})) || die "no shell scripts found under $ROOT"
run .venv/dev/bin/shellcheck "${shells[@]}"
log "${#shells[@]} scripts"

# Tests of speech run in .venv/asr, all others in .venv/bert. A word that is no path of a test is pytest's.
asr_paths=(tests/jasper_pt tests/fuzz/jasper_pt tests/chaos/test_chaos_asr.py tests/data/test_{librispeech,embedded_speech}*.py)
options=() paths=() bert_tests=() asr_tests=() left_out=()
for word in "${ARGS[@]}"; do
    path=${word#"$ROOT"/}
    path=${path#./}
    if [[ -e ${path%%::*} ]]; then paths+=("${path%/}"); else options+=("$word"); fi
done
((${#paths[@]})) || paths=(tests)
for path in "${paths[@]}"; do
    inside=false
    for asr_path in "${asr_paths[@]}"; do
        if [[ $path/ == "$asr_path"/* || $path == "$asr_path"::* ]]; then
            inside=true
            asr_tests+=("$path")
        elif [[ $asr_path == "$path"/* ]]; then
            asr_tests+=("$asr_path")
            left_out+=("--ignore=$asr_path")
        fi
    done
    [[ $inside == true ]] || bert_tests+=("$path")
done

reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
status=0

# run_tests NAME PYTHON PATH...: pytest's report goes to the screen and to $reports/NAME.
run_tests() {
    local rc=0
    log "== pytest in .venv/$1"
    run "$2" -m pytest -n 2 --dist loadgroup "${@:3}" "${options[@]}" 2>&1 | tee "$reports/$1" || rc=$?
    ((rc == 0 || rc == 5)) || status=$rc # 5: none of these was selected
}
if ((${#bert_tests[@]})); then
    TF_CPP_MIN_LOG_LEVEL=2 run_tests bert "$PYTHON_BERT" "${bert_tests[@]}" "${left_out[@]}"
fi
if ((${#asr_tests[@]})); then
    OMP_NUM_THREADS=1 run_tests asr "$PYTHON_ASR" "${asr_tests[@]}"
fi
[[ $DRY_RUN != true ]] || exit 0

# count WORDS: the sum of their numbers in the closing lines of pytest, such as "3 passed, 1 skipped in 0.12s".
count() {
    sed -nE 's/^=* ?([0-9]+ [a-z]+.*) in [0-9.]+s.*$/\1/p' "$reports"/* | tr ',' '\n' |
        awk -v words="$1" '$2 ~ "^(" words ")$" { sum += $1 } END { print sum + 0 }'
}
passed=$(count 'passed|xfailed|xpassed')
failed=$(count 'failed|errors?')
skipped=$(count skipped)
((status != 0 || passed + skipped > 0)) || status=5
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
exit "$status"
