#!/usr/bin/env bash
# Builds the images of the Dockerfile: `bert` and `asr` for NVIDIA GPUs, `cpu` for both recipes on any machine, `triton`.
#
# usage: bash scripts/docker/build.sh [bert|asr|cpu|triton|all] [docker build's option...] [--dry-run] [--help]
#
#   bert   image bert (default, as published)
#   asr    image asr, also under the published names quartznet and jasper
#   cpu    image recipes-cpu
#   triton image triton, which scripts/triton/launch_server.sh --docker starts
#   all    the four
#   BERT_BASE, ASR_BASE, CPU_BASE, TRITON_BASE   environment variables: other base images than the Dockerfile's
#
# example: BERT_BASE=nvcr.io/nvidia/cuda:12.9.1-cudnn-devel-ubuntu22.04 bash scripts/docker/build.sh bert --no-cache
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
parse_common "$@"
targets=(bert)
case ${ARGS[0]:-} in
    bert | asr | cpu | triton) targets=("${ARGS[0]}") ;;
    all) targets=(bert asr cpu triton) ;;
    '' | -*) ARGS=(bert "${ARGS[@]}") ;;
    *) die "unknown image '${ARGS[0]}': one of bert, asr, cpu, triton, all is wanted" ;;
esac
[[ $DRY_RUN == true ]] || command -v docker >/dev/null || die "docker is not on PATH: install Docker, or run the recipes without (scripts/setup.sh)"
for target in "${targets[@]}"; do
    case $target in
        bert) tags=(bert) base=BERT_BASE ;;
        asr) tags=(asr quartznet jasper) base=ASR_BASE ;;
        cpu) tags=(recipes-cpu) base=CPU_BASE ;;
        triton) tags=(triton) base=TRITON_BASE ;;
    esac
    options=()
    for tag in "${tags[@]}"; do options+=(--tag "$tag"); done
    [[ -z ${!base:-} ]] || options+=(--build-arg "$base=${!base}")
    run docker build --target "$target" "${options[@]}" "${ARGS[@]:1}" "$ROOT"
done
