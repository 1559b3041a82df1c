# shellcheck shell=bash
# Shared by the training jobs on Slurm: the tasks of the job, what starts them, stopping and going on.
# Sourced after lib.sh, never run.
# shellcheck disable=SC2034 # the jobs read what the functions set

# Sets TASKS, the processes of the job; in a dry run outside of one they are $SLURM_NTASKS, by default 1.
read_job() {
    [[ $DRY_RUN == true || -n ${SLURM_JOB_ID:-} ]] ||
        die "this is a Slurm job: sbatch -N NODES --ntasks-per-node=PROCESSES scripts/${BASH_SOURCE[1]##*/} ... (or --dry-run)"
    TASKS=${SLURM_NTASKS:-${SLURM_NPROCS:-1}}
    require_positive_integers TASKS
    # srun takes the cores of a task from here only.
    [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
    log "job ${SLURM_JOB_ID:-(none)}: $TASKS processes on ${SLURM_JOB_NODELIST:-this machine}," \
        "start $((${SLURM_RESTART_COUNT:-0} + 1))"
}

# task_starter MPI FOLDER...: the words that start TASKS processes, unless MPIRUN says others. One that ends does not
# take the others with it at once: they may be saving. With CONTAINER_IMAGE the processes run in it, and see the tree
# and these folders under the paths they have outside.
task_starter() {
    local mpi=$1 folder mounts=$ROOT:$ROOT
    MPIRUN="${MPIRUN:-srun --label --mpi=$mpi --kill-on-bad-exit=0 --wait=300} -n $TASKS"
    [[ -n ${CONTAINER_IMAGE:-} ]] || return 0
    for folder in "${@:2}"; do
        [[ $folder == /* ]] || folder=$PWD/$folder
        [[ $folder == "$ROOT"/* ]] || mounts+=,$folder:$folder
    done
    MPIRUN+=" --container-image=$CONTAINER_IMAGE --container-mounts=$mounts${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}"
    MPIRUN+=" --container-workdir=$ROOT"
    [[ $CONTAINER_IMAGE$mounts${CONTAINER_MOUNTS:-} != *[[:space:]]* ]] ||
        die "CONTAINER_IMAGE, CONTAINER_MOUNTS and the folders may hold no blanks: $CONTAINER_IMAGE $mounts ${CONTAINER_MOUNTS:-}"
}

# train_or_requeue COMMAND...: runs the training, and ends the job with its status. USR1, which Slurm sends before the
# time is over, and TERM, its notice of preemption, go to all processes as USR1: they save and end with 128 + signal.
# The job is then put back into the queue, unless Slurm has done so or the job was cancelled. A failure is not run again.
train_or_requeue() {
    if [[ $DRY_RUN == true ]]; then
        "$@"
        exit
    fi
    local child signalled=true status state
    # shellcheck disable=SC2317,SC2329 # called by the trap
    pass_on() {
        signalled=true
        kill -USR1 "$child" 2>/dev/null || true # it may just have ended
    }
    "$@" &
    child=$!
    trap pass_on USR1 TERM
    while [[ $signalled == true ]]; do # a signal ends the waiting, not the training
        signalled=false
        status=0
        wait "$child" || status=$?
    done
    trap - USR1 TERM
    if ((status == 128 + $(kill -l USR1) || status == 128 + $(kill -l TERM))); then
        state=$(scontrol show job -o "$SLURM_JOB_ID" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p')
        if [[ $state == RUNNING ]]; then
            log "stopped by a signal after saving: job $SLURM_JOB_ID goes back into the queue"
            scontrol requeue "$SLURM_JOB_ID" || die "job $SLURM_JOB_ID cannot be requeued: submit it again to go on"
        else
            log "stopped by a signal after saving; the job is ${state:-gone}"
        fi
    fi
    exit "$status"
}
