#!/usr/bin/env bash
# Exports an acoustic model as ONNX and as a torch.export program, checked against the model on real utterances.
#
# usage: bash scripts/export_asr.sh --ckpt FILE --val_manifests FILE... --output_dir DIR [--flag...] [--dry-run] [--help]
#
#   --dataset_dir DIR   folder that audio paths in the manifests start from
#   --int8              also a quantised model, with its word error rate
#   All flags: python -m jasper_pt.run_export --help. ASR_PYTHON: the interpreter.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
((${#ARGS[@]})) || die "what to export is missing: --ckpt, --val_manifests and --output_dir (see --help)"
find_asr_python
run "$PYTHON_ASR" -m jasper_pt.run_export "${ARGS[@]}"
