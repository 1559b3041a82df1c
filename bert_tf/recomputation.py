"""Activation recomputation (arXiv 1604.06174): a layer keeps its input only, and its backward pass runs it once more.

Memory of a layer's activations for a fifth to a third more time. Dropout draws the same numbers again (see
ops.DropoutKey), so loss and gradients stay what they were.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from bert_tf import ops


class Weights(Protocol):
    """What is needed from the holder of the weights, see weights.ComputeWeights."""

    def sources(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]: ...

    def holding(self, sources: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> "Weights": ...


def recomputed(
    layer: Callable[[tf.Tensor, Weights], tf.Tensor],
    x: tf.Tensor,
    weights: Weights,
    variables: Sequence[tf.Variable],
) -> tf.Tensor:
    """layer(x, weights), whose inner values are computed again when gradients are wanted.

    variables: every one that the layer reads. What else the layer uses gets no gradient.
    """
    sources = weights.sources(variables)

    @tf.custom_gradient
    def op(x, *values):
        def gradient(dy):
            again, *values_again = _after(dy, [x, *values])
            with tf.GradientTape() as tape:
                tape.watch([again, *values_again])
                y = layer(again, weights.holding(sources, values_again))
            return tape.gradient(y, [again, *values_again], dy)

        return layer(x, weights.holding(sources, values)), gradient

    return op(x, *(tf.convert_to_tensor(source) for source in sources))


def _after(event: tf.Tensor, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors, there when `event` is; what is computed from them is not shared with what was computed before."""
    if ops.is_inside_xla():  # where control dependencies mean nothing
        return xla.optimization_barrier(*tensors, event)[:-1]
    with tf.control_dependencies([event]):
        return [tf.identity(tensor) for tensor in tensors]
