#!/usr/bin/env bash
# From raw text to the records of both training phases.
#
# usage: bash data/create_datasets_from_start.sh embedded        [--dry-run] [--help]
#        bash data/create_datasets_from_start.sh text PATH NAME  [--dry-run]
#
#   embedded         English prose that ships with Python and the installed libraries; needs no download
#   text PATH NAME   plain text: a file, or a folder of files; NAME becomes the name of the data set
#   wiki_only, wiki_books   the published corpora: their download is not in this tree yet
#
# Stages, below the working folder (data/README.md says what each reads and writes):
#   formatted_one_article_per_line/ -> vocab/ (unless VOCAB_FILE) -> sharded/ -> tfrecord/<config>/
# A stage whose complete output was made from the same input and settings is left as it is; anything else is made anew.
#
#   BERT_PREP_WORKING_DIR   working folder (default: DATA_DIR, or data/)
#   VOCAB_FILE              WordPiece vocabulary, for example Google's vocab.txt (default: one trained on the text)
#   VOCAB_SIZE              of the trained one (default: 8192)
#   DO_LOWER_CASE           1 uncased, 0 cased (default: 1)
#   DOCUMENT                what a document of the text is: auto, file, line, blank_line, book (default: auto)
#   N_TRAINING_SHARDS, N_TEST_SHARDS   default 0: by the size of the text (published for Wikipedia: 1472)
#   FRACTION_TEST_SET       share of documents held out (default: 0.1)
#   SEQ_LENGTHS             sequence length and masked tokens at most, for each phase (default: "128:20 512:80")
#   DUPE_FACTOR             passes over the training text, each masked differently (default: 5; the test set: 1)
#   MASKED_LM_PROB          share of tokens to predict (default: 0.15)
#   WHOLE_WORD_MASK         1: all pieces of a word are masked together (default: 0)
#   RANDOM_SEED             default: 12345
#   N_PROCESSES             default: the cores of this machine
#   BERT_PYTHON             interpreter (default: .venv/bert, made by scripts/setup.sh)
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
parse_common "$@"

work=${BERT_PREP_WORKING_DIR:-${DATA_DIR:-$ROOT/data}}
DO_LOWER_CASE=${DO_LOWER_CASE:-1}
N_PROCESSES=${N_PROCESSES:-$(nproc)}
RANDOM_SEED=${RANDOM_SEED:-12345}
MASKED_LM_PROB=${MASKED_LM_PROB:-0.15}
FRACTION_TEST_SET=${FRACTION_TEST_SET:-0.1}
DUPE_FACTOR=${DUPE_FACTOR:-5}
read -ra seq_lengths <<<"${SEQ_LENGTHS:-128:20 512:80}"

usage="one of 'embedded', 'text PATH NAME' is wanted (--help tells more)"
source=${ARGS[0]:-}
case $source:${#ARGS[@]} in
    embedded:1) name=embedded ;;
    text:3) name=${ARGS[2]} ;;
    text:*) die "text needs a PATH and a NAME: bash data/create_datasets_from_start.sh text PATH NAME" ;;
    wiki_only:1 | wiki_books:1)
        die "$source: the download of Wikipedia and books is not in this tree yet; with text that is already" \
            "extracted, 'create_datasets_from_start.sh text PATH NAME' works, and 'embedded' needs no text at all"
        ;;
    :0) die "$usage" ;;
    *) die "cannot make sense of '${ARGS[*]}': $usage" ;;
esac
for pair in "${seq_lengths[@]}"; do
    [[ $pair =~ ^[0-9]+:[0-9]+$ ]] || die "SEQ_LENGTHS: '$pair' is not LENGTH:PREDICTIONS, as in 128:20"
done
[[ -z ${VOCAB_FILE:-} || -f $VOCAB_FILE ]] || die "VOCAB_FILE=$VOCAB_FILE does not exist"
find_bert_python

formatted=$work/formatted_one_article_per_line/${name}_one_article_per_line.txt
sharded=$work/sharded/$name
vocab=${VOCAB_FILE:-$work/vocab/$name/vocab.txt}

# stage NAME MODULE FLAG...: runs a Python module of this tree; the first that fails ends the script.
stage() {
    log "== $1"
    run "$PYTHON_BERT" -m "${@:2}" || die "stage '$1' failed; the reason is above. What was finished before it is kept."
}

format_text() {
    case $source in
        embedded) stage "formatting $name" data.embedded --output "$formatted" --n_processes "$N_PROCESSES" ;;
        text)
            stage "formatting $name" data.text "${ARGS[1]}" --name "$name" --output_dir "${formatted%/*}" \
                --document "${DOCUMENT:-auto}"
            ;;
    esac
}

# make_records LENGTH PREDICTIONS: the TFRecords of one phase.
make_records() {
    local config=CONFIG state=begun folder split
    local settings=(max_seq_length="$1" max_predictions_per_seq="$2" do_lower_case="$DO_LOWER_CASE"
        dupe_factor="$DUPE_FACTOR" masked_lm_prob="$MASKED_LM_PROB" random_seed="$RANDOM_SEED"
        do_whole_word_mask="${WHOLE_WORD_MASK:-0}")
    if [[ $DRY_RUN != true ]]; then # the name needs the number of shards, which may have been chosen by size
        config=$("$PYTHON_BERT" -m data.layout config_name --sharded "$sharded" --max_seq_length "$1" \
            --max_predictions_per_seq "$2" --do_lower_case "$DO_LOWER_CASE" --masked_lm_prob "$MASKED_LM_PROB" \
            --random_seed "$RANDOM_SEED" --dupe_factor "$DUPE_FACTOR" --fraction_test_set "$FRACTION_TEST_SET")
        folder=$work/tfrecord/$config/$name
        state=$("$PYTHON_BERT" -m data.stage begin "$folder" --inputs "$sharded/manifest.json" "$vocab" \
            --settings "${settings[@]}")
    fi
    folder=$work/tfrecord/$config/$name
    if [[ $state == current ]]; then
        log "== records of length $1: $folder: up to date"
        return
    fi
    for split in training test; do
        # The test set is passed over once: a held-out sentence counts once in the evaluation.
        [[ $split == training ]] || settings+=(dupe_factor=1)
        stage "records of length $1 ($split)" bert_tf.create_pretraining_data --input_file "$sharded/$split" \
            --output_dir "$folder/$split" --vocab_file "$vocab" "${settings[@]/#/--}" --n_processes "$N_PROCESSES"
    done
    stage "records of length $1 (complete)" data.stage end "$folder"
}

format_text
if [[ -z ${VOCAB_FILE:-} ]]; then
    stage "vocabulary" data.vocabulary --input_files "$formatted" --output "$vocab" \
        --vocab_size "${VOCAB_SIZE:-8192}" --do_lower_case "$DO_LOWER_CASE"
fi
stage "sharding" data.sharding --input_files "$formatted" --output_dir "$work/sharded" --dataset "$name" \
    --n_training_shards "${N_TRAINING_SHARDS:-0}" --n_test_shards "${N_TEST_SHARDS:-0}" \
    --fraction_test_set "$FRACTION_TEST_SET" --n_processes "$N_PROCESSES" --random_seed "$RANDOM_SEED"
for pair in "${seq_lengths[@]}"; do
    make_records "${pair%:*}" "${pair#*:}"
done
log "data set $name is ready below $work (vocabulary: $vocab)"
