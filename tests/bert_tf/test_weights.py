"""Copies of the weights in the compute dtype: of which masters, side by side, renewed, and their gradients."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import model
from bert_tf.weights import ComputeWeights

CONFIG = model.BertConfig(
    vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=8, type_vocab_size=2,
)  # fmt: skip


def build(dtype, **options):
    bert = model.BertForPreTraining(CONFIG, seed=1)
    return bert, ComputeWeights(bert.variables, dtype, **options)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_values_are_the_masters(dtype):
    _, weights = build(dtype)
    for variable in weights.masters:
        expected = variable if "LayerNorm" in variable.name else tf.cast(variable, dtype)
        assert weights(variable).dtype == expected.dtype
        np.testing.assert_array_equal(tf.cast(weights(variable), tf.float32), tf.cast(expected, tf.float32))


@pytest.mark.parametrize("dtype,join", [(tf.float32, False), (tf.float32, True), (tf.bfloat16, False)])
def test_joined_values_lie_side_by_side_and_are_renewed(dtype, join):
    bert, weights = build(dtype, join=join)
    layer = bert.bert.layers[0]
    three = [layer.query, layer.key, layer.value]
    for value in (None, 0.5):
        if value is not None:
            weights.refresh(layer.key.kernel, tf.fill([8, 8], value))
            weights.refresh(layer.value.bias, tf.fill([8], 2 * value))
        for part in ("kernel", "bias"):
            variables = [getattr(dense, part) for dense in three]
            expected = tf.concat([tf.cast(v, dtype) for v in variables], -1)
            np.testing.assert_array_equal(weights.joined(variables), expected)
    layer.query.kernel.assign(tf.ones([8, 8]))
    weights.refresh_all()
    np.testing.assert_array_equal(weights(layer.query.kernel), tf.ones([8, 8], dtype))


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_gradients_reach_the_masters(dtype):
    """Of a joined product, of a table that is looked up and multiplied, and of a LayerNorm."""
    bert, weights = build(dtype)
    layer, table = bert.bert.layers[0], bert.bert.embeddings.word
    kernels = [layer.query.kernel, layer.key.kernel, layer.value.kernel]
    others = [v for v in weights.masters if all(v is not used for used in [*kernels, table, layer.output_norm.gamma])]
    ids = tf.constant([3, 3, 5])
    with tf.GradientTape() as tape:
        weights.watch(tape)
        x = tf.cast(weights.lookup(table, ids), dtype)
        y = tf.cast(tf.matmul(x, weights.joined(kernels)), tf.float32)
        scores = tf.cast(tf.matmul(x, weights(table), transpose_b=True), tf.float32)
        loss = tf.reduce_sum(tf.square(y)) + tf.reduce_sum(tf.square(scores))
        loss += tf.reduce_sum(weights(layer.output_norm.gamma))
        loss += tf.add_n([tf.reduce_sum(tf.cast(weights(v), tf.float32)) for v in others])
    found = {
        v.ref(): tf.cast(g, tf.float32) for v, g in zip(weights.masters, weights.gradients(loss, tape), strict=True)
    }

    with tf.GradientTape() as tape:
        x = tf.gather(table, ids)
        loss = tf.reduce_sum(tf.square(tf.matmul(x, tf.concat(kernels, -1))))
        loss += tf.reduce_sum(tf.square(tf.matmul(x, table, transpose_b=True)))
    expected = tape.gradient(loss, [*kernels, table])
    tolerance = 1e-6 if dtype == tf.float32 else 2e-3
    for variable, want in zip([*kernels, table], expected, strict=True):
        np.testing.assert_allclose(found[variable.ref()], tf.convert_to_tensor(want), atol=tolerance)
    np.testing.assert_array_equal(found[layer.output_norm.gamma.ref()], np.ones(8))
    assert all(np.all(found[v.ref()] == 1) for v in others)


def test_float32_copies_are_of_what_one_product_reads():
    _, weights = build(tf.float32, join=True)
    copied = [model.variable_name(v) for v in weights.masters if weights.copy_of(v)]
    assert len(copied) == 6 and all("/attention/self/" in name for name in copied)
    assert not any(weights.copy_of(v) for v in build(tf.float32)[1].masters)


def test_products_read_the_values_that_are_held():
    for dtype in (tf.float32, tf.bfloat16):
        bert, weights = build(dtype)
        layer = bert.bert.layers[0]
        sources = weights.sources(layer.variables)
        assert len(sources) == (len(layer.variables) if dtype == tf.float32 else len(layer.variables) - 4)
        held = weights.holding(sources, [tf.ones_like(source) * 7 for source in sources])
        for variable in layer.variables:
            assert np.all(tf.cast(held(variable), tf.float32) == 7) and not np.all(weights(variable) == 7)
        assert np.all(tf.cast(held.joined([layer.query.kernel, layer.key.kernel, layer.value.kernel]), tf.float32) == 7)


def test_a_master_that_takes_no_part_is_named():
    _, weights = build(tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights(weights.masters[0]))
    with pytest.raises(ValueError, match="takes no part"):
        weights.gradients(loss, tape)
