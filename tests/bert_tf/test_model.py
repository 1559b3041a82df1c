"""Names, shapes and numbers of the model, the last against transformers' independent BERT."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, huggingface, model
from bert_tf.input_pipeline import Batch
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs" / "bert"
SMALL = model.BertConfig(
    vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=40, type_vocab_size=2,
)  # fmt: skip


def make_batch(config=SMALL, batch=4, length=17, predictions=5, seed=0) -> Batch:
    """Random ids with rows of different lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 2, length + 1, batch)
    lengths[0] = length
    mask = (np.arange(length)[None, :] < lengths[:, None]).astype(np.int32)
    ids = rng.integers(0, config.vocab_size, (batch, length)) * mask
    segments = (np.arange(length)[None, :] > lengths[:, None] // 2) * mask
    positions = np.stack([rng.permutation(length // 2)[:predictions] for _ in range(batch)])
    weights = (rng.random((batch, predictions)) < 0.8).astype(np.float32)
    arrays = (ids, mask, segments, positions, rng.integers(0, config.vocab_size, (batch, predictions)))
    return Batch(*(tf.constant(a, tf.int32) for a in arrays), tf.constant(weights),
                 tf.constant(rng.integers(0, 2, batch), tf.int32))  # fmt: skip


def perturbed_model(config, seed=3):
    """A model whose biases and LayerNorms differ from their initial values, so that none goes untested."""
    bert = model.BertForPreTraining(config, seed)
    rng = np.random.default_rng(seed)
    for variable in bert.variables:
        variable.assign_add(rng.normal(0, 0.05, variable.shape).astype(np.float32))
    return bert


# ------------------------------------------------------------------------------------------------- structure
@pytest.mark.parametrize(
    "name, encoder_variables, encoder_parameters, parameters",
    [("base", 199, 109_482_240, 110_106_428), ("large", 391, 335_141_888, 336_226_108)],
)
def test_variable_counts_of_the_published_models(name, encoder_variables, encoder_parameters, parameters):
    config = model.BertConfig.from_json_file(CONFIGS / f"{name}.json")
    shapes = {model.variable_name(v): v.shape for v in abstract_variables(config)}
    encoder = {k: v for k, v in shapes.items() if k.startswith("bert/")}
    assert len(encoder) == encoder_variables and len(shapes) == encoder_variables + 7
    assert sum(s.num_elements() for s in encoder.values()) == encoder_parameters
    assert sum(s.num_elements() for s in shapes.values()) == parameters
    assert shapes == expected_shapes(config)


def abstract_variables(config):
    """The model's variables built inside a graph, where no memory is spent on their values."""
    with tf.Graph().as_default():
        return model.BertForPreTraining(config).variables


def expected_shapes(config):
    """Google's checkpoint, restated: names and shapes of section 6.3."""
    h, i, v = config.hidden_size, config.intermediate_size, config.vocab_size
    shapes = {
        "bert/embeddings/word_embeddings": [v, h],
        "bert/embeddings/token_type_embeddings": [config.type_vocab_size, h],
        "bert/embeddings/position_embeddings": [config.max_position_embeddings, h],
        "bert/pooler/dense/kernel": [h, h],
        "bert/pooler/dense/bias": [h],
        "cls/predictions/transform/dense/kernel": [h, h],
        "cls/predictions/transform/dense/bias": [h],
        "cls/predictions/output_bias": [v],
        "cls/seq_relationship/output_weights": [2, h],
        "cls/seq_relationship/output_bias": [2],
    }
    norms = ["bert/embeddings", "cls/predictions/transform"]
    for layer in range(config.num_hidden_layers):
        prefix = f"bert/encoder/layer_{layer}"
        for part in ("attention/self/query", "attention/self/key", "attention/self/value", "attention/output/dense"):
            shapes |= {f"{prefix}/{part}/kernel": [h, h], f"{prefix}/{part}/bias": [h]}
        shapes |= {f"{prefix}/intermediate/dense/kernel": [h, i], f"{prefix}/intermediate/dense/bias": [i]}
        shapes |= {f"{prefix}/output/dense/kernel": [i, h], f"{prefix}/output/dense/bias": [h]}
        norms += [f"{prefix}/attention/output", f"{prefix}/output"]
    shapes |= {f"{norm}/LayerNorm/{part}": [h] for norm in norms for part in ("beta", "gamma")}
    return {name: tf.TensorShape(shape) for name, shape in shapes.items()}


def test_initial_values_depend_on_seed_and_name_only():
    a, b, c = (model.BertForPreTraining(SMALL, seed) for seed in (1, 1, 2))
    kernel = "bert/encoder/layer_1/output/dense/kernel"
    values = [{model.variable_name(v): v.numpy() for v in m.variables}[kernel] for m in (a, b, c)]
    assert np.array_equal(values[0], values[1]) and not np.array_equal(values[0], values[2])
    assert np.abs(values[0]).max() <= 2 * SMALL.initializer_range  # truncated at two deviations


# ---------------------------------------------------------------------------------------------------- numbers
def peer_python() -> str:
    path = os.environ.get("DEV_PYTHON", str(ROOT / ".venv" / "dev" / "bin" / "python"))
    if not Path(path).exists():
        pytest.skip("transformers' environment is absent: bash scripts/setup.sh dev")
    return path


@pytest.mark.parametrize("shape", ["small", "base width"])
def test_logits_equal_those_of_transformers(shape, tmp_path):
    config = SMALL if shape == "small" else model.BertConfig(vocab_size=2000, num_hidden_layers=4, type_vocab_size=2)
    python, bert, batch = peer_python(), perturbed_model(config), make_batch(config)
    tensors = {model.variable_name(variable): variable.numpy() for variable in bert.variables}
    huggingface.export(tmp_path / "hf", "pretraining", config, tensors)
    names = ("input_ids", "input_mask", "segment_ids")
    np.savez(tmp_path / "in.npz", **{name: getattr(batch, name).numpy() for name in names})
    script = Path(__file__).with_name("transformers_forward.py")
    subprocess.run([python, script, tmp_path / "hf", tmp_path / "in.npz", tmp_path / "out.npz"], check=True)
    expected = np.load(tmp_path / "out.npz")
    assert expected["missing"].size == 0 and expected["unexpected"].size == 0

    weights = ComputeWeights(bert.variables, tf.float32)
    sequence = bert.bert(batch.input_ids, batch.input_mask, batch.segment_ids, weights)
    logits = bert(batch, weights)
    mask = batch.input_mask.numpy().astype(bool)  # what attention leaves in padding is nobody's business
    np.testing.assert_allclose(sequence.numpy()[mask], expected["last_hidden_state"][mask], atol=1e-4)
    at_masks = np.take_along_axis(expected["prediction_logits"], batch.masked_lm_positions.numpy()[..., None], axis=1)
    np.testing.assert_allclose(logits.masked_lm.numpy().reshape(at_masks.shape), at_masks, atol=1e-4)
    np.testing.assert_allclose(logits.next_sentence.numpy(), expected["seq_relationship_logits"], atol=1e-4)


def test_google_checkpoint_loads_by_name(shared):
    folder = shared / "data" / "truth_tiny_bert_tf1"
    config = model.BertConfig.from_json_file(folder / "bert_config.json")
    bert = model.BertForPreTraining(config)
    report = checkpoint.load_weights(bert.variables, folder / "bert_model.ckpt")
    assert len(report.matched) == len(bert.variables) == 5 + 16 * 2 + 2 + 7
    assert not report.missing and not report.unused and report.slots_ignored
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    for variable in bert.variables:
        assert np.array_equal(variable.numpy(), reader.get_tensor(model.variable_name(variable)))


@pytest.mark.parametrize("dtype, tolerance", [(tf.bfloat16, 0.1), (tf.float16, 0.02)])
def test_reduced_precision_stays_close(dtype, tolerance):
    bert, batch = perturbed_model(SMALL), make_batch()
    exact = bert(batch, ComputeWeights(bert.variables, tf.float32))
    rough = bert(batch, ComputeWeights(bert.variables, dtype))
    for a, b in zip(exact, rough, strict=True):
        assert b.dtype == tf.float32
        assert np.abs(a - b).max() < tolerance * np.abs(a).max()


def test_padding_does_not_change_a_sequence():
    bert = perturbed_model(SMALL)
    weights = ComputeWeights(bert.variables, tf.float32)
    batch = make_batch(batch=1, length=12)
    longer = Batch(*(tf.pad(t, [[0, 0], [0, 9]]) for t in batch[:3]), *batch[3:7])
    for short, long in zip(bert(batch, weights), bert(longer, weights), strict=True):
        np.testing.assert_allclose(short, long, atol=2e-5)


# ---------------------------------------------------------------------------------------------------- config
def write_config(tmp_path, **changes):
    values = json.loads((CONFIGS / "tiny.json").read_text()) | changes
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return path


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hiden_size": 3}, ["hiden_size"]),
        ({"vocab_size": None}, ["vocab_size", "missing"]),
        ({"hidden_size": "128"}, ["hidden_size", "int"]),
        ({"num_attention_heads": 3}, ["128", "3"]),
        ({"hidden_act": "swish"}, ["swish", "gelu"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "positive"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob", "below 1"]),
        ({"attention_probs_dropout_prob": -0.5}, ["attention_probs_dropout_prob", "-0.5"]),
    ],
)
def test_config_errors_name_file_and_key(tmp_path, changes, words):
    path = write_config(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        model.BertConfig.from_json_file(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_config_of_google_with_pooler_keys_is_accepted(tmp_path):
    path = write_config(tmp_path, directionality="bidi", pooler_fc_size=768)
    assert model.BertConfig.from_json_file(path).hidden_size == 128


def test_without_a_seed_nothing_is_drawn():
    config = model.BertConfig(11, 8, 1, 2, 12, max_position_embeddings=8, type_vocab_size=2)
    bert = model.BertForPreTraining(config, seed=None)
    for variable in bert.variables:
        assert np.all(variable == (1 if "gamma" in variable.name else 0)), variable.name
