"""One optimizer update from N micro-batches on G processes: accumulate, reduce, check, clip, apply.

Whatever the split of a global batch into micro-batches and processes, the update is the same up to float32 rounding:
losses are sums divided by the counts of the whole global batch, dropout is drawn by place in the global batch, and the
gradient is clipped once, after it is complete.
"""

import functools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf import ops
from bert_tf.distributed import Distributed
from bert_tf.losses import Objective, Sums
from bert_tf.ops import DropoutKey
from bert_tf.optimization import Optimizer, clip_factor, global_norm
from bert_tf.precision import LossScale
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError

Batch = tuple  # a NamedTuple of tensors with a property `examples`, their number


class UpdateResult(NamedTuple):
    """What one update did, as host values.

    sums: over the global batch. gradient_norm: of the complete gradient, before clipping. applied: False when the
    gradient was not finite and the update was skipped. stop: whether any process was asked to. own_loss: this process's
    share of the loss sums, for a diagnosis.
    """

    sums: Sums
    gradient_norm: float
    applied: bool
    stop: bool
    own_loss: float


class TrainStep:
    """The update as a callable; compiles on first use.

    model: a callable (batch, weights, dropout key) -> outputs, from which the objective takes sums and loss.
    micro_batches: of an update, over all processes.
    compression: of the exchange, see distributed.Distributed.all_reduce_sum.
    use_xla: compile forward and backward pass as one XLA program (one for each shape that occurs).
    batch_spec: signature of the micro-batches, where their shapes vary; by default that of the first.
    """

    def __init__(
        self,
        model: tf.Module,
        objective: Objective,
        weights: ComputeWeights,
        optimizer: Optimizer,
        loss_scale: LossScale,
        distributed: Distributed,
        micro_batches: int = 1,
        compression: str | None = None,
        use_xla: bool = False,
        seed: int = 0,
        batch_spec: Batch | None = None,
    ):
        self.model, self.objective = model, objective
        self.weights, self.optimizer, self.loss_scale = weights, optimizer, loss_scale
        self.distributed, self.compression, self.seed = distributed, compression, seed
        self.micro_batches = micro_batches
        self.own_micro_batches = len(range(distributed.rank, micro_batches, distributed.size))
        if not self.own_micro_batches:
            raise ValueError(
                f"{micro_batches} micro-batches leave nothing for rank {distributed.rank} of {distributed.size}"
            )
        self.use_xla = use_xla
        self._forward_backward = tf.function(self._gradients, jit_compile=use_xla or None, autograph=False)
        if self.own_micro_batches > 1:
            self._accumulators = [
                tf.Variable(tf.zeros(v.shape), trainable=False, name=f"{v.name[:-2]}/accum") for v in weights.masters
            ]
        step_arguments = None
        if batch_spec is not None:
            key = DropoutKey(tf.TensorSpec([], tf.uint32), tf.TensorSpec([], tf.uint32))
            step_arguments = (batch_spec, tf.TensorSpec([None], tf.float32), key)
        rate = tf.TensorSpec([], tf.float32)
        self._single = tf.function(
            self._single_update, input_signature=step_arguments and (*step_arguments, rate), autograph=False
        )
        self._first, self._next = (
            tf.function(functools.partial(self._accumulate, first), input_signature=step_arguments, autograph=False)
            for first in (True, False)
        )
        self._finish = tf.function(
            lambda lr: self._apply([v.read_value() for v in self._accumulators], lr), autograph=False
        )

    def __call__(self, batches: Sequence[Batch], learning_rate: float, update: int, stop: bool = False) -> UpdateResult:
        """batches: this process's micro-batches (rank, rank + size, ... of the update's), with the same number of
        examples. update: number of this update, which together with the run's seed decides the dropout. stop: whether
        this process was asked to stop, of which all are told."""
        if len(batches) != self.own_micro_batches:
            raise ValueError(f"{len(batches)} micro-batches given, {self.own_micro_batches} expected")
        counts = tf.add_n([self.objective.counts(batch) for batch in batches])
        counts, stops = self.distributed.all_reduce_sum([counts, tf.constant(float(stop))], name="counts")
        # Each micro-batch's loss is scaled to the size of a usual mean, so that float16 gradients of one micro-batch
        # out of many do not vanish; _apply divides by the number of micro-batches.
        factors = self.micro_batches / tf.maximum(counts, 1e-5)
        lr = tf.constant(learning_rate, tf.float32)
        keys = [self._dropout_key(update, index, batch) for index, batch in enumerate(batches)]
        if len(batches) == 1:
            sums, norm, finite = self._single(batches[0], factors, keys[0], lr)
        else:
            sums = self._first(batches[0], factors, keys[0])
            for batch, key in zip(batches[1:], keys[1:], strict=True):
                sums += self._next(batch, factors, key)
            norm, finite = self._finish(lr)
        own_loss = float(self.objective.loss(sums, factors)) / self.micro_batches
        sums = type(sums)(*(float(value) for value in self.distributed.all_reduce_sum(list(sums), name="sums")))
        return UpdateResult(sums, float(norm), bool(finite), float(stops) > 0, own_loss)

    def _dropout_key(self, update: int, index: int, batch: Batch) -> DropoutKey:
        seed = zlib.crc32(f"dropout {self.seed} {update}".encode())
        row = (index * self.distributed.size + self.distributed.rank) * int(batch.examples)
        return DropoutKey(tf.constant(seed, tf.uint32), tf.constant(row, tf.uint32))

    # ------------------------------------------------------------------------------------ graph functions
    def _gradients(self, batch, factors, key):
        with ops.inside_xla(self.use_xla):
            with tf.GradientTape() as tape:
                self.weights.watch(tape)
                sums = self.objective.sums(self.model(batch, self.weights, key), batch)
                scaled = self.loss_scale.scaled(self.objective.loss(sums, factors))
            return self.weights.gradients(scaled, tape), sums

    def _single_update(self, batch, factors, key, lr):
        gradients, sums = self._forward_backward(batch, factors, key)
        return sums, *self._apply(gradients, lr)

    def _accumulate(self, first: bool, batch, factors, key):
        gradients, sums = self._forward_backward(batch, factors, key)
        for accumulator, gradient in zip(self._accumulators, gradients, strict=True):
            gradient = tf.cast(gradient, tf.float32)
            accumulator.assign(gradient) if first else accumulator.assign_add(gradient)
        return sums

    def _apply(self, gradients, lr):
        """Returns (gradient norm, whether the update was applied)."""
        gradients = self.distributed.all_reduce_sum(gradients, self.compression, "gradients")
        mean = self.loss_scale.inverse() / self.micro_batches
        norm = global_norm(gradients) * mean  # not finite whenever any element on any process was not
        finite = tf.math.is_finite(norm)

        def update():
            self.optimizer.apply(gradients, lr, mean * clip_factor(norm), self.weights)
            return tf.constant(True)

        tf.cond(finite, update, lambda: tf.constant(False))
        self.loss_scale.update(finite)
        return norm, finite


def create_evaluation(model: tf.Module, objective: Objective, weights: ComputeWeights, use_xla: bool = False):
    """A compiled function batch -> the objective's sums, without dropout."""

    @tf.function(jit_compile=use_xla or None, autograph=False)
    def evaluate(batch: Batch) -> Sums:
        with ops.inside_xla(use_xla):
            return objective.sums(model(batch, weights), batch)

    return evaluate


def create_prediction(
    model: tf.Module, objective: Objective, weights: ComputeWeights, batch_spec: Batch, use_xla: bool = False
):
    """A compiled function batch -> (outputs of the model, the objective's sums), without dropout, for any shapes."""

    @tf.function(input_signature=[batch_spec], jit_compile=use_xla or None, autograph=False)
    def predict(batch: Batch) -> tuple[tf.Tensor, Sums]:
        with ops.inside_xla(use_xla):
            outputs = model(batch, weights)
            return outputs, objective.sums(outputs, batch)

    return predict


def check_finite(logits: np.ndarray) -> None:
    """Raises UserError when a model puts out NaN or infinity: any answer would be chance."""
    if not np.isfinite(logits).all():
        raise UserError(
            "the model puts out NaN or infinity: its weights are broken (or beyond float16 with --precision=fp16); use "
            "another checkpoint"
        )
