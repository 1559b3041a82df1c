"""The arithmetic between BERT's matrix products: each op once as plain float32 math, with its gradient written out.

A training step on a CPU spends more time here than in the matrix products when every `tf.tanh`, `*` and `+` is a pass
over memory of its own. So each op is one forward and one backward function, a single pass each, while the matrix
products stay with oneDNN (XLA's own products are several times slower on a CPU). There are two implementations:

- our kernels for CPUs (`kernels`), where there is a compiler, for float32 and bfloat16;
- functions of TensorFlow that XLA compiles: everywhere else. Inside a function that is compiled by XLA as a whole
  (`inside_xla`) they simply become part of it.

Inputs may be float32, bfloat16 or float16; the arithmetic is float32 and the result has the input's dtype.

Shapes: B batch, S sequence, H hidden, A heads, R rows (= B*S where an op does not care).
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from bert_tf import kernels

LAYER_NORM_EPSILON = 1e-12  # tf.contrib.layers.layer_norm, which trained Google's checkpoints
_GELU_SLOPE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def _fused(function):
    return tf.function(function, jit_compile=True, autograph=False)


def _f32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


_inside_xla = contextvars.ContextVar("inside_xla", default=False)


@contextlib.contextmanager
def inside_xla(compiled: bool = True) -> Iterator[None]:
    """To be held while a function is traced that XLA compiles as a whole (if `compiled`): no kernels in there."""
    token = _inside_xla.set(compiled or _inside_xla.get())
    try:
        yield
    finally:
        _inside_xla.reset(token)


def is_inside_xla() -> bool:
    """Whether a function is being traced that XLA compiles as a whole."""
    return _inside_xla.get()


def _kernels(*tensors: tf.Tensor):
    """The kernels' library if they are to be used and know the tensors' dtype, else None."""
    dtypes = {tensor.dtype for tensor in tensors}
    if _inside_xla.get() or dtypes not in ({tf.float32}, {tf.bfloat16}):
        return None
    return kernels.library()


# ---------------------------------------------------------------------------------------------------- dropout
class DropoutKey(NamedTuple):
    """Which random numbers a forward pass uses.

    seed: uint32 scalar, one value per (run seed, update).
    first_row: uint32 scalar, index of the batch's first example in the update's global batch. Masks depend on the
        example's place in the global batch and on nothing else, so 8 examples at once, 4 times 2, or on 4 processes
        drop the same units.
    """

    seed: tf.Tensor
    first_row: tf.Tensor


def _u32(value: int) -> tf.Tensor:
    return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Finalizer of MurmurHash3 (32 bits): every input bit flips every output bit with probability near one half."""
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(16)))
    x = x * _u32(0x85EBCA6B)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(13)))
    x = x * _u32(0xC2B2AE35)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(16)))


def _site_seed(key: DropoutKey | None, site: int) -> tuple[tf.Tensor, tf.Tensor]:
    """(seed of one dropout in the network, first_row); zeros without a key, for ops that then draw nothing."""
    if key is None:
        return _u32(0), _u32(0)
    return _mix(key.seed + _u32(site * 0x9E3779B9)), key.first_row


def _dropout_scale(element: tf.Tensor, batch: tf.Tensor, seed, first_row, rate: float) -> tf.Tensor:
    """Factors 0 (dropped, probability `rate`) and 1/(1-rate) (kept) of shape [batch, *element.shape].

    element: uint32, a number for each element of an example. It must not depend on how far the example is padded, so
    that padding changes nothing.

    A counter-based generator: hash of (seed, example, element). It costs two multiplications an element, needs no
    memory, and the backward pass makes the same numbers again instead of storing them.
    """
    row = _mix(seed + first_row + tf.cast(tf.range(batch), tf.uint32))
    row = tf.reshape(row, [batch] + [1] * len(element.shape))
    keep = _mix(row + (element * _u32(0x9E3779B9))[None]) >= _u32(round(rate * 2.0**32))
    return tf.where(keep, 1.0 / (1.0 - rate), 0.0)


def _draw(seed: tf.Tensor, first_row: tf.Tensor, rate: float) -> dict:
    """The arguments of a kernel that drops the units of _dropout_scale."""
    return {
        "seed": seed, "first_row": first_row, "threshold": round(rate * 2.0**32), "keep_scale": 1.0 / (1.0 - rate)
    }  # fmt: skip


def _hidden_elements(columns: tf.Tensor) -> tf.Tensor:
    """Numbers of the elements of [S*H]: position * H + unit."""
    return tf.cast(tf.range(columns), tf.uint32)


def _score_elements(shape: tf.Tensor) -> tf.Tensor:
    """Numbers of the elements of [A, S, S] (shape: [B, A, S, S]), with strides above any S, hence the same for all."""
    head, query, key = (tf.cast(tf.range(size), tf.uint32) for size in (shape[1], shape[2], shape[3]))
    return head[:, None, None] * _u32(1 << 22) + query[None, :, None] * _u32(1 << 11) + key[None, None, :]


# The factories below are cached so that all layers share one compiled program per shape: what differs from layer to
# layer (the seed) is an argument, what does not (the rate) is a constant of the program.
@functools.cache
def _dropout_function(rate: float):
    @_fused
    def scale(x, seed, first_row):
        rows, columns = tf.shape(x)[0], tf.shape(x)[1]
        return tf.cast(_f32(x) * _dropout_scale(_hidden_elements(columns), rows, seed, first_row, rate), x.dtype)

    return scale


def dropout(x: tf.Tensor, key: DropoutKey | None, site: int, rate: float) -> tf.Tensor:
    """Inverted dropout of x [B, C]; identity without a key. `site` numbers the dropouts of a network."""
    if key is None or rate == 0.0:
        return x
    draw, native = _site_seed(key, site), _kernels(x)

    def scale(t):
        return native.bert_dropout(t, **_draw(*draw, rate)) if native else _dropout_function(rate)(t, *draw)

    @tf.custom_gradient
    def op(t):
        return scale(t), scale

    return op(x)


# ----------------------------------------------------------------------------------------------- bias, activation
def _column_sum(x: tf.Tensor) -> tf.Tensor:
    """Sum over rows, [R, C] -> [C]; as a product it is faster on a CPU than any reduction, and sums in float32."""
    return tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0]


def _gelu(function, derivative, erf: bool):
    """An op (x [R, C], bias [C]) -> function(x + bias) from a function of float32 and its derivative."""

    @_fused
    def forward(x, bias):
        return tf.cast(function(_f32(x) + _f32(bias)), x.dtype)

    @_fused
    def backward(x, bias, dy):
        return tf.cast(_f32(dy) * derivative(_f32(x) + _f32(bias)), x.dtype)

    @tf.custom_gradient
    def op(x, bias):
        if native := _kernels(x, bias):
            return native.bert_gelu(x, bias, erf=erf), lambda dy: native.bert_gelu_grad(x, bias, dy, erf=erf)

        def gradient(dy):
            dx = backward(x, bias, dy)
            return dx, _column_sum(dx)

        return forward(x, bias), gradient

    return op


def _tanh_gelu(x):
    return 0.5 * x * (1.0 + tf.tanh(_GELU_SLOPE * (x + _GELU_CUBIC * x * x * x)))


def _tanh_gelu_derivative(x):
    t = tf.tanh(_GELU_SLOPE * (x + _GELU_CUBIC * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * x * x)


def _erf_gelu(x):
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def _erf_gelu_derivative(x):
    density = math.sqrt(0.5 / math.pi) * tf.exp(-0.5 * x * x)
    return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))) + x * density


# GELU (arXiv 1606.08415): x times the normal distribution function. Google's BERT has its tanh approximation (section
# 2), the models of Hugging Face the function itself.
gelu = _gelu(_tanh_gelu, _tanh_gelu_derivative, erf=False)
gelu_exact = _gelu(_erf_gelu, _erf_gelu_derivative, erf=True)


# ------------------------------------------------------------------------------------------------ layer norm
@functools.cache
def _on_cpu() -> bool:
    return not tf.config.list_physical_devices("GPU")


def _row_mean(x: tf.Tensor) -> tf.Tensor:
    """Mean over the last axis, [R, H] -> [R, 1]. XLA reduces a row on a CPU element by element; a product does not."""
    if not _on_cpu():
        return tf.reduce_mean(x, -1, keepdims=True)
    size = tf.shape(x)[1]
    return tf.matmul(x, tf.ones([size, 1])) / tf.cast(size, tf.float32)


def _normalise(s, gamma, beta):
    mean = _row_mean(s)
    rstd = tf.math.rsqrt(_row_mean(tf.square(s - mean)) + LAYER_NORM_EPSILON)
    return (s - mean) * rstd * gamma + beta, mean, rstd


def _layer_norm_gradient(dy, s, mean, rstd, gamma):
    """d/ds, d/dgamma, d/dbeta of gamma * (s - mean) * rstd + beta (arXiv 1607.06450)."""
    normed, dy32 = (_f32(s) - mean) * rstd, _f32(dy)
    d = dy32 * gamma
    ds = rstd * (d - _row_mean(d) - normed * _row_mean(d * normed))
    return ds, tf.reduce_sum(dy32 * normed, 0), tf.reduce_sum(dy32, 0)


class _AddLayerNorm:
    """The functions of add_layer_norm for one dropout rate, compiled by XLA."""

    def __init__(self, rate: float):
        self.rate = rate
        self.output = _fused(lambda *arguments: self._forward(*arguments)[0])
        self.forward = _fused(self._forward)
        self._compiled_backward = _fused(self._backward)

    def _scale(self, t, batch, seed, first_row):  # drawn per example: [R, H] is [B, S*H]
        elements = _hidden_elements(tf.size(t) // batch)
        return tf.reshape(_dropout_scale(elements, batch, seed, first_row, self.rate), tf.shape(t))

    def _forward(self, x, bias, residual, gamma, beta, *draw):
        branch = _f32(x) + _f32(bias)
        s = _f32(residual) + (branch if self.rate == 0.0 else branch * self._scale(x, *draw))
        y, mean, rstd = _normalise(s, gamma, beta)
        return tf.cast(y, x.dtype), tf.cast(s, x.dtype), mean, rstd

    def _backward(self, dy, s, mean, rstd, gamma, *draw):
        ds, dgamma, dbeta = _layer_norm_gradient(dy, s, mean, rstd, gamma)
        dx = ds if self.rate == 0.0 else ds * self._scale(s, *draw)
        return tf.cast(dx, dy.dtype), tf.cast(ds, dy.dtype), dgamma, dbeta

    def backward(self, *arguments):
        """Arguments of _backward -> d/dx, d/d residual, d/dgamma, d/dbeta, d/dbias."""
        dx, ds, dgamma, dbeta = self._compiled_backward(*arguments)
        return dx, ds, dgamma, dbeta, _column_sum(dx)


class _NativeAddLayerNorm:
    """The same by kernels."""

    def __init__(self, native, rate: float):
        self.native, self.rate = native, rate

    def output(self, *arguments):
        return self._forward(*arguments, keep=False)[0]

    def forward(self, *arguments):
        return self._forward(*arguments, keep=True)

    def _forward(self, x, bias, residual, gamma, beta, batch, *draw, keep: bool):
        draw = _draw(*draw, self.rate)
        return self.native.bert_add_layer_norm(x, bias, residual, gamma, beta, batch, keep=keep, **draw)

    def backward(self, dy, s, mean, rstd, gamma, batch, *draw):
        return self.native.bert_add_layer_norm_grad(dy, s, mean, rstd, gamma, batch, **_draw(*draw, self.rate))


_add_layer_norm = functools.cache(_AddLayerNorm)


def add_layer_norm(
    x: tf.Tensor,
    bias: tf.Tensor,
    residual: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    key: DropoutKey | None,
    batch: tf.Tensor,
    site: int,
    rate: float,
) -> tf.Tensor:
    """LayerNorm(residual + dropout(x + bias)) over the last axis.

    x, residual: [R, H] with R = batch*S; bias: [H]; gamma, beta: [H] float32; batch: int32 scalar B.
    """
    rate = rate if key is not None else 0.0
    native = _kernels(x, bias, residual)
    functions = _NativeAddLayerNorm(native, rate) if native else _add_layer_norm(rate)
    draw = (batch, *_site_seed(key, site))

    @tf.custom_gradient
    def op(x, bias, residual, gamma, beta):
        arguments = (x, bias, residual, gamma, beta, *draw)
        if key is None:  # most likely no gradient is wanted: what it needs is not written out, but made again
            y, saved = functions.output(*arguments), None
        else:
            y, *saved = functions.forward(*arguments)

        def gradient(dy):
            s, mean, rstd = saved or functions.forward(*arguments)[1:]
            dx, ds, dgamma, dbeta, dbias = functions.backward(dy, s, mean, rstd, gamma, *draw)
            return dx, dbias, ds, dgamma, dbeta

        return y, gradient

    return op(x, bias, residual, gamma, beta)


@_fused
def _layer_norm_forward(x, gamma, beta):
    y, mean, rstd = _normalise(_f32(x), gamma, beta)
    return tf.cast(y, x.dtype), mean, rstd


@_fused
def _layer_norm_backward(dy, x, mean, rstd, gamma):
    dx, dgamma, dbeta = _layer_norm_gradient(dy, x, mean, rstd, gamma)
    return tf.cast(dx, x.dtype), dgamma, dbeta


@tf.custom_gradient
def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple:
    """LayerNorm of x [R, H] over the last axis."""
    if native := _kernels(x):
        y, mean, rstd = native.bert_layer_norm(x, gamma, beta)

        def gradient(dy):
            no_draw = _draw(*_site_seed(None, 0), 0.0)
            ds, _, *of_parameters, _ = native.bert_add_layer_norm_grad(dy, x, mean, rstd, gamma, 1, **no_draw)
            return ds, *of_parameters

        return y, gradient
    y, mean, rstd = _layer_norm_forward(x, gamma, beta)
    return y, lambda dy: _layer_norm_backward(dy, x, mean, rstd, gamma)


# -------------------------------------------------------------------------------------------------- attention
@functools.cache
def _heads_functions(heads: int):
    @_fused
    def forward(x, bias, batch):
        x32 = _f32(x) + _f32(bias)
        shape = [batch, tf.shape(x)[0] // batch, heads, tf.shape(x)[1] // (3 * heads)]
        return [tf.cast(tf.transpose(tf.reshape(t, shape), [0, 2, 1, 3]), x.dtype) for t in tf.split(x32, 3, axis=1)]

    @_fused
    def backward(dq, dk, dv):
        rows, columns = tf.shape(dq)[0] * tf.shape(dq)[2], heads * tf.shape(dq)[3]
        return tf.concat([tf.reshape(tf.transpose(t, [0, 2, 1, 3]), [rows, columns]) for t in (dq, dk, dv)], axis=1)

    return forward, backward


def split_heads(x: tf.Tensor, bias: tf.Tensor, batch: tf.Tensor, heads: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Queries, keys and values [B, A, S, D] each, from x + bias, x being [R, 3H] with the three side by side.

    R = batch*S; bias: [3H]; batch: int32 scalar.
    """
    forward, backward = _heads_functions(heads)

    @tf.custom_gradient
    def op(x, bias):
        if native := _kernels(x, bias):
            three = native.bert_split_heads(x, bias, batch, heads=heads)
            return tuple(three), lambda *upstream: tuple(native.bert_split_heads_grad(*upstream))

        def gradient(dq, dk, dv):
            dx = backward(dq, dk, dv)
            return dx, _column_sum(dx)

        return tuple(forward(x, bias, batch)), gradient

    return op(x, bias)


@functools.cache
def _attention_functions(scale: float, rate: float):
    def dropout_scale(p, seed, first_row):
        return _dropout_scale(_score_elements(tf.shape(p)), tf.shape(p)[0], seed, first_row, rate)

    @_fused
    def forward(scores, mask_bias, seed, first_row):
        p = tf.nn.softmax(_f32(scores) * scale + mask_bias)
        if rate == 0.0:
            return tf.cast(p, scores.dtype)
        return tf.cast(p, scores.dtype), tf.cast(p * dropout_scale(p, seed, first_row), scores.dtype)

    @_fused
    def backward(dy, p, seed, first_row):
        dp = _f32(dy) if rate == 0.0 else _f32(dy) * dropout_scale(p, seed, first_row)
        p32 = _f32(p)
        return tf.cast(scale * p32 * (dp - tf.reduce_sum(dp * p32, -1, keepdims=True)), dy.dtype)

    return forward, backward


def attention_probabilities(
    scores: tf.Tensor, mask_bias: tf.Tensor, scale: float, key: DropoutKey | None, site: int, rate: float
) -> tf.Tensor:
    """dropout(softmax(scores * scale + mask_bias)) over the last axis.

    scores: [B, A, S, S]; mask_bias: float32 [B, 1, 1, S], 0 for tokens and -10000 for padding.
    """
    rate = rate if key is not None else 0.0
    forward, backward = _attention_functions(scale, rate)
    draw = _site_seed(key, site)

    @tf.custom_gradient
    def op(scores):
        if native := _kernels(scores):
            arguments = {"scale": scale, **_draw(*draw, rate)}
            p, dropped = native.bert_attention(scores, mask_bias, **arguments)
            return dropped, lambda dy: native.bert_attention_grad(dy, p, **arguments)
        result = forward(scores, mask_bias, *draw)
        p, dropped = result if isinstance(result, (tuple, list)) else (result, result)
        return dropped, lambda dy: backward(dy, p, *draw)

    return op(scores)
