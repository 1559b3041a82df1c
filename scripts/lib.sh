# shellcheck shell=bash
# Shared by every script of this folder: strict mode, messages, dry runs, the interpreter. Sourced, never run.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#   parse_common "$@"          # takes --dry-run and --help out; the other words are left in ARGS
#
# A script's help is its own header comment.

set -euo pipefail

unset CDPATH # with it, cd prints what it found, and takes other folders for this one
# -P: bert_tf/scripts is a link to scripts, and both spellings mean the same tree.
ROOT=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly ROOT
DRY_RUN=${DRY_RUN:-false}
[[ $DRY_RUN != 1 ]] || DRY_RUN=true
ARGS=()

# Python finds this tree whatever the working directory, and takes nothing from that directory.
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1

log() { printf '%s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The words as a line that can be pasted into a shell.
quoted() {
    local line
    printf -v line '%q ' "$@"
    printf '%s\n' "${line% }"
}

# read_plan WORD...: a training launcher's words ask for a plan. Then DRY_RUN is true as well: nothing is made, and what
# is missing is for the plan to tell, which the training program prints under its flag --plan. --dry-run goes before.
read_plan() {
    local word
    PLANNING=${PLANNING:-false}
    for word in "$@"; do
        if [[ ($word == --plan || $word == --plan=*) && $DRY_RUN != true ]]; then PLANNING=true DRY_RUN=true; fi
    done
    export PLANNING DRY_RUN # for the launchers that this one calls
}

# Runs the command; in a dry run shows it instead, and does nothing where a plan is asked for.
run() {
    if [[ ${PLANNING:-false} == true ]]; then
        return
    elif [[ $DRY_RUN == true ]]; then
        quoted "$@"
    else
        "$@"
    fi
}

# require COMMAND REMEDY: stops when COMMAND is not installed.
require() { command -v "$1" >/dev/null || die "$1 is not installed: $2"; }

# Prints the comment that follows the first line of the running script.
show_help() { awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"; }

parse_common() {
    local word
    for word in "$@"; do
        case $word in
            --dry-run) DRY_RUN=true ;;
            --help | -h)
                show_help
                exit 0
                ;;
            *) ARGS+=("$word") ;;
        esac
    done
}

# Set PYTHON_BERT, PYTHON_ASR or PYTHON_SERVING: $BERT_PYTHON and so on, else the interpreter of .venv/bert and so on.
# A dry run needs none of them to exist.
find_bert_python() { _find_python bert; }
find_asr_python() { _find_python asr; }
find_serving_python() { _find_python serving; }

_find_python() {
    local chosen=${1^^}_PYTHON found
    found=${!chosen:-$ROOT/.venv/$1/bin/python}
    if [[ $DRY_RUN != true ]] && ! command -v "$found" >/dev/null; then
        [[ -z ${!chosen:-} ]] || die "$chosen=$found is not an executable"
        die "$found does not exist: run 'bash scripts/setup.sh $1' first"
    fi
    printf -v "PYTHON_${1^^}" '%s' "$found"
}

# Where runs go when nothing else is said: /results as in the published container, else the tree's own folder.
default_results() {
    if [[ -d /results && -w /results ]]; then
        printf '/results\n'
    else
        printf '%s/results\n' "$ROOT"
    fi
}

# The checks take names of variables, so that an error can say which word is wrong.
require_positive_integers() {
    local name
    for name in "$@"; do
        [[ ${!name} =~ ^[1-9][0-9]{0,9}$ ]] || die "$name must be a whole number above 0, not '${!name}'"
    done
}

require_counts() {
    local name
    for name in "$@"; do
        [[ ${!name} =~ ^(0|[1-9][0-9]{0,9})$ ]] || die "$name must be a whole number, not '${!name}'"
    done
}

require_positive_numbers() {
    local name number='^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$'
    for name in "$@"; do
        [[ ${!name} =~ $number && ${!name%%[eE]*} == *[1-9]* ]] ||
            die "$name must be a number above 0 such as 7.5e-4, not '${!name}'"
    done
}

require_booleans() {
    local name
    for name in "$@"; do
        [[ ${!name} == true || ${!name} == false ]] || die "$name must be true or false, not '${!name}'"
    done
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1; }

count_gpus() { { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true; }

# Whether the CPU multiplies bf16; others compute it slower than fp32.
has_bf16_cpu() { grep -qsE 'amx_bf16|avx512_bf16' /proc/cpuinfo; }

failed_runs=()

# note_failure STATUS NAME: goes on with the next run, save after an interruption; stop_if_failed tells at the end.
note_failure() {
    (($1 != 130 && $1 != 143)) || exit "$1" # Ctrl-C, SIGTERM
    failed_runs+=("$2")
}

stop_if_failed() { ((${#failed_runs[@]} == 0)) || die "these runs failed, see above: ${failed_runs[*]}"; }
