"""Learning-rate schedules: pure functions of the step, computed on the host once per update.

`step` counts finished updates, so the first update has step 0 and, with a warm-up, learning rate 0. `peak` is
the effective one: learning rate per process times the number of processes. A new phase starts at step 0.
"""

from collections.abc import Callable

from runkit.errors import UserError


def polynomial_warmup(step: int, peak: float, warmup: int, total: int, power: float) -> float:
    """Linear warm-up to `peak`, then polynomial decay to 0 at `total`, measured from step 0.

    lr(t) = peak * t / W for t < W, else peak * (1 - t / T) ** power

    The decay counts from step 0 and not from the end of the warm-up, so the rate drops where the two meet,
    from about `peak` to peak * (1 - W / T) ** power. The published LAMB recipe has this drop (power 0.5), and
    its results depend on it; so has Google's BERT (power 1).

    Raises UserError for settings no run can use (see check_schedule).
    """
    check_schedule(step, peak, warmup, total)
    if step < warmup:
        return peak * step / warmup
    return peak * max(0.0, 1.0 - step / total) ** power


def compensated_linear_warmup(step: int, peak: float, warmup: int, total: int) -> float:
    """Linear warm-up to `peak`, then linear decay to 0 at `total`, meeting without a drop at exactly `peak`.

    lr(t) = peak * t / W for t < W, else peak / (1 - W / T) * (1 - t / T)

    The published Adam recipe: polynomial_warmup with power 1, its decay started higher so that lr(W) = peak.

    Raises UserError for settings no run can use (see check_schedule).
    """
    check_schedule(step, peak, warmup, total)
    if step < warmup:
        return peak * step / warmup
    return peak * max(0, total - step) / (total - warmup)


def check_schedule(step: int, peak: float, warmup: int, total: int) -> None:
    """Raises UserError unless step >= 0, peak >= 0 (and finite), total >= 1 and 0 <= warmup < total."""
    if step < 0:
        raise UserError(f"learning-rate schedule: step is {step}, it must be 0 or more")
    if not 0.0 <= peak < float("inf"):
        raise UserError(f"learning_rate is {peak}; it must be a finite number, 0 or more")
    if total < 1:
        raise UserError(f"num_train_steps is {total}; it must be 1 or more")
    if not 0 <= warmup < total:
        raise UserError(
            f"num_warmup_steps is {warmup} and num_train_steps is {total}: the warm-up must be 0 or more and "
            "end before the training does; lower num_warmup_steps or raise num_train_steps"
        )


def create_schedule(optimizer_type: str, peak: float, warmup: int, total: int) -> Callable[[int], float]:
    """The published schedule of an optimizer, as a function step -> learning rate.

    `optimizer_type` is "lamb" (square-root decay from step 0) or "adam" (compensated linear decay), as
    returned by `optimization.canonical_name`. Raises UserError at once, before any training, for settings no
    run can use.
    """
    check_schedule(0, peak, warmup, total)
    if optimizer_type == "lamb":
        return lambda step: polynomial_warmup(step, peak, warmup, total, power=0.5)
    if optimizer_type == "adam":
        return lambda step: compensated_linear_warmup(step, peak, warmup, total)
    raise UserError(f"no learning-rate schedule for optimizer {optimizer_type!r}; choose lamb or adam")
