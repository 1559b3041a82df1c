"""Guards of a training run: what stops one that has gone wrong, with patience, and with a diagnosis.

    non-finite updates    the recipes' loss scales count them in a row (their `verdict`), and skip them
    exploding gradients   GradientNormGuard
    stalled input         StallGuard

A verdict depends on values that all processes share, so all of them reach it at the same update and no one is left
waiting. What is known on one process only (its own loss, its own batch) is gathered after the verdict: `diagnosis`.
"""

import collections
import math
import queue
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from runkit.errors import UserError

T = TypeVar("T")
EXPLOSION_FACTOR = (
    1000.0  # times the usual gradient norm; clipped training survives a few such updates, not a row of them
)
EXPLOSION_PATIENCE = 10  # updates in a row
INPUT_TIMEOUT = 600.0  # seconds without a batch after which a run gives up
_INPUT_WARNING = 30.0  # seconds between warnings until then
_HISTORY = 100  # updates whose median is the usual norm
_FIRST_VERDICT = 20  # updates before a usual norm is known
_LISTED = 12  # batch members that a diagnosis names for each process


class GradientNormGuard:
    """Gradient norms far above the usual, many times in a row: the run diverges, although every value is finite."""

    def __init__(self, factor: float = EXPLOSION_FACTOR, patience: int = EXPLOSION_PATIENCE):
        """factor: times the median norm of the latest 100 usual updates; patience: updates in a row beyond it."""
        if not factor > 1 or patience < 1:
            raise UserError(
                f"a gradient norm guard needs a factor over 1 and a patience of at least 1, not {factor:g}, {patience}"
            )
        self.factor, self.patience = factor, patience
        self._usual: collections.deque[float] = collections.deque(maxlen=_HISTORY)
        self._beyond: list[float] = []

    @property
    def exploding(self) -> bool:
        """Whether the latest norm was beyond: what is saved now might not be worth going on from."""
        return bool(self._beyond)

    def verdict(self, norm: float) -> str | None:
        """Counts the global gradient norm (before clipping) of an update; says why training should stop, if it should.

        Norms that are not finite belong to skipped updates and do not count. Norms beyond do not become usual.
        """
        if not math.isfinite(norm):
            return None
        usual = statistics.median(self._usual) if len(self._usual) >= _FIRST_VERDICT else math.inf
        if norm <= self.factor * usual:
            self._usual.append(norm)
            self._beyond.clear()
            return None
        self._beyond.append(norm)
        if len(self._beyond) < self.patience:
            return None
        return (
            f"the gradient explodes: its norm was {min(self._beyond):.3g} to {max(self._beyond):.3g} in the last "
            f"{len(self._beyond)} updates, {self.factor:g} times the usual {usual:.3g} and more"
        )


class StallGuard:
    """Waiting for input with an end: warns every half minute, gives up after `limit` seconds."""

    def __init__(self, warn: Callable[[str], None], limit: float = INPUT_TIMEOUT):
        self.warn, self.limit = warn, limit

    def wait(self, get: Callable[[float], T], source: Callable[[], str]) -> T:
        """get(seconds) returns the next item or raises queue.Empty or TimeoutError after so many seconds.

        source: what is waited for, as text for a reader. Raises UserError when the limit is over.
        """
        waited = 0.0
        while True:
            seconds = min(_INPUT_WARNING, self.limit - waited)
            try:
                return get(seconds)
            except (queue.Empty, TimeoutError):
                waited += seconds
            if waited >= self.limit:
                raise UserError(
                    f"no input for {waited:.0f} s from {source()}: the disk, the network file system or the reading "
                    "thread hangs; look at them, then resume"
                )
            self.warn(f"waiting for input since {waited:.0f} s: {source()}")


def diagnosis(verdict: str, processes: Sequence[Mapping[str, Any]], remedy: str) -> str:
    """The text of a stopped run's error: verdict, then a line for each process, then what to do.

    processes: by rank, plain JSON of the last update there: "loss" (its own), "batch" (ids of what it saw, in any form
    that finds the data again) and any other statistics.
    """
    broken = [rank for rank, process in enumerate(processes) if not _finite(process.get("loss", 0.0))]
    lines = [verdict]
    if broken and len(broken) < len(processes):
        lines.append(f"the loss itself is not finite on rank {', '.join(map(str, broken))}")
    for rank, process in enumerate(processes):
        batch = list(process.get("batch", ()))
        more = f" and {len(batch) - _LISTED} more" if len(batch) > _LISTED else ""
        values = ", ".join(f"{key} {_text(value)}" for key, value in process.items() if key != "batch")
        lines.append(f"  rank {rank}: {values}; batch: {', '.join(map(str, batch[:_LISTED]))}{more}")
    return "\n".join([*lines, remedy])


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)  # JSON has no NaN: None stands for it


def _text(value: Any) -> str:
    if value is None:
        return "not finite"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def json_number(value: float) -> float | None:
    """A number as JSON can carry it: None for NaN and infinity."""
    return value if math.isfinite(value) else None
