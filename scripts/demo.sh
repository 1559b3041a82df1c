#!/usr/bin/env bash
# Pages to try the models in a browser on this machine: questions about a text, and speech from a file or the microphone.
#
# usage: bash scripts/demo.sh [bert|asr|all] [--dry-run] [--help]
#
#   bert   ask a text questions, at http://127.0.0.1:8080
#   asr    transcribe a file or what the microphone hears, at http://127.0.0.1:8081
#   all    both (default: those whose model is there)
#
#   BERT_MODEL   the results folder of run_squad.sh (default: results/quickstart_bert/squad)
#   ASR_MODEL    a checkpoint, .nemo archive or training folder (default: results/quickstart_asr/training)
#   BERT_PORT, ASR_PORT, HOST   other addresses (0.0.0.0: reachable from other machines)
#   BERT_PYTHON, ASR_PYTHON     interpreters
#
# example: BERT_MODEL=results/squad bash scripts/demo.sh bert
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
what=${ARGS[0]:-all}
[[ ${ARGS[*]} =~ ^(bert|asr|all)?$ ]] || die "one of bert, asr, all is wanted, not '${ARGS[*]}'"
BERT_MODEL=${BERT_MODEL:-$ROOT/results/quickstart_bert/squad} ASR_MODEL=${ASR_MODEL:-$ROOT/results/quickstart_asr/training}
HOST=${HOST:-127.0.0.1} BERT_PORT=${BERT_PORT:-8080} ASR_PORT=${ASR_PORT:-8081}
require_counts BERT_PORT ASR_PORT

# wanted NAME MODEL: whether this page is to be served; one that was asked for by name must have its model.
wanted() {
    [[ $what == all || $what == "$1" ]] || return 1
    [[ $DRY_RUN != true && ! -e $2 ]] || return 0
    [[ $what == all ]] || die "$2 does not exist: 'bash scripts/quickstart.sh $1' makes it, or set ${1^^}_MODEL"
    log "note: no page for $1, as $2 does not exist ('bash scripts/quickstart.sh $1' makes it, or set ${1^^}_MODEL)"
    return 1
}

pages=()
if wanted bert "$BERT_MODEL"; then
    find_bert_python
    run "$PYTHON_BERT" -m bert_tf.demo "$BERT_MODEL" "--host=$HOST" "--port=$BERT_PORT" &
    pages+=($!)
fi
if wanted asr "$ASR_MODEL"; then
    find_asr_python
    run "$PYTHON_ASR" -m jasper_pt.demo "$ASR_MODEL" "--host=$HOST" "--port=$ASR_PORT" &
    pages+=($!)
fi
((${#pages[@]})) || die "there is no model to show"
# The end of one page, and an interrupt, end both.
trap 'kill "${pages[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
status=0
if ((${#pages[@]} == 1)) || [[ $DRY_RUN == true ]]; then
    wait "${pages[@]}" || status=$?
else
    wait -n "${pages[@]}" || status=$?
fi
exit "$status"
