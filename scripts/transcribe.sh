#!/usr/bin/env bash
# Transcribes files of any length, what comes on stdin, or the microphone, and shows the words as they are heard.
#
# usage: bash scripts/transcribe.sh FILE|FOLDER...|-|--microphone [--flag...] [--dry-run] [--help]
#
#   FILE, FOLDER   audio of any format and rate; text files list one path a line
#   -              a WAV file, or raw 16-bit samples (--rate 16000), from stdin
#   --microphone   the default input, until Ctrl+C (needs the package sounddevice)
#   --model PATH   checkpoint, .nemo archive or training folder (default: the newest in results/)
#   --output_format txt json ctm srt vtt, --output_dir DIR   transcripts with times
#   --decoder beam --lm MODEL, or --decoder_config FILE   beam search: docs/decoding.md
#   --live, --chunk, --left, --right, --memory SECONDS   windows and latency: docs/streaming.md
#   All flags: python -m jasper_pt.transcribe --help. ASR_PYTHON: the interpreter.
#
# examples: bash scripts/transcribe.sh lecture.mp3 --output_format srt
#           arecord -f S16_LE -r 16000 -t raw | bash scripts/transcribe.sh -
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]})) || die "what to transcribe is missing: files, a folder, - or --microphone (see --help)"
find_asr_python
run "$PYTHON_ASR" -m jasper_pt.transcribe "${ARGS[@]}"
