#!/usr/bin/env bash
# Measures a Triton server: latency percentiles against throughput for more and more clients, as table and plot.
#
# usage: run_perf.sh [bert|asr] [WORD...] [--flag...] [--dry-run] [--help]
#
#   words (default):  1 model name (bert-squad; asr: jasper)   2 version (the newest)   3 batch size of a request (1)
#                     4 max_latency (none: all numbers of clients are tried; else ms of the 95th percentile)
#                     5 threads (1: clients at first)   6 max_concurrency (16: clients at last, doubled in between)
#                     7 server host (localhost)
#   --seconds N (10 for each row), --label TEXT, --clients N...; all: python -m bert_tf.serving.perf --help
#
#   PROTOCOL       gRPC (default) or HTTP
#   PREDICT_FILE   bert: SQuAD JSON with the questions (default: the embedded ones)
#   DATA_DIR       asr: folder of librispeech-test-wav.json, whose recordings are sent (default: the embedded speech)
#   OUTPUT_DIR     of latency.csv, latency.md, latency.json, latency.png (default: perf_client/NAME in the results folder)
#
# example: bash scripts/triton/run_perf.sh bert bert-squad 1 1 100 1 32 localhost --seconds 30
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse_common "$@"
take_recipe "${ARGS[@]}"
find_serving_python
split_flags 7 "${WORDS[@]}"
set -- "${POSITIONAL[@]}"
name=bert-squad
[[ $RECIPE == bert ]] || name=jasper
name=${1:-$name} version=${2:-} batch_size=${3:-1} max_latency=${4:-} threads=${5:-1} max_concurrency=${6:-16}
host=${7:-localhost}
require_positive_integers batch_size threads max_concurrency
[[ $host != *:* ]] || die "server host '$host' must be without a port: set GRPC_PORT or HTTP_PORT"
PROTOCOL=${PROTOCOL:-gRPC}
port=$GRPC_PORT
[[ ${PROTOCOL,,} != http ]] || port=$HTTP_PORT
OUTPUT_DIR=${OUTPUT_DIR:-$(default_results)/perf_client/$name}
clients=()
for ((n = threads; n < max_concurrency; n *= 2)); do clients+=("$n"); done
clients+=("$max_concurrency")

flags=("--protocol=$PROTOCOL" "--server_url=$host:$port" "--model_name=$name" "--model_version=$version"
    "--batch_size=$batch_size" "--output_dir=$OUTPUT_DIR" --clients "${clients[@]}")
[[ -z $max_latency ]] || flags+=("--max_latency=$max_latency")
if [[ $RECIPE == bert ]]; then
    run "$PYTHON_SERVING" -m bert_tf.serving.perf "--predict_file=$PREDICT_FILE" "${flags[@]}" "${EXTRA[@]}"
else
    run "$PYTHON_SERVING" -m jasper_pt.serving.perf "--manifest_filename=$SPEECH_DIR/librispeech-test-wav.json" \
        "--data_dir=$SPEECH_DIR" "${flags[@]}" "${EXTRA[@]}"
fi
