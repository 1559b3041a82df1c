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
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/run_pretraining.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np
from absl import app, flags

from bert_tf import checkpoint, plan, runs, schedules
from bert_tf.distributed import Distributed
from bert_tf.huggingface import load_config
from bert_tf.input_pipeline import PretrainingRecords, packed_spec
from bert_tf.losses import NO_SUMS, Pretraining, PretrainingSums, pad_batch
from bert_tf.model import BertConfig, BertForPreTraining
from bert_tf.optimization import canonical_name, create_optimizer
from bert_tf.precision import LossScale, Precision
from bert_tf.train_step import TrainStep, create_evaluation
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, locked_directory, write_json
from runkit.guards import StallGuard
from runkit.log import RunLog
from runkit.meters import ThroughputMeter, closing_lines_inference

FLAGS = flags.FLAGS
METRICS = {
    **{
        name: {"unit": "nat", "format": ":.4f", "STAGE": "TRAIN"}
        for name in ("mlm_loss", "nsp_loss", "total_loss", "avg_loss_step")
    },
    "throughput_train": {"unit": "sequences/s", "format": ":.2f", "STAGE": "TRAIN"},
    "throughput_val": {"unit": "sequences/s", "format": ":.2f", "STAGE": "VAL"},
}
UNIGRAM_SAMPLE = 100_000  # training records from which token frequencies are counted


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    runs.define_flags()
    plan.define_flags()
    flags.adopt_module_key_flags(runs)
    flags.adopt_module_key_flags(plan)
    string, integer, real, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_bool
    string("input_files_dir", None, "folders of training TFRecords, separated by commas", required=True)
    string("eval_files_dir", None, "folders of evaluation TFRecords; required by --do_eval")
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
    boolean(
        "allreduce_post_accumulation", False, "accepted for old command lines; gradients are exchanged once an update"
    )
    boolean("report_loss", True, "accepted for old command lines; losses are always reported")
    boolean("manual_fp16", False, "as --precision=fp16")


def main(argv: list[str]) -> None:
    """One phase from start to summary; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    if FLAGS.plan:
        return plan.pretraining(check_flags, open_records, common_vocabulary)
    check_flags()
    runs.launch(run)


def run(group: Distributed, stack: contextlib.ExitStack) -> None:
    """main's body on one of the processes; what has to be given back in the end goes on the stack."""
    # ------------------------------------------------------------------------------ precision and surroundings
    precision = runs.choose_precision(FLAGS.manual_fp16)
    precision.activate()
    use_xla = runs.choose_xla()
    rows = runs.choose_packing(precision, use_xla)
    output_dir = Path(FLAGS.output_dir)
    if group.is_root:
        stack.enter_context(locked_directory(output_dir, "training"))
    store = runs.open_store(output_dir)
    log = runs.open_log(output_dir, group.rank, bool(store.steps()), METRICS)
    stack.callback(log.close)

    # ---------------------------------------------------------------------------------- data, before anything slow
    config = load_config(FLAGS.bert_config_file)
    if config.max_position_embeddings < FLAGS.max_seq_length:
        raise UserError(
            f"max_seq_length {FLAGS.max_seq_length} is beyond max_position_embeddings "
            f"{config.max_position_embeddings} of {FLAGS.bert_config_file}"
        )
    training = open_records(FLAGS.input_files_dir, config, log)
    evaluation = open_records(FLAGS.eval_files_dir, config, log) if FLAGS.do_eval else None
    vocabulary = common_vocabulary([training, evaluation] if evaluation else [training])

    # ---------------------------------------------------------------------------------- model and state
    # Evaluation alone loads every weight.
    model, objective = BertForPreTraining(config, FLAGS.seed if FLAGS.do_train else None), Pretraining()
    model.bert.recompute_activations = FLAGS.recompute_activations
    weights = ComputeWeights(model.variables, precision.compute_dtype)
    optimizer = create_optimizer(FLAGS.optimizer_type, weights.masters)
    loss_scale = LossScale(
        precision.loss_scaling, FLAGS.init_loss_scale, max_consecutive_skips=FLAGS.nonfinite_patience
    )
    identity = {"seed": FLAGS.seed, "optimizer_type": canonical_name(FLAGS.optimizer_type), "vocab_sha256": vocabulary}
    state = runs.start_or_resume(
        store, weights, optimizer, loss_scale, identity, group, log, random_weights=FLAGS.do_train
    )
    training_settings = {}
    if FLAGS.do_train:
        global_batch = runs.global_batch(state, group, log)
        peak = FLAGS.learning_rate * global_batch.rate_factor
        training_settings = {"global_batch_size": global_batch.size, "effective_learning_rate": peak}
    runs.record_settings(
        sys.modules[__name__],
        output_dir / ("run_config.json" if FLAGS.do_train else "eval_config.json"),
        group,
        weights,
        log,
        **training_settings,
        precision=precision.name,
        use_xla=use_xla,
        packed=rows is not None,
        bert_config=config.to_dict(),
    )
    if group.is_root:
        write_json(output_dir / "bert_config.json", config.to_dict())  # what its checkpoints need to be used

    def evaluate_now() -> dict:
        batches = evaluation.evaluation_batches(
            FLAGS.eval_batch_size, FLAGS.max_eval_steps or None, group.rank, group.size
        )
        return evaluate(evaluation_step, batches, log_frequencies, precision, group, log)

    if evaluation is not None:
        evaluation_step = create_evaluation(model, objective, weights, use_xla)
        log_frequencies = unigram_log_probabilities(training, config.vocab_size, group)
        if FLAGS.do_train and state["updates"] == 0:
            log.info("evaluation of the initial weights")
            state["initial_masked_lm_loss"] = evaluate_now()["masked_lm_loss"]

    # ---------------------------------------------------------------------------------- train
    summary = runs.previous_summary(output_dir / "summary.json", int(optimizer.step))
    if FLAGS.do_train and int(optimizer.step) >= FLAGS.num_train_steps:
        log.info(f"nothing left to train: step {int(optimizer.step)} of {FLAGS.num_train_steps} is done")
    elif FLAGS.do_train:
        step = TrainStep(
            model,
            objective,
            weights,
            optimizer,
            loss_scale,
            group,
            global_batch.micro_batches,
            "fp16" if precision.name == "fp16" else None,
            use_xla,
            FLAGS.seed,
            None if rows is None else packed_spec(),
        )
        summary = {"global_batch_size": global_batch.size, "learning_rate": peak, "precision": precision.name}
        summary |= train(step, training, rows, global_batch, store, state, peak, log)
        if group.is_root:
            curves = {"total loss": "avg_loss_step", "masked-LM loss": "avg_mlm_loss_step"}
            runs.plot_losses(log.path, output_dir / "loss_curve.png", curves, "Pre-training")

    # ---------------------------------------------------------------------------------- evaluate and report
    summary |= {"steps": int(optimizer.step), "initial_masked_lm_loss": state.get("initial_masked_lm_loss")}
    if evaluation is not None:
        log.info("evaluation of the trained weights")
        summary |= evaluate_now()
    if group.is_root:
        if evaluation is not None:
            write_eval_results(output_dir / "eval_results.txt", summary)
        runs.close(output_dir, summary, log)


# ------------------------------------------------------------------------------------------------- the loop
def train(step, records, rows, global_batch, store, state, peak, log) -> dict:
    """The rest of the phase's updates; returns what goes to the summary. rows: see packing; state: see runs."""
    total, batch_size = FLAGS.num_train_steps, FLAGS.train_batch_size
    schedule = schedules.create_schedule(canonical_name(FLAGS.optimizer_type), peak, FLAGS.num_warmup_steps, total)
    group, stall = step.distributed, StallGuard(log.warning, FLAGS.input_timeout)
    own = range(group.rank, global_batch.micro_batches, group.size)
    stream = records.batches(
        state["records"], batch_size, global_batch.micro_batches, group.rank, group.size, stall, rows
    )  # fmt: skip

    def batch_names(state: runs.State) -> list[str]:
        starts = (state["records"] + number * batch_size for number in own)
        return [name for start in starts for name in records.names(start, batch_size)]

    with contextlib.closing(stream):
        return runs.train(
            step,
            (list(itertools.islice(stream, len(own))) for _ in itertools.count()),
            schedule,
            total,
            global_batch.size,
            state,
            store,
            log,
            no_sums=NO_SUMS,
            line_values=line_values,
            console_text=console_text,
            batch_names=batch_names,
            save_steps=FLAGS.save_checkpoints_steps,
            display_steps=FLAGS.display_loss_steps,
        )


def line_values(now: PretrainingSums, since_last_line: PretrainingSums) -> dict:
    """The values of one log line: of the update just done, and averages over the updates since the last line."""
    now, average = now.means(), since_last_line.means()
    return {
        "mlm_loss": now["masked_lm_loss"],
        "nsp_loss": now["next_sentence_loss"],
        "total_loss": now["loss"],
        "avg_loss_step": average["loss"],
        "avg_mlm_loss_step": average["masked_lm_loss"],
        "mlm_accuracy": average["masked_lm_accuracy"],
        "nsp_accuracy": average["next_sentence_accuracy"],
    }


def console_text(values: dict) -> str:
    """What a reader wants to see of an update."""
    nsp_loss = values["avg_loss_step"] - values["avg_mlm_loss_step"]
    return (
        f"loss {values['avg_loss_step']:.4f}  mlm {values['avg_mlm_loss_step']:.4f} "
        f"({100 * values['mlm_accuracy']:.1f}%)  nsp {nsp_loss:.4f} ({100 * values['nsp_accuracy']:.1f}%)"
    )


# ------------------------------------------------------------------------------------------------ evaluation
def evaluate(
    function, batches, log_frequencies: np.ndarray, precision: Precision, group: Distributed, log: RunLog
) -> dict:
    """Held-out losses and accuracies, and the loss of guessing by training-set token frequencies at the same places.

    batches: this process's share; the results are those of all processes.
    """
    meter, total, unigram = ThroughputMeter(), NO_SUMS, 0.0
    for batch in batches:
        meter.start()
        total += PretrainingSums(*(float(value) for value in function(pad_batch(batch, FLAGS.eval_batch_size))))
        unigram -= float(np.sum(log_frequencies[batch.masked_lm_ids.numpy()] * batch.masked_lm_weights.numpy()))
        meter.stop(int(batch.input_ids.shape[0]) * group.size)
    *sums, unigram = group.sum_array([*total, unigram]).tolist()
    total = PretrainingSums(*sums)
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


def unigram_log_probabilities(records: PretrainingRecords, vocab_size: int, group: Distributed) -> np.ndarray:
    """Natural logs of the training set's token frequencies [V], counted at masked positions, with add-one smoothing.

    Masked positions are a uniform sample of the tokens, so no other pass over the corpus is needed.
    """
    counts = np.zeros(vocab_size)
    for batch in records.evaluation_batches(1000, UNIGRAM_SAMPLE // 1000, group.rank, group.size):
        ids, real = batch.masked_lm_ids.numpy(), batch.masked_lm_weights.numpy() > 0
        counts += np.bincount(ids[real], minlength=vocab_size)
    counts = 1.0 + group.sum_array(counts)
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


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
