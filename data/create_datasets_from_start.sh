#!/usr/bin/env bash
# From a corpus to the records of both training phases.
#
# usage: bash data/create_datasets_from_start.sh embedded        [--plan] [--dry-run] [--help]
#        bash data/create_datasets_from_start.sh text PATH NAME  [--plan] [--dry-run]
#        bash data/create_datasets_from_start.sh wiki_only       [--plan] [--dry-run]
#        bash data/create_datasets_from_start.sh wiki_books      [--plan] [--dry-run]
#        bash data/create_datasets_from_start.sh books|pubmed    [--plan] [--dry-run]
#
#   embedded         English prose that ships with Python and the installed libraries; needs no download
#   text PATH NAME   plain text: a file, or a folder of files; NAME becomes the name of the data set
#   wiki_only        English Wikipedia, downloaded (data set wikicorpus_en)
#   wiki_books       that and your books (data set books_wiki_en_corpus); BookCorpus itself cannot be downloaded
#   books            your books alone (data set bookscorpus)
#   pubmed           abstracts of PubMed's yearly baseline, downloaded (data set pubmed_baseline)
#   --plan           say what will be downloaded, and the disk, memory and time of each stage, and stop
#
# Stages, below the working folder (data/README.md says what each reads and writes):
#   download/ -> formatted_one_article_per_line/ -> vocab/ (embedded and text, unless VOCAB_FILE) -> sharded/ ->
#   tfrecord/<config>/
# A stage whose complete output was made from the same input and settings is left as it is; anything else is made anew,
# and downloads and records go on where they were stopped. The first stage that fails ends the script and is named.
#
#   BERT_PREP_WORKING_DIR   working folder (default: DATA_DIR, or data/)
#   STAGES                  which to run (default: "download formatting sharding records")
#   FORMATTED_FILES         other formatted text to shard, separated by commas; only with STAGES="sharding records"
#   BOOKS                   folder or file of books (default: download/bookscorpus in the working folder)
#   DUMP_DATE               of Wikipedia, as in 20250101 (default: the newest that is complete, then that for good)
#   MIRROR                  URLs or folders, in turn in place of the servers, with the same paths below them
#   VOCAB_FILE              WordPiece vocabulary (default: one trained on embedded and text; Google's for the others)
#   VOCAB_SIZE              of a trained one (default: 8192)
#   DO_LOWER_CASE           1 uncased, 0 cased (default: 1)
#   DOCUMENT                what a document of text is: auto, file, line, blank_line, book (default: auto)
#   N_TRAINING_SHARDS, N_TEST_SHARDS   default 0: by the size of the text (published for Wikipedia: 1472)
#   FRACTION_TEST_SET       share of documents held out (default: 0.1)
#   SEQ_LENGTHS             sequence length and masked tokens at most, for each phase (default: "128:20 512:80")
#   DUPE_FACTOR             passes over the training text, each masked differently (default: 5; the test set: 1)
#   MASKED_LM_PROB          share of tokens to predict (default: 0.15)
#   WHOLE_WORD_MASK         1: all pieces of a word are masked together (default: 0)
#   RANDOM_SEED             default: 12345
#   N_PROCESSES             default: the cores of this machine
#   EXECUTOR                where stages run: processes of this machine (default), dask (a cluster that runs at
#                           SCHEDULER, as in tcp://HOST:8786) or mpi (MPIRUN, default: mpirun -np N_PROCESSES+1)
#   BERT_PYTHON             interpreter (default: .venv/bert, made by scripts/setup.sh)
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
parse_common "$@"

work=${BERT_PREP_WORKING_DIR:-${DATA_DIR:-$ROOT/data}}
STAGES=${STAGES:-download formatting sharding records}
BOOKS=${BOOKS:-$work/download/bookscorpus}
DO_LOWER_CASE=${DO_LOWER_CASE:-1}
N_PROCESSES=${N_PROCESSES:-$(nproc)}
RANDOM_SEED=${RANDOM_SEED:-12345}
MASKED_LM_PROB=${MASKED_LM_PROB:-0.15}
FRACTION_TEST_SET=${FRACTION_TEST_SET:-0.1}
DUPE_FACTOR=${DUPE_FACTOR:-5}
read -ra seq_lengths <<<"${SEQ_LENGTHS:-128:20 512:80}"
read -ra mirrors <<<"${MIRROR:-}"

PLAN=false words=()
for word in "${ARGS[@]}"; do
    if [[ $word == --plan ]]; then PLAN=true; else words+=("$word"); fi
done
usage="one of 'embedded', 'text PATH NAME', 'wiki_only', 'wiki_books', 'books', 'pubmed' is wanted (--help tells more)"
source=${words[0]:-}
case $source:${#words[@]} in
    embedded:1) corpora=(embedded) name=embedded ;;
    text:3) corpora=("${words[2]}") name=${words[2]} ;;
    text:*) die "text needs a PATH and a NAME: bash data/create_datasets_from_start.sh text PATH NAME" ;;
    wiki_only:1) corpora=(wikicorpus_en) name=wikicorpus_en ;;
    wiki_books:1) corpora=(bookscorpus wikicorpus_en) name=books_wiki_en_corpus ;;
    books:1) corpora=(bookscorpus) name=bookscorpus ;;
    pubmed:1) corpora=(pubmed_baseline) name=pubmed_baseline ;;
    :0) die "$usage" ;;
    *) die "cannot make sense of '${words[*]}': $usage" ;;
esac
for word in $STAGES; do
    [[ $word =~ ^(download|formatting|sharding|records)$ ]] ||
        die "STAGES: '$word' is none of download, formatting, sharding, records"
done
[[ -z ${FORMATTED_FILES:-} || ! $STAGES =~ download|formatting ]] ||
    die "FORMATTED_FILES is formatted already: set STAGES to 'sharding', or 'sharding records'"
for pair in "${seq_lengths[@]}"; do
    [[ $pair =~ ^[0-9]+:[0-9]+$ ]] || die "SEQ_LENGTHS: '$pair' is not LENGTH:PREDICTIONS, as in 128:20"
done
[[ $DO_LOWER_CASE =~ ^[01]$ ]] || die "DO_LOWER_CASE must be 0 or 1, not '$DO_LOWER_CASE'"
[[ -z ${VOCAB_FILE:-} || -f $VOCAB_FILE ]] || die "VOCAB_FILE=$VOCAB_FILE does not exist"
if [[ $source == *books && $STAGES == *formatting* && $DRY_RUN != true && ! -e $BOOKS ]]; then
    die "there are no books in $BOOKS: set BOOKS to a folder or file of yours. BookCorpus was never published as an" \
        "archive, and the site that its texts were taken from refuses most requests, so nothing downloads it"
fi
find_bert_python

formatted=() # the files of the corpora, in the order in which they are read
for corpus in "${corpora[@]}"; do
    unit=article
    [[ $source != *books || $corpus != bookscorpus ]] || unit=book # as published
    formatted+=("$work/formatted_one_article_per_line/${corpus}_one_${unit}_per_line.txt")
done
[[ -z ${FORMATTED_FILES:-} ]] || IFS=, read -ra formatted <<<"$FORMATTED_FILES"
sharded=$work/sharded/$name

# The vocabulary: given, trained on the text, or Google's, which is the same in the base and the large model.
trains_vocabulary=false vocab_weights=()
if [[ -n ${VOCAB_FILE:-} ]]; then
    vocab=$VOCAB_FILE
elif [[ $source == embedded || $source == text ]]; then
    trains_vocabulary=true vocab=$work/vocab/$name/vocab.txt
else
    google=$work/download/google_pretrained_weights case=un
    [[ $DO_LOWER_CASE == 1 ]] || case=''
    weights=${case}cased_L-24_H-1024_A-16
    if [[ ! -f $google/$weights/vocab.txt ]]; then
        weights=${case}cased_L-12_H-768_A-12
        vocab_weights=("$weights")
    fi
    vocab=$google/$weights/vocab.txt
fi

server_flags=()
for mirror in "${mirrors[@]}"; do server_flags+=(--mirror "$mirror"); done
[[ -z ${DUMP_DATE:-} ]] || server_flags+=(--dump_date "$DUMP_DATE")

# Where formatting, sharding and records run.
workers=(--n_processes "$N_PROCESSES") launcher=()
case ${EXECUTOR:-processes} in
    processes) ;;
    dask)
        [[ -n ${SCHEDULER:-} ]] || die "EXECUTOR=dask needs SCHEDULER, a cluster's address, as in tcp://HOST:8786"
        workers=(--executor dask --scheduler "$SCHEDULER")
        ;;
    mpi)
        workers=(--executor mpi)
        read -ra launcher <<<"${MPIRUN:-mpirun -np $((N_PROCESSES + 1))}" # one rank leads
        ;;
    *) die "EXECUTOR must be processes, dask or mpi, not '$EXECUTOR'" ;;
esac

# stage NAME MODULE FLAG...: runs a Python module of this tree; the first that fails ends the script.
# spread_stage: the same, by the workers of EXECUTOR.
spread_stage() { local launch=("${launcher[@]}") && stage "$@" "${workers[@]}"; }
stage() {
    log "== $1"
    run "${launch[@]}" "$PYTHON_BERT" -m "${@:2}" ||
        die "stage '$1' failed; the reason is above. What was finished before it is kept."
}

launch=() # of a stage: none but with mpi
wanted() { [[ " $STAGES " == *" $1 "* ]]; }

# Says what all of it takes, and stops where the disk is too small.
plan() {
    local flags=("$source" --data_dir "$work" --n_processes "$N_PROCESSES" --seq_lengths "${seq_lengths[@]}"
        --dupe_factor "$DUPE_FACTOR")
    [[ $source != text ]] || flags+=(--text "${words[1]}" --name "$name")
    [[ $source != *books ]] || flags+=(--text "$BOOKS")
    ((${#vocab_weights[@]} == 0)) || flags+=(--vocab "${vocab_weights[@]}")
    stage "plan for $name" data.plan "${flags[@]}" "${server_flags[@]}"
}

download() {
    local names=("${vocab_weights[@]}") corpus
    for corpus in "${corpora[@]}"; do
        [[ $source == text || ! $corpus =~ ^(wikicorpus_en|pubmed_baseline)$ ]] || names+=("$corpus")
    done
    ((${#names[@]} == 0)) || stage "download" data.datasets fetch "${names[@]}" --data_dir "$work" "${server_flags[@]}"
}

# format_text CORPUS FILE
format_text() {
    local path=${words[1]:-}
    case $source:$1 in # the user's text may be called like any other
        text:*)
            set -- "$1" data.text "$path" --name "$1" --output_dir "${2%/*}" --document "${DOCUMENT:-auto}"
            ;;
        *:embedded) set -- "$1" data.embedded --output "$2" ;;
        *:wikicorpus_en) set -- "$1" data.wikipedia "$work/download/$1/$1.xml.bz2" --output "$2" ;;
        *:bookscorpus) set -- "$1" data.books "$BOOKS" --output "$2" ;;
        *:pubmed_baseline) set -- "$1" data.pubmed "$work/download/pubmed/baseline" --output "$2" ;;
    esac
    spread_stage "formatting $1" "${@:2}"
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
            --random_seed "$RANDOM_SEED" --dupe_factor "$DUPE_FACTOR" --fraction_test_set "$FRACTION_TEST_SET") ||
            die "stage 'records of length $1' failed; the reason is above."
        folder=$work/tfrecord/$config/$name
        state=$("$PYTHON_BERT" -m data.stage begin "$folder" --inputs "$sharded/manifest.json" "$vocab" \
            --settings "${settings[@]}") || die "stage 'records of length $1' failed; the reason is above."
    fi
    folder=$work/tfrecord/$config/$name
    if [[ $state == current ]]; then
        log "== records of length $1: $folder: up to date"
        return
    fi
    for split in training test; do
        # The test set is passed over once: a held-out sentence counts once in the evaluation.
        [[ $split == training ]] || settings+=(dupe_factor=1)
        spread_stage "records of length $1 ($split)" bert_tf.create_pretraining_data --input_file "$sharded/$split" \
            --output_dir "$folder/$split" --vocab_file "$vocab" "${settings[@]/#/--}"
    done
    stage "records of length $1 (complete)" data.stage end "$folder"
}

if [[ $PLAN == true ]]; then
    plan
    exit
fi
# What needs no download is small, or the user's own to judge.
[[ $source == embedded || $source == text ]] || ! wanted download || plan
! wanted download || download
if wanted formatting; then
    for i in "${!corpora[@]}"; do format_text "${corpora[i]}" "${formatted[i]}"; done
    if [[ $trains_vocabulary == true ]]; then
        stage "vocabulary" data.vocabulary --input_files "$(IFS=, && echo "${formatted[*]}")" --output "$vocab" \
            --vocab_size "${VOCAB_SIZE:-8192}" --do_lower_case "$DO_LOWER_CASE"
    fi
fi
if wanted sharding; then
    spread_stage "sharding" data.sharding --input_files "$(IFS=, && echo "${formatted[*]}")" \
        --output_dir "$work/sharded" --dataset "$name" --n_training_shards "${N_TRAINING_SHARDS:-0}" \
        --n_test_shards "${N_TEST_SHARDS:-0}" --fraction_test_set "$FRACTION_TEST_SET" --random_seed "$RANDOM_SEED"
fi
if wanted records; then
    for pair in "${seq_lengths[@]}"; do make_records "${pair%:*}" "${pair#*:}"; done
fi
[[ $DRY_RUN == true ]] || log "data set $name: done ($STAGES), below $work (vocabulary: $vocab)"
