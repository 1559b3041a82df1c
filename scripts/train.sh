#!/usr/bin/env bash
# Trains QuartzNet or Jasper on LibriSpeech, or on any manifests.
#
# usage: [VARIABLE=value...] bash scripts/train.sh [DATA_DIR [MODEL_CONFIG [OUTPUT_DIR [CHECKPOINT]]]] [--flag...]
#                                                  [--plan] [--dry-run] [--help]
#
#   --flag words go to jasper_pt/run_training.py as they are, behind everything else. --plan tells memory, disk,
#   updates and every problem and starts nothing; --plan=probe and --plan=UTTERANCES_A_SECOND tell the time too.
#   DATA_DIR (/datasets/LibriSpeech)   OUTPUT_DIR (/results)   CHECKPOINT (none): a training state to start from
#   MODEL_CONFIG (configs/quartznet15x5_speedp-online-1.15_speca.yaml): a file of configs/asr, or yours; the model
#                      in it decides the defaults given as QuartzNet | Jasper
#   TRAIN_MANIFESTS (librispeech-train-{clean-100,clean-360,other-500}-wav.json), VAL_MANIFESTS (-dev-clean-): files
#                      of DATA_DIR or paths, separated by blanks; a librispeech-train-wav.json or -dev-wav.json in
#                      DATA_DIR goes before the published ones
#   CPU                true trains on the CPU (default: true where nvidia-smi shows no GPU)
#   NUM_GPUS (8; with CPU=true 1)      processes, one a GPU, started by torchrun; DISTRIBUTED: other words for that
#   MAX_RESTARTS (0)   so many times torchrun starts all processes again when one is lost, from the newest checkpoint
#   NNODES (1; or MIN:MAX, machines that may come and go), RDZV_ENDPOINT (HOST:PORT of one that stays), RDZV_ID: start
#                      this script on every machine; the global batch is that of MAX machines whatever their number
#   GPU_BATCH_SIZE (72 | 32), GRAD_ACCUMULATION (2 | 2): utterances of a pass, passes of an update; or their product
#                      as BATCH_SIZE with GRAD_ACCUMULATION_STEPS, the names of the Jasper recipe
#   AMP (false), CUDNN_BENCHMARK (true), DALI_DEVICE (gpu where DALI is installed, else none)
#   OPTIMIZER (fused_novograd | novograd), LEARNING_RATE (0.01), MIN_LEARNING_RATE (1e-5), WEIGHT_DECAY (1e-3)
#   LR_POLICY (exponential), LR_EXP_GAMMA (0.981), EMA (0.999; 0 is off), MULTI_TENSOR_EMA (true), SEED (0)
#   EPOCHS (260 | 440), WARMUP_EPOCHS (2), HOLD_EPOCHS (140), EPOCHS_THIS_JOB (0: all), RESUME (true)
#   SAVE_FREQUENCY (10 epochs), KEEP_MILESTONES ("100 200" | "100 200 300 400"), SAVE_BEST_FROM (200 | 380)
#   EVAL_FREQUENCY, PREDICTION_FREQUENCY (241 | 544 updates)
#   MAX_DURATION (of the model config, seconds), PAD_TO_MAX_DURATION (false), PRE_ALLOCATE ("MIN MAX" frames),
#   LOG_FILE (OUTPUT_DIR/nvlog.json), BENCHMARK_EPOCHS (1), OMP_NUM_THREADS, ASR_PYTHON
#
# examples: NUM_GPUS=1 AMP=true GRAD_ACCUMULATION=16 bash scripts/train.sh
#           MODEL_CONFIG=configs/jasper10x5dr_speedp-online_speca.yaml AMP=true bash scripts/train.sh
#           MODEL_CONFIG=quartznet5x5 CPU=true GPU_BATCH_SIZE=8 bash scripts/train.sh my_corpus '' results/mine
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/lib.sh"
source "$here/asr.sh"
parse_common "$@"
find_asr_python
take_words "${ARGS[@]}"
read_model
read_device 8 gpu
read_folders

# What differs between the two published recipes. The global batches: 8 x 72 x 2 = 1152 and 8 x 32 x 2 = 512 utterances.
if [[ $FAMILY == quartznet ]]; then
    published_batch=1152 batch_size=72 epochs=260 epoch_updates=241
    optimizer=fused_novograd milestones="100 200" best_from=200
else
    published_batch=512 batch_size=32 epochs=440 epoch_updates=544
    optimizer=novograd milestones="100 200 300 400" best_from=380
fi

GRAD_ACCUMULATION=${GRAD_ACCUMULATION:-${GRAD_ACCUMULATION_STEPS:-2}}
require_positive_integers GRAD_ACCUMULATION
if [[ -n ${BATCH_SIZE:-} ]]; then
    require_positive_integers BATCH_SIZE
    [[ -z ${GPU_BATCH_SIZE:-} ]] || die "BATCH_SIZE is GPU_BATCH_SIZE x GRAD_ACCUMULATION: set one of the two sizes"
    ((BATCH_SIZE % GRAD_ACCUMULATION == 0)) ||
        die "BATCH_SIZE=$BATCH_SIZE is not divisible by $GRAD_ACCUMULATION accumulation steps"
    GPU_BATCH_SIZE=$((BATCH_SIZE / GRAD_ACCUMULATION))
fi
own_schedule=${LEARNING_RATE:+${EPOCHS:-}} # both are given
GPU_BATCH_SIZE=${GPU_BATCH_SIZE:-$batch_size}
AMP=${AMP:-false} CUDNN_BENCHMARK=${CUDNN_BENCHMARK:-true} RESUME=${RESUME:-true}
OPTIMIZER=${OPTIMIZER:-$optimizer} LEARNING_RATE=${LEARNING_RATE:-0.01} MIN_LEARNING_RATE=${MIN_LEARNING_RATE:-1e-5}
WEIGHT_DECAY=${WEIGHT_DECAY:-1e-3} LR_POLICY=${LR_POLICY:-exponential} LR_EXP_GAMMA=${LR_EXP_GAMMA:-0.981}
EMA=${EMA:-0.999} MULTI_TENSOR_EMA=${MULTI_TENSOR_EMA:-true} SEED=${SEED:-0}
EPOCHS=${EPOCHS:-$epochs} WARMUP_EPOCHS=${WARMUP_EPOCHS:-2} HOLD_EPOCHS=${HOLD_EPOCHS:-140}
EPOCHS_THIS_JOB=${EPOCHS_THIS_JOB:-0} SAVE_FREQUENCY=${SAVE_FREQUENCY:-10}
KEEP_MILESTONES=${KEEP_MILESTONES:-$milestones} SAVE_BEST_FROM=${SAVE_BEST_FROM:-$best_from}
EVAL_FREQUENCY=${EVAL_FREQUENCY:-$epoch_updates} PREDICTION_FREQUENCY=${PREDICTION_FREQUENCY:-$epoch_updates}
LOG_FILE=${LOG_FILE:-$OUTPUT_DIR/nvlog.json}
require_booleans AMP CUDNN_BENCHMARK RESUME MULTI_TENSOR_EMA
require_positive_integers GPU_BATCH_SIZE EPOCHS SAVE_FREQUENCY EVAL_FREQUENCY PREDICTION_FREQUENCY
require_counts WARMUP_EPOCHS HOLD_EPOCHS EPOCHS_THIS_JOB SAVE_BEST_FROM SEED
require_positive_numbers LEARNING_RATE MIN_LEARNING_RATE LR_EXP_GAMMA

train_manifests=() val_manifests=()
read -ra train_sets <<<"$(default_set "train-clean-100 train-clean-360 train-other-500" train)"
find_manifests train_manifests "${TRAIN_MANIFESTS:-$(manifest_names "${train_sets[@]}")}"
find_manifests val_manifests "${VAL_MANIFESTS:-$(manifest_names "$(default_set dev-clean dev)")}"
require_manifests "${train_manifests[@]}" "${val_manifests[@]}"
read_durations input_train
read -ra milestones <<<"$KEEP_MILESTONES"
read -ra pre_allocate <<<"${PRE_ALLOCATE:-}"

flags=(
    "--model_config=$MODEL_CONFIG" "--dataset_dir=$DATA_DIR" "--output_dir=$OUTPUT_DIR" "--log_file=$LOG_FILE"
    --train_manifests "${train_manifests[@]}" --val_manifests "${val_manifests[@]}"
    "${device_flags[@]}"
    "--gpu_batch_size=$GPU_BATCH_SIZE" "--grad_accumulation=$GRAD_ACCUMULATION"
    "--optimizer=$OPTIMIZER" "--lr=$LEARNING_RATE" "--min_lr=$MIN_LEARNING_RATE" "--weight_decay=$WEIGHT_DECAY"
    "--lr_policy=$LR_POLICY" "--lr_exp_gamma=$LR_EXP_GAMMA" "--ema=$EMA" "--seed=$SEED"
    "--epochs=$EPOCHS" "--warmup_epochs=$WARMUP_EPOCHS" "--hold_epochs=$HOLD_EPOCHS"
    "--epochs_this_job=$EPOCHS_THIS_JOB" "--save_frequency=$SAVE_FREQUENCY"
    --keep_milestones "${milestones[@]}" "--save_best_from=$SAVE_BEST_FROM"
    --report --log_frequency=1 "--eval_frequency=$EVAL_FREQUENCY" "--prediction_frequency=$PREDICTION_FREQUENCY"
    ${BENCHMARK_EPOCHS:+"--benchmark_epochs_num=$BENCHMARK_EPOCHS"} ${CHECKPOINT:+"--ckpt=$CHECKPOINT"}
    "${overrides[@]}"
)
[[ $AMP == false ]] || flags+=(--amp)
if [[ $CUDNN_BENCHMARK == true ]]; then flags+=(--cudnn_benchmark); else flags+=(--no-cudnn_benchmark); fi
[[ $RESUME == false ]] || flags+=(--resume)
[[ $MULTI_TENSOR_EMA == false ]] || flags+=(--multi_tensor_ema)
((${#pre_allocate[@]} == 0)) || flags+=(--pre_allocate_range "${pre_allocate[@]}")

processes=$((NUM_GPUS * most_nodes))
global_batch=$((GPU_BATCH_SIZE * GRAD_ACCUMULATION * processes))
log "$FAMILY: global batch $global_batch utterances" \
    "($GPU_BATCH_SIZE utterances x $GRAD_ACCUMULATION accumulation steps x $processes processes)"
[[ $NNODES != *:* ]] || flags+=("--global_batch_size=$global_batch")
[[ $global_batch == "$published_batch" || -n $own_schedule ]] ||
    log "note: rates and epochs are published for a global batch of $published_batch"
start jasper_pt.run_training "${flags[@]}"
