# shellcheck shell=bash
# Shared by the two phases of BioBERT's pre-training. Sourced after lib.sh and pretraining.sh, never run.
# shellcheck disable=SC2034,SC2154 # the launchers set and read these variables

# take_pubmed_words BATCH RATE WARMUP STEPS ACCUMULATION EVAL_BATCH WORD...: the 11 words that both phases have, with
# the published defaults of one.
take_pubmed_words() {
    local published=("${@:1:6}")
    split_words 11 "${@:7}"
    set -- "${POSITIONAL[@]}"
    train_batch_size=${1:-${published[0]}}
    learning_rate=${2:-${published[1]}}
    cased=${3:-false}
    precision=${4:-fp16}
    use_xla=${5:-true}
    num_gpus=${6:-16}
    warmup_steps=${7:-${published[2]}}
    train_steps=${8:-${published[3]}}
    num_accumulation_steps=${9:-${published[4]}}
    save_checkpoints_steps=${10:-5000}
    eval_batch_size=${11:-${published[5]}}
    require_positive_integers train_batch_size num_gpus train_steps num_accumulation_steps save_checkpoints_steps \
        eval_batch_size
    require_counts warmup_steps
    require_positive_numbers learning_rate
    require_booleans cased
    read_precision
    require_launcher num_gpus
    require_warmup warmup_steps "$train_steps"

    local casing=uncased
    [[ $cased == false ]] || casing=cased
    google_dir=${BERT_DIR:-$DATA_DIR/download/google_pretrained_weights/${casing}_L-12_H-768_A-12}
    bert_model=base
    [[ -n ${BERT_CONFIG:-} || ! -f $google_dir/bert_config.json ]] || BERT_CONFIG=$google_dir/bert_config.json
    read_bert_config
}

# find_pubmed LENGTH PREDICTIONS: sets SOURCES, unless it is given, to the records of PubMed in the case of the words.
find_pubmed() {
    [[ -z ${SOURCES:-} ]] || return 0
    local lower_case=1 folder
    [[ $cased == false ]] || lower_case=0
    for folder in "$DATA_DIR/tfrecord/lower_case_${lower_case}_seq_len_$1_max_pred_$2_"*/pubmed_baseline; do
        [[ ! -d $folder ]] || SOURCES=$(basename "$(dirname "$folder")")/pubmed_baseline
    done
    [[ -z ${SOURCES:-} ]] || return 0
    SOURCES=pubmed_baseline
    [[ $DRY_RUN == true ]] ||
        die "there are no records lower_case_${lower_case}_seq_len_$1_max_pred_$2_*/pubmed_baseline below" \
            "$DATA_DIR/tfrecord: make them with 'bash scripts/data_download.sh pubmed' (--plan says what it takes)," \
            "or from abstracts of yours with 'DO_LOWER_CASE=$lower_case VOCAB_FILE=... bash" \
            "data/create_datasets_from_start.sh text PATH pubmed_baseline', or name others in SOURCES"
}

# pretrain_pubmed PHASE LENGTH PREDICTIONS REMEDY: the run, from $checkpoint.
pretrain_pubmed() {
    init_flags=()
    [[ $checkpoint == none ]] || init_checkpoint_flag "$checkpoint" || die "there is no $checkpoint.index: $4"
    RESULTS_DIR=${RESULTS_DIR:-$(default_results)/biobert_phase_$1}
    local tag=tf_bert_biobert_pretraining_phase_$1_${precision}_gbs$((train_batch_size * num_accumulation_steps * num_gpus))
    logged "$RESULTS_DIR/$tag.$(date +%y%m%d%H%M%S).log" _pretrain_pubmed "$@"
}

_pretrain_pubmed() {
    log "results: $RESULTS_DIR"
    log "weights: $checkpoint"
    describe "phase $1" "$train_steps" "$train_batch_size" "$num_accumulation_steps" "$warmup_steps" "$learning_rate"
    pretrain "$RESULTS_DIR" "$2" "$3" \
        --train_batch_size="$train_batch_size" \
        --num_accumulation_steps="$num_accumulation_steps" \
        --num_train_steps="$train_steps" \
        --num_warmup_steps="$warmup_steps" \
        --learning_rate="$learning_rate" \
        "${init_flags[@]}"
}
