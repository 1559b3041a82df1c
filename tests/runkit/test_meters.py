import math

import numpy as np
import pytest

from runkit.meters import (
    RULE,
    ThroughputMeter,
    closing_lines_inference,
    closing_lines_train,
    latency_summary,
)


class Clock:
    """Time that passes only when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def measure(meter, clock, seconds, items=8, between=0.0):
    for duration in seconds:
        meter.start()
        clock.now += duration
        meter.stop(items)
        clock.now += between


def make(**kwargs):
    clock = Clock()
    return ThroughputMeter(clock=clock, **kwargs), clock


def test_warm_up_is_overhead():
    meter, clock = make(warmup_updates=2)
    measure(meter, clock, [10, 4, 2, 2])
    assert (meter.updates, meter.items, meter.seconds) == (4, 32, 18)
    assert (meter.steady_items, meter.steady_seconds) == (16, 4)
    assert meter.throughput == 4
    assert meter.throughput_with_overhead == 32 / 18


def test_time_between_updates_is_overhead():
    meter, clock = make(warmup_updates=0)
    measure(meter, clock, [1, 1, 1], between=5)
    assert meter.throughput == 8
    assert meter.throughput_with_overhead == 24 / 13


def test_updates_around_a_checkpoint_are_overhead():
    meter, clock = make(warmup_updates=1)
    measure(meter, clock, [9, 1, 1])
    meter.exclude_next()
    measure(meter, clock, [30])
    measure(meter, clock, [1])
    meter.exclude_next(2)
    measure(meter, clock, [30, 7, 1])
    assert (meter.steady_items, meter.steady_seconds) == (32, 4)
    meter.start()
    meter.exclude_next()  # the update under way
    clock.now += 50
    meter.stop(8)
    assert meter.steady_seconds == 4


@pytest.mark.parametrize("updates", [1, 2, 5])
def test_runs_shorter_than_the_warm_up_show_what_they_measured(updates):
    meter, clock = make(warmup_updates=5)
    measure(meter, clock, [2] * updates)
    assert meter.throughput == meter.throughput_with_overhead == 4
    assert (meter.steady_items, meter.steady_seconds) == (8 * updates, 2 * updates)


def test_nothing_measured_is_zero():
    meter, clock = make()
    assert (meter.throughput, meter.throughput_with_overhead, meter.lap()) == (0, 0, 0)
    assert "Throughput Average (sentences/sec) = 0.00" in closing_lines_train(meter)
    meter.start()  # and then the run is stopped
    clock.now += 1
    assert (meter.throughput, meter.seconds, meter.lap()) == (0, 0, 0)


def test_no_time_passed_is_no_division_by_zero():
    meter, clock = make(warmup_updates=0)
    measure(meter, clock, [0, 0])
    assert (meter.throughput, meter.throughput_with_overhead, meter.lap()) == (0, 0, 0)


def test_laps():
    meter, clock = make(warmup_updates=1)
    measure(meter, clock, [4, 4])
    assert meter.lap() == 2
    measure(meter, clock, [1, 1], between=1)
    assert meter.lap() == 16 / 3
    assert meter.lap() == 0


def test_stop_needs_a_start():
    meter, _ = make()
    with pytest.raises(RuntimeError, match="without start"):
        meter.stop(1)


def test_real_time_passes():
    meter = ThroughputMeter(warmup_updates=0)
    meter.start()
    meter.stop(1)
    assert 0 < meter.seconds < 1


@pytest.mark.parametrize("n", [1, 2, 3, 10, 19, 20, 99, 100, 101, 1000])
def test_latency_matches_numpy(n):
    seconds = np.random.default_rng(n).exponential(0.01, n)
    summary = latency_summary(list(seconds), batch_size=4)
    for percent in (50, 90, 95, 99, 100):
        expected = 1000 * np.percentile(seconds, percent, method="inverted_cdf")
        assert getattr(summary, f"confidence_{percent}_ms") == pytest.approx(expected, rel=1e-12), percent
    assert summary.batches == n
    assert summary.average_ms == pytest.approx(1000 * seconds.mean())
    assert summary.throughput == pytest.approx(4 / seconds.mean())


def test_latency_of_known_batches():
    summary = latency_summary([(i + 1) / 1000 for i in reversed(range(100))], batch_size=1)
    assert summary[2:7] == (50, 90, 95, 99, 100)
    assert math.isclose(summary.average_ms, 50.5)


def test_latency_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one batch"):
        latency_summary([], batch_size=1)


def test_closing_lines_of_training():
    meter, clock = make(warmup_updates=1)
    measure(meter, clock, [10, 4, 4])
    assert closing_lines_train(meter) == [
        RULE,
        "Total Training Time = 18.00 for Sentences = 24",
        "Total Training Time W/O Overhead = 8.00 for Sentences = 16",
        "Throughput Average (sentences/sec) with overhead = 1.33",
        "Throughput Average (sentences/sec) = 2.00",
        "0 Total Training Time = 18.00 Training Time W/O start up overhead = 8.00 Sentences processed = 24",
        "0 Training Performance = 2.0000 sentences/sec",
        RULE,
    ]


def test_closing_lines_of_inference():
    meter, clock = make(warmup_updates=1)
    measure(meter, clock, [10, 4, 4])
    lines = closing_lines_inference(meter, 8, 384, "fp16", latency_summary([4, 4], 8))
    assert lines == [
        RULE,
        "Total Inference Time = 18.00 for Sentences = 24",
        "Total Inference Time W/O Overhead = 8.00 for Sentences = 16",
        "Summary Inference Statistics",
        "Batch size = 8",
        "Sequence Length = 384",
        "Precision = fp16",
        "Latency Confidence Level 50 (ms) = 4000.00",
        "Latency Confidence Level 90 (ms) = 4000.00",
        "Latency Confidence Level 95 (ms) = 4000.00",
        "Latency Confidence Level 99 (ms) = 4000.00",
        "Latency Confidence Level 100 (ms) = 4000.00",
        "Latency Average (ms) = 4000.00",
        "Throughput Average (sentences/sec) = 2.00",
        "0 Total Inference Time = 18.00 Inference Time W/O start up overhead = 8.00 Sentences processed = 24",
        "0 Inference Performance = 2.0000 sentences/sec",
        RULE,
    ]
    without_latency = closing_lines_inference(meter, 8, 384, "fp16", where="on EVAL set")
    assert "Summary Inference Statistics on EVAL set" in without_latency
    assert not any("Latency" in line for line in without_latency)
