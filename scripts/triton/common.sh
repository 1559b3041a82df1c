# shellcheck shell=bash
# Shared by the scripts of this folder: which recipe is meant, where models and the server's files are. Sourced after
# lib.sh, never run.
# shellcheck disable=SC2034 # the scripts read what is set here

# take_recipe WORD...: RECIPE is the first word where that is bert or asr, else bert, as published; the rest is WORDS.
take_recipe() {
    RECIPE=bert WORDS=("$@")
    if [[ ${1:-} == bert || ${1:-} == asr ]]; then
        RECIPE=$1 WORDS=("${@:2}")
    fi
}

# split_flags LIMIT WORD...: POSITIONAL, at most LIMIT words, and EXTRA, everything from the first flag on.
split_flags() {
    local limit=$1
    shift
    POSITIONAL=()
    while (($#)) && [[ $1 != -* ]]; do
        POSITIONAL+=("$1")
        shift
    done
    EXTRA=("$@")
    ((${#POSITIONAL[@]} <= limit)) ||
        die "${#POSITIONAL[@]} words given, at most $limit are known (see --help): '${POSITIONAL[*]:limit}' is left over"
}

MODEL_REPOSITORY=${MODEL_REPOSITORY:-$(default_results)/triton_models}
HTTP_PORT=${HTTP_PORT:-8000} GRPC_PORT=${GRPC_PORT:-8001} METRICS_PORT=${METRICS_PORT:-8002}
require_positive_integers HTTP_PORT GRPC_PORT METRICS_PORT

# The questions and the recordings that clients send where none are named: those of the quickstart.
PREDICT_FILE=${PREDICT_FILE:-$ROOT/data/embedded_questions/dev-v2.0.json}
SPEECH_DIR=${DATA_DIR:-$ROOT/data/embedded_speech}
