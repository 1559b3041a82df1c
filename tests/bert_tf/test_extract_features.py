"""Feature files: inputs by Google's rules, values equal to transformers' hidden states, order kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, huggingface
from bert_tf.extract_features import Input, extract, hidden_states, make_batch, make_input, parse_layers
from bert_tf.model import BertConfig, BertForPreTraining, variable_name
from bert_tf.tokenization import FullTokenizer
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "|"]
TEXTS = ["a b c d", "a ||| b c", "", "h g f e d c b a", "b"]
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    type_vocab_size=2,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model as checkpoint and in the Hugging Face form, its config, vocabulary and texts."""
    folder = tmp_path_factory.mktemp("files")
    model, rng = BertForPreTraining(CONFIG), np.random.default_rng(0)
    for variable in model.variables:
        variable.assign_add(rng.normal(0, 0.3, variable.shape).astype(np.float32))
    named = {variable_name(variable): variable for variable in model.variables}
    checkpoint.write_tensors(folder / "bert_model.ckpt", named)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    (folder / "text.txt").write_text("\n".join(TEXTS) + "\n")
    arrays = {name: variable.numpy() for name, variable in named.items()}
    huggingface.export(folder / "hf", "pretraining", CONFIG, arrays, folder / "vocab.txt")
    return folder


@pytest.fixture(scope="module")
def tokenizer(files):
    return FullTokenizer(files / "vocab.txt")


@pytest.fixture(scope="module")
def encoder(files):
    model = BertForPreTraining(CONFIG)
    checkpoint.load_weights(model.variables, files / "bert_model.ckpt")
    return model.bert


# ----------------------------------------------------------------------------------------------------- inputs
@pytest.mark.parametrize(
    "line, tokens, first",  # first: how many tokens are of segment 0
    [
        ("a b", "[CLS] a b [SEP]", 4),
        ("", "[CLS] [SEP]", 2),
        ("  a ||| b c \r", "[CLS] a [SEP] b c [SEP]", 3),
        ("a ||| b ||| c", "[CLS] a | | | b [SEP] c [SEP]", 7),  # the last separator counts
        ("a |||b", "[CLS] a | | | b [SEP]", 7),  # the blanks belong to the separator
        ("a |||", "[CLS] a | | | [SEP]", 6),
        ("a b c d e f g h a b", "[CLS] a b c d e f g [SEP]", 9),
        ("a b c d e f ||| g h", "[CLS] a b c d [SEP] g h [SEP]", 6),
        ("a b c d ||| e f g h", "[CLS] a b c [SEP] e f g [SEP]", 5),
    ],
)
def test_inputs(tokenizer, line, tokens, first):
    made = make_input(line, tokenizer, 9)
    assert tokenizer.convert_ids_to_tokens(made.input_ids) == tokens.split()
    assert made.segment_ids == [0] * first + [1] * (len(made.input_ids) - first)


def test_batches_are_as_long_as_their_longest():
    ids, mask, segments = make_batch([Input([2, 5, 3], [0, 0, 0]), Input([2, 3, 6, 3], [0, 0, 1, 1])])
    assert ids.tolist() == [[2, 5, 3, 0], [2, 3, 6, 3]] and ids.dtype == np.int32
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert segments.tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]


def test_layers():
    assert parse_layers("-1,-2, 0", 3) == [-1, -2, 0]
    for text in ("-4", "3"):
        with pytest.raises(UserError, match=r"the model has 3 layers, .* is not one of -3\.\.2"):
            parse_layers(text, 3)
    for text in ("", "last", "1,,2"):
        with pytest.raises(UserError, match="not a list of whole numbers"):
            parse_layers(text, 3)


# --------------------------------------------------------------------------------------------------- features
def test_last_hidden_state_is_the_encoders(encoder, tokenizer):
    batch = make_batch([make_input(text, tokenizer, 16) for text in TEXTS])
    weights = ComputeWeights(encoder.variables, tf.float32)
    states = hidden_states(encoder, *map(tf.constant, batch), weights)
    assert len(states) == 3
    np.testing.assert_array_equal(states[-1], encoder(*map(tf.constant, batch), weights))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_features_do_not_depend_on_the_batch(encoder, tokenizer, batch_size):
    inputs = [make_input(text, tokenizer, 16) for text in TEXTS]
    weights = ComputeWeights(encoder.variables, tf.float32)
    records = list(extract(inputs, encoder, weights, tokenizer, [0, -1], batch_size))
    assert [[token["token"] for token in record] for record in records] == [
        tokenizer.convert_ids_to_tokens(item.input_ids) for item in inputs
    ]
    for item, record in zip(inputs, records, strict=True):
        alone = hidden_states(encoder, *map(tf.constant, make_batch([item])), weights)
        for position, token in enumerate(record):
            assert [layer["index"] for layer in token["layers"]] == [0, -1]
            for layer in token["layers"]:
                expected = alone[layer["index"]][0, position]
                np.testing.assert_allclose(layer["values"], expected, atol=2e-5)
                assert all(value == round(value, 6) for value in layer["values"])


def test_values_that_are_not_finite_are_refused(tokenizer):
    model = BertForPreTraining(CONFIG)
    model.bert.embeddings.word[tokenizer.vocab["h"], 0].assign(np.nan)
    weights = ComputeWeights(model.bert.variables, tf.float32)
    inputs = [make_input(text, tokenizer, 16) for text in TEXTS]
    with pytest.raises(UserError, match="line 4: hidden states are not finite"):
        list(extract(inputs, model.bert, weights, tokenizer, [-1], 2))


# ---------------------------------------------------------------------------------------------------- command
def run(files, output, *more):
    given = {"input_file": files / "text.txt", "output_file": output, "vocab_file": files / "vocab.txt"}
    flags = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "bert_tf.extract_features", "--max_seq_length=16", "--layers=-1,-2,0", *flags]
    return subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT)


def google_files(files):
    return f"--bert_config_file={files / 'bert_config.json'}", f"--init_checkpoint={files / 'bert_model.ckpt'}"


def test_features_equal_the_hidden_states_of_transformers(files, tokenizer, tmp_path):
    python = os.environ.get("DEV_PYTHON", str(ROOT / ".venv" / "dev" / "bin" / "python"))
    if not Path(python).exists():
        pytest.skip("transformers' environment is absent: bash scripts/setup.sh dev")
    inputs = [make_input(text, tokenizer, 16) for text in TEXTS]
    names = ("input_ids", "input_mask", "segment_ids")
    np.savez(tmp_path / "in.npz", **dict(zip(names, make_batch(inputs), strict=True)))
    script = Path(__file__).with_name("transformers_forward.py")
    subprocess.run([python, script, files / "hf", tmp_path / "in.npz", tmp_path / "out.npz"], check=True)
    expected = np.load(tmp_path / "out.npz")["hidden_states"]  # [1 + layers, B, S, H], the embeddings first

    old_flags = ("--use_tpu=False", "--num_tpu_cores=8", "--master=", "--nouse_one_hot_embeddings")
    done = run(files, tmp_path / "out.jsonl", "--batch_size=2", *google_files(files), *old_flags)
    assert done.returncode == 0, done.stderr
    assert "initialised 53 of 53 variables" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == list(range(len(TEXTS)))
    for row, (item, line) in enumerate(zip(inputs, lines, strict=True)):
        assert [token["token"] for token in line["features"]] == tokenizer.convert_ids_to_tokens(item.input_ids)
        for index, layer in enumerate((-1, -2, 1)):  # 0 counts from the embeddings there
            found = [token["layers"][index]["values"] for token in line["features"]]
            np.testing.assert_allclose(found, expected[layer, row, : len(found)], atol=1e-4)

    # the same weights in the Hugging Face form, with its own config
    done = run(files, tmp_path / "hf.jsonl", f"--bert_config_file={files / 'hf/config.json'}",
               f"--init_checkpoint={files / 'hf'}", "--batch_size=2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "hf.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_refusals_leave_no_file(files, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCAB, "more"]))
    config = google_files(files)
    for more, words in (
        ([f"--vocab_file={tmp_path / 'vocab.txt'}"], "has 15 lines"),
        (["--max_seq_length=17"], "max_position_embeddings 16"),
    ):
        done = run(files, tmp_path / "out.jsonl", *config, *more)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]
