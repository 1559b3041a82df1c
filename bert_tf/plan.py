"""What a training run of BERT will take, and everything that would stop it: --plan of the five training mains.

Nothing is started: the model is built as a graph of shapes without values, records and checkpoints are looked at by
their manifests. The layout of the output and the values of --plan are runkit.planning's.

Memory of one process, at its peak, which falls near the start of the optimizer's walk (n parameters, R = B*S rows of
a micro-batch, L layers, H hidden, I intermediate, A heads, P predictions, V vocabulary, e bytes of the compute dtype):

    weights                 4 n
    compute copies          e n less the layer norms, where e < 4 (weights.ComputeWeights)
    accumulators            4 n, where an update has several micro-batches (train_step.TrainStep)
    moments                 8 n, the same for LAMB and Adam (optimization.Optimizer)
    gradients               e n, and 4 V H where a table's looked-up and multiplied gradients meet (weights)
    new weights             6 n: direction, moments and weights that are computed before the old ones are let go
                            (optimization.Optimizer.apply); at most 16 n, measured, as the walk frees while it goes;
                            none with the kernels, which update in place
    activations             see `activation_bytes`; where they are recomputed, less what is let go while the
                            gradients come
    checkpoint snapshot     12 n, on the process that saves, while it is written in the background
    runtime                 TensorFlow itself and what it compiles, measured on a tiny model
"""

import contextlib
import functools
import importlib.util
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags

from bert_tf import checkpoint, glue, kernels, ner, ops, runs, squad
from bert_tf.distributed import Distributed
from bert_tf.features import CLASS, SPAN, TAGS, VALUE, LabelKind, TaskBatch, batch_spec
from bert_tf.huggingface import load_config
from bert_tf.input_pipeline import Batch, PretrainingRecords, packed_spec
from bert_tf.losses import Classification, Objective, Pretraining, QuestionAnswering, Regression, Tagging
from bert_tf.model import (
    BertConfig,
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
    variable_name,
)
from bert_tf.optimization import canonical_name, create_optimizer
from bert_tf.packing import Rows
from bert_tf.precision import LossScale, Precision
from bert_tf.records import load_manifest
from bert_tf.tokenization import FullTokenizer
from bert_tf.train_step import TrainStep
from bert_tf.weights import ComputeWeights, stays_float32
from runkit.errors import UserError
from runkit.files import read_json
from runkit.planning import HELP, PROBE, PROBED_UPDATES, Part, Plan, parse_request, size_text
from runkit.store import Checkpoint

FLAGS = flags.FLAGS
RUNTIME_BYTES = 670e6  # of a main on a CPU, x86-64, TensorFlow 2.21, before it holds anything; see benchmarks/memory.py
NEW_WEIGHTS_BYTES = 6  # a parameter
SAMPLE = 2000  # records whose lengths say how large packed batches are
FULL_CHECK_BYTES = 2e9  # checkpoints up to this are read and compared with their checksums, larger ones by their sizes


# --------------------------------------------------------------------------------------------------------- the flags
class _RequestParser(flags.ArgumentParser):
    """The value of --plan, which alone means true."""

    syntactic_help = "true, probe, or a throughput"

    def parse(self, argument: str | bool) -> str | float:
        return parse_request(str(argument))

    def flag_type(self) -> str:
        return "plan"


def define_flags() -> None:
    """--plan and what a launcher adds to it."""
    flags.DEFINE_flag(flags.Flag(_RequestParser(), None, "plan", "", HELP, boolean=True))
    flags.DEFINE_integer("plan_processes", 1, "number of processes that --plan is about (added)", lower_bound=1)


# -------------------------------------------------------------------------------------------------------- the memory
class Shape(NamedTuple):
    """A variable without its value."""

    name: str  # in a checkpoint
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def variable_shapes(build: Callable[[], tf.Module]) -> list[Shape]:
    """The variables of the model that `build` makes; in a graph of its own, where no value is computed."""
    with tf.Graph().as_default():
        return [Shape(variable_name(variable), tuple(variable.shape)) for variable in build().variables]


class Head(NamedTuple):
    """What is on top of the encoder, for its activations. rows: rows that it works on; outputs: numbers a row."""

    rows: int
    outputs: int
    transformed: bool = False  # by the masked-LM head's dense layer first
    dropped: bool = False  # by a dropout of its own


def activation_bytes(
    config: BertConfig,
    batch: int,
    length: int,
    element: int,
    head: Head,
    keeps_scores: bool = True,
    recompute: bool = False,
) -> dict[str, float]:
    """What the backward pass of a micro-batch reads back, in bytes, by part of the network.

    batch B, length S (packed: R rows of S), element: bytes of the compute dtype; keeps_scores: not so where attention
    is the kernel that makes them again (ops.layout). Per layer and row, by the operations of model.Layer:

        its input, queries, keys and values     H + 3 H    read again by the products
        probabilities                           2 A S      before and after dropout, for softmax and product; or
                                                           A float32 sums, where scores are not kept
        context                                 H          the output projection's input
        residual sums, twice                    2 H        of the layer norms; and 2 x 2 float32, mean and 1/deviation
        first layer norm's output               H          the intermediate product's input
        intermediate, before and after GELU     2 I
        (the second layer norm's output is the next layer's input)

    which is 8 H + 2 I + 2 A S. Where layers are recomputed, "layers" is what all of them keep, their inputs, and "one
    layer" what the one in work takes: all of the above and as much again for the gradients on their way through it.
    Dropout draws its numbers again instead of storing them. Embeddings: two tables' rows in float32, their sum, its
    normalised form, before and after dropout. Head: its rows gathered, transformed, before and after GELU and layer
    norm (4 H), and logits of `outputs` numbers a row: the product in the compute dtype, then in float32 as such, with
    the bias, and as the gradient that the loss computes beside itself (e + 12).
    """
    hidden, rows = config.hidden_size, batch * length
    layer, heads = 8 * hidden + 2 * config.intermediate_size, config.num_attention_heads
    n_layers = config.num_hidden_layers
    of_scores = 2 * heads * length * element if keeps_scores else 4 * heads
    of_layer = rows * (layer * element + of_scores + 4 * 4)
    of_row = (4 * hidden if head.transformed else hidden) + (hidden if head.dropped else 0)
    return {
        "layers": n_layers * (rows * hidden * element if recompute else of_layer),
        **({"one layer": 2 * of_layer} if recompute else {}),
        "embeddings": rows * hidden * (2 * 4 + 4 * element),
        "head": head.rows * (of_row * element + head.outputs * (element + 3 * 4)),
    }


def memory(
    config: BertConfig,
    variables: Sequence[Shape],
    precision: Precision,
    batch: int,
    length: int,
    head: Head,
    micro_batches: int,
    saves: bool = True,
    keeps_scores: bool = True,
    recompute: bool = False,
) -> list[Part]:
    """Memory of a process by kind, see the head of this file.

    batch, length: of a micro-batch; micro_batches: of an update on this process; saves: whether it writes checkpoints;
    keeps_scores: see activation_bytes; recompute: whether activations are computed again (recomputation).
    """
    element = precision.compute_dtype.size
    n = sum(variable.size for variable in variables)
    copied = sum(variable.size for variable in variables if not stays_float32(variable.name)) if element < 4 else 0
    table = config.vocab_size * config.hidden_size if element < 4 else 0
    activations = activation_bytes(config, batch, length, element, head, keeps_scores, recompute)
    gradients = element * copied + 4 * (n - copied) + 4 * table
    n_activations = sum(activations.values())
    if recompute:  # what layers and head keep is let go while the gradients come
        n_activations -= min(gradients, activations["layers"] + activations["head"])
    in_place = kernels.library() is not None
    each = ", ".join(f"{part} {size_text(n_bytes)}" for part, n_bytes in activations.items())
    several = micro_batches > 1
    return [
        Part("weights", 4 * n, "float32"),
        Part("compute copies", element * copied, precision.name),
        Part("accumulators", 4 * n * several, f"float32, {micro_batches} micro-batches an update"),
        Part("moments", 8 * n, "two, float32"),
        Part("gradients", gradients, "of one micro-batch"),
        Part(
            "new weights",
            0 if in_place else NEW_WEIGHTS_BYTES * n,
            "with their moments, before the old ones are let go",
        ),
        Part("activations", n_activations, f"{batch} x {length}{', recomputed' * recompute}: {each}"),
        Part("checkpoint snapshot", 12 * n * saves, "weights and moments, while they are written (rank 0)"),
        Part("runtime", RUNTIME_BYTES, "TensorFlow and compiled programs"),
    ]


class MicroBatch(NamedTuple):
    """The shape of a micro-batch as attention sees it. predictions: masked positions, in pre-training."""

    rows: int
    length: int
    keeps_scores: bool
    predictions: int


def micro_batch(pack: Rows | None, records: Sequence[PretrainingRecords] = ()) -> MicroBatch:
    """The largest micro-batch to be expected by the flags; records: those to be packed.

    Packed, it has the tokens of B sequences by mean and deviation (three of them) of a sample; where none can be looked
    at, sequences of full length are assumed.
    """
    precision = runs.choose_precision(getattr(FLAGS, "manual_fp16", False))
    kernels = ops.has_kernels(precision.compute_dtype) and not runs.choose_xla()
    keeps_scores = not kernels or not (pack or precision.compute_dtype == tf.float32)
    size, length = FLAGS.train_batch_size, FLAGS.max_seq_length
    full = size * getattr(FLAGS, "max_predictions_per_seq", 0)
    if pack is None or not records:
        return MicroBatch(size, length, keeps_scores, full)
    batches = [batch for folder in records for batch in folder.evaluation_batches(SAMPLE // len(records), 1)]
    tokens = np.concatenate([batch.input_mask.numpy().sum(1) for batch in batches])
    masked = np.concatenate([batch.masked_lm_weights.numpy().sum(1) for batch in batches])

    def largest(of_each: np.ndarray, bound: int) -> int:
        return min(bound, math.ceil(size * of_each.mean() + 3 * math.sqrt(size) * of_each.std()))

    if pack.capacity is None:
        return MicroBatch(1, largest(tokens, size * length), keeps_scores, largest(masked, full))
    # Best-fit decreasing leaves at most half of all rows but one empty.
    rows = min(size, math.ceil(2 * largest(tokens, size * length) / length))
    return MicroBatch(rows, length, keeps_scores, full)


def checkpoint_bytes(n_parameters: int) -> float:
    """Bytes of one checkpoint on disk: weights and two moments in float32; the index is a few kilobytes."""
    return 12 * n_parameters


# ------------------------------------------------------------------------------------------------------- what is tried
Checks = Sequence[Callable[[], None]]  # of flags; each raises UserError


def start(title: str, checks: Checks) -> tuple[Plan, BertConfig | None]:
    """A plan with the checks that all mains share. checks: the main's own."""
    plan = Plan(title)
    for check in checks:
        plan.attempt(check)
    if FLAGS.horovod and importlib.util.find_spec("horovod") is None:
        plan.problems.append(
            "--horovod was asked for, but Horovod is not installed; build it with scripts/install_horovod.sh, or plan "
            "for one process"
        )
    config = plan.attempt(load_config, FLAGS.bert_config_file)
    if config is not None and FLAGS.max_seq_length > config.max_position_embeddings:
        plan.problems.append(
            f"max_seq_length {FLAGS.max_seq_length} is beyond max_position_embeddings "
            f"{config.max_position_embeddings} of {FLAGS.bert_config_file}"
        )
    return plan, config


def check_weights(plan: Plan, variables: Sequence[Shape] | None, optional: Sequence[str] = ()) -> None:
    """--init_checkpoint against the model. optional: prefixes of names that it need not hold."""
    if not FLAGS.init_checkpoint:
        return
    reader = plan.attempt(checkpoint.open_checkpoint, FLAGS.init_checkpoint)
    if reader is not None and variables is not None:
        report = plan.attempt(checkpoint.compare_weights, variables, reader, optional, optional)
        if report is not None:
            plan.fact("starts from", f"{report.source}, {len(report.matched)} of {len(variables)} variables")


class Position(NamedTuple):
    """Where the run stands."""

    done: int  # updates
    batch: runs.GlobalBatch


def check_resume(plan: Plan, identity: Mapping[str, Any]) -> Position:
    """What output_dir holds of this run already. identity: what must not have changed (see runs.start_or_resume)."""
    found = newest_checkpoint(plan) if os.path.isdir(FLAGS.output_dir) else None
    group = Distributed()
    group.size = FLAGS.plan_processes
    if found is not None:
        plan.fact("resumes", f"at step {found.step} of {FLAGS.output_dir}")
        plan.attempt(runs.check_same_run, runs.open_store(Path(FLAGS.output_dir)), found.state, identity, _Quiet())
    batch = plan.attempt(runs.global_batch, {} if found is None else dict(found.state), group, _Quiet())
    size = FLAGS.train_batch_size * FLAGS.num_accumulation_steps
    fresh = runs.GlobalBatch(size * group.size, FLAGS.num_accumulation_steps * group.size, group.size)
    return Position(0 if found is None else found.step, batch or fresh)


def newest_checkpoint(plan: Plan) -> Checkpoint | None:
    """The newest checkpoint in output_dir, its checksums compared unless it is large; then its sizes are."""
    store = runs.open_store(Path(FLAGS.output_dir))
    if not (steps := store.steps()):
        return None
    manifest = plan.attempt(read_json, Path(FLAGS.output_dir) / f"{store.name}-{steps[-1]}.manifest.json")
    files = manifest.get("files", {}) if isinstance(manifest, dict) else {}
    if sum(entry["bytes"] for entry in files.values()) <= FULL_CHECK_BYTES:
        return plan.attempt(store.newest_valid)
    wrong = wrong_files(Path(FLAGS.output_dir), manifest)
    plan.notes += [f"{cause}; an older checkpoint will be used" for cause in wrong]
    plan.notes.append("the newest checkpoint is large: its sizes were compared, its checksums will be at the start")
    return Checkpoint(steps[-1], manifest["prefix"], manifest["state"])


def tell_run(
    plan: Plan,
    variables: Sequence[Shape] | None,
    parts: Sequence[Part],
    examples: int,
    updates: int,
    warmup: int,
    position: Position,
    source: str,
) -> None:
    """Facts about the training: model, batch, rate, updates, epochs, disk. examples: of an epoch, 0 where unknown."""
    processes, (done, batch) = FLAGS.plan_processes, position
    made_of = f"{batch.micro_batches} micro-batches of {FLAGS.train_batch_size} on {processes} processes"
    plan.fact("global batch", f"{batch.size} sequences ({made_of})")
    peak = FLAGS.learning_rate * batch.rate_factor
    plan.fact("effective learning rate", f"{peak:g} ({FLAGS.learning_rate:g} x {batch.rate_factor} processes)")
    if examples:
        epochs = updates * batch.size / examples
        plan.fact("updates", f"{updates}, warm-up {warmup}: {epochs:.2f} epochs of {examples} {source}")
    elif updates:
        plan.fact("updates", f"{updates}, warm-up {warmup}")
    plan.fact("precision", runs.choose_precision(getattr(FLAGS, "manual_fp16", False)).name)
    needed = 0.0
    if variables is not None:
        parameters = sum(variable.size for variable in variables)
        plan.facts.insert(0, ("parameters", f"{parameters:,} in {len(variables)} variables"))
        size = checkpoint_bytes(parameters)
        milestones = max(updates - done, 0) // FLAGS.keep_every if FLAGS.keep_every else 0
        kept = FLAGS.keep_checkpoints + milestones
        needed = size * (kept + 1 - (done > 0))
        plan.fact("checkpoint", f"{size_text(size)} every {FLAGS.save_checkpoints_steps} updates")
        plan.fact("disk", f"{size_text(size * (kept + 1))}: {kept} checkpoints that stay and the one being written")
        plan.memory = list(parts)
        if not tf.config.list_physical_devices("GPU"):
            plan.check_memory(processes)
    plan.check_output(FLAGS.output_dir, needed)


def tell_time(
    plan: Plan, updates: int, position: Position, measure: Callable[[], "Probe"], kind: str = "full-length sequences"
) -> None:
    """The expected time, from --plan's throughput or a probe; kind: of what the probe's batch consists."""
    processes = FLAGS.plan_processes
    sequences = max(updates - position.done, 0) * position.batch.size
    if isinstance(FLAGS.plan, float):
        plan.tell_time(sequences, FLAGS.plan, "as given", "sequences")
    elif FLAGS.plan == PROBE and not plan.problems:
        found = measure()
        each = f", {found.seconds:.3g} s a micro-batch" + (", exchange left out" if processes > 1 else "")
        throughput = FLAGS.train_batch_size * processes / found.seconds
        plan.tell_time(sequences, throughput, f"{PROBED_UPDATES} updates of {kind}{each}", "sequences")
    elif FLAGS.plan == PROBE:
        plan.notes.append("nothing was timed, for there are problems")


# ------------------------------------------------------------------------------------------------------ pre-training
def pretraining(
    check: Callable[[], None],
    open_records: Callable[..., PretrainingRecords],
    common_vocabulary: Callable[[list[PretrainingRecords]], str | None],
) -> None:
    """Plans run_pretraining; the arguments are functions of that main. Raises UserError when there are problems."""
    plan, config = start(f"pre-training into {FLAGS.output_dir}", [check])
    training = records(plan, FLAGS.input_files_dir, config, open_records)
    evaluation = records(plan, FLAGS.eval_files_dir, config, open_records) if FLAGS.do_eval else []
    vocabulary = plan.attempt(common_vocabulary, training + evaluation)
    n_records = sum(folder.n_records for folder in training)
    variables, parts = None, []
    if config is not None:
        build = functools.partial(BertForPreTraining, config, FLAGS.seed)
        variables = variable_shapes(build)
        precision = runs.choose_precision(FLAGS.manual_fp16)
        pack = runs.choose_packing(precision, runs.choose_xla())
        rows, length, keeps_scores, predictions = micro_batch(pack, training if not plan.problems else ())
        parts = memory(
            config, variables, precision, rows, length, Head(predictions, config.vocab_size, transformed=True),
            FLAGS.num_accumulation_steps, keeps_scores=keeps_scores,
            recompute=FLAGS.recompute_activations,
        )  # fmt: skip
    check_weights(plan, variables)
    if FLAGS.init_checkpoint and not plan.problems:
        plan.attempt(runs.check_vocabulary, FLAGS.init_checkpoint, vocabulary)
    identity = {"seed": FLAGS.seed, "vocab_sha256": vocabulary}
    position, updates = check_resume(plan, identity), FLAGS.num_train_steps if FLAGS.do_train else 0
    tell_run(plan, variables, parts, n_records, updates, FLAGS.num_warmup_steps, position, "records")

    def measure() -> Probe:
        if pack is None:
            return probe(build, Pretraining(), pretraining_batch(config))
        with contextlib.closing(training[0].batches(0, FLAGS.train_batch_size, 1, pack=pack)) as batches:
            return probe(build, Pretraining(), next(batches), packed_spec())

    kind = "packed records" if config is not None and pack else "full-length sequences"
    tell_time(plan, updates, position, measure, kind)
    plan.finish()


def records(plan: Plan, directories: str | None, config: BertConfig | None, open_records) -> list[PretrainingRecords]:
    """The folders of a comma-separated list that can be read, each tried by itself and all files of each looked for."""
    if not directories:
        return []
    found = []
    for folder in map(str.strip, directories.split(",")):
        wrong = wrong_files(Path(folder), manifest) if (manifest := _manifest(folder)) else []
        plan.problems += wrong
        if config is None:
            plan.attempt(load_manifest, folder)
        elif not wrong:
            found.append(plan.attempt(open_records, folder, config, _Quiet()))
    return [folder for folder in found if folder is not None]


def _manifest(folder: str) -> dict | None:
    try:
        return load_manifest(folder)
    except UserError:  # who opens the folder raises it again
        return None


def wrong_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Every file of a manifest that is missing or of another size."""
    problems = []
    for name, entry in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            problems.append(f"{file}: missing, but listed in the manifest; create the records again")
        elif (size := file.stat().st_size) != entry["bytes"]:
            problems.append(f"{file}: {size} bytes, but the manifest says {entry['bytes']}; copy it again")
    return problems


class _Quiet:
    """A log of which a plan keeps nothing."""

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...


# -------------------------------------------------------------------------------------------------------- fine-tuning
OBJECTIVES = {CLASS: Classification, VALUE: Regression, SPAN: QuestionAnswering, TAGS: Tagging}


def questions(checks: Checks) -> None:
    """Plans run_squad. checks: of its flags. Raises UserError when there are problems."""
    version_2 = FLAGS.version_2_with_negative
    files = [(FLAGS.do_train, FLAGS.train_file), (FLAGS.do_predict, FLAGS.predict_file)]
    training, prediction = (
        functools.partial(squad.read_examples, path, index == 0, version_2, warnings.warn) if wanted and path else None
        for index, (wanted, path) in enumerate(files)
    )
    finetuning(
        f"squad v{'2.0' if version_2 else '1.1'}",
        SPAN,
        [],
        BertForQuestionAnswering,
        checks,
        training,
        [prediction] if prediction else [],
    )


def pairs(task: glue.Task, checks: Checks, optimizer_type: str = "adam") -> None:
    """Plans run_classifier and run_re. checks: of their flags. Raises UserError when there are problems."""

    def reader(split: str) -> Callable[[], Sequence]:
        return lambda: glue.read_examples(task, FLAGS.data_dir, split)

    wanted = [*(task.dev_splits if FLAGS.do_eval else ()), *(task.test_splits if FLAGS.do_predict else ())]
    optional = (*task.dev_splits[1:], *task.test_splits[1:])
    there = [s for s in wanted if s not in optional or glue.find_files(task, FLAGS.data_dir, s) is not None]
    kind, labels = (VALUE, []) if task.labels is None else (CLASS, task.labels)
    finetuning(
        task.name, kind, labels, lambda config, seed: BertForClassification(config, task.num_labels, seed), checks,
        reader("train") if FLAGS.do_train else None, [reader(split) for split in there], optimizer_type,
    )  # fmt: skip


def tagging(task: ner.NerTask, checks: Checks) -> None:
    """Plans run_ner. checks: of its flags. Raises UserError when there are problems."""

    def reader(split: str) -> Callable[[], Sequence]:
        return lambda: ner.read_sentences(task, FLAGS.data_dir, split)

    others = [reader(split) for split, wanted in (("dev", FLAGS.do_eval), ("test", FLAGS.do_predict)) if wanted]
    finetuning(
        task.name, TAGS, task.labels, lambda config, seed: BertForTagging(config, task.num_labels, seed), checks,
        reader("train") if FLAGS.do_train else None, others,
    )  # fmt: skip


def finetuning(
    task: str,
    kind: LabelKind,
    labels: Sequence[str],
    build_model: Callable[[BertConfig, int], tf.Module],
    checks: Checks,
    training: Callable[[], Sequence] | None,
    others: Sequence[Callable[[], Any]],
    optimizer_type: str = "adam",
) -> None:
    """Plans a fine-tuning main. Raises UserError when there are problems.

    labels: of the task, none for numbers and spans. training: reads the training examples; others: read what else the
    main will read.
    """
    plan, config = start(f"fine-tuning for {task} into {FLAGS.output_dir}", checks)
    plan.attempt(canonical_name, optimizer_type)
    plan.attempt(FullTokenizer, FLAGS.vocab_file, FLAGS.do_lower_case)
    if config is not None and not plan.problems:
        sizes = plan.attempt(
            checkpoint.check_files, FLAGS.vocab_file, config, FLAGS.init_checkpoint or None, FLAGS.bert_config_file
        )
        plan.notes += [sizes] if sizes else []
    examples = plan.attempt(training) if training else None
    for read in others:
        plan.attempt(read)
    variables, parts = None, []
    if config is not None:
        build = functools.partial(build_model, config, FLAGS.seed)
        variables = variable_shapes(build)
        per_token = kind in (SPAN, TAGS)
        rows = FLAGS.train_batch_size * (FLAGS.max_seq_length if per_token else 1)
        pack = runs.choose_packing(runs.choose_precision(), runs.choose_xla(), by_default=FLAGS.bucket)
        parts = memory(
            config, variables, runs.choose_precision(), FLAGS.train_batch_size, FLAGS.max_seq_length,
            Head(rows, 2 if kind == SPAN else max(len(labels), 1), dropped=kind != SPAN), FLAGS.num_accumulation_steps,
            keeps_scores=micro_batch(pack).keeps_scores, recompute=FLAGS.recompute_activations,
        )  # fmt: skip
    check_weights(plan, variables, ["cls/squad/" if kind == SPAN else "output_"])
    position, n_examples = check_resume(plan, {"task": task, "seed": FLAGS.seed}), len(examples or ())
    updates = max(1, int(n_examples / position.batch.size * FLAGS.num_train_epochs)) if n_examples else 0
    warmup = int(updates * FLAGS.warmup_proportion)
    tell_run(plan, variables, parts, n_examples, updates, warmup, position, "examples")
    tell_time(plan, updates, position, lambda: probe(build, OBJECTIVES[kind](), task_batch(kind), batch_spec(kind)))
    plan.finish()


# ----------------------------------------------------------------------------------------------------------- the probe
class Probe(NamedTuple):
    """What a probe found. seconds: of a micro-batch, its share of the update included; the median."""

    seconds: float


def probe(build: Callable[[], tf.Module], objective: Objective, batch: Batch | TaskBatch, spec=None) -> Probe:
    """Times updates of the model on `batch`, on one process, after one that compiles; its weights are random."""
    precision = runs.choose_precision(getattr(FLAGS, "manual_fp16", False))
    precision.activate()
    model = build()
    model.bert.recompute_activations = FLAGS.recompute_activations
    weights = ComputeWeights(model.variables, precision.compute_dtype)
    n = min(FLAGS.num_accumulation_steps, 2)  # more of them are more of the same
    optimizer = create_optimizer(getattr(FLAGS, "optimizer_type", "adam"), weights.masters)
    step = TrainStep(
        model, objective, weights, optimizer, LossScale(precision.loss_scaling), Distributed(), micro_batches=n,
        use_xla=runs.choose_xla(), seed=FLAGS.seed, batch_spec=spec,
    )  # fmt: skip
    seconds = []
    for update in range(1 + PROBED_UPDATES):
        began = time.perf_counter()
        step([batch] * n, 0.0, update)
        seconds.append(time.perf_counter() - began)
    return Probe(float(np.median(seconds[1:])) / n)


def _tokens(vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = FLAGS.train_batch_size, FLAGS.max_seq_length
    ids = np.random.default_rng(0).integers(0, vocab_size, shape, np.int32)
    return ids, np.ones(shape, np.int32), np.zeros(shape, np.int32)


def pretraining_batch(config: BertConfig) -> Batch:
    """Random tokens without padding, all predictions used."""
    size, predictions = FLAGS.train_batch_size, FLAGS.max_predictions_per_seq
    positions = np.tile(np.arange(predictions, dtype=np.int32) % FLAGS.max_seq_length, (size, 1))
    weights, labels = np.ones((size, predictions), np.float32), np.zeros(size, np.int32)
    return Batch(*map(tf.constant, (*_tokens(config.vocab_size), positions, positions, weights, labels)))


def task_batch(kind: LabelKind) -> TaskBatch:
    """Random tokens without padding, each with the label 1 (which any task has)."""
    size, length = FLAGS.train_batch_size, FLAGS.max_seq_length
    shape = (size, length) if kind == TAGS else (size, *kind.shape[1:])
    labels = np.ones(shape, kind.dtype.as_numpy_dtype)
    vocab_size = load_config(FLAGS.bert_config_file).vocab_size
    return TaskBatch(*map(tf.constant, (*_tokens(vocab_size), labels, np.ones(size, np.float32))))
