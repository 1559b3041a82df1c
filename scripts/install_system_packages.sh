#!/usr/bin/env bash
# Gets what the recipes need of the system, by apt-get: on Debian and Ubuntu, as root. Used by the Dockerfile.
#
# usage: bash scripts/install_system_packages.sh bert|asr|cpu|triton [--dry-run] [--help]
#
#   bert   Python, a compiler and MPI (for Horovod and our kernels)
#   asr    Python and a compiler (for our kernels)
#   cpu    both
#   triton Python and a compiler (for beam search)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]} == 1)) || die "one of bert, asr, cpu, triton is wanted: usage is install_system_packages.sh bert|asr|cpu|triton [--dry-run] [--help]"
packages=(ca-certificates g++ git make python3 python3-dev python3-venv)
case ${ARGS[0]} in
    bert | cpu) packages+=(libopenmpi-dev openmpi-bin openssh-client) ;;
    asr | triton) ;;
    *) die "unknown word '${ARGS[0]}': one of bert, asr, cpu, triton is wanted" ;;
esac
[[ $DRY_RUN == true ]] || { [[ $EUID == 0 ]] && command -v apt-get >/dev/null; } ||
    die "this needs root on Debian or Ubuntu; elsewhere install what matches: ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
run apt-get -qq update
run apt-get -qq -y install --no-install-recommends "${packages[@]}"
run rm -rf /var/lib/apt/lists
