# shellcheck shell=bash
# Shared by the pre-training launchers: their words, the records, and the one call of run_pretraining.py.
# Sourced after lib.sh, never run.
# shellcheck disable=SC2034 # the launchers read what the functions set

source "$(dirname "${BASH_SOURCE[0]}")/bert.sh"
OWN_FLAGS=(
    input_files_dir eval_files_dir output_dir bert_config_file do_train do_eval train_batch_size eval_batch_size
    max_seq_length max_predictions_per_seq num_train_steps num_warmup_steps num_accumulation_steps learning_rate
    save_checkpoints_steps horovod precision amp use_xla manual_fp16 optimizer_type
)

# -------------------------------------------------------------------------------------------------------------- the words

require_warmup() { # NAME STEPS: the warm-up in the variable NAME ends before the training does
    ((${!1} < $2)) || die "$1=${!1} must be below the $2 updates of its phase: lower it, or raise train_steps"
}

# The 15 words of the LAMB launchers, in the published order with the published defaults.
take_lamb_words() {
    split_words 15 "$@"
    set -- "${POSITIONAL[@]}"
    train_batch_size_phase1=${1:-64}
    train_batch_size_phase2=${2:-8}
    eval_batch_size=${3:-8}
    learning_rate_phase1=${4:-7.5e-4}
    learning_rate_phase2=${5:-5e-4}
    precision=${6:-fp16}
    use_xla=${7:-true}
    num_gpus=${8:-8}
    warmup_steps_phase1=${9:-2000}
    warmup_steps_phase2=${10:-200}
    train_steps=${11:-7820}
    save_checkpoints_steps=${12:-100}
    num_accumulation_steps_phase1=${13:-128}
    num_accumulation_steps_phase2=${14:-512}
    bert_model=${15:-large}
    require_positive_integers train_batch_size_phase1 train_batch_size_phase2 eval_batch_size num_gpus train_steps \
        save_checkpoints_steps num_accumulation_steps_phase1 num_accumulation_steps_phase2
    require_counts warmup_steps_phase1 warmup_steps_phase2
    require_positive_numbers learning_rate_phase1 learning_rate_phase2
    read_precision
    read_bert_config
    require_launcher num_gpus

    # Nine tenths of the updates at length 128; the last tenth's sequences again at length 512, in batches of phase 2.
    local batch1=$((train_batch_size_phase1 * num_accumulation_steps_phase1))
    local batch2=$((train_batch_size_phase2 * num_accumulation_steps_phase2))
    steps_phase1=$((train_steps * 9 / 10))
    # shellcheck disable=SC2017 # the published step count divides first: floor(train_steps / 10)
    steps_phase2=$((train_steps / 10 * batch1 / batch2))
    ((steps_phase1 > 0 && steps_phase2 > 0)) ||
        die "train_steps=$train_steps leaves $steps_phase1 updates for phase 1 and $steps_phase2 for phase 2: raise it"
    require_warmup warmup_steps_phase1 "$steps_phase1"
    require_warmup warmup_steps_phase2 "$steps_phase2"
    gbs_phase1=$((batch1 * num_gpus))
    gbs_phase2=$((batch2 * num_gpus))
}

# The 13 words of the Adam launcher.
take_adam_words() {
    split_words 13 "$@"
    set -- "${POSITIONAL[@]}"
    train_batch_size=${1:-16}
    eval_batch_size=${2:-8}
    learning_rate=${3:-1e-4}
    precision=${4:-fp16}
    use_xla=${5:-true}
    num_gpus=${6:-8}
    warmup_steps=${7:-10000}
    train_steps=${8:-1144000}
    save_checkpoints_steps=${9:-5000}
    bert_model=${10:-large}
    num_accumulation_steps=${11:-1}
    seq_len=${12:-512}
    max_pred_per_seq=${13:-80}
    require_positive_integers train_batch_size eval_batch_size num_gpus train_steps save_checkpoints_steps \
        num_accumulation_steps seq_len max_pred_per_seq
    require_counts warmup_steps
    require_positive_numbers learning_rate
    read_precision
    read_bert_config
    require_launcher num_gpus
    require_warmup warmup_steps "$train_steps"
    gbs=$((train_batch_size * num_accumulation_steps * num_gpus))
}

# describe NAME STEPS BATCH ACCUMULATION WARMUP LEARNING_RATE: what is about to run, products worked out.
describe() {
    log "$1: $2 updates, warm-up $5; global batch $(($3 * $4 * num_gpus))" \
        "($3 sequences x $4 accumulation steps x $num_gpus processes);" \
        "effective learning rate $(effective_rate "$6" "$num_gpus") ($6 x $num_gpus processes)"
}

describe_phase1() {
    describe "phase 1" "$steps_phase1" "$train_batch_size_phase1" "$num_accumulation_steps_phase1" \
        "$warmup_steps_phase1" "$learning_rate_phase1"
}

describe_phase2() {
    describe "phase 2" "$steps_phase2" "$train_batch_size_phase2" "$num_accumulation_steps_phase2" \
        "$warmup_steps_phase2" "$learning_rate_phase2"
}

# ------------------------------------------------------------------------------------------------------------ the records

# find_records LENGTH PREDICTIONS: sets train_dirs and eval_dirs, comma-separated, from SOURCES: datasets, or folders
# that hold training/ and test/. One whose path carries another sequence length belongs to another phase.
find_records() {
    local shape=_seq_len_$1_max_pred_$2_ source sources=() named=() found split dirs
    train_dirs='' eval_dirs=''
    IFS=, read -ra sources <<<"${SOURCES:-}"
    for source in "${sources[@]}"; do
        if [[ $source == *_seq_len_* && $source != *"$shape"* ]]; then
            continue
        elif [[ $source == */* && -d $source ]]; then
            [[ -d $source/training && -d $source/test ]] || die "SOURCES: $source does not hold training/ and test/"
            add_records "$source"
        else
            named+=("$source")
        fi
    done
    if ((${#named[@]} == 0 && ${#sources[@]} > 0)); then
        [[ -n $train_dirs ]] || die "SOURCES=$SOURCES names no records of sequence length $1 with $2 predictions"
    elif found=$(ask_layout "$1" "$2" "${named[@]/#/--source=}"); then
        while read -r split dirs; do
            case $split in
                training) train_dirs+=${train_dirs:+,}$dirs ;;
                test) eval_dirs+=${eval_dirs:+,}$dirs ;;
            esac
        done <<<"$found"
    elif [[ $DRY_RUN == true ]]; then
        log "note: ${found#error: }"
        log "note: the pattern stands for what will be found"
        for source in "${named[@]:-*}"; do
            add_records "$DATA_DIR/tfrecord/*$shape*/${source##*/}"
        done
    else
        exit 1
    fi
}

add_records() {
    train_dirs+=${train_dirs:+,}$1/training
    eval_dirs+=${eval_dirs:+,}$1/test
}

# ask_layout LENGTH PREDICTIONS --source=NAME...: the folders; on failure the reason, which a dry run only notes.
ask_layout() {
    if [[ $DRY_RUN == true ]]; then
        exec 2>&1
        command -v "$PYTHON_BERT" >/dev/null || die "$PYTHON_BERT does not exist yet: run 'bash scripts/setup.sh bert'"
    fi
    "$PYTHON_BERT" -m data.layout find --data_dir "$DATA_DIR" --max_seq_length "$1" --max_predictions_per_seq "$2" "${@:3}"
}

# ------------------------------------------------------------------------------------------------------------- the launch

# pretrain OUTPUT_DIR LENGTH PREDICTIONS FLAG...: one training run with what all of them share.
pretrain() {
    find_records "$2" "$3"
    start_bert "$num_gpus" bert_tf.run_pretraining \
        "--input_files_dir=$train_dirs" "--eval_files_dir=$eval_dirs" "--output_dir=$1" \
        "--bert_config_file=$bert_config" --do_train --report --do_eval "--eval_batch_size=$eval_batch_size" \
        "--max_seq_length=$2" "--max_predictions_per_seq=$3" "--save_checkpoints_steps=$save_checkpoints_steps" \
        "${precision_flags[@]}" "$xla_flag" --allreduce_post_accumulation=True \
        "${@:4}" \
        ${SEED:+"--seed=$SEED"} ${MAX_EVAL_STEPS:+"--max_eval_steps=$MAX_EVAL_STEPS"} \
        "${EXTRA[@]}"
}
