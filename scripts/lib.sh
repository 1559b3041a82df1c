# shellcheck shell=bash
# Shared by every script of this folder: strict mode, messages, dry runs, the interpreter. Sourced, never run.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#   parse_common "$@"          # takes --dry-run and --help out; the other words are left in ARGS
#
# A script's help is its own header comment.

set -euo pipefail

# -P: bert_tf/scripts is a link to scripts, and both spellings mean the same tree.
ROOT=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly ROOT
DRY_RUN=${DRY_RUN:-false}
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

# Runs the command; in a dry run shows it instead.
run() {
    if [[ $DRY_RUN == true ]]; then
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

# Sets PYTHON_BERT: $BERT_PYTHON, else the interpreter of .venv/bert. A dry run needs neither to exist.
find_bert_python() {
    PYTHON_BERT=${BERT_PYTHON:-$ROOT/.venv/bert/bin/python}
    if [[ $DRY_RUN != true ]] && ! command -v "$PYTHON_BERT" >/dev/null; then
        [[ -z ${BERT_PYTHON:-} ]] || die "BERT_PYTHON=$BERT_PYTHON is not an executable"
        die "$PYTHON_BERT does not exist: run 'bash scripts/setup.sh bert' first"
    fi
}
