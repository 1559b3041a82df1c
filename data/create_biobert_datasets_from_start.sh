#!/usr/bin/env bash
# PubMed's abstracts to the records of BioBERT: uncased and cased, of both training phases.
#
# usage: [VARIABLE=value...] bash data/create_biobert_datasets_from_start.sh [--plan] [--dry-run] [--help]
#
# Downloads the baseline of the year and the vocabularies of Google's BERT base, and makes the four sets of records
# lower_case_{1,0}_seq_len_{128_max_pred_20,512_max_pred_80}_.../pubmed_baseline. Text and shards are made once. The
# stage that fails ends it and is named; the same command goes on from there.
#
#   CASES        which: "uncased cased" (default), or one of them; each with its own vocabulary
#   all others   as for data/create_datasets_from_start.sh (--help there), save VOCAB_FILE and DO_LOWER_CASE
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
parse_common "$@"
CASES=${CASES:-uncased cased}
for word in "${ARGS[@]}"; do
    [[ $word == --plan ]] || die "cannot make sense of '$word': there is nothing to say but --plan (--help tells more)"
done
for case in $CASES; do
    [[ $case == uncased || $case == cased ]] || die "CASES: '$case' is neither uncased nor cased"
done
[[ -z ${VOCAB_FILE:-} ]] ||
    die "VOCAB_FILE is set, but the cased and the uncased records have each their own vocabulary: unset it, or run" \
        "'DO_LOWER_CASE=... bash data/create_datasets_from_start.sh pubmed'"

for case in $CASES; do
    log "=== PubMed, $case"
    DO_LOWER_CASE=$([[ $case == uncased ]] && echo 1 || echo 0) DRY_RUN=$DRY_RUN \
        bash "$ROOT/data/create_datasets_from_start.sh" pubmed "${ARGS[@]}" ||
        die "the records of PubMed, $case, were not made; the reason is above."
done
