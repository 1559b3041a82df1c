# shellcheck shell=bash
# Presets of run_squad.sh: each function prints its first 8 words, all of them of BERT-large but the last. Source it, in
# bash.
#
# usage: bash scripts/run_squad.sh $(source scripts/configs/squad_config.sh && dgxa100_8gpu_fp16)
#
# Words: sequences on a GPU, learning rate of a GPU, precision, XLA, GPUs, sequence length, stride, model. Rates are
# multiplied by the number of GPUs when the run starts: 4e-5 in all published presets.

dgxa100_8gpu_fp16() { echo "32 5e-6 fp16 true 8 384 128 large"; }

dgxa100_8gpu_tf32() { echo "16 5e-6 tf32 true 8 384 128 large"; }

dgx2_16gpu_fp16() { echo "24 2.5e-6 fp16 true 16 384 128 large"; }

dgx2_16gpu_fp32() { echo "8 2.5e-6 fp32 true 16 384 128 large"; }

dgx1_8gpu_fp16() { echo "4 5e-6 fp16 true 8 384 128 large"; }

dgx1_8gpu_fp32() { echo "2 5e-6 fp32 true 8 384 128 large"; }

# One process without a GPU: a tiny model, which learns at a higher rate. Give it pre-trained weights as word 10.
cpu_tiny() { echo "16 5e-4 fp32 false 1 384 128 tiny"; }
