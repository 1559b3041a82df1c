"""What every training main does around its own data and model: shared flags, start or resume, the loop, the record.

A run lives in its output_dir. An output_dir that holds a checkpoint of the run is resumed exactly; --init_checkpoint
gives weights only, to a run that starts at step 0.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import flags

from bert_tf import checkpoint
from bert_tf.distributed import Distributed
from bert_tf.optimization import Optimizer
from bert_tf.precision import INITIAL_LOSS_SCALE, PRECISIONS, LossScale, Precision
from bert_tf.train_step import TrainStep
from bert_tf.weights import ComputeWeights
from runkit import machine
from runkit.errors import UserError
from runkit.files import read_json, sha256_file, write_json
from runkit.log import RunLog, read_log
from runkit.meters import ThroughputMeter, closing_lines_train
from runkit.plots import line_plot
from runkit.progress import duration
from runkit.store import CheckpointStore
from runkit.tensorboard import EventWriter

FLAGS = flags.FLAGS
State = dict[str, Any]  # plain JSON, saved with every checkpoint


# -------------------------------------------------------------------------------------------- flags and settings
def define_flags() -> None:
    """The flags that all mains have with the same meaning; a main shows them by flags.adopt_module_key_flags(runs)."""
    string, integer, real, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_bool
    string("bert_config_file", None, "model configuration, Google's bert_config.json", required=True)
    string("output_dir", None, "where checkpoints, logs and results go", required=True)
    string("dllog_path", None, "DLLogger JSON lines; default <output_dir>/bert_dllog.json")
    string("init_checkpoint", None, "weights to start from (weights only: step, moments and loss scale start anew)")
    boolean("horovod", False, "train on the processes started by horovodrun or mpirun")
    boolean("amp", True, "mixed precision: as --precision=fp16 on a GPU, bf16 on a CPU; --noamp: tf32 or fp32")
    boolean("use_xla", None, "compile the step by XLA; default: on a GPU yes, on a CPU no (slower there)")
    boolean("verbose_logging", False, "list the variables")
    real("init_loss_scale", INITIAL_LOSS_SCALE, "first loss scale of fp16")
    integer("iterations_per_loop", 1000, "accepted for old command lines, without effect")
    flags.DEFINE_enum("precision", None, list(PRECISIONS), "compute precision; wins over --amp (added)")
    integer("seed", 12345, "governs initial weights, dropout and data order (added)", lower_bound=0)
    integer("keep_checkpoints", 1, "how many of the newest checkpoints stay (added)", lower_bound=1)


def refuse_words(argv: Sequence[str]) -> None:
    """Raises UserError for arguments that are no flags."""
    if len(argv) > 1:
        raise UserError(f"arguments without a flag: {list(argv[1:])}; flags are written --name=value")


def choose_precision(manual_fp16: bool = False) -> Precision:
    """--precision, or what --amp and --manual_fp16 mean on this machine."""
    if FLAGS.precision:
        return Precision.from_name(FLAGS.precision)
    gpu = bool(tf.config.list_physical_devices("GPU"))
    if manual_fp16:
        return Precision.from_name("fp16")
    if FLAGS.amp:
        return Precision.from_name("fp16" if gpu else "bf16")
    return Precision.from_name("tf32" if gpu else "fp32")


def choose_xla() -> bool:
    """--use_xla, by default whether there is a GPU."""
    return bool(tf.config.list_logical_devices("GPU")) if FLAGS.use_xla is None else FLAGS.use_xla


def record_settings(
    main_module: Any, path: Path, group: Distributed, weights: ComputeWeights, log: RunLog, **derived: Any
) -> None:
    """Saves every flag and what was derived from them, at `path` and in the log; lists the variables if asked."""
    values = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(main_module)}
    settings = values | derived | {"processes": group.size, "machine": machine.describe()}
    log.parameters(settings)
    if group.is_root:
        write_json(path, settings)
    if FLAGS.verbose_logging:
        for variable in weights.masters:
            log.info(f"{variable.name} {list(variable.shape)}")


def open_log(output_dir: Path, rank: int, resumed: bool, metrics: Mapping[str, Mapping[str, str]]) -> RunLog:
    """The run's log with the units and stages of what it will hold."""
    log = RunLog(FLAGS.dllog_path or output_dir / "bert_dllog.json", rank=rank, append=resumed)
    for metric, fields in metrics.items():
        log.metadata(metric, **fields)
    return log


def previous_summary(path: Path, step: int) -> dict:
    """The summary of the same weights by an earlier call, whose training figures stay true; else nothing."""
    summary = read_json(path) if path.exists() else {}
    return summary if isinstance(summary, dict) and summary.get("steps") == step else {}


# -------------------------------------------------------------------------------------------- start or resume
def start_or_resume(
    store: CheckpointStore,
    weights: ComputeWeights,
    optimizer: Optimizer,
    loss_scale: LossScale,
    identity: Mapping[str, Any],
    group: Distributed,
    log: RunLog,
    new_head: Sequence[str] = (),
    random_weights: bool = True,
) -> State:
    """Restores this run's newest checkpoint, else loads --init_checkpoint, else keeps the fresh weights; says which.

    The root reads and the other processes receive. identity: what a resume must share with the run (plain JSON); it
    becomes part of the state. new_head: prefixes of variables that --init_checkpoint need not hold, or may hold in
    another shape, from a task with other labels. random_weights: whether fresh weights are of use.

    Returns the run's state: updates attempted and records consumed so far, and the identity.
    """
    identity, state = dict(identity), None
    if group.is_root:
        state = checkpoint.restore_training_state(store, weights.masters, optimizer, loss_scale)
        if state is not None:
            log.info(f"resuming {store.directory} at step {int(optimizer.step)}")
            _check_same_run(store, state, identity, log)
        elif FLAGS.init_checkpoint:
            log.info(str(checkpoint.load_weights(weights.masters, FLAGS.init_checkpoint, new_head, new_head)))
            check_vocabulary(FLAGS.init_checkpoint, identity.get("vocab_sha256"))
            identity["init_checkpoint"] = weights_identity(FLAGS.init_checkpoint)
        elif random_weights:
            log.info(f"starting from random weights (seed {FLAGS.seed})")
        else:
            raise UserError(
                f"nothing to evaluate: {store.directory} holds no checkpoint and --init_checkpoint is not given"
            )
    state = group.broadcast_json(state or {"updates": 0, "records": 0, **identity})
    group.broadcast([*weights.masters, *optimizer.slots.values(), optimizer.step, *loss_scale.state.values()])
    weights.refresh_all()
    return state


def check_vocabulary(init_checkpoint: str, vocab_sha256: str | None) -> None:
    """Raises UserError when a checkpoint of ours was trained with another vocabulary: its ids mean other tokens."""
    other = checkpoint.saved_state(init_checkpoint).get("vocab_sha256")
    if None not in (other, vocab_sha256) and other != vocab_sha256:
        raise UserError(
            f"{init_checkpoint} was trained with another vocabulary (SHA-256 {other[:12]}...) than the data have "
            f"({vocab_sha256[:12]}...): use the same vocabulary file throughout"
        )


def _check_same_run(store: CheckpointStore, state: State, identity: Mapping[str, Any], log: RunLog) -> None:
    """Raises UserError when a checkpoint's run differs from this one in what cannot change on the way."""
    for key, value in identity.items():
        if state.get(key) != value:
            raise UserError(
                f"{store.directory} was trained with {key} {state.get(key)}, not {value}: resume with that, or give "
                "another output_dir"
            )
    if FLAGS.init_checkpoint and not state.get("init_checkpoint"):
        raise UserError(
            f"{store.directory} was started from random weights, not from {FLAGS.init_checkpoint}: give another "
            "output_dir to start from that, or leave --init_checkpoint out to resume"
        )
    if FLAGS.init_checkpoint:
        try:
            same = weights_identity(FLAGS.init_checkpoint) == state["init_checkpoint"]
        except UserError:  # it was needed at the start only, and may be gone by now
            return
        if not same:
            raise UserError(
                f"{store.directory} was started from other weights than {FLAGS.init_checkpoint} holds now: give "
                "another output_dir to start from these, or leave --init_checkpoint out to resume"
            )
        log.info(f"{FLAGS.init_checkpoint} was its start and is not read again")


def weights_identity(path: str) -> str:
    """SHA-256 of the file that tells a checkpoint from any other."""
    return sha256_file(checkpoint.identifying_file(path))


# --------------------------------------------------------------------------------------------------- the loop
def train(
    step: TrainStep,
    batches: Iterator[Sequence[Any]],
    schedule: Callable[[int], float],
    total: int,
    global_batch: int,
    state: State,
    store: CheckpointStore,
    log: RunLog,
    *,
    no_sums: Any,
    line_values: Callable[[Any, Any], dict[str, float]],
    console_text: Callable[[dict[str, float]], str],
    save_steps: int,
    display_steps: int,
) -> dict[str, float]:
    """Updates until `total` are done, with log lines and checkpoints; returns what goes to the summary.

    batches: this process's micro-batches of each update, from state["updates"] on. line_values: the values of a log
    line, from the sums of the update just done and those since the last line; console_text: what of them a reader sees.

    An update whose gradient is not finite is attempted but not done: its records are spent, its step number is used
    again.
    """
    optimizer, loss_scale, group = step.optimizer, step.loss_scale, step.distributed
    done = first = int(optimizer.step)
    events = EventWriter(store.directory, purge_step=done + 1) if group.is_root else None
    meter = ThroughputMeter(warmup_updates=min(5, (total - done) // 2))
    since_last_line, started, values = no_sums, time.monotonic(), {}
    while done < total:
        meter.start()
        learning_rate = schedule(done)
        result = step(next(batches), learning_rate, state["updates"])
        meter.stop(global_batch)
        state["updates"] += 1
        state["records"] += global_batch
        if not result.applied:
            scale = f" (loss scale now {float(loss_scale.scale):g})" if loss_scale.enabled else ""
            log.warning(f"the update after step {done} was skipped: its gradient is not finite{scale}")
            loss_scale.check(done)
            continue
        done += 1
        since_last_line += result.sums
        if done % display_steps == 0 or done == total:
            values = {"throughput_train": meter.lap()} | line_values(result.sums, since_last_line)
            values |= {"learning_rate": learning_rate, "gradient_norm": result.gradient_norm}
            if loss_scale.enabled:
                values["loss_scaler"] = float(loss_scale.scale)
            seconds_left = (time.monotonic() - started) / (done - first) * (total - done)
            log.log(done, values, echo=False)
            log.console(
                f"step {done}/{total}  {console_text(values)}  lr {learning_rate:.3e}  "
                f"{values['throughput_train']:.1f} sequences/s  ETA {duration(seconds_left)}"
            )
            if events is not None:
                events.scalars(done, values)
            since_last_line = no_sums
        if done % save_steps == 0 or done == total:
            if group.is_root:
                checkpoint.save_training_state(store, done, step.weights.masters, optimizer, loss_scale, state)
                log.info(f"saved {store.directory / store.name}-{done}")
            group.barrier()
            meter.exclude_next()
    if events is not None:
        events.close()

    log.log((), {"throughput_train": meter.throughput, "total_loss": values["total_loss"]}, echo=False)
    for line in closing_lines_train(meter):
        log.console(line)
    return {
        "sequences_per_second": meter.throughput,
        "train_seconds": meter.seconds,
        "train_loss": values["avg_loss_step"],
    }


def plot_losses(log_path: Path, target: Path, curves: Mapping[str, str], title: str) -> None:
    """The whole run's curves (name: key of the log), read back from its log, so that they span resumes."""
    lines = {
        line["step"]: line["data"]
        for line in read_log(log_path)
        if line["type"] == "LOG" and "avg_loss_step" in line["data"]
    }
    steps = sorted(lines)
    series = {name: (steps, [lines[step][key] for step in steps]) for name, key in curves.items()}
    line_plot(target, series, "update", "loss (nats)", title)
