"""An ordered map over worker processes that never runs far ahead of its consumer."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait
from typing import TypeVar

from runkit.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items submitted and not yet taken, per worker: enough to keep all busy, few enough to bound memory.
WINDOW_PER_WORKER = 4


def available_cores() -> int:
    """Cores this process may run on, which in a container or under taskset is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    n_processes: int,
    initializer: Callable[..., None] | None = None,
    initargs: tuple = (),
) -> Iterator[Result]:
    """Yields function(item) in the order of items, whatever n_processes is.

    At most WINDOW_PER_WORKER * n_processes items are in flight: memory does not grow with the input, which
    multiprocessing.Pool.imap does not promise. Raises UserError when a worker is killed (usually: out of
    memory).
    """
    if n_processes < 1:
        raise UserError(f"n_processes is {n_processes}: it must be 1 or more")
    if n_processes == 1:
        if initializer is not None:
            initializer(*initargs)
        yield from map(function, items)
        return
    remaining = iter(items)
    # Not forked: by now the caller may have threads (a progress bar has one).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, _start_worker, (initializer, initargs)) as pool:
        pending = deque(pool.submit(function, item) for item in islice(remaining, WINDOW_PER_WORKER * n_processes))
        try:
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(function, item) for item in islice(remaining, 1))
                yield result
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process was killed, most likely for want of memory: use fewer than {n_processes}"
            ) from error
        finally:
            for future in pending:
                future.cancel()


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple) -> None:
    """Leaves Ctrl-C to the parent, and ends when the parent does, even by kill -9."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
