"""Throughput and latency, right for any number of updates: none, one, few or many."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

RULE = "-" * 29


class ThroughputMeter:
    """Items per second over the updates of this process, with and without overhead.

    Overhead are the first `warmup_updates` (compilation, cold caches), the updates named by `exclude_next` (a
    checkpoint is being written), and all time between a stop and the next start. When nothing but overhead
    was measured, as in a run of one update, the figures without overhead are those with it.
    """

    def __init__(self, warmup_updates: int = 1, clock: Callable[[], float] = time.perf_counter):
        self.updates = 0
        self.items = 0
        self._steady_items = 0
        self._steady_seconds = 0.0
        self._excluded = warmup_updates
        self._clock = clock
        self._first = self._last = self._started = None
        self._lap_items, self._lap_from = 0, None

    def start(self) -> None:
        """An update begins. Call it before the batch is fetched, so that waiting for data counts."""
        self._started = self._clock()
        if self._first is None:
            self._first = self._last = self._lap_from = self._started

    def stop(self, items: int) -> None:
        """The update begun last has ended, its results are there, and it took in `items` items."""
        if self._started is None:
            raise RuntimeError("stop() without start()")
        self._last = self._clock()
        if self._excluded:
            self._excluded -= 1
        else:
            self._steady_items += items
            self._steady_seconds += self._last - self._started
        self._started = None
        self.updates += 1
        self.items += items
        self._lap_items += items

    def exclude_next(self, updates: int = 1) -> None:
        """Counts the next updates, the one under way included, as overhead."""
        self._excluded = max(self._excluded, updates)

    @property
    def seconds(self) -> float:
        """Wall time from the first start to the last stop."""
        return self._last - self._first if self.updates else 0.0

    @property
    def throughput_with_overhead(self) -> float:
        """Items per second of wall time; 0 before the first update."""
        return _rate(self.items, self.seconds)

    @property
    def steady_items(self) -> int:
        return self._steady_items if self._steady_seconds else self.items

    @property
    def steady_seconds(self) -> float:
        return self._steady_seconds or self.seconds

    @property
    def throughput(self) -> float:
        """Items per second without overhead; 0 before the first update."""
        return _rate(self.steady_items, self.steady_seconds)

    def lap(self) -> float:
        """Items per second of wall time since the last lap, for the log; 0 when nothing was done."""
        if self._last is None:
            return 0.0
        rate = _rate(self._lap_items, self._last - self._lap_from)
        self._lap_items, self._lap_from = 0, self._last
        return rate


class LatencySummary(NamedTuple):
    """Latency of batches in milliseconds, throughput in items per second."""

    batches: int
    average_ms: float
    confidence_50_ms: float
    confidence_90_ms: float
    confidence_95_ms: float
    confidence_99_ms: float
    confidence_100_ms: float
    throughput: float


def latency_summary(seconds: Sequence[float], batch_size: int) -> LatencySummary:
    """Summarises the seconds each batch took; all figures, throughput included, are over all batches given.

    Confidence p is the nearest-rank percentile: the smallest latency that at least p% of the batches kept.
    Raises ValueError when there is no batch.
    """
    if not seconds:
        raise ValueError("latency_summary needs at least one batch")
    ordered = sorted(seconds)
    ranks = [math.ceil(percent * len(ordered) / 100) for percent in (50, 90, 95, 99, 100)]
    total = math.fsum(ordered)
    return LatencySummary(
        len(ordered),
        1000 * total / len(ordered),
        *(1000 * ordered[rank - 1] for rank in ranks),
        throughput=_rate(batch_size * len(ordered), total),
    )


def closing_lines_train(meter: ThroughputMeter) -> list[str]:
    """The lines that end a training run's log: the newer form of the original recipe, then the older."""
    return [
        RULE,
        *_time_lines("Training", meter),
        f"Throughput Average (sentences/sec) with overhead = {meter.throughput_with_overhead:.2f}",
        f"Throughput Average (sentences/sec) = {meter.throughput:.2f}",
        *_older_lines("Training", meter),
        RULE,
    ]


def closing_lines_inference(
    meter: ThroughputMeter,
    batch_size: int,
    sequence_length: int,
    precision: str,
    latency: LatencySummary | None = None,
    where: str = "",
) -> list[str]:
    """The lines that end an evaluation or prediction: the newer form of the original recipe, then the older.

    where: "on EVAL set", "on TEST SET" or nothing. Without `latency`, as after pre-training, its lines are
    left out.
    """
    lines = [
        RULE,
        *_time_lines("Inference", meter),
        f"Summary Inference Statistics {where}".rstrip(),
        f"Batch size = {batch_size}",
        f"Sequence Length = {sequence_length}",
        f"Precision = {precision}",
    ]
    if latency is not None:
        for percent in (50, 90, 95, 99, 100):
            milliseconds = getattr(latency, f"confidence_{percent}_ms")
            lines.append(f"Latency Confidence Level {percent} (ms) = {milliseconds:.2f}")
        lines.append(f"Latency Average (ms) = {latency.average_ms:.2f}")
    return [
        *lines,
        f"Throughput Average (sentences/sec) = {meter.throughput:.2f}",
        *_older_lines("Inference", meter),
        RULE,
    ]


def _time_lines(what: str, meter: ThroughputMeter) -> list[str]:
    steady = f"{meter.steady_seconds:.2f} for Sentences = {meter.steady_items}"
    return [
        f"Total {what} Time = {meter.seconds:.2f} for Sentences = {meter.items}",
        f"Total {what} Time W/O Overhead = {steady}",
    ]


def _older_lines(what: str, meter: ThroughputMeter) -> list[str]:
    """The lines of the original README's sample output; the leading 0 is the rank."""
    return [
        f"0 Total {what} Time = {meter.seconds:.2f} {what} Time W/O start up overhead = "
        f"{meter.steady_seconds:.2f} Sentences processed = {meter.items}",
        f"0 {what} Performance = {meter.throughput:.4f} sentences/sec",
    ]


def _rate(items: int, seconds: float) -> float:
    return items / seconds if seconds > 0 else 0.0
