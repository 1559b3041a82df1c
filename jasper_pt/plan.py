"""What a training job of a speech model will take, and everything that would stop it: --plan of run_training.

Nothing is started: the model is built without memory (PyTorch's meta device), manifests are read and their files looked
for. The layout of the output and the values of --plan are runkit.planning's.

Memory of one process, at its peak, which falls in the backward pass of the longest micro-batch or in the optimizer
(n parameters, B utterances of T feature frames, e bytes of an element of the compute dtype):

    weights                 4 n, and BatchNorm's statistics
    average                 4 n, with --ema
    gradients               4 n
    moments                 4 n with NovoGrad, 8 n with AdamW and LAMB
    compute copies          e n of the convolutions, where e < 4: autocast keeps them until the backward pass
    activations             see `activation_bytes`; and blocks in flight, BLOCKS of them
    update or evaluation    what these take beyond the activations, which are gone by then: NovoGrad a scaled copy of
                            all gradients (4 n); evaluation on a CPU a frozen copy of each model (e n, made from one
                            of 4 n), which comes before a snapshot is taken and so takes its place
    checkpoint snapshot     weights, average and moments, on rank 0, while they are written in the background
    runtime                 PyTorch itself, measured on a small model
"""

import argparse
import importlib.util
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from jasper_pt import checkpoint
from jasper_pt.audio import audio_info
from jasper_pt.checkpoint import Checkpoints
from jasper_pt.config import BlockConfig, Config
from jasper_pt.ema import Ema
from jasper_pt.loader import filter_utterances
from jasper_pt.losses import ctc_loss
from jasper_pt.manifest import Utterance, check_files, read_manifest
from jasper_pt.model import AcousticModel, Conv1d, build_model
from jasper_pt.novograd import create_optimizer
from jasper_pt.precision import Precision, choose_precision
from runkit.planning import HELP, PROBE, PROBED_UPDATES, Part, Plan, parse_request, size_text

RUNTIME_BYTES = 740e6  # of the main on a CPU, x86-64, PyTorch 2.14, before it holds anything; see benchmarks/memory.py
BLOCKS = 0.25  # of the activations: gradients in flight, and freed blocks that do not fit what comes next; measured
MOMENTS = {"novograd": 1, "fused_novograd": 1, "adamw": 2, "lamb98": 2}  # numbers a parameter
SCRATCH = {"novograd": 1, "fused_novograd": 1, "adamw": 0, "lamb98": 0}  # numbers a parameter that an update needs
CHARACTERS_A_SECOND = 15  # of English read aloud; for the size of the loss's table
FULL_CHECK_UTTERANCES = 20_000  # up to so many, every sound file's header and every transcript is read
SAMPLED_FILES = 200  # of more, these
NAMES_SHOWN = 5


# -------------------------------------------------------------------------------------------------------- the memory
def activation_bytes(
    config: Config, frames: int, labels: float, n_classes: int, element: int, channels_last: bool
) -> float:
    """What the backward pass of one utterance reads back, in bytes.

    frames: of its features (T); labels: of its target (U); element: bytes of the compute dtype. For each frame, a
    sub-block from C_in to C channels keeps:

        separable, channels last    the filters' output C_in, the 1x1 convolution's output C (BatchNorm's input), the
                                    activation's output C (in place; the next filters' input)
        others                      the convolution's output C (BatchNorm's input), the activation's output C (the next
                                    convolution's input), once more where padding is set to zero behind it
        with dropout                the factors and the result, 2 C

    and per block the projections of its residuals, C each (BatchNorm's inputs; what is projected is kept already). The
    features count F a frame. A block with a stride has T / stride frames behind its first convolution. Behind the last
    block, in float32: a copy of its output where the compute dtype is another, the log-probabilities, V a frame, and
    the loss's table, 2 U + 1 a frame. Norms other than BatchNorm, and activations other than ReLU, keep a little more
    than is counted here.
    """
    inputs, elements, n_dense = config.encoder.in_feats, config.encoder.in_feats * frames, 0
    for block in config.encoder.blocks:
        n_dense += block.residual_dense
        residuals = n_dense if block.residual_dense else int(block.residual)
        frames = -(-frames // block.stride)
        elements += _of_block(block, inputs, frames, residuals, channels_last)
        inputs = block.filters
    copied = inputs if element < 4 else 0
    return elements * element + frames * (copied + n_classes + 2 * labels + 1) * 4


def _of_block(block: BlockConfig, inputs: int, frames: int, residuals: int, channels_last: bool) -> float:
    channels, after_activation = block.filters, 2 if block.dropout else 0
    if not channels_last and not block.dropout:
        after_activation = 1  # padding set to zero gives another tensor; a dropout's result is one anyway
    filtered = inputs + channels * (block.repeat - 1) if block.separable else 0  # the filters' outputs
    return frames * (filtered + channels * block.repeat * (2 + after_activation) + channels * residuals)


def memory(
    config: Config,
    model: AcousticModel,
    precision: Precision,
    batch: int,
    frames: int,
    optimizer: str,
    ema: bool,
    cpu: bool,
    saves: bool = True,
) -> list[Part]:
    """Memory of a process by kind, see the head of this file.

    batch: utterances of a pass; frames: of the longest utterance's features; saves: whether it writes checkpoints.
    """
    element = precision.dtype.itemsize
    n = sum(parameter.numel() for parameter in model.parameters())
    convolutions = sum(m.weight.numel() for m in model.encoder.modules() if isinstance(m, Conv1d))
    statistics_ = sum(buffer.nbytes for buffer in model.buffers())
    seconds = frames * config.input_train.features.window_stride
    activations = batch * activation_bytes(
        config, frames, seconds * CHARACTERS_A_SECOND, config.n_classes, element, cpu and model.separable
    )
    copies = (4 * n + element * n * ema) if cpu else 0  # the last one is made in float32
    moments = 4 * n * MOMENTS[optimizer]
    snapshot = (4 * n * (1 + ema) + moments) * saves
    beyond = max(4 * n * SCRATCH[optimizer], copies - snapshot) - activations * (1 + BLOCKS)
    return [
        Part("weights", 4 * n + statistics_, "float32"),
        Part("average", (4 * n + statistics_) * ema, "float32 (--ema)"),
        Part("gradients", 4 * n, "float32"),
        Part("moments", moments, optimizer),
        Part("compute copies", element * convolutions if element < 4 else 0, precision.name),
        Part("activations", activations, f"{batch} utterances of {seconds:.1f} s"),
        Part("blocks in flight", activations * BLOCKS, f"{BLOCKS:.0%} of them"),
        Part("update or evaluation", max(beyond, 0), "what it takes beyond the activations"),
        Part("checkpoint snapshot", snapshot, "while it is written (rank 0)"),
        Part("runtime", RUNTIME_BYTES, "PyTorch"),
    ]


def checkpoint_bytes(n_parameters: int, optimizer: str, ema: bool) -> float:
    """Bytes of one checkpoint on disk: weights, average and moments in float32."""
    return 4 * n_parameters * (1 + ema + MOMENTS[optimizer])


def longest_frames(config: Config, seconds: float) -> int:
    """Feature frames of the widest batch, for utterances of up to so many seconds as the manifests have them."""
    inputs = config.input_train
    perturbation = inputs.audio.speed_perturbation
    seconds /= min(perturbation.min_rate, 1.0) if perturbation else 1.0
    if inputs.features.pad_to_max_duration:
        seconds = max(seconds, inputs.features.max_duration)
    align = inputs.features.pad_align
    return -(-math.ceil(seconds / inputs.features.window_stride) // align) * align


# ------------------------------------------------------------------------------------------------------------ the plan
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--plan and what a launcher adds to it."""
    group = parser.add_argument_group("plan")
    group.add_argument("--plan", nargs="?", const="true", default="", type=parse_request, metavar="REQUEST", help=HELP)
    processes = int(os.environ.get("WORLD_SIZE", 1))  # set by torchrun
    group.add_argument("--plan_processes", type=int, default=processes, help="number that --plan is about (added)")


def training(
    args: argparse.Namespace,
    check: Callable[[argparse.Namespace], None],
    read_config: Callable[[argparse.Namespace], Config],
    choose_global_batch: Callable[..., int],
    continues_job: Callable[[Path], bool],
) -> int:
    """Plans run_training; the functions are that main's. Returns 0; raises UserError when there are problems."""
    plan = Plan(f"training into {args.output_dir}")
    plan.attempt(check, args)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    precision = plan.attempt(choose_precision, args.precision, args.amp, device)
    if args.dali_device != "none" and importlib.util.find_spec("nvidia") is None:
        plan.problems.append(f"--dali_device {args.dali_device}: DALI is not installed ('bash scripts/setup.sh dali')")
    processes = args.plan_processes
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        plan.notes.append(f"{processes} processes, and this machine has {torch.cuda.device_count()} GPUs")

    config = plan.attempt(read_config, args)
    if config is None or precision is None:
        plan.notes.append("manifests and checkpoints were not looked at, for they need a model_config and a precision")
        plan.check_output(args.output_dir, 0)
        plan.finish()
    train_utterances = utterances_of(plan, args.train_manifests, config, args.dataset_dir, True)
    dev_utterances = utterances_of(plan, args.val_manifests, config, args.dataset_dir, False)
    with torch.device("meta"):
        model = build_model(config)
    n = sum(parameter.numel() for parameter in model.parameters())
    saved, done = look_for_checkpoints(plan, args, config, model, continues_job)

    # ---------------------------------------------------------------------------------- batch, updates, epochs
    chosen = plan.attempt(choose_global_batch, args, saved, argparse.Namespace(size=processes))
    batch = chosen or args.gpu_batch_size * args.grad_accumulation * processes
    plan.fact("parameters", f"{n:,} ({config.name})")
    passes = f"{batch / args.gpu_batch_size:g} passes of {args.gpu_batch_size} on {processes} processes"
    plan.fact("global batch", f"{batch} utterances ({passes})")
    plan.fact("learning rate", f"{args.lr:g}, {args.lr_policy}, down to {args.min_lr:g}")
    hours = sum(utterance.duration for utterance in train_utterances) / 3600
    per_epoch, left_out = divmod(len(train_utterances), batch)
    if train_utterances and not per_epoch:
        plan.problems.append(
            f"{len(train_utterances)} training utterances are fewer than one update takes, {batch}: lower "
            "--gpu_batch_size, --grad_accumulation or the number of processes"
        )
    epochs = args.epochs if not args.epochs_this_job else min(args.epochs, math.ceil(done) + args.epochs_this_job)
    if train_utterances:
        plan.fact("training set", f"{len(train_utterances)} utterances, {hours:.1f} h; dev set {len(dev_utterances)}")
        plan.fact(
            "updates",
            f"{args.epochs * per_epoch}: {args.epochs} epochs of {per_epoch}, each without {left_out} utterances"
            + (f"; this job up to epoch {epochs}" if epochs != args.epochs else ""),
        )
    plan.fact("precision", precision.name)

    # ---------------------------------------------------------------------------------- memory, disk, time
    kept = 0 if args.no_save else args.keep_newest + sum(milestone <= epochs for milestone in args.keep_milestones) + 1
    views = 2 if args.consistency else 1
    size = checkpoint_bytes(n, args.optimizer, bool(args.ema))
    if kept:
        plan.fact("checkpoint", f"{size_text(size)} every {args.save_frequency} epochs")
        plan.fact("disk", f"{size_text(size * (kept + 1))}: {kept} that stay (the best one too), and one being written")
    seconds = max((utterance.duration for utterance in train_utterances), default=config.input_train.audio.max_duration)
    if math.isfinite(seconds):
        frames = longest_frames(config, seconds)
        plan.memory = memory(
            config, model, precision, args.gpu_batch_size * views, frames, args.optimizer, bool(args.ema),
            device.type == "cpu", bool(kept),
        )  # fmt: skip
        if device.type == "cpu":
            plan.check_memory(processes)
    plan.check_output(args.output_dir, size * (kept + 1) if kept else 0)
    todo = max(epochs - done, 0) * per_epoch * batch
    if args.max_updates:
        todo = min(todo, args.max_updates * batch)
    if isinstance(args.plan, float):
        plan.tell_time(todo, args.plan, "as given", "utterances")
    elif args.plan == PROBE and not plan.problems and train_utterances:
        mean = longest_frames(config, statistics.fmean(utterance.duration for utterance in train_utterances))
        took = probe(args, config, precision, device, mean)
        where = f"{PROBED_UPDATES} updates of utterances of mean length, {took:.3g} s a pass"
        plan.tell_time(todo, args.gpu_batch_size * processes / took, where, "utterances")
    elif args.plan == PROBE:
        plan.notes.append("nothing was timed, for there are problems")
    plan.finish()
    return 0


def utterances_of(
    plan: Plan, manifests: Sequence[str], config: Config, dataset_dir: str, train: bool
) -> list[Utterance]:
    """The utterances to use of all manifests that can be read; tells what is missing and what is left out."""
    utterances = [u for path in manifests for u in plan.attempt(read_manifest, path, dataset_dir) or ()]
    if not utterances:
        return []
    kind = "training" if train else "dev"
    paths = dict.fromkeys(path for utterance in utterances for path, _, _ in utterance.speeds)
    missing = [path for path in paths if not os.path.isfile(path)]
    plan.problems += [f"{path}: no such sound file" for path in missing[:NAMES_SHOWN]]
    if len(missing) > NAMES_SHOWN:
        plan.problems.append(f"and {len(missing) - NAMES_SHOWN} more sound files of the {kind} set that are missing")
    if len(utterances) > FULL_CHECK_UTTERANCES:
        for path in list(paths)[:: max(len(paths) // SAMPLED_FILES, 1)]:
            if os.path.isfile(path):
                plan.attempt(audio_info, path)
        audio = config.input_train.audio if train else config.input_val.audio
        plan.notes.append(
            f"{kind}: of {len(utterances)} utterances, headers were read of {SAMPLED_FILES}, no transcripts"
        )
        return [u for u in utterances if audio.min_duration <= u.duration <= audio.max_duration]
    gone = set(missing)
    there = [u for u in utterances if not any(path in gone for path, _, _ in u.speeds)]
    checked = plan.attempt(check_files, there) if there else None
    if checked is None:
        return []
    utterances, files = checked
    plan.problems += [f"{key}: {cause}" for key, cause in files.left_out[:NAMES_SHOWN]]
    kept = plan.attempt(filter_utterances, utterances, config, train=train)
    if kept is None:
        return []
    plan.notes += [f"{kind}: {line}" for line in kept[1].lines()]
    return kept[0]


def look_for_checkpoints(
    plan: Plan,
    args: argparse.Namespace,
    config: Config,
    model: AcousticModel,
    continues_job: Callable[[Path], bool],
) -> tuple[dict | None, float]:
    """What the job would go on or start from: the state that it goes on with, and the epochs that are done."""
    store = Checkpoints(args.output_dir, config.name, args.keep_milestones)
    resuming = bool(store.all()) and (args.resume or continues_job(Path(args.output_dir)))
    if store.all() and not (resuming or args.no_save):
        plan.problems.append(
            f"{args.output_dir} holds checkpoints of an earlier run: give --resume to go on with it, or another "
            "--output_dir"
        )
    elif resuming:
        found = plan.attempt(store.newest_valid, plan.notes.append)
        if found is not None:
            done = float(found[1].get("epoch", 0))
            if (position := found[1].get("position")) is not None:  # a published checkpoint has none
                done += position["update"] / position["updates_per_epoch"]
            plan.attempt(check_weights, model, found[1], str(found[0]))
            plan.fact("resumes", f"{found[0]}, {done:.2f} epochs done")
            return found[1], done
    for path in filter(None, (args.ckpt, args.init_ckpt)):
        contents = plan.attempt(checkpoint.read, path)
        if contents is not None:
            other = path == args.init_ckpt and list(contents.get("labels", config.labels)) != list(config.labels)
            plan.attempt(check_weights, model, contents, path, but_decoder=other)
            plan.fact("starts from", f"{path}, but for the decoder: other labels" if other else path)
            if path == args.ckpt:
                return contents, float(contents.get("epoch", 0))
    return None, 0.0


def check_weights(model: AcousticModel, contents: dict, source: str, but_decoder: bool = False) -> None:
    """Raises UserError where the weights of a checkpoint do not fit the model, which needs no memory for them."""
    weights = checkpoint.present_names(contents["state_dict"])
    meta = {name: torch.empty(tensor.shape, device="meta") for name, tensor in weights.items()}
    if but_decoder:
        meta |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith("decoder.")}
    checkpoint.load_weights(model, meta, source)


# ----------------------------------------------------------------------------------------------------------- the probe
def probe(args: argparse.Namespace, config: Config, precision: Precision, device: torch.device, frames: int) -> float:
    """Seconds of a pass, its share of the update included: the median of PROBED_UPDATES updates of one process, after
    one that warms up. Features are noise and weights random; both are dropped."""
    precision.activate()
    model = build_model(config).to(device).train()
    optimizer = create_optimizer(args.optimizer, model.parameters(), args.lr, args.weight_decay)
    ema = Ema(model, args.ema) if args.ema else None
    size = args.gpu_batch_size * (2 if args.consistency else 1)
    features = torch.randn(size, config.encoder.in_feats, frames, device=device)
    lengths = torch.full((size,), frames, device=device)
    n_labels = max(int(model.output_lengths(frames) * 0.4), 1)
    targets = torch.randint(0, config.n_classes - 1, (size, n_labels), device=device)
    target_lengths = torch.full((size,), n_labels, device=device)
    passes = min(args.grad_accumulation, 2)  # more of them are more of the same
    took = []
    for _ in range(1 + PROBED_UPDATES):
        began = time.perf_counter()
        for _ in range(passes):
            with precision.autocast(device):
                log_probs, out_lengths = model(features, lengths)
            ctc_loss(log_probs, out_lengths, targets, target_lengths).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if ema is not None:
            ema.update()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append((time.perf_counter() - began) / passes)
    return statistics.median(took[1:])
