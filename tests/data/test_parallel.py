import os
import signal

import pytest

from data.parallel import WINDOW_PER_WORKER, available_cores, ordered_map
from runkit.errors import UserError


def square(x: int) -> int:
    return x * x


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_: int) -> None:
    raise UserError("no")


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


def test_cores():
    assert 1 <= available_cores() <= os.cpu_count()
