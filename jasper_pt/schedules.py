"""Learning-rate schedules: pure functions, computed once an update, before it.

Counting. `step` is the number of the update that the rate is for, from 1; `epoch` the epoch it lies in, from 1, so
epoch = (step - 1) // steps_per_epoch + 1. The formulas are the published ones in these numbers. The published program,
though, computed the rate after update s, with the numbers of s, and used it in update s + 1; so its first update ran
at the peak, warm-up or not, and every other one a step late. Here update s runs at the rate of s.
"""

import math
from collections.abc import Callable

from runkit.errors import UserError

POLICIES = ("exponential", "legacy", "cosine")


def learning_rate(
    step: int,
    epoch: int,
    policy: str,
    peak: float,
    min_lr: float,
    steps_per_epoch: int,
    epochs: int,
    warmup_epochs: int = 0,
    hold_epochs: int = 0,
    gamma: float = 0.99,
) -> float:
    """The rate max(peak a, min_lr), where, for S steps an epoch, N, W and H epochs in all, of warm-up and of hold,

        warm-up, s < W S          a = (s + 1) / (W S + 1)
        hold, s < (W + H) S       a = 1
        then  exponential         a = gamma ^ (e - W - H): constant within an epoch
              legacy              a = ((N S - s) / (N S - W S - H S))^2
              cosine              a = (1 + cos(pi (s - W S - H S) / (N S - W S - H S))) / 2   (arXiv 1608.03983; ours)

    Raises UserError for an unknown policy.
    """
    warmup, flat, total = (n * steps_per_epoch for n in (warmup_epochs, warmup_epochs + hold_epochs, epochs))
    progress = min(max(step - flat, 0) / max(total - flat, 1), 1.0)
    if step < warmup:
        factor = (step + 1) / (warmup + 1)
    elif step < flat:
        factor = 1.0
    elif policy == "exponential":
        factor = gamma ** (epoch - warmup_epochs - hold_epochs)
    elif policy == "legacy":
        factor = (1.0 - progress) ** 2
    elif policy == "cosine":
        factor = (1.0 + math.cos(math.pi * progress)) / 2
    else:
        raise UserError(f"lr_policy {policy!r} is unknown; choose one of {', '.join(POLICIES)}")
    return max(peak * factor, min_lr)


def create_schedule(
    policy: str,
    peak: float,
    min_lr: float,
    steps_per_epoch: int,
    epochs: int,
    warmup_epochs: int = 0,
    hold_epochs: int = 0,
    gamma: float = 0.99,
) -> Callable[[int], float]:
    """The schedule of a run as a function of the 1-based step. Raises UserError for settings no run can use."""
    if policy not in POLICIES:
        raise UserError(f"lr_policy {policy!r} is unknown; choose one of {', '.join(POLICIES)}")
    if not 0 <= min_lr < math.inf or not 0 <= peak < math.inf:
        raise UserError(f"lr {peak} and min_lr {min_lr} must be finite numbers, 0 or more")
    if steps_per_epoch < 1 or epochs < 1 or min(warmup_epochs, hold_epochs) < 0:
        raise UserError(
            f"epochs ({epochs}) and steps an epoch ({steps_per_epoch}) must be 1 or more, "
            f"warmup_epochs ({warmup_epochs}) and hold_epochs ({hold_epochs}) 0 or more"
        )
    if not 0 < gamma <= 1:
        raise UserError(f"lr_exp_gamma is {gamma}; it must lie in (0, 1]")

    def schedule(step: int) -> float:
        epoch = (step - 1) // steps_per_epoch + 1
        return learning_rate(
            step, epoch, policy, peak, min_lr, steps_per_epoch, epochs, warmup_epochs, hold_epochs, gamma
        )

    return schedule
