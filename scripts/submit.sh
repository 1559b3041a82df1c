#!/usr/bin/env bash
# Submits BERT pre-training to Slurm by a row of scripts/configs/configurations.yml.
#
# usage: [VARIABLE=value...] bash scripts/submit.sh ROW [SBATCH_OPTION...] [-- --flag=value...] [--dry-run] [--help]
#
#   Without ROW the rows are listed. Options such as --time and --account go to sbatch; what stands behind -- goes to
#   run_pretraining.py. DATA_DIR, RESULTS_DIR and the other variables of scripts/run.sub go with the job; those of the
#   row (BATCHSIZE, LEARNING_RATE, NUM_ACCUMULATION_STEPS, PHASE) are the row's.
#
# example: DATA_DIR=/shared/bert RESULTS_DIR=/shared/run1 bash scripts/submit.sh bert--DGX1_n4 --time=12:00:00
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
rows=$ROOT/scripts/configs/configurations.yml

if ((${#ARGS[@]} == 0)); then
    sed -n 's/^\(bert--[^:]*\): {\(.*\)}$/\1  \2/p' "$rows"
    exit
fi
name=${ARGS[0]}
row=$(sed -n "s/^${name//[^[:alnum:]_-]/.}: {\(.*\)}\$/\1/p" "$rows")
[[ -n $row ]] || die "$rows has no row '$name': 'bash scripts/submit.sh' lists them"
variables=()
declare -A value
while IFS=': ' read -r key number; do
    value[$key]=$number
    variables+=("$key=$number")
done <<<"${row//, /$'\n'}"

options=() flags=() behind=false
for word in "${ARGS[@]:1}"; do
    if [[ $behind == true ]]; then flags+=("$word"); elif [[ $word == -- ]]; then behind=true; else options+=("$word"); fi
done
[[ $DRY_RUN == true ]] || require sbatch "this is for the login node of a Slurm cluster (--dry-run shows the command)"
cd "$ROOT" # where the job finds the tree
run env "${variables[@]}" sbatch --nodes="${value[NNODES]}" --ntasks-per-node="${value[GPUS_PER_NODE]}" --job-name="$name" \
    "${options[@]}" scripts/run.sub "${flags[@]}"
