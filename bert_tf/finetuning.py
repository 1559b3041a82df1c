"""What the fine-tuning mains share: flags, the run's surroundings, training on features, prediction in order.

A main reads its task's examples and turns them into features; here features become updates and outputs.
"""

import contextlib
import dataclasses
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags

from bert_tf import checkpoint, kernels, plan, runs, schedules
from bert_tf.distributed import Distributed
from bert_tf.features import (
    FeatureSet,
    LabelKind,
    TrainingOrder,
    batch_spec,
    choose_buckets,
    prediction_batches,
    store_features,
    stored_features,
    training_batches,
)
from bert_tf.huggingface import load_config
from bert_tf.losses import NO_TASK_SUMS, Objective, TaskSums
from bert_tf.model import BertConfig
from bert_tf.optimization import canonical_name, create_optimizer
from bert_tf.precision import LossScale, Precision
from bert_tf.records import Feature
from bert_tf.tokenization import FullTokenizer
from bert_tf.train_step import TrainStep, check_finite, create_prediction
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError
from runkit.files import atomic_open, locked_directory, sha256_file, write_json
from runkit.log import RunLog
from runkit.meters import ThroughputMeter, closing_lines_inference, latency_summary
from runkit.progress import Progress
from runkit.store import CheckpointStore

FLAGS = flags.FLAGS
FREE_BUCKET_STEP = 8  # batches are padded to a multiple of this where a new shape costs nothing
METRICS = {
    "total_loss": {"unit": "nat", "format": ":.4f", "STAGE": "TRAIN"},
    "avg_loss_step": {"unit": "nat", "format": ":.4f", "STAGE": "TRAIN"},
    "throughput_train": {"unit": "sequences/s", "format": ":.2f", "STAGE": "TRAIN"},
    "throughput_val": {"unit": "sequences/s", "format": ":.2f", "STAGE": "VAL"},
    "throughput_inf": {"unit": "sequences/s", "format": ":.2f", "STAGE": "VAL"},
    **{
        name: {"format": ":.4f", "STAGE": "VAL"}
        for name in ("f1", "exact_match", "precision", "recall", "mcc", "accuracy", "eval_loss")
    },
}


# ------------------------------------------------------------------------------------------------------ flags
def define_flags(
    *,
    do_lower_case: bool,
    max_seq_length: int,
    train_batch_size: int,
    learning_rate: float,
    num_train_epochs: float,
    save_checkpoints_steps: int = 1000,
) -> None:
    """The flags of all fine-tuning mains, with the defaults of one; shown by flags.adopt_module_key_flags."""
    runs.define_flags()
    plan.define_flags()
    flags.adopt_module_key_flags(runs)
    flags.adopt_module_key_flags(plan)
    string, integer, real, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_bool
    string("vocab_file", None, "WordPiece vocabulary, one token a line", required=True)
    boolean("do_lower_case", do_lower_case, "lower-case the text and strip accents: True for uncased models")
    integer("max_seq_length", max_seq_length, "tokens of a sequence at most", lower_bound=4)
    boolean("do_train", False, "train")
    integer("train_batch_size", train_batch_size, "sequences a micro-batch on each process (B)", lower_bound=1)
    integer("num_accumulation_steps", 1, "micro-batches an update (N)", lower_bound=1)
    real("learning_rate", learning_rate, "peak for one process; multiplied by the number of processes", lower_bound=0.0)
    real("num_train_epochs", num_train_epochs, "passes over the training examples", lower_bound=0.0)
    real("warmup_proportion", 0.1, "share of the updates spent on linear warm-up", lower_bound=0.0)
    integer("save_checkpoints_steps", save_checkpoints_steps, "updates between checkpoints", lower_bound=1)
    integer("display_loss_steps", 10, "updates between log lines", lower_bound=1)
    boolean("bucket", True, "pad batches to the lengths that occur; --nobucket: all to max_seq_length (added)")
    boolean("allow_random_weights", False, "predict with untrained weights, where only speed is asked for (added)")


def define_set_flags(batch_size: int) -> None:
    """The flags of tasks with a development and a test set in a folder."""
    flags.DEFINE_string("data_dir", None, "folder of the task's files", required=True)
    flags.DEFINE_bool("do_eval", False, "score the development set")
    flags.DEFINE_bool("do_predict", False, "predict the test set, and score it where it has labels")
    flags.DEFINE_integer("eval_batch_size", batch_size, "sequences a batch in evaluation", lower_bound=1)
    flags.DEFINE_integer("predict_batch_size", batch_size, "sequences a batch in prediction", lower_bound=1)
    flags.DEFINE_string("master", None, "accepted for old command lines, without effect")


def check_work() -> None:
    """Raises UserError when none of the three kinds of work was asked for."""
    if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict):
        raise UserError("nothing to do: give --do_train, --do_eval or --do_predict")


# ------------------------------------------------------------------------------------------- the surroundings
@dataclasses.dataclass(frozen=True)
class Session:
    """What a run has before it has data."""

    main_module: Any  # the main, whose flags are recorded
    group: Distributed
    precision: Precision
    use_xla: bool
    output_dir: Path
    store: CheckpointStore
    log: RunLog
    config: BertConfig
    tokenizer: FullTokenizer
    identity: dict[str, Any]  # what a resume must share; saved with every checkpoint


def open_session(
    group: Distributed,
    stack: contextlib.ExitStack,
    main_module: Any,
    task: str,
    labels: Sequence[str],
    optimizer_type: str = "adam",
) -> Session:
    """Locks output_dir and checks everything that can be checked before data are read.

    labels: names in index order, empty where the task has none; they are saved with the model, and a checkpoint that
    was fine-tuned with others is refused.
    """
    _check_numbers()
    precision = runs.choose_precision()
    precision.activate()
    output_dir = Path(FLAGS.output_dir)
    if group.is_root:
        stack.enter_context(locked_directory(output_dir, "fine-tuning"))
    store = runs.open_store(output_dir)
    log = runs.open_log(output_dir, group.rank, bool(store.steps()), METRICS)
    stack.callback(log.close)

    config = load_config(FLAGS.bert_config_file)
    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"max_seq_length {FLAGS.max_seq_length} is beyond max_position_embeddings "
            f"{config.max_position_embeddings} of {FLAGS.bert_config_file}"
        )
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
    warning = checkpoint.check_files(FLAGS.vocab_file, config, FLAGS.init_checkpoint or None, FLAGS.bert_config_file)
    if warning:
        log.warning(warning)
    if FLAGS.init_checkpoint:
        _check_case(FLAGS.init_checkpoint, FLAGS.do_lower_case)
    identity = {
        "task": task,
        "labels": list(labels),
        "seed": FLAGS.seed,
        "optimizer_type": canonical_name(optimizer_type),
        "vocab_sha256": sha256_file(FLAGS.vocab_file),
        "do_lower_case": FLAGS.do_lower_case,
    }
    return Session(
        main_module, group, precision, runs.choose_xla(), output_dir, store, log, config, tokenizer, identity
    )  # fmt: skip


def _keep_with_the_model(session: Session) -> None:
    """Puts into output_dir what its checkpoints need to be used: vocabulary, model configuration, labels."""
    with atomic_open(session.output_dir / "vocab.txt") as stream:
        stream.write(Path(FLAGS.vocab_file).read_bytes())
    write_json(session.output_dir / "bert_config.json", session.config.to_dict())
    kept = {key: session.identity[key] for key in ("task", "labels", "do_lower_case")}
    write_json(session.output_dir / "labels.json", kept)


def _check_numbers() -> None:
    """Raises UserError for numbers that no training can use."""
    if FLAGS.do_train and not 0 < FLAGS.num_train_epochs < math.inf:
        raise UserError(f"num_train_epochs is {FLAGS.num_train_epochs}; it must be a number above 0")
    if not 0 <= FLAGS.warmup_proportion < 1:
        raise UserError(f"warmup_proportion is {FLAGS.warmup_proportion}; it must be at least 0 and below 1")
    if not FLAGS.learning_rate < math.inf:
        raise UserError(f"learning_rate is {FLAGS.learning_rate}; it must be a finite number")


def flag_checks() -> list[Callable[[], None]]:
    """What is refused by the flags alone, each by itself, for a plan that tells all of it."""
    return [_check_numbers, lambda: _check_case(FLAGS.init_checkpoint or "", FLAGS.do_lower_case)]


def _check_case(init_checkpoint: str, do_lower_case: bool) -> None:
    """Raises UserError when the name of a checkpoint's folder contradicts --do_lower_case."""
    kind = re.search(r"(?:^|[/_-])(uncased|cased)(?=[/_-])", init_checkpoint)
    if kind and (kind[1] == "uncased") != do_lower_case:
        raise UserError(
            f"--do_lower_case is {do_lower_case}, but {init_checkpoint} is a checkpoint of an {kind[1]} model by its "
            f"name: give --do_lower_case={kind[1] == 'uncased'}, or rename the folder"
        )


def compiles_each_shape(session: Session) -> bool:
    """Whether a batch of a new shape is compiled first: by XLA as a whole, or where its ops have no kernels."""
    return session.use_xla or kernels.library() is None


def initial_seed() -> int | None:
    """What new weights are drawn from; None where a checkpoint will give them all."""
    return FLAGS.seed if FLAGS.do_train or FLAGS.allow_random_weights else None


def build_weights(session: Session, model: tf.Module) -> ComputeWeights:
    return ComputeWeights(model.variables, session.precision.compute_dtype, join=not FLAGS.do_train)


# ----------------------------------------------------------------------------------------------- the features
def features_once(
    session: Session,
    kind: LabelKind,
    source: str,
    settings: Mapping[str, Any],
    build: Callable[[], Iterable[Feature]],
) -> FeatureSet:
    """The training features: read from <output_dir>/train.tf_record where they were made from the same, else built.

    source: a digest of the examples. settings: what else decides the features (plain JSON).

    The root stores what it builds before the other processes look, so on a shared disk the conversion is done once;
    where they cannot see the file they build the same features themselves.
    """
    path = session.output_dir / "train.tf_record"
    made_from = {
        "source": source,
        "max_seq_length": FLAGS.max_seq_length,
        **{key: session.identity[key] for key in ("task", "labels", "vocab_sha256", "do_lower_case")},
        **settings,
    }
    if session.group.is_root:
        features = _read_or_build(session, path, kind, made_from, build)
        session.group.barrier()
        return features
    session.group.barrier()
    return _read_or_build(session, path, kind, made_from, build)


def digest(examples: Iterable[tuple]) -> str:
    """SHA-256 over the fields of examples."""
    result = hashlib.sha256()
    for example in examples:
        result.update(repr(tuple(example)).encode())
    return result.hexdigest()


def _read_or_build(session: Session, path: Path, kind: LabelKind, made_from, build) -> FeatureSet:
    features = stored_features(path, kind, FLAGS.max_seq_length, made_from)
    if features is not None:
        session.log.info(f"{len(features)} features from {path}")
    else:
        features = FeatureSet(build(), kind)
        # Those of a run under way stay: if these are others, the resume is about to be refused.
        if session.group.is_root and not (path.exists() and session.store.steps()):
            store_features(path, features, FLAGS.max_seq_length, made_from)
            session.log.info(f"{len(features)} features written to {path}")
    features.check_ranges(session.config.vocab_size, session.config.type_vocab_size, FLAGS.vocab_file)
    return features


def buckets_of(session: Session, features: FeatureSet) -> list[int]:
    """The lengths that batches of these features are padded to; says how much padding remains."""
    if not FLAGS.bucket:
        return [FLAGS.max_seq_length]
    limits = () if compiles_each_shape(session) else (FLAGS.max_seq_length, FREE_BUCKET_STEP)  # as many as there are
    buckets = choose_buckets(features.lengths, FLAGS.max_seq_length, *limits)
    places = np.searchsorted(buckets, features.lengths)
    padded = int(np.sum(np.array(buckets)[places]))
    share = int(features.lengths.sum()) / max(padded, 1)
    full = len(features) * FLAGS.max_seq_length
    named = ", ".join(map(str, buckets)) if len(buckets) <= 8 else f"{buckets[0]} to {buckets[-1]}"
    session.log.info(
        f"buckets {named}: {100 * share:.0f}% of the positions hold tokens "
        f"({100 * int(features.lengths.sum()) / max(full, 1):.0f}% when all are padded to {FLAGS.max_seq_length})"
    )
    return buckets


# ------------------------------------------------------------------------------------------------------ train
def train(
    session: Session,
    model: tf.Module,
    weights: ComputeWeights,
    objective: Objective,
    features: FeatureSet,
    n_examples: int,
    optimizer_type: str = "adam",
) -> dict[str, Any]:
    """Trains (or resumes, or finds all done); returns the summary's training figures. weights hold the result.

    n_examples: what an epoch is counted in, as published; windows of one text are one example.

    A resume must have the same features, global batch and order, for a position in the data is a number of updates;
    another learning rate or number of epochs is warned of.
    """
    group, log = session.group, session.log
    optimizer = create_optimizer(optimizer_type, weights.masters)
    loss_scale = LossScale(
        session.precision.loss_scaling, FLAGS.init_loss_scale, max_consecutive_skips=FLAGS.nonfinite_patience
    )
    identity = session.identity | {"training_features": features.digest(), "bucket": FLAGS.bucket}
    state = runs.start_or_resume(
        session.store, weights, optimizer, loss_scale, identity, group, log, new_head=[model.HEAD]
    )
    global_batch = runs.global_batch(state, group, log)
    total = max(1, int(n_examples / global_batch.size * FLAGS.num_train_epochs))
    warmup, peak = int(total * FLAGS.warmup_proportion), FLAGS.learning_rate * global_batch.rate_factor
    schedule = schedules.create_schedule(canonical_name(optimizer_type), peak, warmup, total)
    log.info(
        f"{n_examples} examples, {len(features)} sequences; {total} updates of {global_batch.size} "
        f"({global_batch.micro_batches} micro-batches of {FLAGS.train_batch_size} on {group.size} processes), "
        f"warm-up {warmup}, effective learning rate {peak:g}"
    )
    for key, value in (("effective_learning_rate", peak), ("num_train_steps", total)):
        if state.setdefault(key, value) != value:
            log.warning(f"{key} was {state[key]:g} so far and is {value:g} from here on: the schedule is another")
            state[key] = value
    if group.is_root:
        _keep_with_the_model(session)
    rows = runs.choose_packing(session.precision, session.use_xla, by_default=FLAGS.bucket)
    buckets = [] if rows else buckets_of(session, features)
    runs.record_settings(
        session.main_module,
        session.output_dir / "run_config.json",
        group,
        weights,
        log,
        global_batch_size=global_batch.size,
        effective_learning_rate=peak,
        num_train_steps=total,
        num_warmup_steps=warmup,
        precision=session.precision.name,
        use_xla=session.use_xla,
        packed=rows is not None,
        buckets=buckets,
        bert_config=session.config.to_dict(),
        labels=session.identity["labels"],
    )

    figures = {
        "steps": total,
        "global_batch_size": global_batch.size,
        "learning_rate": peak,
        "precision": session.precision.name,
    }
    if (done := int(optimizer.step)) >= total:
        log.info(f"nothing left to train: step {done} of {total} is done")
        return runs.previous_summary(session.output_dir / "summary.json", done) | figures | {"steps": done}
    compression = "fp16" if session.precision.name == "fp16" else None
    model.bert.recompute_activations = FLAGS.recompute_activations
    step = TrainStep(
        model,
        objective,
        weights,
        optimizer,
        loss_scale,
        group,
        global_batch.micro_batches,
        compression=compression,
        use_xla=session.use_xla,
        seed=FLAGS.seed,
        batch_spec=batch_spec(features.kind, packed=rows is not None),
    )
    order = TrainingOrder(features.lengths, FLAGS.seed, global_batch.size, total, by_length=FLAGS.bucket)
    figures |= runs.train(
        step,
        training_batches(
            features, order, buckets, state["updates"], FLAGS.train_batch_size, group.rank, group.size, rows
        ),
        schedule,
        total,
        global_batch.size,
        state,
        session.store,
        log,
        no_sums=NO_TASK_SUMS,
        line_values=line_values,
        console_text=lambda values: f"loss {values['avg_loss_step']:.4f}  accuracy {100 * values['accuracy']:.1f}%",
        batch_names=lambda state: [
            f"feature {index}"
            for part in order.indices(state["updates"]).reshape(-1, FLAGS.train_batch_size)[group.rank :: group.size]
            for index in part
        ],
        save_steps=FLAGS.save_checkpoints_steps,
        display_steps=FLAGS.display_loss_steps,
    )
    if group.is_root:
        runs.plot_losses(log.path, session.output_dir / "loss_curve.png", {"loss": "avg_loss_step"}, "Fine-tuning")
    return figures


def line_values(now: TaskSums, since_last_line: TaskSums) -> dict[str, float]:
    """The values of one log line: of the update just done, and averages over the updates since the last line."""
    average = since_last_line.means()
    return {
        "total_loss": now.means()["loss"],
        "avg_loss_step": average["loss"],
        "accuracy": average["accuracy"],
    }


# ---------------------------------------------------------------------------------------------------- predict
def load_trained(session: Session, model: tf.Module, weights: ComputeWeights) -> dict[str, Any]:
    """Loads what is to predict when nothing was trained: --init_checkpoint, else the newest of output_dir.

    The root reads, the others receive. Returns the summary so far: the checkpoint's step (0 where it says none), and
    for output_dir's own what its earlier summary says. Raises UserError when there is neither, it lacks the task's
    head, or it was fine-tuned for other labels, unless --allow_random_weights.
    """
    group = session.group
    summary = group.broadcast_json(_load_trained(session, model, weights) if group.is_root else {})
    group.broadcast(weights.masters)
    weights.refresh_all()
    return summary


def _load_trained(session: Session, model: tf.Module, weights: ComputeWeights) -> dict[str, Any]:
    log, path = session.log, FLAGS.init_checkpoint
    if not path and session.store.steps():
        path = str(session.output_dir)
    if not path:
        if not FLAGS.allow_random_weights:
            raise UserError(
                f"nothing to predict with: {session.output_dir} holds no checkpoint and --init_checkpoint is not given"
            )
        log.warning("no checkpoint: the weights are random and so are the answers")
        return {"steps": 0}
    check_labels(path, session.identity)
    runs.check_vocabulary(path, session.identity["vocab_sha256"])
    report = checkpoint.load_weights(weights.masters, path, [model.HEAD])
    log.info(str(report))
    if report.missing and not FLAGS.allow_random_weights:
        raise UserError(
            f"{report.source} was not fine-tuned for this task: it lacks {', '.join(report.missing)}. Give a "
            "fine-tuned checkpoint, or --do_train"
        )
    step = _global_step(path)
    if not FLAGS.init_checkpoint:
        return {"steps": step} | runs.previous_summary(session.output_dir / "summary.json", step)
    if session.store.steps():
        log.info(f"the checkpoint in {session.output_dir} is left alone: --init_checkpoint was given")
    else:
        _keep_with_the_model(session)
    return {"steps": step}


def _global_step(path: str) -> int:
    name = checkpoint.GLOBAL_STEP
    return int(checkpoint.read_tensors(path, [name])[name]) if name in checkpoint.list_variables(path) else 0


def check_labels(path: str, identity: Mapping[str, Any]) -> None:
    """Raises UserError when a checkpoint of ours was fine-tuned for another task or other labels."""
    state = checkpoint.saved_state(path)
    for key in ("task", "labels", "do_lower_case"):
        if key in state and state[key] != identity[key]:
            raise UserError(f"{path} was fine-tuned with {key} {state[key]}, this is {identity[key]}: they must agree")


def build_prediction(
    session: Session, model: tf.Module, weights: ComputeWeights, objective: Objective, kind: LabelKind
) -> Callable:
    """A function features.TaskBatch -> (outputs of the model, the objective's sums), of which one serves all sets."""
    return create_prediction(model, objective, weights, batch_spec(kind), session.use_xla)


class Predicted(NamedTuple):
    """What a model made of features, in their order."""

    outputs: list[np.ndarray]  # for each feature [N], or for tasks on tokens [its length, N]; float32
    sums: TaskSums  # against the labels that the features carry
    figures: dict[str, Any]  # latency and throughput, for the summary


def predict(
    session: Session, function: Callable, features: FeatureSet, batch_size: int, where: str = ""
) -> Predicted | None:
    """Runs a model over all features once, each on one of the processes; prints the published closing lines.

    To be called by all processes with the same features. The root has the result, the others None.

    function: see build_prediction. where: "on EVAL set", "on TEST SET" or nothing. The first batch, and the
    first of each shape where shapes are compiled, does not count in latency and throughput, unless there is no other.
    """
    group, buckets = session.group, buckets_of(session, features)
    outputs: dict[int, np.ndarray] = {}
    total, meter, shapes = NO_TASK_SUMS, ThroughputMeter(warmup_updates=0), set()
    first_of_shape, others, compiled = [], [], compiles_each_shape(session)
    batches = prediction_batches(
        features, buckets, batch_size, FLAGS.max_seq_length, group.rank, group.size, fill_up=compiled
    )
    with contextlib.ExitStack() as stack:
        share = -(-len(features) // group.size)
        progress = stack.enter_context(Progress(share, "prediction", "sequences")) if group.is_root else None
        for indices, batch in batches:
            length = int(batch.input_ids.shape[1])
            new = not shapes or (compiled and length not in shapes)
            shapes.add(length)
            meter.start()
            if new:
                meter.exclude_next()
            started = time.perf_counter()
            logits, sums = function(batch)
            logits = logits.numpy()
            check_finite(logits)
            (first_of_shape if new else others).append(time.perf_counter() - started)
            meter.stop(len(indices) * group.size)
            total += TaskSums(*(float(value) for value in sums))
            for row, index in enumerate(indices):
                outputs[index] = logits[row, : features.lengths[index]] if logits.ndim == 3 else logits[row]
            if progress:
                progress.update(len(indices))
    everything = _gather_outputs(session, features, outputs)
    total = TaskSums(*group.sum_array([*total]).tolist())
    if everything is None:
        return None
    if not len(features):
        return Predicted(everything, total, {})
    latency = latency_summary(others or first_of_shape, batch_size)
    lines = closing_lines_inference(
        meter, batch_size, FLAGS.max_seq_length, session.precision.name, latency, where=where
    )  # fmt: skip
    for line in lines:
        session.log.console(line)
    figures = {
        "batch_size": batch_size,
        "sequence_length": FLAGS.max_seq_length,
        "precision": session.precision.name,
        "sequences_per_second": meter.throughput,
        "latency_average_ms": latency.average_ms,
        **{f"latency_{p}_ms": getattr(latency, f"confidence_{p}_ms") for p in (50, 90, 95, 99, 100)},
    }
    return Predicted(everything, total, figures)


def _gather_outputs(
    session: Session, features: FeatureSet, outputs: Mapping[int, np.ndarray]
) -> list[np.ndarray] | None:
    """All processes' outputs in the order of the features, on the root; None elsewhere."""
    group, own = session.group, list(outputs.values())
    if group.size > 1:
        indices = group.gather_array(np.fromiter(outputs, np.int64))
        values = group.gather_array(np.concatenate([np.zeros(0, np.float32), *(array.ravel() for array in own)]))
        if indices is None or values is None:
            return None
        width, outputs = own[0].shape[-1] if own else 0, {}  # the root has a batch if anyone has
        for numbers, flat in zip(indices, values, strict=True):
            rows = [features.lengths[index] if own[0].ndim == 2 else 1 for index in numbers]
            parts = np.split(flat.reshape(-1, width), np.cumsum(rows)[:-1]) if len(numbers) else []
            outputs |= {
                int(index): part if own[0].ndim == 2 else part[0] for index, part in zip(numbers, parts, strict=True)
            }
    return [outputs[index] for index in range(len(features))]


def write_eval_results(path: Path, results: Mapping[str, Any]) -> None:
    """`key = value` lines, sorted, as published."""
    with atomic_open(path, "w") as stream:
        stream.writelines(f"{key} = {results[key]}\n" for key in sorted(results))
