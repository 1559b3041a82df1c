"""Makes TFRecords of a GLUE task: <task>train.tf_record, <task>eval.tf_record and <task>predict.tf_record.

    python -m bert_tf.create_glue_data --task_name=MRPC --data_dir=glue/MRPC --vocab_file=base/vocab.txt

run_classifier makes its own features; this is for other programs that read the published records. MNLI's mismatched
sets end in _mismatched. The tasks are the rows of glue.TASKS; flags: --help.
"""

import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/create_glue_data.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
from absl import app, flags

from bert_tf import glue, runs
from bert_tf.features import CLASS, VALUE, write_features
from bert_tf.records import Feature
from bert_tf.tokenization import FullTokenizer
from runkit.errors import UserError, run_main
from runkit.progress import print_line

FLAGS = flags.FLAGS
PUBLISHED_NAMES = {"train": "train", "dev": "eval", "test": "predict"}
SHOWN = 5  # examples of a set that --verbose_logging prints


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    string, integer, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_bool
    string("data_dir", None, "folder of the task's files", required=True)
    string("task_name", None, f"one of {', '.join(glue.TASKS)}, in any case", required=True)
    string("vocab_file", None, "WordPiece vocabulary, one token a line", required=True)
    string("output_dir", None, "where the records go; default <data_dir>/final_tfrecords_sharded (added)")
    boolean("do_lower_case", True, "lower-case the text and strip accents: True for uncased models")
    integer("max_seq_length", 128, "tokens of a sequence at most")
    boolean("verbose_logging", False, f"print the first {SHOWN} examples of each set")


def main(argv: list[str]) -> None:
    """From files to records; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    task = glue.find_task(FLAGS.task_name)
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
    folder = Path(FLAGS.output_dir or Path(FLAGS.data_dir, "final_tfrecords_sharded"))
    splits = [split for split in task.splits if glue.find_files(task, FLAGS.data_dir, split)]
    if not splits:
        raise UserError(f"{FLAGS.data_dir}: no file of {task.name} in this folder")
    for split in splits:
        examples = glue.read_examples(task, FLAGS.data_dir, split)
        features = glue.convert_examples(examples, task, tokenizer, FLAGS.max_seq_length)
        if FLAGS.verbose_logging:
            for example, feature in zip(examples[:SHOWN], features, strict=False):
                print_line(described(example, feature, tokenizer))
        path = folder / record_name(task, split)
        count = write_features(path, features, VALUE if task.labels is None else CLASS, FLAGS.max_seq_length)
        print_line(f"{count} records: {path}")
    for split in task.splits:
        if split not in splits:
            print_line(f"not in {FLAGS.data_dir}, left out: the {split} set")


def record_name(task: glue.Task, split: str) -> str:
    """The published file name of a split, such as mrpctrain.tf_record."""
    kind, _, suffix = split.partition("_")
    return f"{task.name.lower()}{PUBLISHED_NAMES[kind]}{'_' + suffix if suffix else ''}.tf_record"


def described(example: glue.PairExample, feature: Feature, tokenizer: FullTokenizer) -> str:
    """An example as a reader checks it: its tokens and its label."""
    tokens = " ".join(tokenizer.convert_ids_to_tokens(feature.input_ids))
    return f"{example.guid}: {tokens} (label: {example.label}, id {feature.label})"


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
