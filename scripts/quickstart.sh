#!/usr/bin/env bash
# From nothing but Python and bash to a first trained model, without any download of data.
#
# usage: bash scripts/quickstart.sh [bert|asr|all] [--dry-run] [--help]
#
#   bert   environment, text that ships with Python, two-phase pre-training of a tiny BERT, evaluation;
#          minutes on two CPU cores; the figures are left in results/quickstart_bert/summary.json
#   asr    speech recognition: not in this tree yet
#   all    what there is (default)
#
#   BERT_PYTHON   an interpreter that has the packages already; set-up is then left out
#   DATA_DIR      where the data stage works (default: data)
#
# A second call keeps environment and data, and trains anew.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/pretraining.sh"
source "$here/configs/pretrain_config.sh"
parse_common "$@"
((${#ARGS[@]} <= 1)) || die "one of bert, asr, all is wanted, not '${ARGS[*]}'"
export DATA_DIR DRY_RUN

stage() { log "== $1 ($SECONDS s since the start)"; }

# The tiny model with the vocabulary of the records: write_model_config TRAINING_FOLDER TARGET.
write_model_config() {
    "$PYTHON_BERT" - "$1/manifest.json" "$ROOT/configs/bert/tiny.json" "$2" <<'END'
import sys
from runkit.files import read_json, write_json

manifest, tiny, target = sys.argv[1:]
write_json(target, read_json(tiny) | {"vocab_size": read_json(manifest)["vocab_size"]})
END
}

quickstart_bert() {
    local results=$ROOT/results/quickstart_bert words
    if [[ -z ${BERT_PYTHON:-} ]]; then
        stage "environment"
        bash "$here/setup.sh" bert
    fi
    find_bert_python

    stage "data"
    run bash "$ROOT/data/create_datasets_from_start.sh" embedded
    export SOURCES=embedded
    find_records 128 20

    stage "pre-training"
    run rm -rf "$results"
    run write_model_config "$train_dirs" "$results/bert_config.json"
    read -ra words <<<"$(cpu_tiny)"
    RESULTS_DIR=$results BERT_CONFIG=$results/bert_config.json bash "$here/run_pretraining_lamb.sh" "${words[@]}" \
        --display_loss_steps=50 --max_eval_steps=0

    stage "summary"
    run "$PYTHON_BERT" -m bert_tf.summary "$results"
}

no_asr="speech recognition is not in this tree yet"
case ${ARGS[0]:-all} in
    bert) quickstart_bert ;;
    asr) die "$no_asr" ;;
    all)
        quickstart_bert
        log "note: $no_asr"
        ;;
    *) die "unknown argument '${ARGS[0]}': one of bert, asr, all is wanted" ;;
esac
