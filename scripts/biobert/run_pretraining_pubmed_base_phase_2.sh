#!/usr/bin/env bash
# Phase 2 of BioBERT's pre-training: PubMed abstracts at sequence length 512, from phase 1's weights, with NVLAMB.
#
# usage: run_pretraining_pubmed_base_phase_2.sh INIT_CHECKPOINT [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 init_checkpoint (mandatory, such as results/biobert_phase_1/model.ckpt-19531)
#    2 train_batch_size (16)            3 learning_rate (2.9e-4)          4 cased (false)
#    5 precision (fp16; bf16, tf32, fp32)   6 use_xla (true)              7 num_gpus (16)
#    8 warmup_steps (434)               9 train_steps (4340)             10 num_accumulation_steps (128)
#   11 save_checkpoints_steps (5000)   12 eval_batch_size (26)
#   Batch size and learning rate are per GPU. --flag=value words go to run_pretraining.py.
#
#   RESULTS_DIR      checkpoints and the log; the same folder again resumes
#                    (default: /results/biobert_phase_2 where /results is writable, else results/biobert_phase_2)
#   SOURCES, BERT_DIR, BERT_CONFIG, DATA_DIR, SEED, MAX_EVAL_STEPS, BERT_PYTHON: as for phase 1
#
# example: run_pretraining_pubmed_base_phase_2.sh results/biobert_phase_1/model.ckpt-19531 16 2.9e-4 false fp16 true 8 \
#              434 4340 256
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../lib.sh"
source "$here/../pretraining.sh"
source "$here/pubmed.sh"
parse_common "$@"
find_bert_python

checkpoint=${ARGS[0]:-}
[[ -n $checkpoint && $checkpoint != --* ]] ||
    die "phase 2 starts from phase 1's weights: give their checkpoint as word 1 (see --help)"
take_pubmed_words 16 2.9e-4 434 4340 128 26 "${ARGS[@]:1}"
find_pubmed 512 80
pretrain_pubmed 2 512 80 "run phase 1, and give the checkpoint that it ends with as word 1"
