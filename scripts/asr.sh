# shellcheck shell=bash
# Shared by the speech launchers: their words, folders, model and device, and how Python is started.
# Sourced after lib.sh, never run.
# shellcheck disable=SC2034 # the launchers read what the functions set

CORPUS=$ROOT/data/embedded_speech # the synthetic corpus, made on the spot

# take_words WORD...: leading words are DATA_DIR, MODEL_CONFIG, OUTPUT_DIR and CHECKPOINT and win over the environment
# ('' leaves one as it is). From the first flag on, words go to the Python program as they are, in EXTRA.
take_words() {
    local name
    for name in DATA_DIR MODEL_CONFIG OUTPUT_DIR CHECKPOINT; do
        [[ $# != 0 && $1 != -* ]] || break
        [[ -z $1 ]] || printf -v "$name" '%s' "$1"
        shift
    done
    [[ $# == 0 || $1 == -* ]] || die "'$1' is one word too many: DATA_DIR MODEL_CONFIG OUTPUT_DIR CHECKPOINT, then flags"
    EXTRA=("$@")
    read_plan "$@"
}

# Sets MODEL_CONFIG to the file of that name and FAMILY to quartznet or jasper. The published configs/<name>.yaml and a
# bare <name> are found in configs/asr.
read_model() {
    MODEL_CONFIG=${MODEL_CONFIG:-configs/quartznet15x5_speedp-online-1.15_speca.yaml}
    local given=$MODEL_CONFIG known file base
    if [[ ! -f $given && ($given != */* || $given =~ ^(\./)?configs/(asr/)?[^/]+$) ]]; then
        given=${given##*/}
        MODEL_CONFIG=$ROOT/configs/asr/${given%.yaml}.yaml
    fi
    if [[ ! -f $MODEL_CONFIG ]]; then
        known=("$ROOT"/configs/asr/*.yaml)
        die "MODEL_CONFIG: there is no $given; configs/asr has ${known[*]##*/}"
    fi
    file=$MODEL_CONFIG
    while base=$(sed -n "s/^base: *[\"']\{0,1\}\([^\"' #]*\).*/\1/p" "$file") && [[ -n $base ]]; do
        [[ $base == /* ]] || base=${file%"${file##*/}"}$base
        file=$base
        [[ -f $file ]] || die "$MODEL_CONFIG: its base $file does not exist"
    done
    FAMILY=quartznet
    ! grep -q '^jasper:' "$file" || FAMILY=jasper
}

# Where the published weights are put: those of QuartzNet by download_quartznet.sh.
published_checkpoint() {
    if [[ $FAMILY == quartznet ]]; then
        printf 'pretrained_models/quartznet_en/nvidia_quartznet_210504.pt\n'
    else
        printf '/checkpoints/jasper_fp16.pt\n'
    fi
}

# Sets CPU, NUM_GPUS (GPUs, or processes on the CPU), DALI_DEVICE, device_flags, threads of a process, and launch: the
# words between python and the program. read_device PUBLISHED_NUM_GPUS PUBLISHED_DALI_DEVICE.
read_device() {
    if [[ -z ${CPU:-} ]]; then
        CPU=false
        if ! has_gpu; then
            CPU=true
            log "note: nvidia-smi shows no GPU, so CPU=true (CPU=false insists on a GPU)"
        fi
    fi
    require_booleans CPU
    if [[ $CPU == true ]]; then
        NUM_GPUS=${NUM_GPUS:-1}
        DALI_DEVICE=${DALI_DEVICE:-none}
        [[ $DALI_DEVICE != gpu ]] || die "DALI_DEVICE=gpu needs a GPU; with CPU=true it is none or cpu"
        device_flags=(--cpu)
    else
        NUM_GPUS=${NUM_GPUS:-$1}
        DALI_DEVICE=${DALI_DEVICE:-$(available_dali "$2")}
        device_flags=()
    fi
    [[ $DALI_DEVICE =~ ^(none|cpu|gpu)$ ]] || die "DALI_DEVICE must be none, cpu or gpu, not '$DALI_DEVICE'"
    require_positive_integers NUM_GPUS
    [[ $CPU == true ]] || require_gpus
    device_flags+=("--dali_device=$DALI_DEVICE")

    read_launch
    [[ -z ${DISTRIBUTED+set} ]] || read -ra launch <<<"$DISTRIBUTED"

    # On GPUs the published 1: threads of eight processes would only get in each other's way.
    threads=1
    if [[ $CPU == true ]]; then
        threads=$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
        threads=$((threads < NUM_GPUS ? 1 : threads / NUM_GPUS))
    fi
}

# Sets launch from NUM_GPUS, MAX_RESTARTS, NNODES, RDZV_ENDPOINT and RDZV_ID, and most_nodes: what NNODES allows.
read_launch() {
    NNODES=${NNODES:-1} MAX_RESTARTS=${MAX_RESTARTS:-0}
    require_counts MAX_RESTARTS
    [[ $NNODES =~ ^[1-9][0-9]*(:[1-9][0-9]*)?$ ]] || die "NNODES is a number of machines, or MIN:MAX, not '$NNODES'"
    most_nodes=${NNODES#*:}
    local restarts=()
    ((MAX_RESTARTS == 0)) || restarts=("--max_restarts=$MAX_RESTARTS")
    launch=()
    if [[ $NNODES != 1 ]]; then
        [[ -n ${RDZV_ENDPOINT:-} && -n ${RDZV_ID:-} ]] ||
            die "NNODES=$NNODES needs RDZV_ENDPOINT=HOST:PORT, where the machines meet (one of them, that stays), and" \
                "RDZV_ID, a name for this job; the same on every machine"
        launch=(-m torch.distributed.run "--nnodes=$NNODES" "--nproc_per_node=$NUM_GPUS" "${restarts[@]}"
            --rdzv_backend=c10d "--rdzv_endpoint=$RDZV_ENDPOINT" "--rdzv_id=$RDZV_ID")
        # Else machines that stay look for a store on one that is gone.
        export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    elif ((NUM_GPUS > 1 || MAX_RESTARTS > 0)); then
        launch=(-m torch.distributed.run --standalone "--nproc_per_node=$NUM_GPUS" "${restarts[@]}")
    fi
}

require_gpus() {
    [[ $DRY_RUN != true && -z ${DISTRIBUTED+set} ]] || return 0
    local there
    there=$(nvidia-smi -L 2>/dev/null | wc -l) || true # its failure counts no lines
    ((there > 0)) || die "nvidia-smi shows no GPU: set CPU=true to run on the CPU"
    ((there >= NUM_GPUS)) ||
        die "NUM_GPUS=$NUM_GPUS, but nvidia-smi shows $there: set NUM_GPUS=$there, and GRAD_ACCUMULATION times" \
            "$NUM_GPUS/$there to keep the global batch"
}

# available_dali DEVICE: DEVICE where DALI is installed, else none.
available_dali() {
    local look='import importlib.util as u, sys; sys.exit(not (u.find_spec("nvidia") and u.find_spec("nvidia.dali")))'
    if ! command -v "$PYTHON_ASR" >/dev/null || "$PYTHON_ASR" -c "$look"; then
        printf '%s\n' "$1"
    else
        printf 'none\n'
        log "note: DALI is not installed, so DALI_DEVICE=none ('bash scripts/setup.sh dali' installs it)" >&2
    fi
}

# Sets DATA_DIR and OUTPUT_DIR to the published defaults, and makes OUTPUT_DIR.
read_folders() {
    DATA_DIR=${DATA_DIR:-/datasets/LibriSpeech}
    OUTPUT_DIR=${OUTPUT_DIR:-/results}
    [[ $DRY_RUN != true ]] || return 0
    mkdir -p "$OUTPUT_DIR" 2>/dev/null && [[ -w $OUTPUT_DIR ]] ||
        die "OUTPUT_DIR=$OUTPUT_DIR cannot be written: set OUTPUT_DIR to a folder of yours, such as results/asr"
}

# Stops unless DATA_DIR is there.
require_data() {
    [[ $DRY_RUN == true || -d $DATA_DIR ]] ||
        die "DATA_DIR=$DATA_DIR does not exist: set DATA_DIR to the folder that scripts/download_librispeech.sh and" \
            "scripts/preprocess_librispeech.sh filled. Without LibriSpeech, make a small synthetic corpus:" \
            "'$PYTHON_ASR -m data.embedded_speech --output_dir $CORPUS', then DATA_DIR=$CORPUS"
}

# require_manifests MANIFEST...: stops unless DATA_DIR and these files are there.
require_manifests() {
    require_data
    [[ $DRY_RUN != true ]] || return 0
    local manifest there
    for manifest in "$@"; do
        [[ ! -f $manifest ]] || continue
        there=("$DATA_DIR"/*.json)
        die "there is no manifest $manifest; DATA_DIR has ${there[*]##*/}"
    done
}

# default_set PUBLISHED OWN: OWN where DATA_DIR has librispeech-OWN-wav.json, a corpus of one's own; else PUBLISHED.
default_set() {
    if [[ -f $DATA_DIR/librispeech-$2-wav.json ]]; then printf '%s\n' "$2"; else printf '%s\n' "$1"; fi
}

# manifest_names SET...: the names that the data stage gives the manifests of these sets.
manifest_names() { printf 'librispeech-%s-wav.json ' "$@"; }

# find_manifests NAME FILES: sets the array NAME to the blank-separated FILES, each as it is or of DATA_DIR.
find_manifests() {
    local -n found=$1
    local file
    found=()
    for file in $2; do
        if [[ $file != */* && ! -f $file ]]; then file=$DATA_DIR/$file; fi
        found+=("$file")
    done
}

# override SECTION KEY VALUE: for keys that audio_dataset and filterbank_features share.
override() {
    local part
    for part in audio_dataset filterbank_features; do
        overrides+=(--override_config "$1.$part.$2=$3")
    done
}

# read_durations SECTION: sets overrides from MAX_DURATION and PAD_TO_MAX_DURATION.
read_durations() {
    overrides=()
    PAD_TO_MAX_DURATION=${PAD_TO_MAX_DURATION:-false}
    require_booleans PAD_TO_MAX_DURATION
    if [[ -n ${MAX_DURATION:-} ]]; then
        require_positive_numbers MAX_DURATION
        override "$1" max_duration "$MAX_DURATION"
    fi
    [[ $PAD_TO_MAX_DURATION == false ]] || override "$1" pad_to_max_duration True
}

# start MODULE FLAG...: the program with the launcher's words before and the caller's words behind its flags. MPIRUN:
# words that start the processes, inside the job of a cluster; they take the place of the launcher, so that they get its
# signals.
start() {
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads} PYTHONUNBUFFERED=1
    # Threads that sleep while they wait: spinning makes training five times slower beside other work.
    [[ $CPU != true ]] || export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
    if [[ $PLANNING == true ]]; then # one process tells it for all
        "$PYTHON_ASR" -m "$@" "${EXTRA[@]}" "--plan_processes=$NUM_GPUS"
    else
        local starter=()
        read -ra starter <<<"${MPIRUN:-}"
        [[ $DRY_RUN == true || -z ${MPIRUN:-} ]] || exec "${starter[@]}" "$PYTHON_ASR" -m "$@" "${EXTRA[@]}"
        run "${starter[@]}" "$PYTHON_ASR" "${launch[@]}" -m "$@" "${EXTRA[@]}"
    fi
}

# --------------------------------------------------------------------------------------------------------- the benchmarks

# read_folders; but where DATA_DIR is not given and the published folder is not there, the synthetic corpus is taken.
read_benchmark_folders() {
    if [[ -z ${DATA_DIR:-} && ! -d /datasets/LibriSpeech ]]; then
        DATA_DIR=$CORPUS OUTPUT_DIR=${OUTPUT_DIR:-$ROOT/results/asr_benchmark}
        log "note: no DATA_DIR and no /datasets/LibriSpeech, so synthetic speech is taken: $DATA_DIR"
        run "$PYTHON_ASR" -m data.embedded_speech --output_dir "$DATA_DIR"
    fi
    read_folders
    require_data
    log "results: $OUTPUT_DIR"
}
