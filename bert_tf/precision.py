"""Compute dtype and loss scale: what --precision means, and what happens to updates that are not finite."""

import dataclasses

import tensorflow as tf

from bert_tf.model import variable_name
from runkit.errors import UserError

# 2^15 keeps a loss around 10 well inside float16. Starting at 2^32, as the published recipe did, overflows
# some 16 times before anything is learnt, and each overflow costs a whole accumulated batch.
INITIAL_LOSS_SCALE = 2.0**15
MINIMUM_LOSS_SCALE = 1.0
MAXIMUM_LOSS_SCALE = 2.0**32
GROWTH_INTERVAL = 1000  # updates in a row without overflow, as published
MAX_CONSECUTIVE_SKIPS = 50
# At the minimum there is nothing left to lower: one overflow may be a bad batch, two in a row are divergence.
MAX_SKIPS_AT_MINIMUM = 2


@dataclasses.dataclass(frozen=True)
class Precision:
    """How the matrix products are computed. Weights, moments, losses and layer norms are float32 always."""

    name: str
    compute_dtype: tf.DType
    loss_scaling: bool  # float16 flushes gradients below 6e-8 to zero; the other formats have float32's range
    tensor_float_32: bool  # whether float32 products on a GPU may drop to 10 mantissa bits

    @classmethod
    def from_name(cls, name: str) -> "Precision":
        """The policy called fp32, tf32, fp16 or bf16. Raises UserError for any other name."""
        if name not in PRECISIONS:
            raise UserError(f"precision {name!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        return PRECISIONS[name]

    def activate(self) -> None:
        """Sets TensorFlow's process-wide TF32 switch (of effect on NVIDIA GPUs from Ampere on)."""
        tf.config.experimental.enable_tensor_float_32_execution(self.tensor_float_32)


PRECISIONS = {
    "fp32": Precision("fp32", tf.float32, loss_scaling=False, tensor_float_32=False),
    "tf32": Precision("tf32", tf.float32, loss_scaling=False, tensor_float_32=True),
    # The few float32 products that remain there need not be finer than the rest.
    "fp16": Precision("fp16", tf.float16, loss_scaling=True, tensor_float_32=True),
    "bf16": Precision("bf16", tf.bfloat16, loss_scaling=False, tensor_float_32=True),
}


class LossScale(tf.Module):
    """Dynamic loss scale (arXiv 1710.03740, section 3.2), and the watch over updates that are not finite.

    The loss is multiplied by the scale before the gradient is taken, the gradient divided by it after. An
    update with a gradient that is not finite must be skipped (neither weights, moments nor step move) and
    halves the scale; a run of `growth_interval` good updates doubles it. Without loss scaling (`enabled`
    False) the scale is 1 for ever and the watch is the same.

    State, saved with a checkpoint under the names below:
        loss_scale/consecutive_skips    int64, updates skipped in a row
        loss_scale/skipped_updates      int64, updates skipped in the whole run
    and, where loss scaling is enabled,
        loss_scale/current_loss_scale   float32
        loss_scale/good_steps           int64, good updates since the scale last changed
        loss_scale/skips_at_minimum     int64, updates skipped in a row at the minimum scale
    """

    def __init__(
        self,
        enabled: bool,
        initial: float = INITIAL_LOSS_SCALE,
        growth_interval: int = GROWTH_INTERVAL,
        max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS,
    ):
        super().__init__(name="loss_scale")
        if not MINIMUM_LOSS_SCALE <= initial <= MAXIMUM_LOSS_SCALE:
            raise UserError(f"init_loss_scale is {initial}; it must lie between 1 and 2^32 (default 2^15)")
        if growth_interval < 1 or max_consecutive_skips < 1:
            raise UserError(
                f"the loss scale's growth interval ({growth_interval}) and the limit of skipped updates in a "
                f"row ({max_consecutive_skips}) must be 1 or more"
            )
        self.enabled = enabled
        self.growth_interval = growth_interval
        self.max_consecutive_skips = max_consecutive_skips
        with tf.name_scope(""):
            self.consecutive_skips = _scalar("consecutive_skips", 0, tf.int64)
            self.skipped_updates = _scalar("skipped_updates", 0, tf.int64)
            self.scale = _scalar("current_loss_scale", initial if enabled else 1.0, tf.float32)
            self.good_steps = _scalar("good_steps", 0, tf.int64)
            self.skips_at_minimum = _scalar("skips_at_minimum", 0, tf.int64)

    @property
    def state(self) -> dict[str, tf.Variable]:
        """The variables to save, by checkpoint name."""
        kept = [self.consecutive_skips, self.skipped_updates]
        if self.enabled:
            kept += [self.scale, self.good_steps, self.skips_at_minimum]
        return {variable_name(variable): variable for variable in kept}

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss (float32: the product may exceed float16) times the scale, to be differentiated."""
        return loss * self.scale

    def inverse(self) -> tf.Tensor:
        """1 / scale, a float32 scalar: the factor that unscales gradients."""
        return 1.0 / self.scale

    def update(self, finite: tf.Tensor) -> None:
        """Counts one update and adjusts the scale. Works inside tf.function.

        finite: bool scalar, whether the gradients of all micro-batches on all processes were finite (so the
            same on every process).
        """
        finite = tf.convert_to_tensor(finite)
        skipped = tf.cast(~finite, tf.int64)
        self.consecutive_skips.assign((self.consecutive_skips + 1) * skipped)
        self.skipped_updates.assign_add(skipped)
        if not self.enabled:
            return
        at_minimum = tf.cast(self.scale <= MINIMUM_LOSS_SCALE, tf.int64)
        self.skips_at_minimum.assign((self.skips_at_minimum + at_minimum) * skipped)
        good_steps = (self.good_steps + 1) * (1 - skipped)
        grow = good_steps >= self.growth_interval
        larger = tf.minimum(self.scale * 2.0, MAXIMUM_LOSS_SCALE)
        smaller = tf.maximum(self.scale / 2.0, MINIMUM_LOSS_SCALE)
        self.scale.assign(tf.where(finite, tf.where(grow, larger, self.scale), smaller))
        self.good_steps.assign(tf.where(grow, tf.zeros_like(good_steps), good_steps))

    def verdict(self) -> str | None:
        """Why training should stop, if it should: after `max_consecutive_skips` skipped updates in a row, or two in a
        row at the minimum scale. To be asked on the host, after each update."""
        skips = int(self.consecutive_skips)
        if skips < self.max_consecutive_skips and int(self.skips_at_minimum) < MAX_SKIPS_AT_MINIMUM:
            return None
        scale = f", down to loss scale {float(self.scale):g}" if self.enabled else ""
        return (
            f"the gradients of the last {skips} updates in a row were not finite{scale}. They were skipped, so the "
            "weights are as they were"
        )


def _scalar(name: str, value: float, dtype: tf.DType) -> tf.Variable:
    return tf.Variable(value, dtype=dtype, trainable=False, name=f"loss_scale/{name}")
