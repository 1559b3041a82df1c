"""Writes the hidden states of chosen layers for every token of a text file, as JSON lines.

    python -m bert_tf.extract_features --input_file=text.txt --output_file=features.jsonl --vocab_file=vocab.txt \
        --bert_config_file=bert_config.json --init_checkpoint=bert_model.ckpt --layers=-1,-2

One text a line, or a pair as `first ||| second`. Each line of output belongs to one line of input, in its order:

    {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1, "values": [0.123456, ...]}, ...]}, ...]}

(linex_index is Google's spelling, which readers of these files expect.) Weights may be Google's, a run's, or a Hugging
Face folder, whose config.json then is the --bert_config_file.
"""

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):  # started by path: python bert_tf/extract_features.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf import checkpoint, ops
from bert_tf.huggingface import load_config
from bert_tf.model import Encoder, Initializer
from bert_tf.precision import PRECISIONS, Precision
from bert_tf.tokenization import CLS, SEP, FullTokenizer
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, read_lines
from runkit.progress import Progress, print_line

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The published flags with their defaults; --precision is added."""
    string, integer, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_bool
    string("input_file", None, "one text a line, a pair as `first ||| second`", required=True)
    string("output_file", None, "JSON lines", required=True)
    string("vocab_file", None, "vocabulary, one token a line", required=True)
    string("bert_config_file", None, "Google's bert_config.json or transformers' config.json", required=True)
    string("init_checkpoint", None, "weights, in TensorFlow's or the Hugging Face form", required=True)
    string("layers", "-1,-2,-3,-4", "layers to write: 0 the first, -1 the last")
    integer("max_seq_length", 128, "longer texts are cut", lower_bound=3)
    boolean("do_lower_case", True, "whether the vocabulary is in lower case")
    integer("batch_size", 32, "texts a batch", lower_bound=1)
    flags.DEFINE_enum("precision", "fp32", list(PRECISIONS), "compute precision (added)")
    boolean("use_tpu", False, "accepted for old command lines, without effect")
    string("master", None, "accepted for old command lines, without effect")
    integer("num_tpu_cores", 8, "accepted for old command lines, without effect")
    boolean("use_one_hot_embeddings", False, "accepted for old command lines, without effect")


def main(argv: list[str]) -> None:
    """From flags to the finished file; raises UserError for anything a user can fix."""
    if len(argv) > 1:
        raise UserError(f"arguments without a flag: {argv[1:]}; flags are written --name=value")
    precision = Precision.from_name(FLAGS.precision)
    precision.activate()

    # ---------------------------------------------------------------------------------- files that belong together
    config = load_config(FLAGS.bert_config_file)
    layers = parse_layers(FLAGS.layers, config.num_hidden_layers)
    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"max_seq_length {FLAGS.max_seq_length} is beyond max_position_embeddings "
            f"{config.max_position_embeddings} of {FLAGS.bert_config_file}"
        )
    warning = checkpoint.check_files(FLAGS.vocab_file, config, FLAGS.init_checkpoint, FLAGS.bert_config_file)
    if warning:
        print_line(f"warning: {warning}")
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)

    # ---------------------------------------------------------------------------------- model
    encoder = Encoder(config, Initializer(seed=None, stddev=config.initializer_range), has_pooler=False)
    print_line(str(checkpoint.load_weights(encoder.variables, FLAGS.init_checkpoint)))
    weights = ComputeWeights(encoder.variables, precision.compute_dtype, join=True)

    # ---------------------------------------------------------------------------------- text to features
    total = sum(1 for _ in read_lines(FLAGS.input_file))
    inputs = (make_input(line, tokenizer, FLAGS.max_seq_length) for line in read_lines(FLAGS.input_file))
    with Progress(total, "features", "texts") as progress, atomic_open(FLAGS.output_file, "w") as stream:
        for index, record in enumerate(extract(inputs, encoder, weights, tokenizer, layers, FLAGS.batch_size)):
            stream.write(json.dumps({"linex_index": index, "features": record}) + "\n")
            progress.update()


def parse_layers(text: str, count: int) -> list[int]:
    """The layers of a comma-separated list, each checked against the model's count. Raises UserError."""
    try:
        layers = [int(item) for item in text.split(",")]
    except ValueError:
        raise UserError(f"--layers={text!r} is not a list of whole numbers such as -1,-2") from None
    beyond = [layer for layer in layers if not -count <= layer < count]
    if beyond:
        raise UserError(
            f"--layers={text}: the model has {count} layers, {beyond[0]} is not one of {-count}..{count - 1}"
        )
    return layers


# ----------------------------------------------------------------------------------------------------- inputs
class Input(NamedTuple):
    """One text or pair, not padded: [CLS] a [SEP] (b [SEP])."""

    input_ids: list[int]
    segment_ids: list[int]


def make_input(line: str, tokenizer: FullTokenizer, max_seq_length: int) -> Input:
    """The ids of one line. Of a pair too long the longer part is cut, token by token, the second on a tie."""
    line = line.strip()
    pair = re.fullmatch(r"(.*) \|\|\| (.*)", line, re.DOTALL)
    first, second = (tokenizer.encode(text) for text in (pair.groups() if pair else (line, "")))
    if second:
        while len(first) + len(second) > max_seq_length - 3:
            (first if len(first) > len(second) else second).pop()
    cls, sep = tokenizer.vocab[CLS], tokenizer.vocab[SEP]
    head = [cls, *first[: max_seq_length - 2], sep]
    tail = [*second, sep] if second else []
    return Input(head + tail, [0] * len(head) + [1] * len(tail))


def make_batch(inputs: Sequence[Input]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """input_ids, input_mask, segment_ids: [B, S] int32, padded to the longest."""
    arrays = np.zeros([3, len(inputs), max(len(item.input_ids) for item in inputs)], np.int32)
    for row, item in enumerate(inputs):
        length = len(item.input_ids)
        arrays[:, row, :length] = item.input_ids, np.ones(length, np.int32), item.segment_ids
    return tuple(arrays)


# --------------------------------------------------------------------------------------------------- features
def hidden_states(encoder: Encoder, input_ids, input_mask, segment_ids, weights: ComputeWeights) -> list[tf.Tensor]:
    """The output of every layer, first to last: [B, S, H] each. The ids as Encoder takes them; no dropout."""
    layout = ops.layout(input_mask, ops.NOT_PACKED, weights.dtype)
    x, outputs = encoder.embeddings(input_ids, segment_ids, layout, weights, None), []
    for layer in encoder.layers:
        x = layer(x, layout, weights, None)
        outputs.append(tf.reshape(x, [*tf.unstack(tf.shape(input_ids)), encoder.config.hidden_size]))
    return outputs


def extract(
    inputs: Iterable[Input],
    encoder: Encoder,
    weights: ComputeWeights,
    tokenizer: FullTokenizer,
    layers: Sequence[int],
    batch_size: int,
) -> Iterator[list[dict]]:
    """Yields for each input its `features`: tokens with the values of the chosen layers, rounded to 6 places.

    Raises UserError naming the line where values are not finite.
    """
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids, ids])
    def chosen(input_ids, input_mask, segment_ids):
        states = hidden_states(encoder, input_ids, input_mask, segment_ids, weights)
        return tf.stack([tf.cast(states[layer], tf.float32) for layer in layers], axis=2)  # [B, S, L, H]

    inputs, line = iter(inputs), 0
    while batch := list(itertools.islice(inputs, batch_size)):
        values = chosen(*make_batch(batch)).numpy().astype(np.float64)
        for item, states in zip(batch, values, strict=True):
            line, states = line + 1, states[: len(item.input_ids)]
            if not np.isfinite(states).all():
                raise UserError(f"line {line}: hidden states are not finite; try --precision=fp32, or other weights")
            tokens = tokenizer.convert_ids_to_tokens(item.input_ids)
            yield [
                {
                    "token": token,
                    "layers": [{"index": i, "values": v} for i, v in zip(layers, of_token, strict=True)],
                }
                for token, of_token in zip(tokens, np.round(states, 6).tolist(), strict=True)
            ]


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
