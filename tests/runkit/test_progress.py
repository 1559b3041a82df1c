import io
import re

import pytest

from runkit import progress
from runkit.progress import Progress, duration, print_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when told to: clock[0] += seconds."""
    now = [50.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_come_at_intervals_and_at_the_end(clock):
    stream = io.StringIO()
    with Progress(1000, "sharding", "documents", stream=stream) as bar:
        for _ in range(25):
            clock[0] += 1
            bar.update(40)
    assert stream.getvalue().splitlines() == [
        "sharding: 400/1000 documents (40%), 40.0 documents/s, ETA 0:00:15",
        "sharding: 800/1000 documents (80%), 40.0 documents/s, ETA 0:00:05",
        "sharding: 1000/1000 documents (100%) in 0:00:25, 40.0 documents/s",
    ]


def test_slow_work_has_a_rate_too(clock):
    stream = io.StringIO()
    with Progress(4, "phase 1", "updates", stream=stream) as bar:
        clock[0] += 3600
        bar.update()
    assert "0.000 updates/s, ETA 3:00:00" in stream.getvalue()


def test_unknown_total(clock):
    stream = io.StringIO()
    with Progress(None, "reading", "lines", stream=stream) as bar:
        clock[0] += 10
        bar.update(50)
    assert stream.getvalue().splitlines() == [
        "reading: 50 lines, 5.0 lines/s",
        "reading: 50 lines in 0:00:10, 5.0 lines/s",
    ]


def test_nothing_done_and_no_time_passed(clock):
    stream = io.StringIO()
    with Progress(0, "empty", "lines", stream=stream):
        pass
    with Progress(5, "none", "lines", stream=stream) as bar:
        bar.update(0)
        clock[0] += 20
        bar.update(0)
    assert stream.getvalue().splitlines() == [
        "empty: 0 lines in 0:00:00, 0.000 lines/s",
        "none: 0/5 lines (0%), 0.000 lines/s",
        "none: 0/5 lines (0%) in 0:00:20, 0.000 lines/s",
    ]


def test_errors_pass_and_are_told(clock):
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), Progress(2, "x", stream=stream) as bar:
        bar.update()
        raise ZeroDivisionError
    assert stream.getvalue().startswith("x: 1/2 items (50%)")
    assert stream.getvalue().endswith("(stopped)\n")


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    with Progress(4, "phase 1", "updates", stream=stream) as bar:
        bar.update(4)
    assert re.search(r"phase 1: 100%.*4/4 \[.* updates/s\]", stream.getvalue())


def test_duration():
    assert [duration(seconds) for seconds in (0.4, 59.6, 3725)] == ["0:00:00", "0:01:00", "1:02:05"]
    assert duration(90061) == "1 day, 1:01:01"


def test_print_line_escapes_what_the_terminal_lacks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_line("né")
    assert raw.getvalue() == b"n\\xe9\n"
