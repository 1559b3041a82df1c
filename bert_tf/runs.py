"""What every training main does around its own data and model: shared flags, start or resume, the loop, the record.

A run lives in its output_dir. An output_dir that holds a checkpoint of the run is resumed exactly; --init_checkpoint
gives weights only, to a run that starts at step 0.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf
from absl import flags

from bert_tf import checkpoint, distributed, ops
from bert_tf.distributed import Distributed
from bert_tf.optimization import Optimizer
from bert_tf.packing import Rows
from bert_tf.precision import INITIAL_LOSS_SCALE, MAX_CONSECUTIVE_SKIPS, PRECISIONS, LossScale, Precision
from bert_tf.train_step import TrainStep, UpdateResult
from bert_tf.weights import ComputeWeights
from runkit import guards, machine
from runkit.background import BackgroundWriter
from runkit.errors import UserError
from runkit.files import read_json, sha256_file, write_json
from runkit.log import RunLog, read_log
from runkit.meters import ThroughputMeter, closing_lines_train
from runkit.plots import line_plot
from runkit.progress import duration
from runkit.report import try_report
from runkit.signals import StopSignals
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
    boolean(
        "recompute_activations",
        False,
        "keep the layers' inputs only and run each layer again in the backward pass: "
        "far less memory for a quarter to a third more time, the same results (added)",
    )
    boolean("verbose_logging", False, "list the variables")
    boolean("report", False, "write <output_dir>/report.html at the end, one page about the run (added)")
    real("init_loss_scale", INITIAL_LOSS_SCALE, "first loss scale of fp16")
    integer("iterations_per_loop", 1000, "accepted for old command lines, without effect")
    flags.DEFINE_enum("precision", None, list(PRECISIONS), "compute precision; wins over --amp (added)")
    integer("seed", 12345, "governs initial weights, dropout and data order (added)", lower_bound=0)
    integer("keep_checkpoints", 1, "how many of the newest checkpoints stay (added)", lower_bound=1)
    integer("keep_every", 0, "checkpoints of steps divisible by this stay for ever; 0: none (added)", lower_bound=0)
    integer(
        "nonfinite_patience",
        MAX_CONSECUTIVE_SKIPS,
        "stop after so many skipped updates in a row (added)",
        lower_bound=1,
    )
    real("explosion_factor", guards.EXPLOSION_FACTOR, "stop when gradient norms are so many times the usual (added)")
    integer("explosion_patience", guards.EXPLOSION_PATIENCE, "in so many updates in a row (added)", lower_bound=1)
    boolean(
        "pack_sequences",
        None,
        "several short sequences in a row of a training batch, instead of padding; the same updates; default: in fp32 "
        "where batches of any shape run without being compiled, on a CPU without XLA (added)",
    )
    real("input_timeout", guards.INPUT_TIMEOUT, "seconds without a batch after which training stops (added)")


def refuse_words(argv: Sequence[str]) -> None:
    """Raises UserError for arguments that are no flags."""
    if len(argv) > 1:
        raise UserError(f"arguments without a flag: {list(argv[1:])}; flags are written --name=value")


def launch(body: Callable[[Distributed, contextlib.ExitStack], None]) -> None:
    """Runs a main's body on the processes that --horovod says; under Horovod Elastic whenever their number changes."""

    def with_stack(group: Distributed) -> None:
        with contextlib.ExitStack() as stack:
            body(group, stack)

    distributed.launch(FLAGS.horovod, with_stack)


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


def choose_packing(precision: Precision, use_xla: bool, by_default: bool = True) -> Rows | None:
    """--pack_sequences, and into what rows: None where each sequence has a row of its own.

    by_default: whether to pack where the flag says nothing and it costs nothing. In bfloat16 it has to be asked for:
    there the products of padded rows run on units for bfloat16, those of the packed attention do not.
    """
    any_shape = not use_xla and ops.has_kernels(precision.compute_dtype)
    unasked = by_default and any_shape and precision.compute_dtype == tf.float32
    if not (unasked if FLAGS.pack_sequences is None else FLAGS.pack_sequences):
        return None
    return Rows(capacity=None, fixed=False) if any_shape else Rows(FLAGS.max_seq_length, fixed=True)


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


def close(output_dir: Path, summary: Mapping[str, Any], log: RunLog) -> None:
    """The root's last act: summary.json, and the report if one is wanted."""
    write_json(output_dir / "summary.json", summary)
    if FLAGS.report:
        try_report(output_dir, log)


def previous_summary(path: Path, step: int) -> dict:
    """The summary of the same weights by an earlier call, whose training figures stay true; else nothing."""
    summary = read_json(path) if path.exists() else {}
    return summary if isinstance(summary, dict) and summary.get("steps") == step else {}


def open_store(output_dir: Path) -> CheckpointStore:
    """The run's checkpoints, kept as the flags say."""
    return CheckpointStore(output_dir, keep=FLAGS.keep_checkpoints, milestone_every=FLAGS.keep_every)


# ---------------------------------------------------------------------------------------------- the global batch
class GlobalBatch(NamedTuple):
    """What an update consists of. It belongs to the run and outlives changes of the number of processes."""

    size: int  # sequences
    micro_batches: int  # of train_batch_size sequences, dealt to the processes
    rate_factor: int  # the effective learning rate is this times --learning_rate: processes at the start


def global_batch(state: State, group: Distributed, log: RunLog) -> GlobalBatch:
    """The run's global batch: --train_batch_size times --num_accumulation_steps times the processes, at its start.

    A resume on another number of processes may have the same flags (the micro-batches are dealt to those there are) or
    flags that make up the same global batch with the new number. Sets what belongs to the run in `state`. Raises
    UserError for flags that make another global batch, and for more processes than micro-batches.
    """
    per_process = FLAGS.train_batch_size * FLAGS.num_accumulation_steps
    size = state.setdefault("global_batch_size", per_process * group.size)
    before = state.setdefault("processes", group.size)
    if size == per_process * group.size:
        state["processes"] = group.size
    elif size != per_process * before:
        raise UserError(
            f"the run has a global batch of {size} sequences, begun on {before} processes; train_batch_size "
            f"{FLAGS.train_batch_size} x num_accumulation_steps {FLAGS.num_accumulation_steps} makes {per_process} on "
            f"each of {group.size}. Resume with values that make {size}, or start in another output_dir with "
            "--init_checkpoint"
        )
    else:
        log.info(
            f"the run was begun on {before} processes, this is {group.size}: the global batch stays {size} and the "
            "effective learning rate what it was"
        )
    micro_batches = size // FLAGS.train_batch_size
    if micro_batches < group.size:
        raise UserError(
            f"{group.size} processes for {micro_batches} micro-batches of {FLAGS.train_batch_size}: give a smaller "
            f"train_batch_size (the run's global batch is {size}), or start fewer processes"
        )
    return GlobalBatch(size, micro_batches, state["processes"])


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
            store.tidy(int(optimizer.step))
            check_same_run(store, state, identity, log)
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


def check_same_run(store: CheckpointStore, state: State, identity: Mapping[str, Any], log: RunLog) -> None:
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
    batch_names: Callable[[State], list[str]],
    save_steps: int,
    display_steps: int,
) -> dict[str, float]:
    """Updates until `total` are done, with log lines and checkpoints; returns what goes to the summary.

    batches: this process's micro-batches of each update, from state["updates"] on. line_values: the values of a log
    line, from the sums of the update just done and those since the last line; console_text: what of them a reader sees.
    batch_names: what this process's part of the update at `state` consists of, for a diagnosis.

    An update whose gradient is not finite is attempted but not done: its records are spent, its step number is used
    again. Raises UserError with a diagnosis when a guard says that the run has gone wrong (see runkit.guards), and
    SystemExit(128 + signal) when SIGTERM or SIGUSR1 came to any process, after the update under way and a checkpoint.
    """
    optimizer, loss_scale, group = step.optimizer, step.loss_scale, step.distributed
    done = first = saved = int(optimizer.step)
    events = EventWriter(store.directory, purge_step=done + 1) if group.is_root else None
    meter = ThroughputMeter(warmup_updates=min(5, (total - done) // 2))
    norm_guard = guards.GradientNormGuard(FLAGS.explosion_factor, FLAGS.explosion_patience)
    since_last_line, started, values, stopped, snapshot_seconds = no_sums, time.monotonic(), {}, None, 0.0

    def save() -> None:
        nonlocal saved, snapshot_seconds
        if group.is_root and saved != done:
            writer.wait()  # so that there are never two snapshots in memory
            begun = time.perf_counter()
            snapshot = checkpoint.take_snapshot(done, step.weights.masters, optimizer, loss_scale, state)
            snapshot_seconds += time.perf_counter() - begun
            writer.submit(lambda: checkpoint.write_snapshot(store, snapshot), lambda path: log.info(f"saved {path}"))
            meter.exclude_next()
        saved = done

    with StopSignals() as signals, BackgroundWriter() as writer:
        while done < total and not stopped:
            meter.start()
            learning_rate = schedule(done)
            before = dict(state)
            result = step(next(batches), learning_rate, state["updates"], signals.requested())
            meter.stop(global_batch)
            writer.poll()
            state["updates"] += 1
            state["records"] += global_batch
            if result.stop:
                stopped = signals.received or signal.SIGTERM
            if not result.applied:
                scale = f" (loss scale now {float(loss_scale.scale):g})" if loss_scale.enabled else ""
                log.warning(f"the update after step {done} was skipped: its gradient is not finite{scale}")
                if verdict := loss_scale.verdict():
                    save()  # the weights are those of the last good update
                    _give_up(verdict, done, saved, result, batch_names(before), group)
                continue
            done += 1
            if verdict := norm_guard.verdict(result.gradient_norm):
                _give_up(verdict, done, saved, result, batch_names(before), group)
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
            if done == total or (done % save_steps == 0 and not norm_guard.exploding):
                save()
                group.check_hosts()
        save()
    if events is not None:
        events.close()
    if stopped:
        log.info(f"stopped by {stopped.name} after step {done} of {total}; the same command goes on from there")
        raise SystemExit(128 + stopped)

    log.log((), {"throughput_train": meter.throughput, "total_loss": values["total_loss"]}, echo=False)
    for line in closing_lines_train(meter):
        log.console(line)
    return {
        "sequences_per_second": meter.throughput,
        "train_seconds": meter.seconds,
        "train_loss": values["avg_loss_step"],
        "checkpoint_stall_seconds": snapshot_seconds + writer.stalled_seconds,
    }


def _give_up(
    verdict: str, step: int, saved: int, result: UpdateResult, batch: Sequence[str], group: Distributed
) -> NoReturn:
    """Ends the run on every process at once, the root with the whole diagnosis."""
    processes = group.gather_json({"loss": guards.json_number(result.own_loss), "batch": list(batch)})
    verdict = f"training diverged at step {step}: {verdict}"
    if processes is None:
        raise UserError(f"{verdict}; see the root's message")
    kept = f"The state of step {saved} is saved: go on from it" if saved else "Nothing was saved yet: start again"
    remedy = (
        f"{kept} with a lower learning_rate or a longer warm-up (and, with fp16, perhaps bf16 or fp32); if it happens "
        "at the very start, check the input records named above and the initial checkpoint"
    )
    raise UserError(guards.diagnosis(verdict, processes, remedy))


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
