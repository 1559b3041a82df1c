#!/usr/bin/env bash
# Data sets and weights for BERT, downloaded and, where it is text to pre-train on, made into records.
#
# usage: [VARIABLE=value...] bash scripts/data_download.sh [WHAT] [--no-docker] [--plan] [--dry-run] [--help]
#
#   WHAT   wiki_only   English Wikipedia, to records of both phases (default)
#          wiki_books  that and your books (BOOKS), to records
#          squad       SQuAD 1.1 and 2.0
#          glue        the tasks of GLUE
#          weights     Google's seven models and NVIDIA's three
#          pubmed      PubMed's abstracts, to the records of BioBERT, uncased and cased
#          all         all of these, with the books where BOOKS is set
#   --plan        say what will be downloaded, and the disk, memory and time of each stage, and stop
#   --no-docker   on this machine, in .venv/bert; otherwise in the container "bert" as published, where Docker and that
#                 image are there (with this tree as /workspace/bert), else on this machine too, with a note
#
#   BERT_PREP_WORKING_DIR  where it goes (default: DATA_DIR, or data/; in the container data/ of this tree always)
#   KEEP_ARCHIVES          true keeps what was unpacked in download/archives (default: false)
#   MIRROR, DUMP_DATE, BOOKS, VOCAB_FILE, N_PROCESSES, SEQ_LENGTHS ...: as for data/create_datasets_from_start.sh
#                          (--help there); of paths in MIRROR and VOCAB_FILE the container sees those in this tree
#
#   The part that fails ends it and is named; the same command goes on from there.
#
# examples: bash scripts/data_download.sh wiki_only --plan
#           DUMP_DATE=20250101 bash scripts/data_download.sh wiki_only --no-docker
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"

docker_allowed=true what='' plan=()
for word in "${ARGS[@]}"; do
    case $word in
        --no-docker) docker_allowed=false ;;
        --plan) plan=(--plan) ;;
        wiki_only | wiki_books | squad | glue | weights | pubmed | all)
            [[ -z $what ]] || die "one word is wanted, not '$what' and '$word'"
            what=$word
            ;;
        *)
            die "unknown argument '$word': usage is data_download.sh" \
                "[wiki_only|wiki_books|squad|glue|weights|pubmed|all] [--no-docker] [--plan] [--dry-run] [--help]"
            ;;
    esac
done
what=${what:-wiki_only}
KEEP_ARCHIVES=${KEEP_ARCHIVES:-false}
require_booleans KEEP_ARCHIVES

# ----------------------------------------------------------------------------------------------------- in the container

# Variables that the data scripts know, where they are set.
container_variables() {
    local name
    for name in DUMP_DATE MIRROR VOCAB_FILE DO_LOWER_CASE N_TRAINING_SHARDS N_TEST_SHARDS FRACTION_TEST_SET \
        SEQ_LENGTHS DUPE_FACTOR MASKED_LM_PROB WHOLE_WORD_MASK RANDOM_SEED N_PROCESSES STAGES CASES KEEP_ARCHIVES \
        http_proxy https_proxy no_proxy; do
        [[ -z ${!name:-} ]] || printf -- '--env\n%s\n' "$name"
    done
}

export DRY_RUN
if [[ $docker_allowed == true ]]; then
    if command -v docker >/dev/null && docker image inspect bert >/dev/null 2>&1; then
        mapfile -t variables < <(container_variables)
        [[ -z ${BOOKS:-} ]] || variables+=(--volume "$(realpath "$BOOKS"):/books:ro" --env BOOKS=/books)
        log "== $what, in the container bert"
        bash "$ROOT/scripts/docker/launch.sh" bert --env BERT_PREP_WORKING_DIR=/workspace/bert/data "${variables[@]}" \
            bash scripts/data_download.sh "$what" --no-docker "${plan[@]}" ||
            die "$what failed in the container; the reason is above"
        exit
    fi
    log "note: there is no Docker with an image 'bert' here, so this runs on the machine itself (--no-docker)"
fi

# ------------------------------------------------------------------------------------------------------ on this machine

work=${BERT_PREP_WORKING_DIR:-${DATA_DIR:-$ROOT/data}}
find_bert_python

# fetch GROUP: data sets that need nothing but the download.
fetch() {
    local flags=(--data_dir "$work" "${plan[@]}") mirror mirrors
    read -ra mirrors <<<"${MIRROR:-}"
    for mirror in "${mirrors[@]}"; do flags+=(--mirror "$mirror"); done
    [[ $KEEP_ARCHIVES == false ]] || flags+=(--keep_archives)
    log "== $1"
    run "$PYTHON_BERT" -m data.datasets fetch "$1" "${flags[@]}" ||
        die "the download of '$1' failed; the reason is above. What was finished before it is kept."
}

# create SCRIPT WORD...
create() { bash "$ROOT/data/$1" "${@:2}" "${plan[@]}" || die "'$what' stopped in data/$1; the reason is above."; }

part() {
    case $1 in
        squad | glue | weights) fetch "$1" ;;
        wiki_only | wiki_books) create create_datasets_from_start.sh "$1" ;;
        pubmed) create create_biobert_datasets_from_start.sh ;;
    esac
}

if [[ $what == all ]]; then
    parts=(squad glue weights wiki_only pubmed)
    [[ -z ${BOOKS:-} ]] || parts[3]=wiki_books
else
    parts=("$what")
fi
for word in "${parts[@]}"; do part "$word"; done
