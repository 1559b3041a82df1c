import os
import signal
import time

import pytest

from data.executors import Stopped, advance, open_workers
from data.parallel import WINDOW_PER_WORKER, available_cores, completed_map, ordered_map
from runkit.errors import UserError


def square(x: int) -> int:
    advance(1)
    return x * x


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_: int) -> None:
    raise UserError("no")


def fail_or_work_for_long(x: int) -> None:
    if x == 1:
        raise UserError("no")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.01)
        advance(1)


@pytest.mark.parametrize("n_processes", [1, 3])
def test_order_is_kept(n_processes):
    assert list(ordered_map(square, range(50), n_processes)) == [x * x for x in range(50)]


def test_it_does_not_run_ahead():
    taken = []
    results = ordered_map(square, (taken.append(x) or x for x in range(1000)), 2)
    for _ in range(10):
        next(results)
    assert len(taken) <= 10 + 2 * WINDOW_PER_WORKER
    results.close()


def test_a_killed_worker_is_reported():
    with pytest.raises(UserError, match="worker process was killed"):
        list(ordered_map(die, range(4), 2))


def test_errors_come_through():
    with pytest.raises(UserError, match=r"^no$"):
        list(ordered_map(fail, range(4), 2))


@pytest.mark.parametrize("n_processes", [1, 2])
def test_as_they_end(n_processes):
    told = []
    with open_workers(n_processes=n_processes) as workers:
        for _ in range(2):  # the same workers serve map after map
            found = dict(completed_map(square, range(30), workers, told.append))
            assert found == {x: x * x for x in range(30)}
            assert told[-1] == 30


def test_as_they_end_does_not_run_ahead():
    taken = []
    with open_workers(n_processes=2) as workers:
        results = completed_map(square, (taken.append(x) or x for x in range(1000)), workers)
        for _ in range(10):
            next(results)
        assert len(taken) <= 10 + 2 * 2
        results.close()
        assert list(ordered_map(square, range(3), workers)) == [0, 1, 4]


def test_what_was_in_flight_is_named():
    with (
        pytest.raises(UserError, match=r"killed.*\(2 processes\): <\d>.*; use fewer workers"),
        open_workers(n_processes=2) as workers,
    ):
        list(completed_map(die, range(4), workers, describe="<{}>".format))


def test_the_first_failure_ends_the_others_at_their_next_advance():
    start = time.monotonic()
    with pytest.raises(UserError, match=r"^no$"), open_workers(n_processes=2) as workers:
        list(completed_map(fail_or_work_for_long, [0, 1], workers))
    assert time.monotonic() - start < 30


def test_stopped_workers_do_not_go_on():
    with pytest.raises(Stopped), open_workers(n_processes=2) as workers:
        workers.stop()
        list(ordered_map(square, range(3), workers))


def test_cores():
    assert 1 <= available_cores() <= os.cpu_count()
