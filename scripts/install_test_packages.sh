#!/usr/bin/env bash
# Gets what tests need of the system: a compiler and MPI for Horovod, a one-node Slurm, a browser. Only root on Debian and
# Ubuntu can; elsewhere, and where apt-get fails, those tests skip and say what is missing.
#
# usage: bash scripts/install_test_packages.sh [--dry-run] [--help]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]} == 0)) || die "unknown argument '${ARGS[0]}': usage is install_test_packages.sh [--dry-run] [--help]"

commands=(g++ make mpirun mpicxx slurmctld slurmd munged chromium)
packages=(g++ make openmpi-bin libopenmpi-dev slurm-wlm munge chromium)
missing=()
for command in "${commands[@]}"; do
    command -v "$command" >/dev/null || [[ -x /usr/sbin/$command ]] || missing+=("$command")
done
((${#missing[@]})) || exit 0
if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
    log "not installed: ${missing[*]}; tests that need them will skip"
    exit 0
fi
log "== system packages: ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
run apt-get -qq update || log "apt-get update failed: trying with the lists that are there"
run apt-get -qq -y install --no-install-recommends "${packages[@]}" ||
    log "apt-get failed: tests that need ${missing[*]} will skip"
