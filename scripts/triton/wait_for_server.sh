#!/usr/bin/env bash
# Waits until a Triton server has loaded all of its models; fails when it has not in time.
#
# usage: [WAIT=seconds] wait_for_server.sh [HOST:PORT] [--protocol=http|grpc] [--dry-run] [--help]
#
#   HOST:PORT   (default: localhost and $GRPC_PORT, 8001)        WAIT   (default: 300)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse_common "$@"
split_flags 1 "${ARGS[@]}"
find_serving_python
run "$PYTHON_SERVING" -m runkit.serving.client "${POSITIONAL[0]:-localhost:$GRPC_PORT}" "--seconds=${WAIT:-300}" "${EXTRA[@]}"
