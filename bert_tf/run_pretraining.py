"""Pre-trains BERT on TFRecords: masked words and next sentences, NVLAMB or Adam, one phase a run.

    python -m bert_tf.run_pretraining --bert_config_file=configs/bert/base.json --input_files_dir=DIR --output_dir=OUT \
        --do_train --num_train_steps=1000 --num_warmup_steps=100 --train_batch_size=32 --learning_rate=1e-3

An output_dir that holds a checkpoint of this run is resumed exactly (weights, moments, step, loss scale, data position,
dropout); --init_checkpoint gives weights only, to a run that starts at step 0. The two-phase recipe is
scripts/run_pretraining_lamb.sh. Flags: --help; what is written: docs/bert_pretraining.md.
"""

import contextlib
import itertools
import sys
import time
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/run_pretraining.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf import checkpoint, distributed, schedules
from bert_tf.input_pipeline import PretrainingRecords
from bert_tf.losses import NO_SUMS, PretrainingSums, pad_batch
from bert_tf.model import BertConfig, BertForPreTraining
from bert_tf.optimization import canonical_name, create_optimizer
from bert_tf.precision import INITIAL_LOSS_SCALE, PRECISIONS, LossScale, Precision
from bert_tf.train_step import PretrainingStep, create_evaluation
from bert_tf.weights import ComputeWeights
from runkit import machine
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, locked_directory, read_json, sha256_file, write_json
from runkit.log import RunLog, read_log
from runkit.meters import ThroughputMeter, closing_lines_inference, closing_lines_train
from runkit.plots import line_plot
from runkit.progress import duration
from runkit.store import CheckpointStore
from runkit.tensorboard import EventWriter

FLAGS = flags.FLAGS
UNIGRAM_SAMPLE = 100_000  # training records from which token frequencies are counted


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    string, integer, real, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_bool
    string("bert_config_file", None, "model configuration, Google's bert_config.json", required=True)
    string("input_files_dir", None, "folders of training TFRecords, separated by commas", required=True)
    string("eval_files_dir", None, "folders of evaluation TFRecords; required by --do_eval")
    string("output_dir", None, "where checkpoints, logs and results go", required=True)
    string("dllog_path", None, "DLLogger JSON lines; default <output_dir>/bert_dllog.json")
    string("init_checkpoint", None, "weights to start from (weights only: step, moments and loss scale start anew)")
    string("optimizer_type", "lamb", "lamb (NVLAMB) or adam, in any case")
    integer("max_seq_length", 512, "must match the records", lower_bound=1)
    integer("max_predictions_per_seq", 80, "must match the records", lower_bound=1)
    boolean("do_train", False, "train")
    boolean("do_eval", False, "evaluate at the end")
    integer("train_batch_size", 32, "sequences a micro-batch on each process (B)", lower_bound=1)
    integer("eval_batch_size", 8, "sequences a batch in evaluation", lower_bound=1)
    real("learning_rate", 5e-5, "peak for one process; multiplied by the number of processes", lower_bound=0.0)
    integer("num_train_steps", 100000, "updates in this phase, those before a resume included", lower_bound=1)
    integer("num_warmup_steps", 10000, "updates of linear warm-up", lower_bound=0)
    integer("save_checkpoints_steps", 1000, "updates between checkpoints", lower_bound=1)
    integer("display_loss_steps", 1, "updates between log lines", lower_bound=1)
    integer("max_eval_steps", 100, "batches in evaluation at most; 0: every record", lower_bound=0)
    integer("num_accumulation_steps", 1, "micro-batches an update (N)", lower_bound=1)
    boolean("allreduce_post_accumulation", False, "exchange gradients once an update instead of every micro-batch")
    boolean("verbose_logging", False, "list the variables")
    boolean("horovod", False, "train on the processes started by horovodrun or mpirun")
    boolean("report_loss", True, "accepted for old command lines; losses are always reported")
    boolean("manual_fp16", False, "as --precision=fp16")
    boolean("amp", True, "mixed precision: as --precision=fp16 on a GPU, bf16 on a CPU; --noamp: tf32 or fp32")
    boolean("use_xla", None, "compile the step by XLA; default: on a GPU yes, on a CPU no (slower there)")
    real("init_loss_scale", INITIAL_LOSS_SCALE, "first loss scale of fp16")
    integer("iterations_per_loop", 1000, "accepted for old command lines, without effect")
    flags.DEFINE_enum("precision", None, list(PRECISIONS), "compute precision; wins over --amp (added)")
    integer("seed", 12345, "governs initial weights, dropout and data order (added)", lower_bound=0)
    integer("keep_checkpoints", 1, "how many of the newest checkpoints stay (added)", lower_bound=1)


def main(argv: list[str]) -> None:
    """One phase from start to summary; raises UserError for anything a user can fix."""
    with contextlib.ExitStack() as stack:
        run(argv, stack)


def run(argv: list[str], stack: contextlib.ExitStack) -> None:
    """main's body; what has to be given back in the end goes on the stack."""
    if len(argv) > 1:
        raise UserError(f"arguments without a flag: {argv[1:]}; flags are written --name=value")
    check_flags()

    # ------------------------------------------------------------------------------ processes and precision
    group = distributed.init(FLAGS.horovod)
    precision = choose_precision()
    precision.activate()
    gpu = bool(tf.config.list_logical_devices("GPU"))
    use_xla = gpu if FLAGS.use_xla is None else FLAGS.use_xla
    output_dir = Path(FLAGS.output_dir)
    if group.is_root:
        stack.enter_context(locked_directory(output_dir, "training"))
    store = CheckpointStore(output_dir, keep=FLAGS.keep_checkpoints)
    log = open_log(output_dir, group.rank, resumed=bool(store.steps()))
    global_batch = FLAGS.train_batch_size * FLAGS.num_accumulation_steps * group.size
    peak = FLAGS.learning_rate * group.size

    # ---------------------------------------------------------------------------------- data, before anything slow
    config = BertConfig.from_json_file(FLAGS.bert_config_file)
    if config.max_position_embeddings < FLAGS.max_seq_length:
        raise UserError(
            f"max_seq_length {FLAGS.max_seq_length} is beyond max_position_embeddings "
            f"{config.max_position_embeddings} of {FLAGS.bert_config_file}"
        )
    training = open_records(FLAGS.input_files_dir, config, log)
    evaluation = open_records(FLAGS.eval_files_dir, config, log) if FLAGS.do_eval else None
    vocabulary = common_vocabulary([training, evaluation] if evaluation else [training])

    # ---------------------------------------------------------------------------------- model and state
    model = BertForPreTraining(config, FLAGS.seed)
    weights = ComputeWeights(model.variables, precision.compute_dtype)
    optimizer = create_optimizer(FLAGS.optimizer_type, weights.masters)
    loss_scale = LossScale(precision.loss_scaling, FLAGS.init_loss_scale)
    state = start_or_resume(store, weights, optimizer, loss_scale, vocabulary, group, log)
    settings = resolved_settings(group, precision, use_xla, global_batch, peak, config)
    log.parameters(settings)
    if group.is_root:
        write_json(output_dir / ("run_config.json" if FLAGS.do_train else "eval_config.json"), settings)
    if FLAGS.verbose_logging:
        for variable in weights.masters:
            log.info(f"{variable.name} {list(variable.shape)}")

    def evaluate_now() -> dict:
        batches = evaluation.evaluation_batches(FLAGS.eval_batch_size, FLAGS.max_eval_steps or None)
        return evaluate(evaluation_step, batches, log_frequencies, precision, log)

    if evaluation is not None and group.is_root:
        evaluation_step = create_evaluation(model, weights, use_xla)
        log_frequencies = unigram_log_probabilities(training, config.vocab_size)
        if FLAGS.do_train and state["updates"] == 0:
            log.info("evaluation of the initial weights")
            state["initial_masked_lm_loss"] = evaluate_now()["masked_lm_loss"]

    # ---------------------------------------------------------------------------------- train
    summary = previous_summary(output_dir / "summary.json", int(optimizer.step))
    if FLAGS.do_train and int(optimizer.step) >= FLAGS.num_train_steps:
        log.info(f"nothing left to train: step {int(optimizer.step)} of {FLAGS.num_train_steps} is done")
    elif FLAGS.do_train:
        step = PretrainingStep(
            model,
            weights,
            optimizer,
            loss_scale,
            group,
            FLAGS.num_accumulation_steps,
            FLAGS.allreduce_post_accumulation,
            "fp16" if precision.name == "fp16" else None,
            use_xla,
            FLAGS.seed,
        )
        summary = {"global_batch_size": global_batch, "learning_rate": peak, "precision": precision.name}
        summary |= train(step, training, store, state, peak, log)
        if group.is_root:
            plot_losses(log.path, output_dir / "loss_curve.png")

    # ---------------------------------------------------------------------------------- evaluate and report
    summary |= {"steps": int(optimizer.step), "initial_masked_lm_loss": state.get("initial_masked_lm_loss")}
    if evaluation is not None and group.is_root:
        log.info("evaluation of the trained weights")
        summary |= evaluate_now()
        write_eval_results(output_dir / "eval_results.txt", summary)
    if group.is_root:
        write_json(output_dir / "summary.json", summary)
    log.close()


# ------------------------------------------------------------------------------------------------- the loop
def train(step, records, store, state, peak, log) -> dict:
    """Updates until num_train_steps are done, with checkpoints; returns what goes to the summary.

    step: PretrainingStep; state: see start_or_resume. An update whose gradient is not finite is attempted but not done:
    its records are spent, its step number is used again.
    """
    optimizer, loss_scale, group = step.optimizer, step.loss_scale, step.distributed
    total, done = FLAGS.num_train_steps, int(optimizer.step)
    schedule = schedules.create_schedule(canonical_name(FLAGS.optimizer_type), peak, FLAGS.num_warmup_steps, total)
    global_batch = FLAGS.train_batch_size * step.micro_batches
    stream = records.batches(
        state["records"], FLAGS.train_batch_size, FLAGS.num_accumulation_steps, group.rank, group.size
    )
    events = EventWriter(store.directory, purge_step=done + 1) if group.is_root else None
    meter = ThroughputMeter(warmup_updates=min(5, (total - done) // 2))
    since_last_line, first, started = NO_SUMS, done, time.monotonic()
    while done < total:
        meter.start()
        learning_rate = schedule(done)
        batches = list(itertools.islice(stream, FLAGS.num_accumulation_steps))
        result = step(batches, learning_rate, state["updates"])
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
        if done % FLAGS.display_loss_steps == 0 or done == total:
            values = line_values(result, since_last_line, learning_rate, meter.lap(), loss_scale)
            seconds_left = (time.monotonic() - started) / (done - first) * (total - done)
            log.log(done, values, echo=False)
            log.console(console_line(done, values, seconds_left))
            if events is not None:
                events.scalars(done, values)
            since_last_line = NO_SUMS
        if done % FLAGS.save_checkpoints_steps == 0 or done == total:
            if group.is_root:
                checkpoint.save_training_state(store, done, step.weights.masters, optimizer, loss_scale, state)
                log.info(f"saved {store.directory / store.name}-{done}")
            group.barrier()
            meter.exclude_next()
    stream.close()
    if events is not None:
        events.close()

    log.log((), {"throughput_train": meter.throughput, "total_loss": values["total_loss"]}, echo=False)
    for line in closing_lines_train(meter):
        log.console(line)
    return {"sequences_per_second": meter.throughput, "train_seconds": meter.seconds,
            "train_loss": values["avg_loss_step"]}  # fmt: skip


def line_values(result, since_last_line: PretrainingSums, learning_rate, throughput, loss_scale) -> dict:
    """The values of one log line: of the update just done, and averages over the updates since the last line."""
    now, average = result.sums.means(), since_last_line.means()
    values = {
        "throughput_train": throughput,
        "mlm_loss": now["masked_lm_loss"],
        "nsp_loss": now["next_sentence_loss"],
        "total_loss": now["loss"],
        "avg_loss_step": average["loss"],
        "avg_mlm_loss_step": average["masked_lm_loss"],
        "mlm_accuracy": average["masked_lm_accuracy"],
        "nsp_accuracy": average["next_sentence_accuracy"],
        "learning_rate": learning_rate,
        "gradient_norm": result.gradient_norm,
    }
    return values | ({"loss_scaler": float(loss_scale.scale)} if loss_scale.enabled else {})


def console_line(done: int, values: dict, seconds_left: float) -> str:
    """What a reader wants to see of an update."""
    nsp_loss = values["avg_loss_step"] - values["avg_mlm_loss_step"]
    return (
        f"step {done}/{FLAGS.num_train_steps}  loss {values['avg_loss_step']:.4f}  "
        f"mlm {values['avg_mlm_loss_step']:.4f} ({100 * values['mlm_accuracy']:.1f}%)  "
        f"nsp {nsp_loss:.4f} ({100 * values['nsp_accuracy']:.1f}%)  lr {values['learning_rate']:.3e}  "
        f"{values['throughput_train']:.1f} sequences/s  ETA {duration(seconds_left)}"
    )


def plot_losses(log_path: Path, target: Path) -> None:
    """The whole run's curve, read back from its log, so that it spans resumes."""
    lines = {
        line["step"]: line["data"]
        for line in read_log(log_path)
        if line["type"] == "LOG" and "avg_loss_step" in line["data"]
    }
    steps = sorted(lines)
    curves = {"total loss": "avg_loss_step", "masked-LM loss": "avg_mlm_loss_step"}
    line_plot(
        target,
        {name: (steps, [lines[step][key] for step in steps]) for name, key in curves.items()},
        "update",
        "loss (nats)",
        "Pre-training",
    )


# ------------------------------------------------------------------------------------------------ evaluation
def evaluate(function, batches, log_frequencies: np.ndarray, precision: Precision, log: RunLog) -> dict:
    """Held-out losses and accuracies, and the loss of guessing by training-set token frequencies at the same places."""
    meter, total, unigram = ThroughputMeter(), NO_SUMS, 0.0
    for batch in batches:
        meter.start()
        total += PretrainingSums(*(float(value) for value in function(pad_batch(batch, FLAGS.eval_batch_size))))
        unigram -= float(np.sum(log_frequencies[batch.masked_lm_ids.numpy()] * batch.masked_lm_weights.numpy()))
        meter.stop(int(batch.input_ids.shape[0]))
    results = total.means() | {
        "unigram_masked_lm_loss": unigram / max(total.masked_lm_weight, 1.0),
        "eval_examples": int(total.examples),
    }
    logged = {"throughput_val": meter.throughput} | {f"eval_{key}": value for key, value in results.items()}
    log.log((), logged, echo=False)
    for line in closing_lines_inference(
        meter, FLAGS.eval_batch_size, FLAGS.max_seq_length, precision.name, where="on EVAL set"
    ):
        log.console(line)
    for key in sorted(results):
        log.console(f"  {key} = {results[key]:.6g}")
    return results


def unigram_log_probabilities(records: PretrainingRecords, vocab_size: int) -> np.ndarray:
    """Natural logs of the training set's token frequencies [V], counted at masked positions, with add-one smoothing.

    Masked positions are a uniform sample of the tokens, so no other pass over the corpus is needed.
    """
    counts = np.ones(vocab_size)
    for batch in records.evaluation_batches(1000, UNIGRAM_SAMPLE // 1000):
        ids, real = batch.masked_lm_ids.numpy(), batch.masked_lm_weights.numpy() > 0
        counts += np.bincount(ids[real], minlength=vocab_size)
    return np.log(counts / counts.sum())


def write_eval_results(path: Path, summary: dict) -> None:
    """`key = value` lines, the published keys."""
    keys = ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss", "loss")
    values = {"global_step": summary["steps"]} | {key: summary[key] for key in keys}
    with atomic_open(path, "w") as stream:
        stream.writelines(f"{key} = {values[key]}\n" for key in sorted(values))


# ---------------------------------------------------------------------------------------------------- set-up
def check_flags() -> None:
    """What can be refused before anything is opened."""
    if not (FLAGS.do_train or FLAGS.do_eval):
        raise UserError("nothing to do: give --do_train, --do_eval or both")
    if FLAGS.do_eval and not FLAGS.eval_files_dir:
        raise UserError("--do_eval needs --eval_files_dir")
    canonical_name(FLAGS.optimizer_type)
    if FLAGS.do_train:
        schedules.check_schedule(0, FLAGS.learning_rate, FLAGS.num_warmup_steps, FLAGS.num_train_steps)
    if FLAGS.manual_fp16 and FLAGS["amp"].present and FLAGS.amp:
        raise UserError("--manual_fp16 and --amp exclude each other; use --precision=fp16")


def choose_precision() -> Precision:
    """--precision, or what --amp and --manual_fp16 mean on this machine."""
    if FLAGS.precision:
        return Precision.from_name(FLAGS.precision)
    gpu = bool(tf.config.list_physical_devices("GPU"))
    if FLAGS.manual_fp16:
        return Precision.from_name("fp16")
    if FLAGS.amp:
        return Precision.from_name("fp16" if gpu else "bf16")
    return Precision.from_name("tf32" if gpu else "fp32")


def open_log(output_dir: Path, rank: int, resumed: bool) -> RunLog:
    """The run's log with the units and goals of what it will hold."""
    log = RunLog(FLAGS.dllog_path or output_dir / "bert_dllog.json", rank=rank, append=resumed)
    for metric in ("mlm_loss", "nsp_loss", "total_loss", "avg_loss_step"):
        log.metadata(metric, unit="nat", format=":.4f", STAGE="TRAIN")
    log.metadata("throughput_train", unit="sequences/s", format=":.2f", STAGE="TRAIN")
    log.metadata("throughput_val", unit="sequences/s", format=":.2f", STAGE="VAL")
    return log


def open_records(directories: str, config: BertConfig, log: RunLog) -> PretrainingRecords:
    """The TFRecords of a comma-separated list of folders, checked against the flags and the model."""
    folders = [folder.strip() for folder in directories.split(",")]
    if "" in folders:
        raise UserError(f"{directories!r}: an item of this comma-separated list of folders is empty")
    records = PretrainingRecords(
        folders, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq, FLAGS.seed, config.vocab_size,
        config.type_vocab_size,
    )  # fmt: skip
    for manifest in (m for m in records.manifests if "vocab_size" in m):
        warning = checkpoint.check_sizes(
            manifest["vocab_size"], config.vocab_size, None, "the records' vocabulary", FLAGS.bert_config_file
        )
        if warning:
            log.warning(warning)
    log.info(f"{records.n_records} sequences in {directories}")
    return records


def common_vocabulary(all_records: list[PretrainingRecords]) -> str | None:
    """SHA-256 of the one vocabulary that all records were made with; None where no folder says (foreign records).

    Raises UserError when they were made with several: an id would mean one token here and another there.
    """
    made_with = {
        (manifest["vocab_sha256"], manifest.get("do_lower_case")): manifest
        for records in all_records
        for manifest in records.manifests
        if "vocab_sha256" in manifest
    }
    if len(made_with) > 1:
        kinds = ", ".join(
            f"{sha256[:12]} ({manifest.get('vocab_size')} tokens, do_lower_case={lower})"
            for (sha256, lower), manifest in made_with.items()
        )
        raise UserError(
            f"the records were made with different vocabularies: {kinds}; make them with one (VOCAB_FILE=... "
            "data/create_datasets_from_start.sh)"
        )
    return next(iter(made_with))[0] if made_with else None


def previous_summary(path: Path, step: int) -> dict:
    """The summary of the same weights by an earlier call, whose training figures stay true; else nothing."""
    summary = read_json(path) if path.exists() else {}
    return summary if isinstance(summary, dict) and summary.get("steps") == step else {}


def start_or_resume(store, weights, optimizer, loss_scale, vocabulary, group, log) -> dict:
    """Restores this run's newest checkpoint, else loads --init_checkpoint, else keeps the fresh weights; says which.

    The root reads and the other processes receive. Returns the run's state: updates attempted and records consumed so
    far, and what a resume must share with the run.
    """
    settings = {"seed": FLAGS.seed, "optimizer_type": canonical_name(FLAGS.optimizer_type), "vocab_sha256": vocabulary}
    state = None
    if group.is_root:
        state = checkpoint.restore_training_state(store, weights.masters, optimizer, loss_scale)
        if state is not None:
            log.info(f"resuming {store.directory} at step {int(optimizer.step)}")
            check_same_run(store, state, settings, log)
        elif FLAGS.init_checkpoint:
            log.info(str(checkpoint.load_weights(weights.masters, FLAGS.init_checkpoint)))
            settings["init_checkpoint"] = weights_identity(FLAGS.init_checkpoint)
            other = checkpoint.saved_state(FLAGS.init_checkpoint).get("vocab_sha256")
            if None not in (other, vocabulary) and other != vocabulary:
                raise UserError(
                    f"{FLAGS.init_checkpoint} was trained with another vocabulary (SHA-256 {other[:12]}...) than the "
                    f"records have ({vocabulary[:12]}...): make the records of both phases with one VOCAB_FILE"
                )
        elif FLAGS.do_train:
            log.info(f"starting from random weights (seed {FLAGS.seed})")
        else:
            raise UserError(
                f"nothing to evaluate: {store.directory} holds no checkpoint and --init_checkpoint is not given"
            )
    state = group.broadcast_json(state or {"updates": 0, "records": 0, **settings})
    group.broadcast([*weights.masters, *optimizer.slots.values(), optimizer.step, *loss_scale.state.values()])
    weights.refresh_all()
    return state


def check_same_run(store, state: dict, settings: dict, log: RunLog) -> None:
    """Raises UserError when a checkpoint's run differs from this one in what cannot change on the way."""
    for key, value in settings.items():
        if state.get(key) != value:
            raise UserError(
                f"{store.directory} was trained with {key} {state.get(key)}, not {value}: resume with that, or give "
                "another output_dir"
            )
    if FLAGS.init_checkpoint and state.get("init_checkpoint"):
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
    """SHA-256 of a checkpoint's index, which holds a checksum of every tensor."""
    return sha256_file(f"{checkpoint.resolve_prefix(path)}.index")


def resolved_settings(group, precision, use_xla, global_batch, peak, config) -> dict:
    """Every flag and what was derived from them, as saved with the run."""
    values = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(sys.modules[__name__])}
    derived = {
        "processes": group.size,
        "global_batch_size": global_batch,
        "effective_learning_rate": peak,
        "precision": precision.name,
        "use_xla": use_xla,
        "bert_config": config.to_dict(),
        "machine": machine.describe(),
    }
    return values | derived


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
