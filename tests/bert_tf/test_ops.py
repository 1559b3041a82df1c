"""Each fused op against the same formula in plain float64 TensorFlow, values and gradients; by kernels and by XLA."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import kernels, ops

pytestmark = pytest.mark.usefixtures("path")
KEY = ops.DropoutKey(tf.constant(7, tf.uint32), tf.constant(0, tf.uint32))
TOLERANCE = {tf.float32: 2e-6, tf.bfloat16: 2e-2, tf.float16: 3e-3}
DTYPES = list(TOLERANCE)


@pytest.fixture(params=["kernels", "xla"])
def path(request):
    """Runs a test on our kernels and on the functions that XLA compiles."""
    if request.param == "kernels":
        if kernels.library() is None:
            pytest.skip("no kernels here")
        yield
    else:
        with ops.inside_xla():
            yield


def normal(*shape, seed=0, dtype=tf.float32):
    return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def places(batch: int, length: int) -> ops.Places:
    """Of rows without packing."""
    index = np.arange(batch * length, dtype=np.int32)
    return ops.Places(tf.constant(index // length), tf.constant(index % length))


def gradients(function, *inputs, upstream):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = function(*inputs)
    return y, tape.gradient(y, inputs, output_gradients=tf.cast(upstream, y.dtype))


def check(op, reference, *inputs, upstream, dtype):
    """The op on inputs in dtype against the reference on the same (rounded) inputs in float64."""
    y, grads = gradients(op, *inputs, upstream=tf.cast(upstream, dtype))
    exact_inputs = [tf.cast(x, tf.float64) for x in inputs]
    expected, expected_grads = gradients(
        reference, *exact_inputs, upstream=tf.cast(tf.cast(upstream, dtype), tf.float64)
    )
    assert y.dtype == dtype
    for got, want in zip([y, *grads], [expected, *expected_grads], strict=True):
        want, got = want.numpy(), tf.cast(got, tf.float64).numpy()
        scale = max(1.0, np.abs(want).max())
        np.testing.assert_allclose(got / scale, want / scale, atol=TOLERANCE[dtype])


GELU = {
    "tanh": (ops.gelu, lambda x: 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    "exact": (ops.gelu_exact, lambda x: 0.5 * x * (1 + tf.math.erf(x / np.sqrt(2)))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", GELU)
def test_gelu_of_a_sum_with_the_bias(form, dtype):
    op, gelu = GELU[form]
    inputs = 3 * normal(5, 33, dtype=dtype), normal(33, seed=2, dtype=dtype)
    check(op, lambda x, bias: gelu(x + bias), *inputs, upstream=normal(5, 33, seed=1), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_split_heads(dtype):
    batch, length, heads, depth = 3, 5, 2, 4
    x, bias = normal(batch * length, 3 * heads * depth, dtype=dtype), normal(3 * heads * depth, seed=1, dtype=dtype)
    upstream = normal(3, batch, heads, length, depth, seed=2)

    def op(x, bias):
        return tf.stack(ops.split_heads(x, bias, tf.constant(batch), heads))

    def reference(x, bias):
        three = tf.reshape(x + bias, [batch, length, 3, heads, depth])
        return tf.einsum("bstad->tbasd", three)

    check(op, reference, x, bias, upstream=upstream, dtype=dtype)


def layer_norm_reference(x, gamma, beta):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-12) * gamma + beta


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype):
    gamma, beta = 1 + normal(24, seed=1), normal(24, seed=2)
    check(ops.layer_norm, layer_norm_reference, normal(7, 24, dtype=dtype), gamma, beta, upstream=normal(7, 24, seed=3),
          dtype=dtype)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [None, 0.0, 0.1])
def test_add_layer_norm(dtype, rate):
    batch, site = 3, 4
    key, rate = (None, 0.1) if rate is None else (KEY, rate)  # without a key there is no dropout
    x, residual = normal(batch * 5, 24, dtype=dtype), normal(batch * 5, 24, seed=5, dtype=dtype)
    ones, where = tf.ones([batch * 5, 24]), places(batch, 5)
    scale = tf.cast(ops.dropout(ones, where, key, site, rate), tf.float64)

    def op(x, bias, residual, gamma, beta):
        return ops.add_layer_norm(x, bias, residual, gamma, beta, where, key, site, rate)

    def reference(x, bias, residual, gamma, beta):
        return layer_norm_reference(residual + (x + bias) * scale, gamma, beta)

    inputs = (x, normal(24, seed=6, dtype=dtype), residual, 1 + normal(24, seed=1), normal(24, seed=2))
    check(op, reference, *inputs, upstream=normal(batch * 5, 24, seed=3), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_attention_probabilities(dtype, rate):
    shape, site = [2, 3, 6, 6], 9
    bias = tf.constant([[0.0] * 6, [0.0] * 4 + [-10000.0] * 2])[:, None, None, :]
    # Equal scores give every position 1/6, so that what is left shows the factors of dropout.
    where = places(2, 6)
    equal = ops.attention_probabilities(tf.zeros(shape), 0.0 * bias, 0.125, where, KEY, site, rate)
    scale = tf.cast(6 * equal, tf.float64)
    assert rate == 0.0 or set(np.unique(np.round(scale, 4))) == {0.0, 1.1111}

    def op(scores):
        return ops.attention_probabilities(scores, bias, 0.125, where, KEY, site, rate)

    def reference(scores):
        return tf.nn.softmax(scores * 0.125 + tf.cast(bias, tf.float64)) * scale

    check(op, reference, 4 * normal(*shape, dtype=dtype), upstream=normal(*shape, seed=1), dtype=dtype)


def test_padding_changes_no_dropout():
    """The same units are dropped however far a batch is padded: in hidden states and in attention."""
    hidden = [ops.dropout(tf.ones([2 * n, 5]), places(2, n), KEY, 3, 0.3).numpy().reshape(2, n, 5) for n in (6, 8)]
    np.testing.assert_array_equal(hidden[0], hidden[1][:, :6])
    bias = [tf.constant([[0.0] * 6 + [-10000.0] * more] * 2)[:, None, None, :] for more in (0, 2)]
    scores = normal(2, 3, 8, 8)
    p = [ops.attention_probabilities(scores[..., :n, :n], b, 0.5, places(2, n), KEY, 4, 0.3).numpy()
         for n, b in zip((6, 8), bias, strict=True)]  # fmt: skip
    np.testing.assert_allclose(p[0], p[1][..., :6, :6], rtol=1e-6)


def test_padding_gets_no_attention():
    bias = tf.constant([0.0, 0.0, -10000.0])[None, None, None, :]
    p = ops.attention_probabilities(normal(1, 1, 3, 3), bias, 1.0, places(1, 3), None, 0, 0.1)
    assert np.all(p.numpy()[..., 2] == 0) and np.allclose(p.numpy().sum(-1), 1)


# ---------------------------------------------------------------------------------------------------- dropout
def kept(shape, seed, first_row, site, rate=0.1):
    key = ops.DropoutKey(tf.constant(seed, tf.uint32), tf.constant(first_row, tf.uint32))
    return ops.dropout(tf.ones(shape), ops.first_tokens(shape[0]), key, site, rate).numpy() > 0


def test_dropout_keeps_the_expected_share_and_mean():
    x = ops.dropout(tf.ones([64, 4096]), ops.first_tokens(64), KEY, site=0, rate=0.1).numpy()
    # 262,144 draws: the share's standard deviation is 0.0006.
    assert abs((x > 0).mean() - 0.9) < 0.003
    assert set(np.unique(x)) == {np.float32(0), np.float32(1 / 0.9)}


def test_dropout_is_unrelated_between_seeds_sites_rows_and_columns():
    base = kept([64, 4096], 1, 0, 0)
    others = [kept([64, 4096], 2, 0, 0), kept([64, 4096], 1, 0, 1), kept([64, 4096], 1, 64, 0), np.roll(base, 1, 0),
              np.roll(base, 1, 1)]  # fmt: skip
    for other in others:
        correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 0.01  # five standard deviations of independent masks


def test_dropout_depends_on_the_place_in_the_global_batch_only():
    whole = kept([8, 100], 3, 0, 2)
    parts = [kept([2, 100], 3, row, 2) for row in (0, 2, 4, 6)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_without_a_key_there_is_no_dropout():
    x = normal(3, 5)
    assert ops.dropout(x, ops.first_tokens(3), None, 0, 0.5) is x


# ------------------------------------------------------------------------------------------------- special values
BAD = [float("nan"), float("inf"), -float("inf")]


def with_bad(x, place, value):
    x = x.numpy().astype(np.float32)
    x[place] = value
    return x


def visible(*tensors):
    return [not np.all(np.isfinite(tf.cast(t, tf.float32).numpy())) for t in tensors]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("bad", BAD)
def test_what_is_not_finite_stays_so_forward(bad, dtype):
    """So that a run that has gone wrong shows it, and float16's loss scale sees its overflows."""
    x = tf.cast(with_bad(normal(6, 24), (3, 20), bad), dtype)
    bias, gamma, beta = tf.zeros([24], dtype), tf.ones([24]), tf.zeros([24])
    for function in (ops.gelu, ops.gelu_exact):
        y = function(x, bias)
        assert np.argwhere(~np.isfinite(tf.cast(y, tf.float32))).tolist() == [[3, 20]]
    for y in (
        ops.layer_norm(x, gamma, beta),
        ops.add_layer_norm(x, bias, tf.zeros_like(x), gamma, beta, places(2, 3), None, 1, 0.1),
        ops.add_layer_norm(x, bias, tf.zeros_like(x), gamma, beta, places(2, 3), KEY, 1, 0.5),
        ops.add_layer_norm(tf.zeros_like(x), bias, x, gamma, beta, places(2, 3), KEY, 1, 0.5),
    ):
        rows = ~np.isfinite(tf.cast(y, tf.float32)).all(-1)
        assert rows.tolist() == [False, False, False, True, False, False]
    assert all(any(visible(part)) for part in ops.split_heads(tf.concat([x, x, x], 1), tf.zeros([72], dtype), 2, 2))
    assert visible(ops.dropout(x, places(2, 3), KEY, 1, 0.99)) == [True]  # dropped or not
    scores = tf.cast(with_bad(normal(1, 2, 3, 19), (0, 1, 2, 18), abs(bad)), dtype)
    p = ops.attention_probabilities(scores, tf.zeros([1, 1, 1, 19]), 0.5, places(1, 3), None, 1, 0.1)
    assert visible(p[0, 0], p[0, 1, :2], p[0, 1, 2]) == [False, False, True]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("bad", BAD)
def test_what_is_not_finite_stays_so_backward(bad, dtype):
    x, upstream = normal(6, 24, dtype=dtype), tf.cast(with_bad(normal(6, 24, seed=1), (3, 20), bad), dtype)
    bias, gamma, beta = tf.zeros([24], dtype), tf.ones([24]), tf.zeros([24])
    for function in (ops.gelu, ops.gelu_exact):
        assert visible(*gradients(function, x, bias, upstream=upstream)[1]) == [True, True]
    assert visible(*gradients(ops.layer_norm, x, gamma, beta, upstream=upstream)[1]) == [True] * 3

    def add(*inputs):
        return ops.add_layer_norm(*inputs, places(2, 3), KEY, 1, 0.5)

    assert visible(*gradients(add, x, bias, x, gamma, beta, upstream=upstream)[1]) == [True] * 5
    scores, upstream = normal(1, 1, 24, 24, dtype=dtype), tf.tile(upstream, [4, 1])[None, None]

    def attend(scores):
        return ops.attention_probabilities(scores, tf.zeros([1, 1, 1, 24]), 0.5, places(1, 24), KEY, 1, 0.5)

    assert visible(*gradients(attend, scores, upstream=upstream)[1]) == [True]


def test_all_padding_but_one_and_all():
    bias = tf.constant([[-10000.0] * 6 + [0.0], [-10000.0] * 7])[:, None, None, :]
    p = ops.attention_probabilities(tf.zeros([2, 1, 7, 7]), bias, 1.0, places(2, 7), None, 0, 0.1).numpy()
    np.testing.assert_array_equal(p[0], np.eye(7)[None, [6] * 7])
    np.testing.assert_allclose(p[1], 1 / 7, rtol=1e-6)
