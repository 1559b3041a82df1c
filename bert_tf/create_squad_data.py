"""Makes TFRecords of a SQuAD data set: train.tf_record and eval.tf_record in <squad_dir>/final_tfrecords_sharded.

    python -m bert_tf.create_squad_data --train_file=v1.1/train-v1.1.json --predict_file=v1.1/dev-v1.1.json \
        --squad_dir=v1.1 --vocab_file=base/vocab.txt

run_squad makes its own features; this is for other programs that read the published records. Flags: --help.
"""

import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/create_squad_data.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
from absl import app, flags

from bert_tf import runs
from bert_tf.features import SPAN, write_features
from bert_tf.records import Feature
from bert_tf.squad import SquadFeature, convert_examples, read_examples
from bert_tf.tokenization import FullTokenizer
from runkit.errors import run_main
from runkit.progress import print_line

FLAGS = flags.FLAGS
SHOWN = 5  # windows of a set that --verbose_logging prints


def define_flags() -> None:
    """The published flags with their defaults."""
    string, integer, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_bool
    string("train_file", None, "SQuAD JSON to train on", required=True)
    string("predict_file", None, "SQuAD JSON with the questions to answer", required=True)
    string("squad_dir", None, "folder of the data set; the records go into a folder in it", required=True)
    string("vocab_file", None, "WordPiece vocabulary, one token a line", required=True)
    integer("max_seq_length", 384, "tokens of a window at most")
    integer("doc_stride", 128, "tokens between the starts of a long context's windows")
    integer("max_query_length", 64, "tokens of a question at most; the rest is cut")
    boolean("version_2_with_negative", False, "SQuAD 2.0: some questions have no answer")
    boolean("do_lower_case", True, "lower-case the text and strip accents: True for uncased models")
    boolean("verbose_logging", False, f"print the first {SHOWN} windows of each set")


def main(argv: list[str]) -> None:
    """From files to records; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
    sets = {"train": (FLAGS.train_file, True), "eval": (FLAGS.predict_file, False)}
    for name, (source, is_training) in sets.items():
        path = Path(FLAGS.squad_dir, "final_tfrecords_sharded", f"{name}.tf_record")
        examples = read_examples(source, is_training, FLAGS.version_2_with_negative, warn)
        windows = convert_examples(
            examples, tokenizer, FLAGS.max_seq_length, FLAGS.doc_stride, FLAGS.max_query_length, is_training
        )

        def features(windows=windows):
            for number, window in enumerate(windows):
                if FLAGS.verbose_logging and number < SHOWN:
                    print_line(described(window, tokenizer))
                yield window.feature

        count = write_features(path, features(), SPAN, FLAGS.max_seq_length)
        print_line(f"{count} records of {len(examples)} questions: {path}")


def warn(message: str) -> None:
    print_line(f"warning: {message}")


def described(window: SquadFeature, tokenizer: FullTokenizer) -> str:
    """A window as a reader checks it: its tokens and its answer."""
    feature: Feature = window.feature
    tokens = tokenizer.convert_ids_to_tokens(feature.input_ids)
    start, end = feature.label
    answer = " ".join(tokens[start : end + 1]) if end else "none in this window"
    return f"question {window.example_index}, window {window.doc_span_index}: {' '.join(tokens)} (answer: {answer})"


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
