"""Exports a fine-tuned BERT for other runtimes, and checks the exports against the model on real examples.

    python -m bert_tf.run_export MODEL_DIR --predict_file=dev-v1.1.json --output_dir=OUT --int8     questions
    python -m bert_tf.run_export MODEL_DIR --data_dir=MRPC --output_dir=OUT                         GLUE, relations, NER

MODEL_DIR is an output_dir of run_squad, run_classifier, run_re or run_ner, which tells the task, the labels and the
lengths. OUT gets model.onnx (input_ids, input_mask, segment_ids int32 [B,S] in; start_logits and end_logits [B,S], or
logits, out; any B and S), saved_model/ with the same names, model_int8.onnx with --int8, vocab.txt and metadata.json.
An export that does not agree with the model is an error, and OUT then stays as it was.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):  # started by path: python bert_tf/run_export.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np
import tensorflow as tf

from bert_tf import checkpoint, glue, huggingface, ner, onnx_graph, ops, relations
from bert_tf.answer import read_settings
from bert_tf.answering import Settings, choose_answers, to_squad, to_windows
from bert_tf.features import CLASS, SPAN, TAGS, VALUE, FeatureSet, LabelKind, TaskBatch, batch_spec, choose_buckets
from bert_tf.features import prediction_batches
from bert_tf.losses import Classification, Objective, QuestionAnswering, Regression, Tagging
from bert_tf.model import BertConfig, BertForClassification, BertForQuestionAnswering, BertForTagging, variable_name
from bert_tf.model_files import beside, required_beside
from bert_tf.runs import check_vocabulary
from bert_tf.squad import examples_of
from bert_tf.squad_evaluate import evaluate
from bert_tf.tokenization import FullTokenizer
from bert_tf.train_step import check_finite, create_prediction
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError, run_main
from runkit.exports import check_output_dir, onnx_session, package_versions, quantize, write_metadata
from runkit.files import atomic_directory, read_json, sha256_file

TOLERANCE = 2e-3  # of logits of tokens; float32 sums in another order differ by about 1e-5
# What an export is checked on where there is nothing else; long enough for several windows.
SAMPLE = {
    "context": " ".join(
        f"On day {day} of the journey the company of {20 + day} people crossed the river {name} and rested at noon."
        for day, name in enumerate(("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel") * 3, 1)
    ),
    "questions": ["Which river was crossed on day 7?", "How many people rested on day 20?", "Who?"],
}
PACKAGES = ("onnx", "onnxruntime")
Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]  # inputs by name -> outputs in the order of OUTPUTS


class Task(NamedTuple):
    """What is exported, and the examples on which it is checked."""

    name: str
    head: str  # of onnx_graph
    labels: Sequence[str]
    kind: LabelKind
    objective: Objective
    build: Callable[[BertConfig], tf.Module]
    features: FeatureSet
    decide: Callable[[list[np.ndarray]], Any]  # outputs of each feature -> what is answered
    score: Callable[[Any], dict[str, float]]  # that -> the task's scores


class Result(NamedTuple):
    """Of an export on the examples."""

    decision: Any
    scores: dict[str, float]
    max_difference: float  # of logits of tokens


def main(argv: Sequence[str] | None = None) -> None:
    """Exports, checks, writes. Raises UserError for what a user can fix, and for an export that is not the model."""
    args = parse_arguments(argv)
    versions = package_versions(PACKAGES, "scripts/setup.sh bert")
    check_output_dir(Path(args.output_dir))
    weights = args.init_checkpoint or args.model_dir
    settings = read_settings(weights, {key: value for key, value in vars(args).items() if key in Settings._fields})
    vocab_file = args.vocab_file or required_beside(weights, "vocab.txt", "vocab_file")
    config_name = huggingface.CONFIG if huggingface.holds_weights(weights) else "bert_config.json"
    config = huggingface.load_config(args.bert_config_file or required_beside(weights, config_name, "bert_config_file"))
    check_vocabulary(weights, sha256_file(vocab_file))
    tokenizer = FullTokenizer(vocab_file, settings.do_lower_case)
    task = open_task(args, task_name(args.task, weights), settings, tokenizer)
    check_sizes(task, config, settings)
    model, compute = load_model(task, config, weights)
    batches = list(read_batches(task.features, settings.max_seq_length, args.batch_size))

    with atomic_directory(args.output_dir) as folder:
        # -------------------------------------------------------------------------- export
        onnx_file, saved_model = folder / "model.onnx", folder / "saved_model"
        values = {variable_name(variable): variable.numpy() for variable in compute.masters}
        proto = onnx_graph.build(config, task.head, values)
        onnx_file.write_bytes(proto.SerializeToString())
        save_model(saved_model, model, compute, task)

        # -------------------------------------------------------------------------- check
        reference = [values for _, values in run_all(model_run(model, compute, task), batches)]
        results = {"model": examine(task, batches, reference, reference)}
        for path, run in (
            (onnx_file, onnx_run(onnx_file, task.head)),
            (saved_model, saved_run(saved_model, task.head)),
        ):
            found = [values for _, values in run_all(run, batches)]
            results[path.name] = examine(task, batches, found, reference)
            check_parity(path.name, results[path.name], results["model"])
        if args.int8:
            int8_file = folder / "model_int8.onnx"
            feeds = [feed for _, feed in batches][: args.calibration_batches]
            quantize(onnx_file, int8_file, "MatMul", feeds, onnx_graph.products_of_activations(proto))
            found = [values for _, values in run_all(onnx_run(int8_file, task.head), batches)]
            results[int8_file.name] = examine(task, batches, found, reference)

        # -------------------------------------------------------------------------- tell
        for name, result in results.items():
            scores = ", ".join(f"{key} {value:.2f}" for key, value in result.scores.items())
            print(f"{name:<16} {scores}, max abs difference of logits {result.max_difference:.2e}", flush=True)
        (folder / "vocab.txt").write_bytes(Path(vocab_file).read_bytes())
        metadata = {
            "task": task.name,
            "head": task.head,
            "labels": list(task.labels),
            "config": config.to_dict(),
            "settings": settings._asdict(),
            "inputs": list(onnx_graph.INPUTS),
            "outputs": list(onnx_graph.OUTPUTS[task.head]),
            "opset": onnx_graph.OPSET,
            "checkpoint": Path(weights).name,
            "checkpoint_sha256": sha256_file(checkpoint.identifying_file(weights)),
            "versions": versions | {"tensorflow": tf.version.VERSION},
            "scores": {
                name: result.scores | {"max_abs_difference": result.max_difference} for name, result in results.items()
            },
        }
        write_metadata(folder, metadata)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Flags have the names they have in the mains that train."""
    parser = argparse.ArgumentParser(
        prog="run_export",
        description=__doc__.partition("\n")[0],
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("model_dir", nargs="?", default=None, metavar="MODEL_DIR", help="output_dir of the run that trained the model")
    add("--init_checkpoint", default=None, help="other weights: a checkpoint, or a Hugging Face folder")
    add("--vocab_file", default=None, help="default: vocab.txt beside the weights")
    add("--bert_config_file", default=None, help="default: bert_config.json or config.json beside the weights")
    add("--task", default=None, help="squad, or the name of a task; default: what labels.json beside the weights says")
    add(
        "--predict_file",
        default=None,
        help="SQuAD JSON: the questions on which the exports are checked and scored "
        "(default: a few about a built-in text, without scores)",
    )
    add("--data_dir", default=None, help="folder of the task's files, whose development set does that for other tasks")
    add("--batch_size", type=int, default=8, help="sequences a batch in the checks")
    add("--int8", action="store_true", default=False, help="also model_int8.onnx: static quantisation by ONNX Runtime")
    add("--calibration_batches", type=int, default=8, help="batches that --int8 takes ranges from")
    add("--output_dir", required=True, help="a folder of its own; an earlier export is replaced")
    for name, default in Settings._field_defaults.items():
        if isinstance(default, bool):
            add(f"--{name}", action=argparse.BooleanOptionalAction, help="default: as in the model's run")
        else:
            add(f"--{name}", type=type(default), help="default: as in the model's run")
    args = parser.parse_args(argv)
    if not (args.model_dir or args.init_checkpoint):
        raise UserError("MODEL_DIR is missing: the output_dir of run_squad, run_classifier, run_re or run_ner")
    if not args.init_checkpoint and not Path(args.model_dir).is_dir():
        raise UserError(f"there is no folder {args.model_dir}: give the output_dir of a run, or --init_checkpoint")
    for name in ("batch_size", "calibration_batches", "max_seq_length", "doc_stride", "max_query_length"):
        if getattr(args, name, 1) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be 1 or more")
    return args


# --------------------------------------------------------------------------------------------------------- tasks
def task_name(given: str | None, weights: str) -> str:
    """The task that is said, or that the run which made the weights had."""
    if given:
        return given
    path = beside(weights, "labels.json")
    name = read_json(path).get("task") if path else None
    if not isinstance(name, str):
        raise UserError(f"nothing beside {weights} tells the task it was trained for: give --task")
    return name


def open_task(args: argparse.Namespace, name: str, settings: Settings, tokenizer: FullTokenizer) -> Task:
    """The task with its examples. Raises UserError for one that is not known, or whose examples are not given."""
    if name.lower().startswith("squad"):
        return open_squad(args.predict_file, name, settings, tokenizer)
    if not args.data_dir:
        raise UserError(f"--data_dir is missing: the folder with the files of {name}")
    if name.lower() in ner.TASKS or name.lower() == "ner":
        return open_tagging(args.data_dir, ner.find_task(name), settings, tokenizer)
    tasks = {**glue.TASKS, **relations.TASKS}
    return open_pairs(args.data_dir, glue.find_task(name, tasks), settings, tokenizer)


def open_squad(path: str | None, name: str, settings: Settings, tokenizer: FullTokenizer) -> Task:
    version_2 = settings.version_2_with_negative
    content, name_of_it = (read_json(path), path) if path else (to_squad(SAMPLE, "sample"), "the built-in questions")
    examples = examples_of(
        content, name_of_it, False, version_2, lambda text: print(f"warning: {text}", file=sys.stderr)
    )
    windows = to_windows(examples, tokenizer, settings)
    dataset = content["data"]

    def decide(outputs: list[np.ndarray]):
        return choose_answers(examples, windows, outputs, settings)

    def score(answers) -> dict[str, float]:
        if not any(example.answers or example.is_impossible for example in examples):
            return {}
        scores = evaluate(dataset, answers.predictions, answers.null_odds, "2.0" if version_2 else "1.1")
        return {"exact_match": scores["exact" if version_2 else "exact_match"], "f1": scores["f1"]}

    features = FeatureSet((window.feature for window in windows), SPAN)
    return Task(name, onnx_graph.SPAN, (), SPAN, QuestionAnswering(), build_squad, features, decide, score)


def build_squad(config: BertConfig) -> tf.Module:
    return BertForQuestionAnswering(config, seed=None)


def open_pairs(data_dir: str, task: glue.Task, settings: Settings, tokenizer: FullTokenizer) -> Task:
    examples = glue.read_examples(task, data_dir, task.dev_splits[0])
    kind, objective = (VALUE, Regression()) if task.labels is None else (CLASS, Classification())
    features = FeatureSet(glue.convert_examples(examples, task, tokenizer, settings.max_seq_length), kind)
    labels = [features[index].label for index in range(len(features))]

    def decide(outputs: list[np.ndarray]):
        return glue.decide(task, np.stack(outputs))

    def score(predictions) -> dict[str, float]:
        if task.metrics:
            scores = glue.metrics(task, predictions, labels)
        else:
            scores = relations.relation_metrics(task, predictions, labels)
        return {key: 100 * value for key, value in scores.items() if isinstance(value, float)}

    def build(config: BertConfig) -> tf.Module:
        return BertForClassification(config, task.num_labels, seed=None)

    return Task(task.name, onnx_graph.CLASS, task.labels or (), kind, objective, build, features, decide, score)


def open_tagging(data_dir: str, task: ner.NerTask, settings: Settings, tokenizer: FullTokenizer) -> Task:
    sentences = ner.read_sentences(task, data_dir, "dev")
    features, places = ner.convert_sentences(sentences, task, tokenizer, settings.max_seq_length)

    def decide(outputs: list[np.ndarray]):
        return ner.words_labels(task, places, outputs)

    def score(tags) -> dict[str, float]:
        scores = ner.conlleval([sentence.tags for sentence in sentences], tags)
        return {key: 100 * scores[key] for key in ("precision", "recall", "f1")}

    def build(config: BertConfig) -> tf.Module:
        return BertForTagging(config, task.num_labels, seed=None)

    features = FeatureSet(features, TAGS)
    return Task(task.name, onnx_graph.TAGS, task.labels, TAGS, Tagging(), build, features, decide, score)


def check_sizes(task: Task, config: BertConfig, settings: Settings) -> None:
    """Raises UserError for lengths and tokens that the model cannot read, and where there are no examples."""
    if settings.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"max_seq_length {settings.max_seq_length} is beyond the model's max_position_embeddings "
            f"{config.max_position_embeddings}: give a lower --max_seq_length"
        )
    if not len(task.features):
        raise UserError("there are no examples to check the export on")
    task.features.check_ranges(config.vocab_size, config.type_vocab_size, "the examples")


# -------------------------------------------------------------------------------------------------------- export
def load_model(task: Task, config: BertConfig, weights: str) -> tuple[tf.Module, ComputeWeights]:
    """The model with its weights."""
    model = task.build(config)
    compute = ComputeWeights(model.variables, tf.float32, join=True)
    checkpoint.load_weights(compute.masters, weights)
    compute.refresh_all()
    return model, compute


class SavedForm(tf.Module):
    """The model with a signature, by TensorFlow's own operations: whoever loads it has none of our kernels."""

    def __init__(self, model: tf.Module, compute: ComputeWeights, task: Task):
        super().__init__()
        self.model = model
        self.joined = compute.sources(compute.masters)  # what the products read is to be saved too
        tokens, names = tf.TensorSpec([None, None], tf.int32), onnx_graph.OUTPUTS[task.head]

        @tf.function(
            input_signature=[tf.TensorSpec.from_spec(tokens, name) for name in onnx_graph.INPUTS], autograph=False
        )
        def serve(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
            with ops.inside_xla():
                logits = model(TaskBatch(input_ids, input_mask, segment_ids, (), ()), compute)
            values = tf.unstack(logits, axis=2) if task.head == onnx_graph.SPAN else [logits]
            return dict(zip(names, values, strict=True))

        self.serve = serve


def save_model(path: Path, model: tf.Module, compute: ComputeWeights, task: Task) -> None:
    """Writes a SavedModel."""
    form = SavedForm(model, compute, task)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(form, str(path), signatures={"serving_default": form.serve}, options=options)


# --------------------------------------------------------------------------------------------------------- check
def read_batches(features: FeatureSet, max_seq_length: int, batch_size: int):
    """(indices of the features, inputs by name) of each batch, padded to several lengths."""
    buckets = choose_buckets(features.lengths, max_seq_length)
    for indices, batch in prediction_batches(features, buckets, batch_size, max_seq_length, fill_up=False):
        yield indices, {name: getattr(batch, name).numpy() for name in onnx_graph.INPUTS}


def run_all(run: Run, batches: Sequence) -> list[tuple[np.ndarray, np.ndarray]]:
    """(indices, logits [B,...]) of each batch; start and end side by side, [B,S,2]."""
    found = []
    for indices, feed in batches:
        values = run(feed)
        logits = np.stack(values, -1) if len(values) > 1 else values[0]
        check_finite(logits)
        found.append((indices, logits))
    return found


def model_run(model: tf.Module, compute: ComputeWeights, task: Task) -> Run:
    """The model as evaluation runs it."""
    function = create_prediction(model, task.objective, compute, batch_spec(task.kind))

    def run(feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        rows, length = feed["input_ids"].shape
        shape = [rows, length] if task.kind == TAGS else [rows, *task.kind.shape[1:]]
        labels, weights = tf.zeros(shape, task.kind.dtype), tf.ones(rows)
        tokens = [tf.constant(feed[name]) for name in onnx_graph.INPUTS]
        return [function(TaskBatch(*tokens, labels, weights))[0].numpy()]

    return run


def onnx_run(path: Path, head: str) -> Run:
    """A file under ONNX Runtime on the CPU."""
    session = onnx_session(path)
    return lambda feed: session.run(list(onnx_graph.OUTPUTS[head]), dict(feed))


def saved_run(path: Path, head: str) -> Run:
    """A SavedModel, loaded again."""
    loaded = tf.saved_model.load(str(path))
    function = loaded.signatures["serving_default"]

    def run(feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs = function(**{name: tf.constant(value) for name, value in feed.items()})
        return [outputs[name].numpy() for name in onnx_graph.OUTPUTS[head]]

    run.loaded = loaded  # which holds the variables
    return run


def examine(task: Task, batches: Sequence, found: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> Result:
    """What the outputs of all batches answer, and how far they are from the reference's."""
    outputs: list[np.ndarray] = [np.empty(0)] * len(task.features)
    difference = 0.0
    for (indices, _), values, expected in zip(batches, found, reference, strict=True):
        if values.shape != expected.shape:
            raise UserError(f"the export returns logits of shape {values.shape}, the model {expected.shape}")
        for row, index in enumerate(indices):
            part = slice(None) if task.head == onnx_graph.CLASS else slice(int(task.features.lengths[index]))
            outputs[index] = values[row, part]
            difference = max(difference, float(np.abs(values[row, part] - expected[row, part]).max()))
    decision = task.decide(outputs)
    return Result(decision, task.score(decision), difference)


def check_parity(name: str, found: Result, expected: Result) -> None:
    """Raises UserError unless an export agrees with the model."""
    ours, theirs = (getattr(result.decision, "predictions", result.decision) for result in (found, expected))
    same = np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs
    if not found.max_difference <= TOLERANCE or not same:
        raise UserError(
            f"{name} does not agree with the model: logits differ by up to {found.max_difference:.2e} (allowed "
            f"{TOLERANCE:g}), and answers are {'equal' if same else 'not equal'}; nothing was written"
        )


if __name__ == "__main__":
    run_main(main)
