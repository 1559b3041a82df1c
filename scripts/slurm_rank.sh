#!/usr/bin/env bash
# A task of srun as a process of torch.distributed: sets what torchrun would set, and becomes the command.
#
# usage: srun ... bash scripts/slurm_rank.sh COMMAND...        (MASTER_ADDR and MASTER_PORT are set by run_asr.sub)
set -euo pipefail
if [[ ${1:-} == --help ]]; then
    source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
    show_help
    exit
fi
export RANK=${SLURM_PROCID:?not a task of srun} LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
exec "$@"
