# shellcheck shell=bash
# Shared by the benchmarks of fine-tuning and prediction: their grids, questions, weights, and the runs.
# Sourced after lib.sh and finetuning.sh, never run.
# shellcheck disable=SC2034,SC2154 # the launchers set and read these variables

OWN_FLAGS+=(save_checkpoints_steps predict_batch_size eval_batch_size num_eval_iterations do_predict dllog_path)

# take_benchmark_words LIMIT WORD...: split_words; sets quick where --quick is among them.
take_benchmark_words() {
    local word words=()
    quick=false
    for word in "${@:2}"; do
        if [[ $word == --quick ]]; then quick=true; else words+=("$word"); fi
    done
    split_words "$1" "${words[@]}"
}

# read_grid SEQ_LENGTHS BATCH_SIZES QUICK_BATCH_SIZES: sets the sequences of the sweep, from the environment or these.
read_grid() {
    local batch_sizes=$2 seq_length batch_size mode
    [[ $quick == false ]] || batch_sizes=$3
    SEQ_LENGTHS=${SEQ_LENGTHS:-$1} BATCH_SIZES=${BATCH_SIZES:-$batch_sizes} PRECISIONS=${PRECISIONS:-amp noamp}
    for seq_length in $SEQ_LENGTHS; do require_positive_integers seq_length; done
    for batch_size in $BATCH_SIZES; do require_positive_integers batch_size; done
    for mode in $PRECISIONS; do read_mode "$mode"; done
    largest_batch=$(tr ' ' '\n' <<<"$BATCH_SIZES" | sort -n | tail -n 1)
}

# read_mode MODE: sets precision_flags. amp is fp16 on a GPU and bf16 on a CPU, noamp tf32 and fp32.
read_mode() {
    case $1 in
        amp | noamp) precision_flags=("--$1") ;;
        fp16 | bf16 | tf32 | fp32) precision_flags=("--precision=$1") ;;
        *) die "PRECISIONS must be of amp, noamp, fp16, bf16, tf32 and fp32, not '$1'" ;;
    esac
}

# begin_benchmark DEFAULT_RESULTS_DIR: sets results, and notes the machine there.
begin_benchmark() {
    results=${RESULTS_DIR:-$1}
    log "results: $results"
    run "$PYTHON_BERT" -m bert_tf.benchmark_tables machine "$results"
}

# find_benchmark_questions SPLIT N: sets questions_file to N questions of SQuAD's train or dev file (fewer, where it has
# fewer), n_questions to their number, and letters_file to a vocabulary that serves where there is none.
find_benchmark_questions() {
    local version source
    squad_dir=${SQUAD_DIR:-$DATA_DIR/download/squad/v1.1}
    if [[ -z ${SQUAD_DIR:-} && ! -d $squad_dir ]]; then
        squad_dir=$DATA_DIR/embedded_questions
        log "note: no SQUAD_DIR and no SQuAD 1.1 in $DATA_DIR/download, so questions are made: $squad_dir"
        run "$PYTHON_BERT" -m data.embedded_questions --output_dir "$squad_dir"
    fi
    for version in 1.1 2.0; do
        source=$squad_dir/$1-v$version.json
        [[ ! -f $source ]] || break
    done
    [[ $DRY_RUN == true || -f $source ]] || die "there is no $1-v1.1.json and no $1-v2.0.json in SQUAD_DIR=$squad_dir"
    local folder=$results/benchmark_questions
    questions_file=$folder/questions.json letters_file=$folder/vocab.txt n_questions=$2
    local command=("$PYTHON_BERT" -m bert_tf.benchmark_questions "$source" --questions "$2" --output_dir "$folder" --vocab)
    if [[ $DRY_RUN == true ]]; then run "${command[@]}"; else n_questions=$("${command[@]}"); fi
    [[ $PLANNING != true ]] || questions_file=$source # what they will be taken from
}

# find_benchmark_weights FOLDER: find_weights for INIT_CHECKPOINT, by default the checkpoint in FOLDER; random weights
# where there is none, for the speed is the same.
find_benchmark_weights() {
    local VOCAB_FILE=${VOCAB_FILE:-} BERT_CONFIG=${BERT_CONFIG:-}
    init_checkpoint=${INIT_CHECKPOINT:-}
    if [[ -z $init_checkpoint && ! -f $(checkpoint_in "$1").index ]]; then
        log "note: $bert_model: no INIT_CHECKPOINT and no published weights${1:+ in $1}, so they are random"
        init_checkpoint=none
    fi
    if [[ $init_checkpoint == none && -z $VOCAB_FILE && -n ${letters_file:-} && ! -f $1/vocab.txt ]]; then
        VOCAB_FILE=$letters_file
    fi
    find_weights "$1"
}

# measure NAME COMMAND...: one run, whose folder is NAME; its checkpoints, of gigabytes, are not kept.
measure() {
    log "== $1"
    run rm -rf "${results:?}/$1"
    RESULTS_DIR=$results/$1 logged "$results/$1/run.log" "${@:2}" || note_failure $? "$1"
    [[ $DRY_RUN == true ]] || rm -f "$results/$1"/model.ckpt-* "$results/$1/checkpoint"
}

# end_benchmark train|inference TASK: the tables; fails where a run did.
end_benchmark() {
    run "$PYTHON_BERT" -m bert_tf.benchmark_tables "$1" "$results" --task "$2"
    stop_if_failed
}
