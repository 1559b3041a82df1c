#!/usr/bin/env bash
# Sends questions or recordings to a Triton server, shows the answers, scores them where the right ones are known, and
# tells latency and throughput.
#
# usage: run_client.sh [bert] [WORD...] [--flag...] [--dry-run] [--help]
#        run_client.sh asr [FILE...] [--flag...] [--dry-run] [--help]
#
#   bert, words (default):  1 batch_size (8)  2 seq_length  3 doc_stride (both: the export's)
#                           4 triton_model_version (the newest)  5 triton_model_name (bert)  6 BERT_DIR (not needed)
#     --question TEXT --context TEXT, or --predict_file FILE (default: the embedded questions); --output_dir DIR;
#     all: python -m bert_tf.serving.run_squad_triton_client --help
#   asr, words:             sound files, or one manifest (.json) (default: test of the embedded speech)
#     --data_dir DIR, --output_dir DIR, --model_name NAME, ...; all: python -m jasper_pt.serving.client --help
#
#   PROTOCOL   gRPC (default) or HTTP       SERVER   HOST:PORT (default: this machine)
#
# examples: bash scripts/triton/run_client.sh bert --question "Who came?" --context "In May came Ada."
#           bash scripts/triton/run_client.sh asr speech.flac
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse_common "$@"
take_recipe "${ARGS[@]}"
find_serving_python
PROTOCOL=${PROTOCOL:-gRPC}
port=$GRPC_PORT
[[ ${PROTOCOL,,} != http ]] || port=$HTTP_PORT
SERVER=${SERVER:-localhost:$port}

if [[ $RECIPE == bert ]]; then
    split_flags 6 "${WORDS[@]}"
    set -- "${POSITIONAL[@]}"
    command=("$PYTHON_SERVING" -m bert_tf.serving.run_squad_triton_client "--protocol=$PROTOCOL"
        "--triton_server_url=$SERVER" "--predict_batch_size=${1:-8}" "--triton_model_version=${4:-}"
        "--triton_model_name=${5:-bert}")
    [[ " ${EXTRA[*]} " == *' --question'* || " ${EXTRA[*]} " == *' --predict_file'* ]] ||
        command+=("--predict_file=$PREDICT_FILE")
else
    split_flags 1000 "${WORDS[@]}"
    command=("$PYTHON_SERVING" -m jasper_pt.serving.client "--protocol=$PROTOCOL" "--server_url=$SERVER")
    if [[ ${#POSITIONAL[@]} == 0 ]]; then
        command+=("--manifest_filename=$SPEECH_DIR/librispeech-test-wav.json" "--data_dir=$SPEECH_DIR")
    elif [[ ${POSITIONAL[0]} == *.json ]]; then
        command+=(--manifest_filename "${POSITIONAL[@]}")
    else
        command+=(--audio_filename "${POSITIONAL[@]}")
    fi
fi
run "${command[@]}" "${EXTRA[@]}"
