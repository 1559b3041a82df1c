#!/usr/bin/env bash
# Phase 1 of BioBERT's pre-training: PubMed abstracts at sequence length 128, from Google's BERT-base, with NVLAMB.
#
# usage: run_pretraining_pubmed_base_phase_1.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 train_batch_size (128)           2 learning_rate (9.625e-5)        3 cased (false)
#    4 precision (fp16; bf16, tf32, fp32)   5 use_xla (true)              6 num_gpus (16)
#    7 warmup_steps (1953)              8 train_steps (19531)             9 num_accumulation_steps (32)
#   10 save_checkpoints_steps (5000)   11 eval_batch_size (80)
#   Batch size and learning rate are per GPU. --flag=value words go to run_pretraining.py.
#
#   INIT_CHECKPOINT  weights to start from (default: those in BERT_DIR; none: random)
#   BERT_DIR         folder of Google's weights
#                    (default: DATA_DIR/download/google_pretrained_weights/<uncased|cased>_L-12_H-768_A-12)
#   SOURCES          records (default: pubmed_baseline, made with lower case or without as word 3 says)
#   RESULTS_DIR      checkpoints and the log; the same folder again resumes
#                    (default: /results/biobert_phase_1 where /results is writable, else results/biobert_phase_1)
#   BERT_CONFIG (bert_config.json in BERT_DIR, else configs/bert/base.json), DATA_DIR, SEED, MAX_EVAL_STEPS, BERT_PYTHON
#
# example: run_pretraining_pubmed_base_phase_1.sh 128 9.625e-5 false fp16 true 8 1953 19531 64
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../lib.sh"
source "$here/../pretraining.sh"
source "$here/pubmed.sh"
parse_common "$@"
find_bert_python

take_pubmed_words 128 9.625e-5 1953 19531 32 80 "${ARGS[@]}"
find_pubmed 128 20
checkpoint=${INIT_CHECKPOINT:-$google_dir/bert_model.ckpt}
pretrain_pubmed 1 128 20 "put Google's BERT-base there, or set INIT_CHECKPOINT (none: random weights)"
