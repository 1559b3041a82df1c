# shellcheck shell=bash
# Shared by the fine-tuning launchers: what their words mean on this machine, the weights with vocabulary and model
# file, the data, the one call of a main. Sourced after lib.sh, never run.
# shellcheck disable=SC2034,SC2154 # the launchers set and read these variables

source "$(dirname "${BASH_SOURCE[0]}")/bert.sh"
OWN_FLAGS=(
    bert_config_file vocab_file init_checkpoint output_dir data_dir train_file predict_file task_name do_train do_eval
    train_batch_size num_accumulation_steps learning_rate num_train_epochs max_seq_length doc_stride
    version_2_with_negative precision amp use_xla horovod seed
)

# -------------------------------------------------------------------------------------------------------------- the words

# default_machine_words GPUS: fills num_gpu, precision and use_xla where no word says them: as published (GPUS, fp16,
# true), or what this machine is able to do.
default_machine_words() {
    local gpus notes=()
    gpus=$(count_gpus)
    if [[ -z ${num_gpu:-} ]]; then
        num_gpu=$((gpus == 0 ? 1 : gpus < $1 ? gpus : $1))
        ((num_gpu == $1)) || notes+=(" num_gpu=$num_gpu (published: $1)")
    fi
    if ((gpus)); then
        precision=${precision:-fp16} use_xla=${use_xla:-true}
    else
        if [[ -z $precision ]]; then
            precision=fp32
            ! has_bf16_cpu || precision=bf16
            notes+=(" precision=$precision (published: fp16)")
        fi
        if [[ -z $use_xla ]]; then
            use_xla=false
            notes+=(" use_xla=false (published: true)")
        fi
    fi
    local IFS=,
    ((${#notes[@]} == 0)) || log "note: GPUs that nvidia-smi shows: $gpus, so${notes[*]}"
}

# read_machine_words GPUS: default_machine_words, then checks them and sets precision_flags and xla_flag.
read_machine_words() {
    default_machine_words "$1"
    require_positive_integers num_gpu
    read_precision
    require_launcher num_gpu
}

# Sets num_accumulation_steps from the environment, and gbs, the sequences of an update.
read_global_batch() {
    num_accumulation_steps=${NUM_ACCUMULATION_STEPS:-1}
    require_positive_integers num_accumulation_steps
    gbs=$((batch_size * num_accumulation_steps * num_gpu))
}

describe_training() {
    log "global batch $gbs ($batch_size sequences x $num_accumulation_steps accumulation steps x $num_gpu processes);" \
        "effective learning rate $(effective_rate "$learning_rate" "$num_gpu") ($learning_rate x $num_gpu processes)"
}

# ------------------------------------------------------------------------------------------------------------ the weights

# pretrained_folder [cased]: where the published weights of bert_model are put, empty where there are none; or BERT_DIR.
pretrained_folder() {
    local case=un
    [[ ${1:-} != cased ]] || case=''
    if [[ -n ${BERT_DIR:-} ]]; then
        printf '%s\n' "$BERT_DIR"
    elif [[ $bert_model == large && $case == un ]]; then
        printf '%s\n' "$DATA_DIR/download/nvidia_pretrained/bert_tf_pretraining_large_lamb"
    elif [[ $bert_model == large ]]; then
        printf '%s\n' "$DATA_DIR/download/google_pretrained_weights/cased_L-24_H-1024_A-16"
    elif [[ $bert_model == base ]]; then
        printf '%s\n' "$DATA_DIR/download/google_pretrained_weights/${case}cased_L-12_H-768_A-12"
    fi
}

# Where NVIDIA's weights of bert_model that answer questions are put, empty where there are none; or BERT_DIR.
finetuned_folder() {
    local named=''
    case $bert_model in
        large) named=bert_tf_squad11_large_384 ;;
        base) named=bert_tf_squad11_base_128 ;;
    esac
    printf '%s\n' "${BERT_DIR:-${named:+$DATA_DIR/download/nvidia_pretrained/$named}}"
}

# checkpoint_in FOLDER: its checkpoint, which NVIDIA and Google name differently; the folder where it is another.
checkpoint_in() {
    local name names=(model.ckpt bert_model.ckpt)
    [[ $1 != *google_pretrained* ]] || names=(bert_model.ckpt)
    for name in "${names[@]}"; do
        if [[ -f $1/$name.index ]]; then
            printf '%s\n' "$1/$name"
            return
        fi
    done
    if [[ -d $1 ]]; then printf '%s\n' "$1"; else printf '%s\n' "$1/${names[0]}"; fi
}

# find_weights FOLDER: sets init_flags, vocab_file, bert_config and case_flags for $init_checkpoint ("none": random
# weights), by default the checkpoint in FOLDER. Vocabulary and model file lie beside the weights, or in FOLDER.
find_weights() {
    local folder=$1 places=() beside
    if [[ -z $init_checkpoint ]]; then
        init_checkpoint=none
        [[ -z $folder ]] || init_checkpoint=$(checkpoint_in "$folder")
        [[ -n $folder ]] || log "note: there are no published weights of the model $bert_model, so they are random"
    fi
    init_flags=() case_flags=()
    if [[ $init_checkpoint != none ]]; then
        init_checkpoint_flag "$init_checkpoint" ||
            die "there are no weights $init_checkpoint: 'bash scripts/data_download.sh weights' puts Google's and" \
                "NVIDIA's there (a checkpoint, vocab.txt and bert_config.json); or set BERT_DIR to their folder, or" \
                "give init_checkpoint: the prefix of a TensorFlow checkpoint, an output folder of ours, a Hugging" \
                "Face folder, or 'none' for random weights"
        beside=$init_checkpoint
        [[ -d $beside ]] || beside=$(dirname "$beside")
        places=("$beside")
        read_case "$beside"
    fi
    [[ -z $folder ]] || places+=("$folder")

    vocab_file=${VOCAB_FILE:-$(first_file vocab.txt -- "${places[@]}")}
    if [[ ! -f $vocab_file && $DRY_RUN != true ]]; then
        [[ -z ${VOCAB_FILE:-} ]] || die "VOCAB_FILE=$VOCAB_FILE does not exist"
        die "there is no vocab.txt in ${places[*]:-a folder of weights, for there are none}: set VOCAB_FILE to the" \
            "vocabulary that the weights were trained with (what the data stages made is below $DATA_DIR/vocab)"
    fi
    vocab_file=${vocab_file:-${places[0]:-$DATA_DIR/vocab/DATASET}/vocab.txt}
    BERT_CONFIG=${BERT_CONFIG:-$(first_file bert_config.json config.json -- "${places[@]}")} read_bert_config
}

# first_file NAME... -- FOLDER...: the first of these files that is there, if any.
first_file() {
    local names=() name folder
    while [[ $1 != -- ]]; do
        names+=("$1")
        shift
    done
    for folder in "${@:2}"; do
        for name in "${names[@]}"; do
            [[ ! -f $folder/$name ]] || { printf '%s\n' "$folder/$name" && return; }
        done
    done
}

# read_case FOLDER: sets case_flags where weights say by their files or their folder's name that they are cased.
read_case() {
    local file
    file=$(first_file labels.json tokenizer_config.json -- "$1")
    if [[ -n $file ]]; then
        ! grep -q '"do_lower_case": *false' "$file" || case_flags=(--do_lower_case=false)
    elif [[ /$1/ =~ [/_-]cased[/_-] ]]; then
        case_flags=(--do_lower_case=false)
    fi
    ((${#case_flags[@]} == 0)) || log "note: $1 is of a cased model, so --do_lower_case=false"
}

# What an inference run is called by: the path of its weights, as far as a file name holds it.
checkpoint_tag() {
    local name=${init_checkpoint//\//-}
    ((${#name} <= 120)) || name=${name: -120}
    printf '%s\n' "$name"
}

# ---------------------------------------------------------------------------------------------------------------- the data

# require_questions FILE...: stops where questions are missing.
require_questions() {
    local file made=$DATA_DIR/embedded_questions
    [[ $DRY_RUN != true ]] || return 0
    for file in "$@"; do
        [[ -f $file ]] ||
            die "there is no $file: 'bash scripts/data_download.sh squad' puts it there; or set SQUAD_DIR to a folder with" \
                "${*##*/}. Without SQuAD, make questions from the documentation of installed libraries:" \
                "'$PYTHON_BERT -m data.embedded_questions --output_dir $made', then SQUAD_DIR=$made and squad_version 2.0"
    done
}

# Sets squad_dir and squad_flags.
read_squad() {
    [[ $squad_version == 1.1 || $squad_version == 2.0 ]] || die "squad_version must be 1.1 or 2.0, not '$squad_version'"
    squad_dir=${SQUAD_DIR:-$DATA_DIR/download/squad/v$squad_version}
    squad_flags=()
    [[ $squad_version == 1.1 ]] || squad_flags=(--version_2_with_negative)
    local script=$squad_dir/evaluate-v$squad_version.py # runs beside our own scores where it is there
    [[ ! -f $script ]] || squad_flags+=("--eval_script=$script")
}

# Sets task_dir to the folder of task_name in GLUE_DIR, else where the downloader puts it or the published scripts
# look; the folder's name may differ in case and hyphens (SST-2, sst2).
find_glue() {
    local parents=("$DATA_DIR/download/glue" "$DATA_DIR/download") parent folder name
    [[ -z ${GLUE_DIR:-} ]] || parents=("$GLUE_DIR")
    for parent in "${parents[@]}"; do
        for folder in "$parent"/*/; do
            name=$(basename "$folder")
            name=${name//-/}
            if [[ -d $folder && ${name,,} == $(tr -d - <<<"${task_name,,}") ]]; then
                task_dir=${folder%/}
                return
            fi
        done
    done
    task_dir=${parents[0]}/$task_name
    [[ $DRY_RUN == true ]] ||
        die "there is no folder $task_name in ${parents[*]}: 'bash scripts/data_download.sh glue' puts the tasks there;" \
            "or set GLUE_DIR to the folder that holds a folder for each task"
}

# --------------------------------------------------------------------------------------------------------------- the launch

# read_results TAG: sets date and RESULTS_DIR.
read_results() {
    date=$(date +%y%m%d%H%M%S)
    RESULTS_DIR=${RESULTS_DIR:-$(default_results)/$1_$date}
}

# finetune MODULE FLAG...: a main with what all of them share, as num_gpu processes.
finetune() {
    start_bert "$num_gpu" "$1" \
        "--bert_config_file=$bert_config" "--vocab_file=$vocab_file" "${init_flags[@]}" "--output_dir=$RESULTS_DIR" \
        "--max_seq_length=$seq_length" "${precision_flags[@]}" "$xla_flag" "${case_flags[@]}" \
        "${@:2}" \
        ${SEED:+"--seed=$SEED"} "${EXTRA[@]}"
}

# The flags of training, which all mains have.
training_flags() {
    train_flags=(
        --do_train --report "--train_batch_size=$batch_size" "--num_accumulation_steps=$num_accumulation_steps"
        "--learning_rate=$learning_rate" "--num_train_epochs=$epochs"
    )
}

# Prediction takes random weights only where they were asked for.
allow_random_weights() {
    random_flags=()
    [[ $init_checkpoint != none ]] || random_flags=(--allow_random_weights)
}
