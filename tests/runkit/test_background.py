"""One write at a time beside the caller, and no error lost."""

import threading

import pytest

from runkit.background import BackgroundWriter
from runkit.errors import UserError


def failing(error):
    def write():
        raise error

    return write


def test_the_caller_goes_on_while_a_write_is_under_way():
    go = threading.Event()
    seen = []
    with BackgroundWriter() as writer:
        writer.submit(lambda: go.wait(60) and threading.current_thread(), seen.append)
        writer.poll()
        assert seen == []  # under way
        go.set()
        writer.wait()
        assert len(seen) == 1 and seen[0] is not threading.current_thread()
        writer.wait()
        writer.poll()
        assert len(seen) == 1  # reported once


def test_done_runs_in_the_thread_of_the_caller():
    threads = []
    with BackgroundWriter() as writer:
        writer.submit(lambda: None, lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_one_write_at_a_time_in_order():
    events = []

    def write(number):
        events.append(("begin", number))
        events.append(("end", number))
        return number

    with BackgroundWriter() as writer:
        for number in range(20):
            writer.submit(lambda number=number: write(number), lambda result: events.append(("done", result)))
    assert events == [(what, number) for number in range(20) for what in ("begin", "end", "done")]


@pytest.mark.parametrize("how", ["submit", "wait", "poll", "end"])
def test_an_error_is_raised_once_at_the_next_call(how):
    started = []
    writer = BackgroundWriter()
    writer.submit(failing(UserError("disk full")), lambda _: started.append("done of a failed write"))
    writer._thread.join()
    with pytest.raises(UserError, match="disk full"):
        if how == "submit":
            writer.submit(lambda: started.append("write after a failed one"))
        elif how == "end":
            with writer:
                pass
        else:
            getattr(writer, how)()
    assert started == []
    writer.submit(lambda: 1, started.append)
    writer.wait()
    assert started == [1]


def test_an_error_in_the_block_is_not_masked_and_the_write_is_waited_for():
    seen = []
    with pytest.raises(KeyboardInterrupt), BackgroundWriter() as writer:
        writer.submit(lambda: "whole", seen.append)
        raise KeyboardInterrupt
    assert seen == ["whole"]
    with (
        pytest.warns(UserWarning, match="in the background failed too: disk full"),
        pytest.raises(ValueError, match="mine"),
        BackgroundWriter() as writer,
    ):
        writer.submit(failing(UserError("disk full")))
        raise ValueError("mine")


def test_stalled_seconds_count_waiting_only(monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 20.25])
    monkeypatch.setattr("runkit.background.time.perf_counter", lambda: next(clock))
    writer = BackgroundWriter()
    writer.wait()
    writer.submit(lambda: None)
    assert writer.stalled_seconds == 0
    writer.submit(lambda: None)
    assert writer.stalled_seconds == 2.5
    writer.wait()
    assert writer.stalled_seconds == 2.75
