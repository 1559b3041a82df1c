"""NVLAMB and Adam against the formulas restated in NumPy (float64), and the edges of the published recipe."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import kernels
from bert_tf.optimization import (
    adam_update,
    canonical_name,
    clip_by_global_norm,
    clip_factor,
    create_optimizer,
    excluded_from_decay,
    global_norm,
    nvlamb_update,
    trust_ratio,
)
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError


@pytest.fixture(params=["kernels", "xla"])
def implementation(request, monkeypatch):
    """Both implementations of the update of all variables, one after the other."""
    if request.param == "xla":
        monkeypatch.setattr(kernels, "library", lambda: None)
    elif kernels.library() is None:
        pytest.skip("no kernels here")


def numpy_step(kind, w, m, v, g, t, lr, decay):
    """One step of either optimizer in float64, t from 1; the whole recipe in a dozen lines."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    if kind == "lamb":
        u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
        w_norm, u_norm = np.sqrt(np.sum(w * w)), np.sqrt(np.sum(u * u))
        ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
    else:
        u = m / (np.sqrt(v) + 1e-6) + decay * w
        ratio = 1.0
    return w - lr * ratio * u, m, v


UPDATES = {"lamb": nvlamb_update, "adam": adam_update}


@pytest.mark.parametrize("kind", ["lamb", "adam"])
@pytest.mark.parametrize("decay", [0.01, 0.0])
@pytest.mark.parametrize(
    ("weights", "gradients", "tolerance"),
    [(tf.float64, tf.float64, 1e-13), (tf.float32, tf.float32, 2e-6), (tf.float32, tf.bfloat16, 2e-6),
     (tf.float32, tf.float16, 2e-6)],
)  # fmt: skip
def test_three_steps_equal_numpy(kind, decay, weights, gradients, tolerance):
    random = np.random.default_rng(0)
    w = random.normal(size=(7, 5)) * 0.05
    state = [tf.constant(w, weights), tf.zeros([7, 5], weights), tf.zeros([7, 5], weights)]
    twin = [tf.cast(state[0], tf.float64).numpy(), np.zeros((7, 5)), np.zeros((7, 5))]
    for t in (1, 2, 3):
        g = tf.cast(tf.constant(random.normal(size=(7, 5)) * 1e-3), gradients)
        lr = 1e-2 * t
        state = UPDATES[kind](*state, g, tf.constant(t, tf.int64), tf.constant(lr, weights), decay)
        twin = numpy_step(kind, *twin, tf.cast(g, tf.float64).numpy(), t, lr, decay)
        for ours, reference in zip(state, twin, strict=True):
            assert ours.dtype == weights
            np.testing.assert_allclose(ours.numpy(), reference, rtol=tolerance, atol=tolerance * 1e-2)


def test_first_nvlamb_step_by_hand():
    # t = 1: m_hat = g and v_hat = g^2, so u = g / (|g| + 1e-6) + 0.01 w = (1, -1) + (0.03, 0.04), nearly
    w, g = tf.constant([3.0, 4.0], tf.float64), tf.constant([0.5, -0.25], tf.float64)
    zero = tf.zeros_like(w)
    new, m, v = nvlamb_update(w, zero, zero, g, tf.constant(1), tf.constant(0.1, tf.float64), 0.01)
    ratio = 5.0 / np.hypot(1.03, -0.96)
    np.testing.assert_allclose(new, [3.0 - 0.1 * ratio * 1.03, 4.0 + 0.1 * ratio * 0.96], rtol=1e-5)
    np.testing.assert_allclose(m, [0.05, -0.025])
    np.testing.assert_allclose(v, [0.00025, 0.0000625])


def test_first_adam_step_by_hand():
    # no bias correction: m / sqrt(v) = 0.1 g / sqrt(0.001 g^2) = +-sqrt(10)
    w, g = tf.constant([3.0, 4.0], tf.float64), tf.constant([0.5, -0.25], tf.float64)
    zero = tf.zeros_like(w)
    new, _, _ = adam_update(w, zero, zero, g, tf.constant(1), tf.constant(0.1, tf.float64), 0.0)
    np.testing.assert_allclose(new, [3.0 - 0.1 * 10**0.5, 4.0 + 0.1 * 10**0.5], rtol=1e-4)


def test_epsilon_is_outside_the_root():
    # g = 1e-6 and t = 1: u = 1e-6 / (1e-6 + 1e-6) = 1/2; inside the root it would be about 0.001
    zero = tf.zeros([1], tf.float64)
    one = tf.constant(1.0, tf.float64)
    new, _, _ = nvlamb_update(zero, zero, zero, zero + 1e-6, tf.constant(1), one, 0.0)
    np.testing.assert_allclose(new, [-0.5], rtol=1e-12)


def test_first_update_at_learning_rate_zero_is_finite_and_moves_nothing():
    # the published code divides by 1 - beta^0 here
    w = tf.constant([1.0, 2.0])
    for update in UPDATES.values():
        new, m, v = update(w, tf.zeros(2), tf.zeros(2), tf.constant([1.0, 1.0]), tf.constant(1), 0.0, 0.01)
        np.testing.assert_array_equal(new, w)
        assert np.isfinite(m).all() and np.isfinite(v).all()


def test_trust_ratio_edges():
    one, zero = tf.constant([3.0, 4.0]), tf.zeros(2)
    assert trust_ratio(one, tf.constant([0.0, 2.0])) == 2.5
    assert trust_ratio(zero, one) == 1.0  # weight still zero: a full step
    assert trust_ratio(one, zero) == 1.0  # nothing to do
    assert trust_ratio(zero, zero) == 1.0
    assert trust_ratio(one, tf.constant([np.nan, 1.0])) == 1.0  # comparisons with NaN are false, as published


def test_zero_bias_takes_a_full_adam_step():
    zero = tf.zeros([2], tf.float64)
    g = tf.constant([1.0, -1.0], tf.float64)
    new, _, _ = nvlamb_update(zero, zero, zero, g, tf.constant(1), tf.constant(0.1, tf.float64), 0.0)
    np.testing.assert_allclose(new, [-0.1, 0.1], rtol=1e-5)


def test_decay_exclusion():
    decayed = ["bert/embeddings/word_embeddings", "bert/encoder/layer_0/output/dense/kernel",
               "bert/embeddings/position_embeddings", "cls/seq_relationship/output_weights"]  # fmt: skip
    excluded = ["bert/embeddings/LayerNorm/gamma", "bert/encoder/layer_0/output/dense/bias",
                "x/layer_norm/beta", "cls/predictions/output_bias"]  # fmt: skip
    assert not any(map(excluded_from_decay, decayed))
    assert all(map(excluded_from_decay, excluded))


def test_global_norm_and_clipping(implementation):
    gradients = [tf.constant([3.0, 0.0]), tf.constant([[4.0]]), tf.constant([12.0], tf.float16)]
    assert global_norm(gradients) == 13.0
    clipped, norm = clip_by_global_norm(gradients)
    assert norm == 13.0
    np.testing.assert_allclose(clipped[1], [[4.0 / 13.0]], rtol=1e-6)
    assert clipped[2].dtype == tf.float16
    small, _ = clip_by_global_norm([tf.constant([0.6, -0.8])])
    np.testing.assert_array_equal(small[0], np.float32([0.6, -0.8]))
    assert clip_factor(tf.constant(0.0)) == 1.0
    assert clip_factor(tf.constant(4.0), max_norm=2.0) == 0.5


def test_global_norm_of_float16_does_not_overflow(implementation):
    norm = global_norm([tf.fill([10000], tf.constant(60000.0, tf.float16))])
    np.testing.assert_allclose(norm, 60000.0 * 100, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_global_norm_is_a_finite_check(bad, implementation):
    assert not tf.math.is_finite(global_norm([tf.zeros(3), tf.constant([1.0, bad])]))
    assert tf.math.is_finite(global_norm([tf.zeros(3)]))


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_global_norm_of_any_size(dtype, implementation):
    random = np.random.default_rng(4)
    sizes = (0, 1, 15, 17, 63, 65, 16383, 16385, 50001)
    gradients = [tf.cast(np.float32(random.normal(size=size)), dtype) for size in sizes]
    squares = [np.sum(np.square(tf.cast(g, tf.float64))) for g in gradients]
    np.testing.assert_allclose(global_norm(gradients), np.sqrt(sum(squares)), rtol=1e-6)


SHAPES = {"bert/a/kernel": (4, 3), "bert/a/bias": (3,), "bert/LayerNorm/gamma": (3,)}
# Around the sizes of a vector, of four and of the kernels' blocks; a scalar; nothing; query, key and value of a layer,
# whose copies lie side by side.
ODD_SHAPES = {
    **{f"bert/{size}/kernel": (size,) for size in (1, 7, 15, 16, 17, 63, 65, 127)},
    **{f"bert/{rows}/kernel": (rows, columns) for rows, columns in ((129, 127), (128, 128), (77, 641), (32771, 1))},
    "bert/scalar/bias": (),
    "bert/empty/kernel": (0, 3),
    **{f"bert/encoder/layer_0/attention/self/{part}/kernel": (150, 113) for part in ("query", "key", "value")},
    **{f"bert/encoder/layer_0/attention/self/{part}/bias": (113,) for part in ("query", "key", "value")},
    "bert/LayerNorm/gamma": (19,),
}


def make_variables(shapes=SHAPES):
    random = np.random.default_rng(1)
    return [tf.Variable(np.float32(random.normal(size=shape)), name=name) for name, shape in shapes.items()]


@pytest.mark.parametrize("kind", ["lamb", "adam"])
@pytest.mark.parametrize("gradient_dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("shapes", [SHAPES, ODD_SHAPES], ids=["few", "odd"])
def test_optimizer_walks_all_variables(kind, gradient_dtype, shapes, implementation):
    variables = make_variables(shapes)
    twins = [[v.numpy().astype(np.float64), np.zeros(v.shape), np.zeros(v.shape)] for v in variables]
    decays = [0.01 if "kernel" in name else 0.0 for name in shapes]
    optimizer = create_optimizer(kind.upper(), variables)
    step = tf.function(optimizer.apply)
    random = np.random.default_rng(2)
    for t in (1, 2, 3):
        gradients = [tf.cast(np.float32(random.normal(size=v.shape)), gradient_dtype) for v in variables]
        step(gradients, tf.constant(0.01), tf.constant(0.25))
        for twin, g, decay in zip(twins, gradients, decays, strict=True):
            twin[:] = numpy_step(kind, *twin, 0.25 * tf.cast(g, tf.float64).numpy(), t, 0.01, decay)
    assert int(optimizer.step) == 3
    for i, (name, twin) in enumerate(zip(shapes, twins, strict=True)):
        np.testing.assert_allclose(variables[i], twin[0], rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(optimizer.m[i], twin[1], rtol=1e-5, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(optimizer.v[i], twin[2], rtol=1e-5, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("kind", ["lamb", "adam"])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float32])
def test_copies_follow_the_weights(kind, dtype, implementation):
    """Exactly: a copy is the rounded weight, in columns of a joined one too, and nothing beside it is touched."""
    shapes = {name: shape for name, shape in ODD_SHAPES.items() if shape}
    variables = make_variables(shapes)
    weights = ComputeWeights(variables, dtype)
    optimizer = create_optimizer(kind, variables)
    before = [v.numpy() for v in variables]
    optimizer.apply([tf.ones_like(v) for v in variables], tf.constant(0.1), weights=weights)
    for variable, old in zip(variables, before, strict=True):
        assert old.size == 0 or np.all(variable.numpy() != old)
        expected = variable if "LayerNorm" in variable.name else tf.cast(variable, dtype)
        np.testing.assert_array_equal(weights(variable), expected, err_msg=variable.name)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_rounding_of_copies(dtype, implementation):
    """The weight of a step of length zero, rounded as TensorFlow does: ties, subnormals, beyond the largest."""
    values = np.random.default_rng(3).integers(0, 2**32, 100000, np.uint32).view(np.float32)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    more = np.float32([65519.0, 65520.0, 1e-7, 3e-8, 2e-8])
    values = np.concatenate([values, halves, (halves[1:] + halves[:-1]) / 2, more])
    values = values[np.isfinite(values) & (np.abs(values) > 1e-37)]
    variable = tf.Variable(values, name="a/kernel")
    weights = ComputeWeights([variable], dtype)
    create_optimizer("adam", [variable]).apply([tf.zeros_like(variable)], tf.constant(0.0), weights=weights)
    np.testing.assert_array_equal(variable, values)
    np.testing.assert_array_equal(weights(variable), tf.cast(values, dtype))


def test_float16_gradients_are_read_exactly(implementation):
    g = np.arange(2**16, dtype=np.uint16).view(np.float16)
    g = g[np.isfinite(g)]
    variable = tf.Variable(tf.zeros(len(g)), name="a/kernel")
    optimizer = create_optimizer("adam", [variable])
    optimizer.apply([tf.constant(g)], tf.constant(0.1))
    np.testing.assert_allclose(optimizer.m[0], 0.1 * g.astype(np.float64), rtol=1e-6)


def test_values_that_were_read_before_stay(implementation):
    """A snapshot, as a checkpoint takes it, keeps its values though the update writes in place."""
    variables = make_variables()
    weights = ComputeWeights(variables, tf.bfloat16)
    optimizer = create_optimizer("lamb", variables)
    ones = [tf.ones_like(v) for v in variables]
    optimizer.apply(ones, tf.constant(0.1), weights=weights)
    read = [tf.convert_to_tensor(v) for v in (*variables, *optimizer.m, *optimizer.v)] + [weights(variables[0])]
    before = [value.numpy().copy() for value in read]
    tf.gather(variables[0], [0])  # after which TensorFlow reads it otherwise
    optimizer.apply(ones, tf.constant(0.1), weights=weights)
    for value, old in zip(read, before, strict=True):
        np.testing.assert_array_equal(value, old)
    assert np.all(variables[0] != before[0])


def test_weights_of_zero_and_gradients_of_zero(implementation):
    variables = [tf.Variable(value, name=f"{name}/bias") for name, value in (("a", [0.0, 0.0]), ("b", [3.0, 4.0]))]
    optimizer = create_optimizer("lamb", variables)
    optimizer.apply([tf.constant([1.0, -1.0]), tf.zeros(2)], tf.constant(0.1))
    np.testing.assert_allclose(variables[0], [-0.1, 0.1], rtol=1e-5)  # trust ratio 1
    np.testing.assert_array_equal(variables[1], [3.0, 4.0])


def test_skipping_moves_nothing(implementation):
    variables = make_variables()
    optimizer = create_optimizer("lamb", variables)

    @tf.function
    def train_step(gradients):
        finite = tf.math.is_finite(global_norm(gradients))
        if finite:
            optimizer.apply(gradients, tf.constant(0.1))
        return finite

    ones = [tf.ones_like(v) for v in variables]
    assert train_step(ones)
    before = [v.numpy() for v in (*variables, *optimizer.slots.values(), optimizer.step)]
    assert not train_step([ones[0] * np.nan, *ones[1:]])
    after = [v.numpy() for v in (*variables, *optimizer.slots.values(), optimizer.step)]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_slots_have_the_published_names_in_any_scope():
    variables = make_variables()
    with tf.name_scope("somewhere"):
        optimizer = create_optimizer("adam", variables)
    names = ("bert/a/kernel", "bert/a/bias", "bert/LayerNorm/gamma")
    assert set(optimizer.slots) == {f"{name}/adam_{moment}" for name in names for moment in "mv"}
    assert optimizer.step.name == "global_step:0" and optimizer.step.dtype == tf.int64
    assert all(slot.dtype == tf.float32 and not np.any(slot) for slot in optimizer.slots.values())


def test_wrong_number_of_gradients_is_an_error():
    variables = make_variables()
    with pytest.raises(ValueError, match="1 gradients of 3 variables"):
        create_optimizer("lamb", variables).apply([tf.ones_like(variables[0])], tf.constant(0.1))
    with pytest.raises(ValueError, match="share names"):
        create_optimizer("lamb", [*variables, variables[0]])


def test_optimizer_names():
    assert [canonical_name(n) for n in ("lamb", "LAMB", "NVLamb", "nvlamb", "adam", "ADAM", "Adam")] == [
        "lamb", "lamb", "lamb", "lamb", "adam", "adam", "adam"]  # fmt: skip
    for wrong in ("adamw", "sgd", "", "lamb "):
        with pytest.raises(UserError, match="lamb, adam, nvlamb"):
            canonical_name(wrong)
