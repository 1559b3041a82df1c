# shellcheck shell=bash
# Presets of run_pretraining_lamb.sh: each function prints its 15 words. Source it, in bash.
#
# usage: bash scripts/run_pretraining_lamb.sh $(source scripts/configs/pretrain_config.sh && dgxa100_8gpu_fp16)
#
# What is learnt is the same in all published presets: 7038 updates with 65536 sequences at a rate of 6e-3, then 1564
# updates with 32768 sequences at 4e-3. A preset says how it is run: what fits on one GPU, and how many there are.
# The accumulation steps follow: global batch = sequences on a GPU x accumulation steps x GPUs.

# _accumulation_steps GLOBAL_BATCH PER_GPU GPUS
_accumulation_steps() {
    if (($1 % ($2 * $3))); then
        printf 'error: a global batch of %d is not divisible by %d sequences x %d GPUs\n' "$1" "$2" "$3" >&2
        return 1
    fi
    printf '%d\n' $(($1 / ($2 * $3)))
}

# _published PER_GPU_1 PER_GPU_2 LEARNING_RATE_1 LEARNING_RATE_2 PRECISION GPUS
# Rates are per GPU: they are multiplied by the number of GPUs when the run starts.
_published() {
    local accumulation1 accumulation2
    accumulation1=$(_accumulation_steps 65536 "$1" "$6") || return
    accumulation2=$(_accumulation_steps 32768 "$2" "$6") || return
    echo "$1 $2 8 $3 $4 $5 true $6 2000 200 7820 100 $accumulation1 $accumulation2 large"
}

dgxa100_8gpu_fp16() { _published 64 16 7.5e-4 5e-4 fp16 8; }

dgxa100_8gpu_tf32() { _published 64 8 7.5e-4 5e-4 tf32 8; }

dgx2_16gpu_fp16() { _published 64 8 3.75e-4 2.5e-4 fp16 16; }

dgx2_16gpu_fp32() { _published 32 8 3.75e-4 2.5e-4 fp32 16; }

dgx1_8gpu_fp16() { _published 16 4 7.5e-4 5e-4 fp16 8; }

dgx1_8gpu_fp32() { _published 8 2 7.5e-4 5e-4 fp32 8; }

# The quickstart: a tiny model on two CPU cores, minutes in all. A train_steps of 1800 is 1620 updates at length
# 128 and, from the spare tenth, 720 at length 512.
cpu_tiny() {
    local batch1=16 batch2=4 eval_batch=64 rate1=1e-2 rate2=1.5e-3 precision=fp32 warmup1=160 warmup2=70
    local train_steps=1800 save_steps=500 accumulation1=1 accumulation2=1
    echo "$batch1 $batch2 $eval_batch $rate1 $rate2 $precision false 1 $warmup1 $warmup2 $train_steps $save_steps" \
        "$accumulation1 $accumulation2 tiny"
}
