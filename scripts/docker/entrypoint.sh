#!/usr/bin/env bash
# What an image starts with: the command that was given, or a shell that says what can be run in it.
set -euo pipefail
((!$#)) || exec "$@"

welcome() {
    printf 'This is the container "%s"; the working folder is %s.\n\n' "$CONTAINER" "$PWD"
    if [[ $CONTAINER != asr ]]; then
        printf '%s\n' \
            "  bash scripts/quickstart.sh bert                 a tiny BERT, from text to answers, in minutes" \
            "  bash scripts/data_download.sh wiki_only --plan  what English Wikipedia takes" \
            "  bash scripts/run_pretraining_lamb.sh --help     two-phase pre-training" \
            "  bash scripts/run_squad.sh --help                fine-tuning and answers; run_glue.sh, biobert/"
    fi
    if [[ $CONTAINER != bert ]]; then
        printf '%s\n' \
            "  bash scripts/quickstart.sh asr                  a small QuartzNet, from speech to text, in minutes" \
            "  bash scripts/download_librispeech.sh --help     LibriSpeech; then preprocess_librispeech.sh" \
            "  bash scripts/train.sh --help                    training; evaluation.sh, inference.sh"
    fi
    printf '\n'
}
[[ ! -t 0 ]] || welcome
exec bash
