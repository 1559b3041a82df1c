"""NVLAMB and the BERT variant of Adam: pure update functions, and the small object that walks the parameters.

LAMB: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", arXiv 1904.00962.
NVLAMB differs in two ways: the gradient of the whole model is first clipped to a global norm of 1, and the
trust ratio applies to every variable, biases and layer norms included. AdamW (arXiv 1711.05101) is the same
step with trust ratio one; BERT's variant of it also leaves out the bias correction.

In every formula: w weight, m and v first and second moment, g gradient (unscaled, averaged, clipped), t
number of this update counted from 1, lr learning rate, u update direction, r trust ratio.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf import kernels
from bert_tf.model import variable_name
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError

MAX_GRADIENT_NORM = 1.0
WEIGHT_DECAY = 0.01
# Searched in checkpoint names: biases and layer norms are not decayed (but do get a trust ratio).
EXCLUDED_FROM_DECAY = ("LayerNorm", "layer_norm", "bias")


class Hyper(NamedTuple):
    """Constants shared by all variables."""

    beta1: float
    beta2: float
    epsilon: float  # added to the square root, not inside it


PUBLISHED = Hyper(beta1=0.9, beta2=0.999, epsilon=1e-6)


# ------------------------------------------------------------------------------------------------ the updates
def direction(
    w: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    g: tf.Tensor,
    correction1: tf.Tensor | float,
    correction2: tf.Tensor | float,
    decay: tf.Tensor | float,
    hyper: Hyper = PUBLISHED,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The update direction u of one variable and its new moments: (u, m, v).

        m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2      u = (m / c1) / (sqrt(v / c2) + eps) + decay w

    w, m, v, g: of one shape; w, m and v of one float dtype, in which all is computed, g of any float dtype.
    correction1, correction2: bias corrections c1 and c2, scalars. decay: weight decay, 0 for excluded variables.
    """
    g = tf.cast(g, m.dtype)
    m = hyper.beta1 * m + (1.0 - hyper.beta1) * g
    v = hyper.beta2 * v + (1.0 - hyper.beta2) * tf.square(g)
    return (m / correction1) / (tf.sqrt(v / correction2) + hyper.epsilon) + decay * w, m, v


def nvlamb_update(w, m, v, g, t, lr, decay, hyper: Hyper = PUBLISHED) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One NVLAMB step of one variable; returns the new (w, m, v). t, lr: scalars; the others as for `direction`."""
    u, m, v = direction(w, m, v, g, *bias_corrections(hyper, t, w.dtype), decay, hyper)
    return w - tf.cast(lr, w.dtype) * trust_ratio(w, u) * u, m, v


def adam_update(w, m, v, g, t, lr, decay, hyper: Hyper = PUBLISHED) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One step of BERT's Adam of one variable; returns the new (w, m, v). Arguments as for nvlamb_update.

    Decay is decoupled from the moments and scaled by the learning rate. There is no bias correction, by
    design of the published recipe (so t goes unused): the warm-up covers the first steps, where the moments
    are far from settled.
    """
    del t
    u, m, v = direction(w, m, v, g, 1.0, 1.0, decay, hyper)
    return w - tf.cast(lr, w.dtype) * u, m, v


def bias_corrections(hyper: Hyper, t: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - beta1^t and 1 - beta2^t, scalars, computed in float64: 1 - 0.999 in float32 is off by one part in 80,000."""
    powers = (tf.pow(tf.constant(beta, tf.float64), tf.cast(t, tf.float64)) for beta in (hyper.beta1, hyper.beta2))
    return tuple(tf.cast(1.0 - power, dtype) for power in powers)


def trust_ratio(w: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """|w| / |u| over the whole variable, a scalar; 1 where a norm is zero, as of a bias that is still 0."""
    # l2_loss is half the sum of squares in one pass; tf.norm takes two. The halves cancel.
    w_square, u_square = tf.nn.l2_loss(w), tf.nn.l2_loss(u)
    ratio = tf.sqrt(tf.math.divide_no_nan(w_square, u_square))
    return tf.where((w_square > 0) & (u_square > 0), ratio, tf.ones_like(ratio))


class Rule(NamedTuple):
    """What tells the optimizers apart: Adam is LAMB without bias correction and with trust ratio one."""

    bias_correction: bool
    trust_ratio: bool


RULES = {"lamb": Rule(bias_correction=True, trust_ratio=True), "adam": Rule(bias_correction=False, trust_ratio=False)}
ALIASES = {"nvlamb": "lamb"}


# ---------------------------------------------------------------------------- the gradient of the whole model
def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """L2 norm of all gradients (dense, any float dtype) together, a float32 scalar.

    It is infinite or NaN whenever an element is, so `tf.math.is_finite` of it is the finite check of an
    update and saves a pass. (Elements above 1e19, whose squares overflow float32, count as not finite too.)
    """
    if native := kernels.library():
        return native.bert_global_norm(gradients)
    return tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients]))


def clip_factor(norm: tf.Tensor, max_norm: float = MAX_GRADIENT_NORM) -> tf.Tensor:
    """The scalar that brings a gradient of this norm down to max_norm; 1 where it is not above."""
    return max_norm / tf.maximum(norm, max_norm)


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor], max_norm: float = MAX_GRADIENT_NORM
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """(gradients scaled to a global norm of at most max_norm, norm before).

    The plain form; a training step saves a pass by handing clip_factor to Optimizer.apply.
    """
    norm = global_norm(gradients)
    factor = clip_factor(norm, max_norm)
    return [g * tf.cast(factor, g.dtype) for g in gradients], norm


# ------------------------------------------------------------------------------- the walk over the parameters
class Optimizer(tf.Module):
    """Owns the step and the moments of a list of variables, and updates all of them in place.

    step: int64 scalar `global_step`, the number of updates done. To skip an update is not to call `apply`.
    slots: {"<variable>/adam_m": ..., "<variable>/adam_v": ...}, float32; the published checkpoints' names.
    """

    def __init__(self, rule: Rule, variables: Sequence[tf.Variable], hyper: Hyper = PUBLISHED):
        super().__init__(name="optimizer")
        self.rule, self.hyper = rule, hyper
        # By XLA, one pass over memory each; between them the norms, which are faster outside of it.
        self._direction = tf.function(
            lambda w, m, v, g, scale, *rest: direction(w, m, v, tf.cast(g, tf.float32) * scale, *rest, hyper),
            jit_compile=True,
            autograph=False,
        )
        self._move = tf.function(lambda w, u, length: w - length * u, jit_compile=True, autograph=False)
        self.parameters = list(variables)
        names = [variable_name(w) for w in self.parameters]
        if len(set(names)) < len(names):
            raise ValueError(f"variables share names: {[name for name in names if names.count(name) > 1]}")
        self.decay = [0.0 if excluded_from_decay(name) else WEIGHT_DECAY for name in names]
        with tf.name_scope(""):  # a scope around this call would be put before the names
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
            self.m = [_zero_slot(w, "adam_m") for w in self.parameters]
            self.v = [_zero_slot(w, "adam_v") for w in self.parameters]

    @property
    def slots(self) -> dict[str, tf.Variable]:
        return {variable_name(slot): slot for slot in [*self.m, *self.v]}

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        lr: tf.Tensor,
        gradient_scale: tf.Tensor | float = 1.0,
        weights: ComputeWeights | None = None,
    ) -> None:
        """One update of all variables, in place: by the kernels on a CPU, otherwise by XLA.

        gradients: dense, in the order and shapes of the variables, any float dtype.
        lr: scalar.
        gradient_scale: scalar multiplied into every gradient as it is read. The caller folds all its factors
            into it (1 / loss scale, 1 / examples, clipping), so that none costs a pass over memory.
        weights: holder of copies of the variables in the compute dtype, which are renewed too.
        """
        t = self.step + 1
        scale, one = tf.cast(gradient_scale, tf.float32), tf.constant(1.0)
        corrections = bias_corrections(self.hyper, t, tf.float32) if self.rule.bias_correction else (one, one)
        if len(gradients) != len(self.parameters):
            raise ValueError(f"{len(gradients)} gradients of {len(self.parameters)} variables")
        apply = self._apply_natively if kernels.library() else self._apply_by_xla
        apply(gradients, tf.cast(lr, tf.float32), scale, corrections, weights)
        self.step.assign(t)

    def _apply_natively(self, gradients, lr, scale, corrections, weights: ComputeWeights | None) -> None:
        """All variables by one kernel: each in two passes over memory, the copies in the second."""
        places = [weights.copy_of(w) if weights else None for w in self.parameters]
        copies = list({id(place[0]): place[0] for place in places if place}.values())
        index = {id(copy): i for i, copy in enumerate(copies)}
        kernels.library().bert_optimizer_step(
            *([variable.handle for variable in group] for group in (self.parameters, self.m, self.v, copies)),
            gradients,
            lr,
            scale,
            *corrections,
            decay=self.decay,
            copy=[index[id(place[0])] if place else -1 for place in places],
            column=[place[1] if place else 0 for place in places],
            keep1=self.hyper.beta1,
            take1=1.0 - self.hyper.beta1,
            keep2=self.hyper.beta2,
            take2=1.0 - self.hyper.beta2,
            epsilon=self.hyper.epsilon,
            trust_ratio=self.rule.trust_ratio,
        )

    def _apply_by_xla(self, gradients, lr, scale, corrections, weights: ComputeWeights | None) -> None:
        one = tf.constant(1.0)
        for w, m, v, g, decay in zip(self.parameters, self.m, self.v, gradients, self.decay, strict=True):
            value = w.read_value()
            u, new_m, new_v = self._direction(
                value, m.read_value(), v.read_value(), g, scale, *corrections, tf.constant(decay)
            )
            ratio = trust_ratio(value, u) if self.rule.trust_ratio else one
            moved = self._move(value, u, lr * ratio)
            weights.refresh(w, moved) if weights else w.assign(moved)
            m.assign(new_m)
            v.assign(new_v)


def canonical_name(optimizer_type: str) -> str:
    """`lamb` or `adam`, from lamb, nvlamb or adam in any case. Raises UserError for anything else."""
    name = optimizer_type.lower()
    name = ALIASES.get(name, name)
    if name not in RULES:
        choices = ", ".join([*RULES, *ALIASES])
        raise UserError(f"optimizer_type {optimizer_type!r} is unknown; choose {choices} (in any case)")
    return name


def create_optimizer(optimizer_type: str, variables: Sequence[tf.Variable]) -> Optimizer:
    """The optimizer of that name (see canonical_name) for `variables`, with step and moments zero."""
    return Optimizer(RULES[canonical_name(optimizer_type)], variables)


def excluded_from_decay(name: str) -> bool:
    """Whether the variable of this checkpoint name is left out of weight decay."""
    return any(re.search(pattern, name) for pattern in EXCLUDED_FROM_DECAY)


def _zero_slot(variable: tf.Variable, slot: str) -> tf.Variable:
    zeros = tf.zeros(variable.shape, tf.float32)
    return tf.Variable(zeros, trainable=False, name=f"{variable_name(variable)}/{slot}")
