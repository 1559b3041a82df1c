#!/usr/bin/env bash
# Starts a Triton Inference Server with all models of a repository, and waits until it is ready.
#
# usage: [VARIABLE=value...] launch_server.sh [MODEL_REPOSITORY] [--docker] [--stop] [--flag...] [--dry-run] [--help]
#
#   MODEL_REPOSITORY   (default: triton_models in the results folder, where export_model.sh puts models)
#   --docker           NVIDIA's container with this tree mounted (image `triton` of scripts/docker/build.sh) instead of
#                      the server that .venv/serving holds
#   --stop             ends the server that was started so, after the requests under way
#   --flag...          of the server: --host=0.0.0.0 (default: this machine alone), --verbose
#
#   DETACHED           false: the server stays in the foreground, Ctrl-C ends it (default: in the background)
#   HTTP_PORT (8000), GRPC_PORT (8001), METRICS_PORT (8002), WAIT (300 s for the models to be loaded)
#   TRITON_SERVER      a tritonserver to run (default: one on PATH, else that of .venv/serving)
#
# The log is triton_server.log beside the repository.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse_common "$@"
docker=false stop=false flags=() words=()
for word in "${ARGS[@]}"; do
    case $word in
        --docker) docker=true ;;
        --stop) stop=true ;;
        -*) flags+=("$word") ;;
        *) words+=("$word") ;;
    esac
done
((${#words[@]} <= 1)) || die "one MODEL_REPOSITORY is wanted, not '${words[*]}'"
MODEL_REPOSITORY=${words[0]:-$MODEL_REPOSITORY}
WAIT=${WAIT:-300} DETACHED=${DETACHED:-true}
[[ $DETACHED != -d ]] || DETACHED=true # as published
require_positive_integers WAIT
require_booleans DETACHED
find_serving_python
state=$(dirname "$MODEL_REPOSITORY") container=triton_server_cont
log_file=$state/triton_server.log pid_file=$state/triton_server.pid

# is_running: whether the process of pid_file is the server that was started, not another that has got its number since.
is_running() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    grep -qszE 'tritonserver|runkit.serving.server' "/proc/$pid/cmdline"
}

if [[ $stop == true ]]; then
    if [[ $docker == true ]]; then
        run docker stop "$container"
        exit
    fi
    is_running || die "no server that this script started is running ($pid_file)"
    pid=$(cat "$pid_file")
    run kill "$pid"
    [[ $DRY_RUN == true ]] || tail --pid="$pid" -f /dev/null
    run rm -f "$pid_file"
    exit
fi
[[ $DRY_RUN == true || -d $MODEL_REPOSITORY ]] ||
    die "there is no folder $MODEL_REPOSITORY: scripts/triton/export_model.sh makes repositories"

if [[ $docker == true ]]; then
    detach=()
    [[ $DETACHED == false ]] || detach=(--detach)
    options=(--shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864)
    ! has_gpu || options+=(--gpus "${NVIDIA_VISIBLE_DEVICES:-all}")
    [[ $DRY_RUN == true ]] || require docker "install Docker, or leave --docker out"
    run docker run --rm "${detach[@]}" --name "$container" --net=host "${options[@]}" \
        --volume "$(realpath -m "$MODEL_REPOSITORY"):/models:ro" "${IMAGE:-triton}" \
        /models "--http_port=$HTTP_PORT" "--grpc_port=$GRPC_PORT" "--metrics_port=$METRICS_PORT" "${flags[@]}"
else
    command=("$PYTHON_SERVING" -m runkit.serving.server "$MODEL_REPOSITORY" "--http_port=$HTTP_PORT"
        "--grpc_port=$GRPC_PORT" "--metrics_port=$METRICS_PORT" "${flags[@]}")
    if [[ $DETACHED == false ]]; then
        run "${command[@]}"
        exit
    elif [[ $DRY_RUN == true ]]; then
        quoted "${command[@]}"
    else
        ! is_running || die "a server is running already: 'launch_server.sh --stop' ends it ($pid_file)"
        nohup "${command[@]}" >"$log_file" 2>&1 </dev/null &
        printf '%s\n' "$!" >"$pid_file"
        log "server: process $!, log $log_file"
    fi
fi
[[ $DETACHED == true ]] || exit 0
run "$PYTHON_SERVING" -m runkit.serving.client "localhost:$GRPC_PORT" "--seconds=$WAIT" "--pid_file=$pid_file" || {
    status=$?
    [[ ! -f $log_file ]] || tail -n 30 "$log_file" >&2
    exit "$status"
}
