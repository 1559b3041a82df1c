"""Guards: patience, verdicts, and the text of a diagnosis."""

import math
import queue
import signal

import pytest

from runkit.errors import UserError
from runkit.guards import GradientNormGuard, StallGuard, diagnosis, json_number
from runkit.signals import StopSignals


def test_explosion_needs_a_row_of_updates_far_beyond_the_usual():
    guard = GradientNormGuard(factor=10, patience=3)
    assert [guard.verdict(norm) for norm in [1.0] * 15 + [3.0] * 10] == [None] * 25
    for norm in (50.0, 60.0, 2.0, 50.0, 60.0):  # one usual update in between starts the count again
        assert guard.verdict(norm) is None and guard.exploding == (norm > 10)
    verdict = guard.verdict(70.0)
    assert "50 to 70 in the last 3 updates" in verdict and "10 times the usual 1 " in verdict


def test_no_verdict_before_a_usual_norm_is_known_and_none_on_what_was_skipped():
    guard = GradientNormGuard(factor=2, patience=1)
    assert all(guard.verdict(10.0**n) is None for n in range(20))
    guard = GradientNormGuard(factor=2, patience=1)
    for _ in range(30):
        assert guard.verdict(1.0) is None
    assert guard.verdict(math.inf) is None and guard.verdict(math.nan) is None
    assert guard.verdict(2.1) is not None


@pytest.mark.parametrize(("factor", "patience"), [(1.0, 3), (math.nan, 3), (10.0, 0)])
def test_numbers_that_guard_nothing(factor, patience):
    with pytest.raises(UserError, match="gradient norm guard"):
        GradientNormGuard(factor, patience)


def test_stalled_input_is_warned_of_and_given_up():
    waits, warnings = [], []

    def never(seconds: float):
        waits.append(seconds)
        raise queue.Empty

    guard = StallGuard(warnings.append, limit=70.0)
    with pytest.raises(UserError, match=r"no input for 70 s from the shelf"):
        guard.wait(never, lambda: "the shelf")
    assert waits == [30.0, 30.0, 10.0]
    assert warnings == ["waiting for input since 30 s: the shelf", "waiting for input since 60 s: the shelf"]


def test_input_that_comes_late_is_taken():
    answers = iter([TimeoutError(), queue.Empty(), "batch"])

    def late(seconds: float):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    warnings = []
    assert StallGuard(warnings.append).wait(late, lambda: "it") == "batch"
    assert len(warnings) == 2


def test_diagnosis_names_the_rank_and_its_batch():
    processes = [{"loss": 1.25, "batch": ["a:1", "a:2"], "tokens": 7}, {"loss": None, "batch": range(20)}]
    lines = diagnosis("it broke", processes, "mend it").splitlines()
    assert lines[0] == "it broke" and lines[-1] == "mend it"
    assert lines[1] == "the loss itself is not finite on rank 1"
    assert lines[2] == "  rank 0: loss 1.25, tokens 7; batch: a:1, a:2"
    assert lines[3].startswith("  rank 1: loss not finite; batch: 0, 1, ") and lines[3].endswith("11 and 8 more")
    assert json_number(math.nan) is json_number(math.inf) is None and json_number(2.5) == 2.5


def test_stop_signals_are_noted_and_handlers_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert not signals.requested()
        signal.raise_signal(signal.SIGUSR1)
        assert signals.requested() and signals.received is signal.SIGUSR1
    assert signal.getsignal(signal.SIGTERM) is before
