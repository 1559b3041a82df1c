"""Converts weights to the Hugging Face form, or with --to=tf1 from it to Google's.

    python -m bert_tf.export_huggingface --init_checkpoint=results/squad --output_dir=squad_hf

The output_dir is one that transformers' from_pretrained and AutoTokenizer load; with --to=tf1 it holds
bert_model.ckpt.*, bert_config.json and vocab.txt. Config, vocabulary and labels are those beside the weights, where
runs, Google's archives and transformers leave them, unless flags name others. Which model it is shows in the names of
the weights. Optimizer slots and further heads stay behind; what was taken and what was not is printed.
"""

import os
import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/export_huggingface.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import tensorflow as tf
from absl import app, flags

from bert_tf import checkpoint, huggingface
from bert_tf.model import (
    BertConfig,
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
    variable_name,
)
from bert_tf.model_files import beside, carry_labels, is_lower_case, required_beside
from bert_tf.tokenization import load_vocab
from runkit.errors import UserError, run_main
from runkit.files import atomic_directory, read_json, write_json
from runkit.progress import print_line

FLAGS = flags.FLAGS
TF1_NAME = "bert_model.ckpt"


def define_flags() -> None:
    """All flags; those that runs have mean the same here."""
    string, boolean, enum = flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_enum
    string("init_checkpoint", None, "weights: a checkpoint, a run's output_dir, a Hugging Face folder", required=True)
    string("output_dir", None, "the folder to make", required=True)
    string("bert_config_file", None, "its config; default: the one beside the weights")
    string("vocab_file", None, "its vocabulary; default: the vocab.txt beside the weights")
    string(
        "label_file", None, "names of the classes: a JSON list or a run's labels.json; default: that beside the weights"
    )
    boolean(
        "do_lower_case", None, "whether the vocabulary is in lower case; default: as said beside the weights, else yes"
    )
    enum("kind", None, list(huggingface.MODELS), "the model, where the names of its weights do not show it")
    enum("to", "huggingface", ["huggingface", "tf1"], "the form to write")


def main(argv: list[str]) -> None:
    """From flags to the finished folder; raises UserError for anything a user can fix."""
    if len(argv) > 1:
        raise UserError(f"arguments without a flag: {argv[1:]}; flags are written --name=value")
    source = FLAGS.init_checkpoint
    config_name = huggingface.CONFIG if huggingface.holds_weights(source) else "bert_config.json"
    config_file = FLAGS.bert_config_file or required_beside(source, config_name, "bert_config_file")
    vocab_file = FLAGS.vocab_file or required_beside(source, "vocab.txt", "vocab_file")
    config = huggingface.load_config(config_file)
    warning = checkpoint.check_files(vocab_file, config, source, config_file)
    if warning:
        print_line(f"warning: {warning}")

    kind, model = load_model(source, config, FLAGS.kind)
    if FLAGS.to == "tf1":
        write_tf1(FLAGS.output_dir, config, model, vocab_file)
        carry_labels(source, FLAGS.output_dir)
        print_line(f"wrote {kind} as {TF1_NAME}, bert_config.json and vocab.txt to {FLAGS.output_dir}")
        return
    label_file = FLAGS.label_file or beside(source, "labels.json")
    labels = read_labels(label_file) if label_file else None
    do_lower_case = is_lower_case(source) if FLAGS.do_lower_case is None else FLAGS.do_lower_case
    tensors = {variable_name(variable): variable.numpy() for variable in model.variables}
    huggingface.export(FLAGS.output_dir, kind, config, tensors, vocab_file, do_lower_case, labels)
    carry_labels(source, FLAGS.output_dir)
    print_line(
        f"wrote {kind} as {huggingface.MODELS[kind]} to {FLAGS.output_dir}, with a tokenizer "
        f"{'that lower-cases' if do_lower_case else 'that keeps case'}"
    )


def read_labels(path: str) -> list[str] | None:
    """The names in a JSON list or a run's labels.json; None for a task without. Raises UserError for anything else."""
    content = read_json(path)
    labels = content.get("labels") if isinstance(content, dict) else content
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f'{path}: expected a JSON list of the classes\' names, such as ["no", "yes"]')
    if len(set(labels)) != len(labels):
        raise UserError(f"{path}: a name stands twice")
    return labels or None


# ----------------------------------------------------------------------------------------- reading and writing
def load_model(path: str, config: BertConfig, kind: str | None) -> tuple[str, tf.Module]:
    """The model that a checkpoint's names show (or `kind`), with its weights; prints how many were found."""
    shapes = checkpoint.list_variables(path)
    try:
        kind = kind or huggingface.kind_of(shapes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    labels = shapes.get("output_bias", (2,))[0]
    model = {
        "pretraining": lambda: BertForPreTraining(config, seed=None),
        "question_answering": lambda: BertForQuestionAnswering(config, seed=None),
        "classification": lambda: BertForClassification(config, labels, seed=None),
        "tagging": lambda: BertForTagging(config, labels, seed=None),
    }[kind]()
    print_line(str(checkpoint.load_weights(model.variables, path)))
    return kind, model


def write_tf1(directory: str | os.PathLike, config: BertConfig, model: tf.Module, vocab_file: str) -> None:
    """Writes bert_model.ckpt.*, bert_config.json and vocab.txt, the three of Google's archives, as a whole or not."""
    files = {f"{TF1_NAME}.index", f"{TF1_NAME}.data-00000-of-00001", "bert_config.json", "vocab.txt", "labels.json"}
    huggingface.refuse_other_files(directory, files)
    with atomic_directory(directory) as folder:
        checkpoint.write_tensors(folder / TF1_NAME, {variable_name(v): v for v in model.variables})
        write_json(folder / "bert_config.json", config.to_dict())
        huggingface.write_vocabulary(folder / "vocab.txt", load_vocab(vocab_file))


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
