#!/usr/bin/env bash
# Fine-tunes BioBERT to find diseases in BC5CDR, scores the development set, and tags the test set.
#
# usage: ner_bc5cdr-disease.sh [WORD...] [--flag=value...] [--plan] [--dry-run] [--help]
#
#   words, in this order (default):
#    1 init_checkpoint (the weights in BERT_DIR)              2 batch_size (8)                   3 learning_rate (3.125e-6)
#    4 cased (false)                    5 precision (fp16; bf16, tf32, fp32)                    6 use_xla (true)
#    7 num_gpu (16)                     8 seq_length (128)                9 bert_model (base)
#   10 eval_batch_size (8)             11 epochs (100.0)
#   Batch size and learning rate are per GPU. --flag=value words go to run_ner.py. Where nvidia-smi shows no GPU the
#   defaults of words 5 to 7 are bf16 (fp32 on CPUs without bf16), false and 1; where it shows fewer, num_gpu is that.
#
#   init_checkpoint is the prefix of a TensorFlow checkpoint, an output folder of ours, a Hugging Face folder, or none
#   (random weights); its vocabulary and model file lie beside it.
#   BERT_DIR         folder of the weights (default: biobert_tf_<uncased|cased>_<bert_model> in /results, or results)
#   DATASET_DIR      the task's files (default: DATA_DIR/biobert/BC5CDR/disease)
#   RESULTS_DIR      checkpoints, predictions, scores and the log; the same folder again resumes
#                    (default: /results/<tag>_<date> where /results is writable, else results/<tag>_<date>)
#   VOCAB_FILE, BERT_CONFIG, NUM_ACCUMULATION_STEPS (1), SEED, DATA_DIR (data), BERT_PYTHON
#
# example: ner_bc5cdr-disease.sh results/biobert_phase_2 8 3.125e-6 false fp16 true 8 128 base 8 100.0
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../lib.sh"
source "$here/../finetuning.sh"
source "$here/biobert.sh"
OWN_FLAGS+=(do_predict eval_batch_size predict_batch_size do_lower_case)

finetune_biobert ner_bc5cdr-disease 3.125e-6 128 8 100.0 "$@"
