"""The kernels: the same as XLA's functions in any shape, on any number of threads, on older processors; their build."""

import platform
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import kernels, ops
from bert_tf.optimization import create_optimizer, global_norm
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
KEY = ops.DropoutKey(tf.constant(11, tf.uint32), tf.constant(3, tf.uint32))
needs_kernels = pytest.mark.skipif(kernels.library() is None, reason="no kernels here")


def normal(*shape, seed, dtype):
    return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def places(batch: int, length: int) -> ops.Places:
    """Of rows without packing."""
    index = np.arange(batch * length, dtype=np.int32)
    return ops.Places(tf.constant(index // length), tf.constant(index % length))


def every_op(batch: int, length: int, heads: int, depth: int, dtype: tf.DType) -> dict[str, np.ndarray]:
    """Values and gradients of all ops at one shape, as float32."""
    rows, size, where = batch * length, heads * depth, places(batch, length)
    draw = iter(range(1000))

    def x(*shape):
        return normal(*shape, seed=next(draw), dtype=dtype)

    gamma, beta = (normal(size, seed=seed, dtype=tf.float32) for seed in (100, 101))
    mask = tf.where(tf.range(length) < tf.range(batch)[:, None] + 1, 0.0, -10000.0)[:, None, None, :]
    hidden, wide = (x(rows, size), x(size)), (2 * x(rows, 3 * size), x(3 * size))
    of_sum = (*hidden, x(rows, size), gamma, beta)
    scores = (3 * x(batch, heads, length, length),)
    cases = {
        "gelu": (ops.gelu, wide),
        "gelu_exact": (ops.gelu_exact, wide),
        "layer_norm": (ops.layer_norm, (hidden[0], gamma, beta)),
        "split_heads": (lambda *t: tf.stack(ops.split_heads(*t, tf.constant(batch), heads)), wide),
        "dropout": (lambda t: ops.dropout(t, where, KEY, 1, 0.3), (x(rows, size),)),
    }
    for name, key in (("", None), (" with dropout", KEY)):
        cases["add_layer_norm" + name] = (
            lambda *t, key=key: ops.add_layer_norm(*t, where, key, 2, 0.3),
            of_sum,
        )
        cases["attention" + name] = (
            lambda t, key=key: ops.attention_probabilities(t, mask, 0.3, where, key, 3, 0.3),
            scores,
        )
    results = {}
    lengths = np.maximum(1, length - 3 * np.arange(batch, dtype=np.int32))  # of sequences in rows of `length` tokens
    beyond = np.arange(length) >= lengths[:, None]
    example = np.where(beyond, -1, np.arange(batch)[:, None]).astype(np.int32)
    packing = ops.Packing(
        tf.constant(example),
        tf.constant(np.where(beyond, 0, np.arange(length)).astype(np.int32)),
        tf.constant(np.arange(batch, dtype=np.int32) * length),
        tf.constant(lengths),
    )
    layout = ops.layout(tf.constant((~beyond).astype(np.int32)), packing, dtype)
    real = tf.constant(~beyond.reshape(-1, 1), tf.float32)
    for name, key in (("", None), (" with dropout", KEY)):
        cases["packed attention" + name] = (
            lambda *t, key=key: ops.attention(*t, layout, heads, key, 3, 0.3) * tf.cast(real, dtype),
            (x(rows, 3 * size), x(3 * size)),
        )
    for name, (function, inputs) in cases.items():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = function(*inputs)
        upstream = normal(*y.shape, seed=200, dtype=dtype)
        for i, tensor in enumerate([y, *tape.gradient(y, inputs, output_gradients=upstream)]):
            results[f"{name} {i}"] = tf.cast(tensor, tf.float32).numpy()
    return results


def updates() -> dict[str, np.ndarray]:
    """Two updates of variables of several blocks by each optimizer, in each dtype of gradients and copies."""
    results = {}
    for kind in ("lamb", "adam"):
        for dtype in (tf.float32, tf.bfloat16, tf.float16):
            names = [f"bert/encoder/layer_0/attention/self/{part}/kernel" for part in ("query", "key", "value")]
            variables = [tf.Variable(normal(301, 333, seed=i, dtype=tf.float32), name=n) for i, n in enumerate(names)]
            weights, optimizer = ComputeWeights(variables, dtype), create_optimizer(kind, variables)
            gradients = [normal(301, 333, seed=10 + i, dtype=dtype) for i in range(3)]
            for _ in range(2):
                optimizer.apply(gradients, tf.constant(0.1), tf.constant(0.3), weights)
            found = {"norm": global_norm(gradients), "copies": weights.joined(variables), **optimizer.slots}
            found.update({v.name: v for v in variables})
            results.update({f"{kind} {dtype.name} {k}": tf.cast(v, tf.float32).numpy() for k, v in found.items()})
    return results


@needs_kernels
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 3, 8), (2, 7, 3, 11), (5, 40, 2, 33)])
def test_the_same_as_by_xla(shape, dtype):
    """Values, gradients and dropped units; none of the sizes need be a multiple of the vectors'."""
    with ops.inside_xla():
        expected = every_op(*shape, dtype)
    got = every_op(*shape, dtype)
    for name, want in expected.items():
        scale = max(1.0, np.abs(want).max())
        tolerance = 2e-5 if dtype == tf.float32 else 2e-2
        np.testing.assert_allclose(got[name] / scale, want / scale, atol=tolerance, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_gelu_far_out(dtype):
    x = tf.constant([[-3e38, -1e12, -50.0, -12.0, -0.0, 0.0, 12.0, 50.0, 1e12, 3e38]], dtype)
    for function in (ops.gelu, ops.gelu_exact):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, tf.zeros([10], dtype))
        np.testing.assert_allclose(tf.cast(y, tf.float64), tf.cast(tf.nn.relu(x), tf.float64), atol=1e-6)
        slope = tf.cast(tape.gradient(y, x)[0], tf.float64)
        np.testing.assert_allclose(slope, [0] * 4 + [0.5] * 2 + [1] * 4, atol=1e-6)


@needs_kernels
def test_dropped_units_are_the_same():
    def masks():
        hidden = ops.dropout(tf.ones([4, 5000]), ops.first_tokens(4), KEY, 9, 0.1)
        # A residual of zero and a branch of ones: what is kept is above the mean, what is dropped below it.
        rows = tf.ones([4 * 7, 300])
        zeros, ones = tf.zeros([300]), tf.ones([300])
        normed = ops.add_layer_norm(rows, zeros, tf.zeros_like(rows), ones, zeros, places(4, 7), KEY, 8, 0.1) > 0
        equal, mask = tf.zeros([4, 12, 37, 37]), tf.zeros([4, 1, 1, 37])
        scores = ops.attention_probabilities(equal, mask, 1.0, places(4, 37), KEY, 7, 0.1) > 0
        return [hidden.numpy(), normed.numpy(), scores.numpy()]

    with ops.inside_xla():
        expected = masks()
    for got, want in zip(masks(), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@needs_kernels
def test_shapes_that_are_not_known_beforehand():
    seen = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 24]), tf.TensorSpec([], tf.int32)])
    def function(x, batch):
        three = ops.split_heads(x, tf.zeros([24]), batch, 2)
        scores = tf.matmul(three[0], three[1], transpose_b=True)
        mask = tf.zeros([batch, 1, 1, tf.shape(x)[0] // batch])
        length = tf.shape(x)[0] // batch
        where = ops.Places(tf.range(tf.shape(x)[0]) // length, tf.range(tf.shape(x)[0]) % length)
        p = ops.attention_probabilities(scores, mask, 1.0, where, KEY, 1, 0.1)
        zeros, ones = tf.zeros([24]), tf.ones([24])
        y = ops.add_layer_norm(x, zeros, ops.gelu(x, zeros), ones, zeros, where, KEY, 2, 0.1)
        seen.extend(tensor.shape.as_list() for tensor in (three[0], p, y))
        return p, y

    for batch, length in ((2, 3), (3, 7)):
        p, y = function(tf.ones([batch * length, 24]), tf.constant(batch))
        assert p.shape == [batch, 2, length, length] and y.shape == [batch * length, 24]
    assert seen == [[None, 2, None, 4], [None, 2, None, None], [None, 24]]


@needs_kernels
def test_an_empty_batch():
    y, *_ = every_op(0, 3, 2, 4, tf.float32).values()
    assert y.shape == (0, 24)


@needs_kernels
def test_shapes_that_do_not_fit():
    x = tf.ones([6, 24])
    with pytest.raises(tf.errors.InvalidArgumentError, match="6 rows are not 4 examples of equal length"):
        ops.split_heads(x, tf.zeros([24]), tf.constant(4), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="input 1 has 23 elements, expected 24"):
        ops.gelu(x, tf.zeros([23]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="input 1 has 3 elements, expected 6"):
        ops.attention_probabilities(tf.ones([2, 1, 3, 3]), tf.zeros([1, 1, 1, 3]), 1.0, places(2, 3), None, 1, 0.1)


@needs_kernels
@pytest.mark.parametrize("starts, lengths", [([0, 2], [3, 3]), ([0, 3], [3, 4]), ([-1], [2]), ([4], [-1])])
def test_sequences_that_overlap_or_lie_outside(starts, lengths):
    nowhere = tf.zeros([6], tf.int32)
    layout = ops.Layout(ops.Places(nowhere, nowhere), nowhere, None, tf.constant(starts), tf.constant(lengths))
    with pytest.raises(tf.errors.InvalidArgumentError, match="overlaps another or lies outside of 6"):
        ops.attention(tf.ones([6, 24]), tf.zeros([24]), layout, 2, None, 1, 0.1)


@needs_kernels
def test_an_update_that_does_not_fit():
    def step(gradient, copy=None, column=0):
        state = [[tf.Variable(tf.ones([4, 3])).handle] for _ in range(3)]
        copies = [] if copy is None else [tf.Variable(copy)]
        kernels.library().bert_optimizer_step(
            *state, [c.handle for c in copies], [gradient], 0.1, 1.0, 1.0, 1.0,
            decay=[0.0], copy=[len(copies) - 1], column=[column],
            keep1=0.9, take1=0.1, keep2=0.9, take2=0.1, epsilon=1e-6, trust_ratio=True,
        )  # fmt: skip

    step(tf.ones([4, 3]), tf.ones([4, 6], tf.bfloat16), 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"float32 of the gradient's shape \[3,4\]"):
        step(tf.ones([3, 4]))
    wrong = [(tf.ones([4, 6], tf.bfloat16), 4), (tf.ones([3, 6], tf.bfloat16), 0), (tf.ones([4, 3]), 0),
             (tf.ones([12], tf.bfloat16), 0), (tf.ones([4, 6], tf.bfloat16), -1)]  # fmt: skip
    for copy, column in wrong:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"weight 0 of shape \[4,3\] .* does not fit"):
            step(tf.ones([4, 3]), copy, column)


@needs_kernels
def test_inside_xla_there_are_no_kernels():
    def names(compiled):
        def function(x):
            with ops.inside_xla(compiled):
                return ops.gelu(x, tf.zeros([4]))

        graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([None, 4])).graph
        return {operation.type for operation in graph.get_operations()}

    assert "BertGelu" in names(False) and "BertGelu" not in names(True)


# ------------------------------------------------------------------------------------------------ other processes
_SCRIPT = """
import sys
from pathlib import Path
import numpy as np, tensorflow as tf
folder, threads, march, output, root = sys.argv[1:]
sys.path[:0] = [root, root + "/tests/bert_tf"]
tf.config.threading.set_intra_op_parallelism_threads(int(threads))
from bert_tf import kernels
if march != "native":
    kernels._folder = lambda: Path(folder)
    kernels.ARITHMETIC = ["-O1" if f == "-O3" else f.replace("=native", "=" + march) for f in kernels.ARITHMETIC]
import test_kernels
results = test_kernels.every_op(9, 50, 3, 40, tf.float32)
results.update({"bf16 " + k: v for k, v in test_kernels.every_op(9, 50, 3, 40, tf.bfloat16).items()})
results.update(test_kernels.updates())
np.savez(output, **results)
"""


def in_processes(monkeypatch, folder, runs):
    """every_op in processes of their own, all at once; runs: (threads, instruction set)."""
    monkeypatch.setenv("BERT_KERNELS", "cpu")
    outputs = [folder / f"{threads}-{march}.npz" for threads, march in runs]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(folder), str(threads), march, str(output), str(ROOT)],
            stderr=subprocess.PIPE, text=True,
        )
        for (threads, march), output in zip(runs, outputs, strict=True)
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return [dict(np.load(output)) for output in outputs]


@needs_kernels
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, tmp_path):
    one, three = in_processes(monkeypatch, tmp_path, [(1, "native"), (3, "native")])
    for name in one:
        np.testing.assert_array_equal(one[name], three[name], err_msg=name)


@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64")
def test_processors_without_avx512(monkeypatch, tmp_path):
    here = every_op(9, 50, 3, 40, tf.float32)
    (results,) = in_processes(monkeypatch, tmp_path, [(2, "x86-64")])
    for name, want in here.items():
        scale = max(1.0, np.abs(want).max())
        np.testing.assert_allclose(results[name] / scale, want / scale, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(results["bf16 " + name] / scale, want / scale, atol=5e-2, err_msg=name)
    for name, want in updates().items():
        # A copy may round to the other side where the weight differs in its last bit.
        tolerance = 1e-2 if name.endswith("copies") else 2e-6
        np.testing.assert_allclose(results[name], want, rtol=tolerance, atol=tolerance, err_msg=name)


# ------------------------------------------------------------------------------------------------ the build
@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """kernels.library without what it remembers, with a folder of its own."""
    monkeypatch.delenv("BERT_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "_folder", lambda: tmp_path)
    kernels.library.cache_clear()
    yield monkeypatch
    kernels.library.cache_clear()


def test_no_compiler_is_one_warning_and_xla(fresh):
    fresh.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels .*no-such-compiler.*Install g\+\+"):
        assert kernels.library() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.library() is None  # said once
        assert ops.gelu(tf.zeros([2, 3]), tf.zeros([3])).shape == [2, 3]


def test_a_compiler_that_fails_is_quoted(fresh):
    fresh.setenv("CXX", "false")
    fresh.setenv("BERT_KERNELS", "cpu")
    with pytest.raises(UserError, match=r"BERT_KERNELS=cpu, but the C\+\+ kernels cannot be built: Command.*false"):
        kernels.library()


def test_the_choice_of_the_environment(fresh):
    fresh.setenv("BERT_KERNELS", "xla")
    assert kernels.library() is None
    kernels.library.cache_clear()
    fresh.setenv("BERT_KERNELS", "fast")
    with pytest.raises(UserError, match="BERT_KERNELS is 'fast'; choose xla or cpu"):
        kernels.library()
    fresh.setenv("BERT_KERNELS", "cpu")
    fresh.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    with pytest.raises(UserError, match="BERT_KERNELS=cpu, but the model runs on a GPU"):
        kernels.library()
    kernels.library.cache_clear()
    fresh.delenv("BERT_KERNELS")
    assert kernels.library() is None
