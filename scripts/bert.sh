# shellcheck shell=bash
# Shared by the BERT launchers: words and flags, precision, model file, the launch, the log.
# Sourced by pretraining.sh and finetuning.sh, never run.
# shellcheck disable=SC2034,SC2154 # the launchers set and read these variables

DATA_DIR=${DATA_DIR:-${BERT_PREP_WORKING_DIR:-$ROOT/data}}
EXTRA=()     # --flag=value words, handed to the Python program as they are
OWN_FLAGS=() # flags that the launcher's words and variables set

# split_words LIMIT WORD...: fills POSITIONAL (at most LIMIT words) and EXTRA.
split_words() {
    local limit=$1 word
    read_plan "${@:2}"
    POSITIONAL=()
    for word in "${@:2}"; do
        if [[ $word == --* ]]; then
            refuse_own_flag "$word"
            EXTRA+=("$word")
        elif ((${#EXTRA[@]})); then
            die "'$word' stands after ${EXTRA[-1]}: flags come last, as --flag=value"
        else
            POSITIONAL+=("$word")
        fi
    done
    ((${#POSITIONAL[@]} <= limit)) ||
        die "${#POSITIONAL[@]} words given, at most $limit are known (see --help): '${POSITIONAL[*]:limit}' is left over"
}

# A second value of these flags would contradict what is printed and, for one phase of several, be wrong.
refuse_own_flag() {
    local flag=${1#--} own
    flag=${flag%%=*}
    for own in "${OWN_FLAGS[@]}"; do
        [[ ${flag#no} != "$own" && $flag != "$own" ]] ||
            die "--$flag is set by this launcher's words and variables (see --help); give it there"
    done
    [[ $flag != init_checkpoint ]] || die "give the weights to start from as INIT_CHECKPOINT=${1#*=}"
}

# Sets precision_flags and xla_flag from $precision and $use_xla.
read_precision() {
    if [[ $precision == manual_fp16 ]]; then
        log "note: manual_fp16 is fp16 here (one mixed-precision path)"
        precision=fp16
    fi
    case $precision in
        fp16) precision_flags=(--precision=fp16 --amp) ;;
        bf16 | fp32 | tf32) precision_flags=("--precision=$precision" --noamp) ;;
        *) die "precision must be fp16, bf16, fp32 or tf32, not '$precision'" ;;
    esac
    require_booleans use_xla
    xla_flag=--use_xla
    [[ $use_xla == true ]] || xla_flag=--nouse_xla
}

# Sets bert_config: $BERT_CONFIG, else configs/bert/<bert_model>.json.
read_bert_config() {
    bert_config=${BERT_CONFIG:-$ROOT/configs/bert/$bert_model.json}
    if [[ -f $bert_config || ($DRY_RUN == true && -n ${BERT_CONFIG:-}) ]]; then
        return
    fi
    [[ -z ${BERT_CONFIG:-} ]] || die "BERT_CONFIG=$BERT_CONFIG does not exist"
    local known=("$ROOT"/configs/bert/*.json)
    known=("${known[@]##*/}")
    die "bert_model must be one of ${known[*]%.json}, not '$bert_model' (or set BERT_CONFIG to a model file)"
}

# require_launcher NAME: the variable NAME holds the number of processes.
require_launcher() {
    [[ $DRY_RUN == true || ${!1} == 1 || -n ${MPIRUN:-} || -x $(horovodrun_path) ]] ||
        die "$1=${!1} starts one process a GPU through Horovod, which is not there: build it with" \
            "'bash scripts/install_horovod.sh', or pass $1 1"
}

# That of the interpreter's environment, else the one on PATH.
horovodrun_path() {
    local own=${PYTHON_BERT%/*}/horovodrun
    if [[ -x $own ]]; then printf '%s\n' "$own"; else command -v horovodrun || printf 'horovodrun\n'; fi
}

# effective_rate RATE PROCESSES
effective_rate() { LC_ALL=C awk -v rate="$1" -v ranks="$2" 'BEGIN { printf "%.10g", rate * ranks }'; }

# start_bert PROCESSES MODULE FLAG...
# HOST_DISCOVERY: a program that prints hosts as NAME:SLOTS, for Horovod Elastic: the job goes on when hosts are lost or
# come, on MIN_PROCESSES (1) to MAX_PROCESSES (as many as at the start) processes.
# MPIRUN: words that start the processes in place of horovodrun, inside the job of a cluster. They take the place of the
# launcher, so that they get its signals.
start_bert() {
    local command=("$PYTHON_BERT" -m "$2")
    if [[ $PLANNING == true ]]; then # one process tells it for all
        (($1 == 1)) || command+=(--horovod "--plan_processes=$1")
        "${command[@]}" "${@:3}"
        return
    elif [[ -n ${MPIRUN:-} ]]; then
        local starter
        read -ra starter <<<"$MPIRUN"
        command=("${starter[@]}" "${command[@]}" --horovod)
        export PYTHONUNBUFFERED=1
        [[ $DRY_RUN == true ]] || exec "${command[@]}" "${@:3}"
    elif (($1 > 1)); then
        local hosts=(-H "localhost:$1")
        [[ -z ${HOST_DISCOVERY:-} ]] || hosts=(--min-np "${MIN_PROCESSES:-1}" --max-np "${MAX_PROCESSES:-$1}"
            --host-discovery-script "$HOST_DISCOVERY")
        command=("$(horovodrun_path)" -np "$1" "${hosts[@]}" "${command[@]}" --horovod)
    fi
    PYTHONUNBUFFERED=1 run "${command[@]}" "${@:3}" # lines reach a log file as they are printed
}

# logged FILE COMMAND...: output to the terminal and to the end of FILE; the status is the command's (pipefail).
logged() {
    if [[ $DRY_RUN == true ]]; then
        "${@:2}"
    else
        mkdir -p "$(dirname "$1")"
        log "log: $1"
        "${@:2}" 2>&1 | tee -i -a "$1"
    fi
}

# init_checkpoint_flag PATH: sets init_flags for a checkpoint prefix, file or folder, which must exist.
init_checkpoint_flag() {
    init_flags=("--init_checkpoint=$1")
    [[ $DRY_RUN == true || -f $1.index || -e $1 ]]
}
