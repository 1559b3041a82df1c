#!/usr/bin/env bash
# Starts a command, or a shell, in one of the images of build.sh, with this tree, data, results and checkpoints mounted.
#
# usage: [VARIABLE=value...] bash scripts/docker/launch.sh [bert|asr|cpu] [COMMAND...] [--dry-run] [--help]
#
#   bert, asr, cpu   the image (default: bert, so that `launch.sh COMMAND` works as published for BERT)
#   COMMAND          default: an interactive shell. What stands behind it is the command's, --dry-run and --help too.
#
#   DATA_DIR         mounted at /datasets (default: datasets/ of this tree for asr; none for bert, whose data are in data/)
#   RESULT_DIR       mounted at /results (default: results/ of this tree; OUTPUT_DIR means the same)
#   CHECKPOINT_DIR   mounted at /checkpoints (default: checkpoints/ of this tree)
#   IMAGE            another image than that of build.sh
#   NVIDIA_VISIBLE_DEVICES   which GPUs (default: all, where there are any; never for cpu)
#   --env NAME[=VALUE], --volume FROM:TO, --publish PORTS   before the command, as often as needed: docker's own
#
# examples: bash scripts/docker/launch.sh cpu bash scripts/quickstart.sh
#           DATA_DIR=/data/LibriSpeech bash scripts/docker/launch.sh asr bash scripts/train.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
own=() extra=() # words before the command
target=bert
while (($#)); do
    case $1 in
        bert | asr | cpu) target=$1 ;;
        --dry-run | --help | -h) own+=("$1") ;;
        --env | --volume | --publish)
            (($# > 1)) || die "$1 wants a value (see --help)"
            extra+=("$1" "$2")
            shift
            ;;
        *) break ;;
    esac
    shift
done
parse_common "${own[@]}"
command=("$@")

RESULT_DIR=${RESULT_DIR:-${OUTPUT_DIR:-$ROOT/results}} CHECKPOINT_DIR=${CHECKPOINT_DIR:-$ROOT/checkpoints}
case $target in
    bert) folder=/workspace/bert image=bert options=(--net=host --shm-size=1g) ;;
    asr)
        folder=/workspace/asr image=asr options=(--ipc=host --shm-size=4g)
        DATA_DIR=${DATA_DIR:-$ROOT/datasets}
        ;;
    cpu) folder=/workspace/recipes image=recipes-cpu options=(--net=host --shm-size=4g) ;;
esac
if [[ $target != cpu ]] && has_gpu; then
    options+=(--gpus "${NVIDIA_VISIBLE_DEVICES:-all}")
elif [[ $target != cpu ]]; then
    log "note: nvidia-smi finds no GPU here, so the container gets none; the image for this machine is cpu"
fi

folders=("$RESULT_DIR:/results" "$CHECKPOINT_DIR:/checkpoints" ${DATA_DIR:+"$DATA_DIR:/datasets"})
for pair in "${folders[@]}"; do
    [[ $DRY_RUN == true ]] || mkdir -p "${pair%:*}" # else docker makes it, as root's
    options+=(--volume "$(realpath -m "${pair%:*}"):${pair##*:}")
done
terminal=()
if [[ -t 0 && -t 1 ]]; then
    terminal=(--interactive --tty)
elif ((!${#command[@]})); then
    terminal=(--interactive)
fi

[[ $DRY_RUN == true ]] || command -v docker >/dev/null || die "docker is not on PATH: install Docker, or run the recipes without (scripts/setup.sh)"
# The caller's own user: what the command writes belongs to the caller.
run docker run --rm "${terminal[@]}" "${options[@]}" --ulimit memlock=-1 --ulimit stack=67108864 \
    --user "$(id -u):$(id -g)" --env HOME=/tmp --env PYTHONDONTWRITEBYTECODE=1 \
    --volume "$ROOT:$folder" --workdir "$folder" "${extra[@]}" "${IMAGE:-$image}" "${command[@]}"
