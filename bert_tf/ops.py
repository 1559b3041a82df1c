"""The arithmetic between BERT's matrix products: each op once as plain float32 math, with its gradient written out.

A training step on a CPU spends more time here than in the matrix products when every `tf.tanh`, `*` and `+` is a pass
over memory of its own. So each op is one forward and one backward function, compiled by XLA into one loop per pass,
while the matrix products stay with oneDNN (XLA's own products are several times slower on a CPU). Inside a function
that is compiled by XLA as a whole these simply become part of it.

Inputs may be float32, bfloat16 or float16; the arithmetic is float32 and the result has the input's dtype.

Shapes: B batch, S sequence, H hidden, A heads, R rows (= B*S where an op does not care).
"""

import functools
import math
from typing import NamedTuple

import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12  # tf.contrib.layers.layer_norm, which trained Google's checkpoints
_GELU_SLOPE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def _fused(function):
    return tf.function(function, jit_compile=True, autograph=False)


def _f32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


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


def _dropout_scale(shape: tf.Tensor, seed: tf.Tensor, first_row: tf.Tensor, rate: float) -> tf.Tensor:
    """Factors 0 (dropped, probability `rate`) and 1/(1-rate) (kept) of shape `shape`; axis 0 is the example.

    A counter-based generator: hash of (seed, example, element). It costs two multiplications an element, needs no
    memory, and the backward pass makes the same numbers again instead of storing them.
    """
    rows, columns = shape[0], tf.reduce_prod(shape[1:])
    row = _mix(seed + first_row + tf.cast(tf.range(rows), tf.uint32))
    column = tf.cast(tf.range(columns), tf.uint32) * _u32(0x9E3779B9)
    keep = _mix(row[:, None] + column[None, :]) >= _u32(round(rate * 2.0**32))
    return tf.reshape(tf.where(keep, 1.0 / (1.0 - rate), 0.0), shape)


# The factories below are cached so that all layers share one compiled program per shape: what differs from layer to
# layer (the seed) is an argument, what does not (the rate) is a constant of the program.
@functools.cache
def _dropout_function(rate: float):
    @_fused
    def scale(x, seed, first_row):
        return tf.cast(_f32(x) * _dropout_scale(tf.shape(x), seed, first_row, rate), x.dtype)

    return scale


def dropout(x: tf.Tensor, key: DropoutKey | None, site: int, rate: float) -> tf.Tensor:
    """Inverted dropout of x [B, ...]; identity without a key. `site` numbers the dropouts of a network."""
    if key is None or rate == 0.0:
        return x
    scale, (seed, first_row) = _dropout_function(rate), _site_seed(key, site)

    @tf.custom_gradient
    def op(t):
        return scale(t, seed, first_row), lambda dy: scale(dy, seed, first_row)

    return op(x)


# ------------------------------------------------------------------------------------------------- activation
@_fused
def _gelu_forward(x):
    x32 = _f32(x)
    return tf.cast(0.5 * x32 * (1.0 + tf.tanh(_GELU_SLOPE * (x32 + _GELU_CUBIC * x32 * x32 * x32))), x.dtype)


@_fused
def _gelu_backward(x, dy):
    x32 = _f32(x)
    t = tf.tanh(_GELU_SLOPE * (x32 + _GELU_CUBIC * x32 * x32 * x32))
    slope = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * x32 * x32)
    return tf.cast(_f32(dy) * (0.5 * (1.0 + t) + 0.5 * x32 * (1.0 - t * t) * slope), x.dtype)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple:
    """GELU by its tanh approximation, as in Google's BERT (arXiv 1606.08415, section 2)."""
    return _gelu_forward(x), lambda dy: _gelu_backward(x, dy)


# ------------------------------------------------------------------------------------------------ layer norm
def _normalise(s, gamma, beta):
    mean = tf.reduce_mean(s, -1, keepdims=True)
    rstd = tf.math.rsqrt(tf.reduce_mean(tf.square(s - mean), -1, keepdims=True) + LAYER_NORM_EPSILON)
    return (s - mean) * rstd * gamma + beta, mean, rstd


def _layer_norm_gradient(dy, s, mean, rstd, gamma):
    """d/ds, d/dgamma, d/dbeta of gamma * (s - mean) * rstd + beta (arXiv 1607.06450)."""
    normed, dy32 = (_f32(s) - mean) * rstd, _f32(dy)
    d = dy32 * gamma
    ds = rstd * (d - tf.reduce_mean(d, -1, keepdims=True) - normed * tf.reduce_mean(d * normed, -1, keepdims=True))
    return ds, tf.reduce_sum(dy32 * normed, 0), tf.reduce_sum(dy32, 0)


@functools.cache
def _add_layer_norm_functions(rate: float):
    def scale(t, batch, seed, first_row):  # drawn per example: [R, H] is [B, S*H]
        return tf.reshape(_dropout_scale(tf.stack([batch, tf.size(t) // batch]), seed, first_row, rate), tf.shape(t))

    @_fused
    def forward(x, residual, gamma, beta, batch, seed, first_row):
        dropped = _f32(x) if rate == 0.0 else _f32(x) * scale(x, batch, seed, first_row)
        s = _f32(residual) + dropped
        y, mean, rstd = _normalise(s, gamma, beta)
        return tf.cast(y, x.dtype), tf.cast(s, x.dtype), mean, rstd

    @_fused
    def backward(dy, s, mean, rstd, gamma, batch, seed, first_row):
        ds, dgamma, dbeta = _layer_norm_gradient(dy, s, mean, rstd, gamma)
        dx = ds if rate == 0.0 else ds * scale(s, batch, seed, first_row)
        return tf.cast(dx, dy.dtype), tf.cast(ds, dy.dtype), dgamma, dbeta

    return forward, backward


def add_layer_norm(
    x: tf.Tensor,
    residual: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    key: DropoutKey | None,
    batch: tf.Tensor,
    site: int,
    rate: float,
) -> tf.Tensor:
    """LayerNorm(residual + dropout(x)) over the last axis.

    x, residual: [R, H] with R = batch*S; gamma, beta: [H] float32; batch: int32 scalar B.
    """
    forward, backward = _add_layer_norm_functions(rate if key is not None else 0.0)
    draw = (batch, *_site_seed(key, site))

    @tf.custom_gradient
    def op(x, residual, gamma, beta):
        y, s, mean, rstd = forward(x, residual, gamma, beta, *draw)
        return y, lambda dy: backward(dy, s, mean, rstd, gamma, *draw)

    return op(x, residual, gamma, beta)


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
    y, mean, rstd = _layer_norm_forward(x, gamma, beta)
    return y, lambda dy: _layer_norm_backward(dy, x, mean, rstd, gamma)


# -------------------------------------------------------------------------------------------------- attention
@functools.cache
def _attention_functions(scale: float, rate: float):
    @_fused
    def forward(scores, mask_bias, seed, first_row):
        p = tf.nn.softmax(_f32(scores) * scale + mask_bias)
        dropped = p if rate == 0.0 else p * _dropout_scale(tf.shape(p), seed, first_row, rate)
        return tf.cast(p, scores.dtype), tf.cast(dropped, scores.dtype)

    @_fused
    def backward(dy, p, seed, first_row):
        dp = _f32(dy) if rate == 0.0 else _f32(dy) * _dropout_scale(tf.shape(p), seed, first_row, rate)
        p32 = _f32(p)
        return tf.cast(scale * p32 * (dp - tf.reduce_sum(dp * p32, -1, keepdims=True)), dy.dtype)

    return forward, backward


def attention_probabilities(
    scores: tf.Tensor, mask_bias: tf.Tensor, scale: float, key: DropoutKey | None, site: int, rate: float
) -> tf.Tensor:
    """dropout(softmax(scores * scale + mask_bias)) over the last axis.

    scores: [B, A, S, S]; mask_bias: float32 [B, 1, 1, S], 0 for tokens and -10000 for padding.
    """
    forward, backward = _attention_functions(scale, rate if key is not None else 0.0)
    draw = _site_seed(key, site)

    @tf.custom_gradient
    def op(scores):
        p, dropped = forward(scores, mask_bias, *draw)
        return dropped, lambda dy: backward(dy, p, *draw)

    return op(scores)
