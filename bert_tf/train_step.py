"""One optimizer update from N micro-batches on G processes: accumulate, reduce, check, clip, apply.

Whatever the split of a global batch into micro-batches and processes, the update is the same up to float32 rounding:
losses are sums divided by the counts of the whole global batch, dropout is drawn by place in the global batch, and the
gradient is clipped once, after it is complete.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.distributed import Distributed
from bert_tf.input_pipeline import Batch
from bert_tf.losses import PretrainingSums, pretraining_sums
from bert_tf.model import BertForPreTraining
from bert_tf.ops import DropoutKey
from bert_tf.optimization import Optimizer, clip_factor, global_norm
from bert_tf.precision import LossScale
from bert_tf.weights import ComputeWeights


class UpdateResult(NamedTuple):
    """What one update did, as host values.

    sums: over the global batch. gradient_norm: of the complete gradient, before clipping. applied: False when the
    gradient was not finite and the update was skipped.
    """

    sums: PretrainingSums
    gradient_norm: float
    applied: bool


class PretrainingStep:
    """The update as a callable; compiles on first use.

    num_accumulation_steps: micro-batches an update on each process (N).
    allreduce_post_accumulation: exchange gradients once an update (True) or after every micro-batch.
    compression: of the exchange, see distributed.Distributed.all_reduce_sum.
    use_xla: compile forward and backward pass as one XLA program.
    """

    def __init__(
        self,
        model: BertForPreTraining,
        weights: ComputeWeights,
        optimizer: Optimizer,
        loss_scale: LossScale,
        distributed: Distributed,
        num_accumulation_steps: int = 1,
        allreduce_post_accumulation: bool = True,
        compression: str | None = None,
        use_xla: bool = False,
        seed: int = 0,
    ):
        self.model, self.weights, self.optimizer, self.loss_scale = model, weights, optimizer, loss_scale
        self.distributed, self.compression, self.seed = distributed, compression, seed
        self.num_accumulation_steps = num_accumulation_steps
        self.reduce_each = not allreduce_post_accumulation
        self.micro_batches = num_accumulation_steps * distributed.size  # in a global batch
        self._forward_backward = tf.function(self._gradients, jit_compile=use_xla or None, autograph=False)
        if num_accumulation_steps > 1:
            self._accumulators = [
                tf.Variable(tf.zeros(v.shape), trainable=False, name=f"{v.name[:-2]}/accum") for v in weights.masters
            ]
        self._single = tf.function(self._single_update, autograph=False)
        self._first = tf.function(lambda *args: self._accumulate(True, *args), autograph=False)
        self._next = tf.function(lambda *args: self._accumulate(False, *args), autograph=False)
        self._finish = tf.function(
            lambda lr: self._apply([v.read_value() for v in self._accumulators], lr, reduced=self.reduce_each),
            autograph=False,
        )

    def __call__(self, batches: Sequence[Batch], learning_rate: float, update: int) -> UpdateResult:
        """batches: this process's N micro-batches, all of one shape. update: number of this update, which together with
        the run's seed decides the dropout."""
        if len(batches) != self.num_accumulation_steps:
            raise ValueError(f"{len(batches)} micro-batches given, {self.num_accumulation_steps} expected")
        masked = tf.add_n([tf.reduce_sum(batch.masked_lm_weights) for batch in batches])
        (masked,) = self.distributed.all_reduce_sum([masked])
        # Each micro-batch's loss is scaled to the size of a usual mean, so that float16 gradients of one micro-batch
        # out of many do not vanish; _apply divides by the number of micro-batches.
        lm_factor = self.micro_batches / (masked + 1e-5)
        lr = tf.constant(learning_rate, tf.float32)
        keys = [self._dropout_key(update, index, batch) for index, batch in enumerate(batches)]
        if self.num_accumulation_steps == 1:
            sums, norm, finite = self._single(batches[0], lm_factor, keys[0], lr)
        else:
            sums = self._first(batches[0], lm_factor, keys[0])
            for batch, key in zip(batches[1:], keys[1:], strict=True):
                sums += self._next(batch, lm_factor, key)
            norm, finite = self._finish(lr)
        sums = PretrainingSums(*(float(value) for value in self.distributed.all_reduce_sum(list(sums))))
        return UpdateResult(sums, float(norm), bool(finite))

    def _dropout_key(self, update: int, index: int, batch: Batch) -> DropoutKey:
        seed = zlib.crc32(f"dropout {self.seed} {update}".encode())
        row = (index * self.distributed.size + self.distributed.rank) * int(tf.shape(batch.input_ids)[0])
        return DropoutKey(tf.constant(seed, tf.uint32), tf.constant(row, tf.uint32))

    # ------------------------------------------------------------------------------------ graph functions
    def _gradients(self, batch, lm_factor, key):
        with tf.GradientTape() as tape:
            self.weights.watch(tape)
            sums = pretraining_sums(self.model(batch, self.weights, key), batch)
            loss = sums.masked_lm_loss * lm_factor + sums.next_sentence_loss / sums.examples
            scaled = self.loss_scale.scaled(loss)
        return self.weights.gradients(scaled, tape), sums

    def _single_update(self, batch, lm_factor, key, lr):
        gradients, sums = self._forward_backward(batch, lm_factor, key)
        return sums, *self._apply(gradients, lr, reduced=False)

    def _accumulate(self, first: bool, batch, lm_factor, key):
        gradients, sums = self._forward_backward(batch, lm_factor, key)
        if self.reduce_each:
            gradients = self.distributed.all_reduce_sum(gradients, self.compression)
        for accumulator, gradient in zip(self._accumulators, gradients, strict=True):
            gradient = tf.cast(gradient, tf.float32)
            accumulator.assign(gradient) if first else accumulator.assign_add(gradient)
        return sums

    def _apply(self, gradients, lr, reduced: bool):
        """Returns (gradient norm, whether the update was applied)."""
        if not reduced:
            gradients = self.distributed.all_reduce_sum(gradients, self.compression)
        mean = self.loss_scale.inverse() / self.micro_batches
        norm = global_norm(gradients) * mean  # not finite whenever any element on any process was not
        finite = tf.math.is_finite(norm)

        def update():
            self.optimizer.apply(gradients, lr, mean * clip_factor(norm), self.weights.refresh)
            return tf.constant(True)

        tf.cond(finite, update, lambda: tf.constant(False))
        self.loss_scale.update(finite)
        return norm, finite


def create_evaluation(model: BertForPreTraining, weights: ComputeWeights, use_xla: bool = False):
    """A compiled function Batch -> PretrainingSums, without dropout."""

    @tf.function(jit_compile=use_xla or None, autograph=False)
    def evaluate(batch: Batch) -> PretrainingSums:
        return pretraining_sums(model(batch, weights), batch)

    return evaluate
