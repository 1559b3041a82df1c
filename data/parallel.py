"""Maps over workers that never run far ahead of their consumer."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import TypeVar

from data.executors import Workers, open_workers, reporting_to
from runkit.errors import UserError
from runkit.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items submitted and not yet taken, per worker: enough to keep all busy, few enough to bound memory.
WINDOW_PER_WORKER = 4
LISTEN_SECONDS = 0.5  # between looks at what tasks have told


def available_cores() -> int:
    """Cores this process may run on, which in a container or under taskset is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int | Workers) -> Iterator[Result]:
    """Yields function(item) in the order of items, whatever the workers: a number of processes, or opened ones.

    At most WINDOW_PER_WORKER items a worker are in flight: memory does not grow with the input, which Executor.map
    does not promise. Raises UserError when a worker is killed (usually: out of memory).
    """
    with _opened(workers) as workers:
        if workers.executor is None:
            yield from map(function, items)
            return
        remaining = iter(items)
        pending: deque[Future] = deque()
        with _cleared(workers, pending):
            pending += _submit(function, remaining, workers, WINDOW_PER_WORKER * workers.slots)
            while pending:
                result = pending.popleft().result()
                pending += _submit(function, remaining, workers, 1)
                yield result


def completed_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: Workers,
    advanced: Callable[[float], None] = lambda total: None,
    describe: Callable[[Item], str] = str,
) -> Iterator[tuple[Item, Result]]:
    """Yields (item, function(item)) as they end, two items a worker in flight. The first failure stops all.

    advanced is called now and then with the sum of what tasks have told by executors.advance since this call. Raises
    UserError when a worker is killed, describing the items that were in flight.
    """
    if workers.executor is None:
        total = 0.0

        def report(amount: float) -> None:
            nonlocal total
            total += amount
            advanced(total)

        with reporting_to(report):
            for item in items:
                yield item, function(item)
        return
    remaining = iter(items)
    running: dict[Future, Item] = {}

    def submit(n: int) -> None:
        for item in islice(remaining, n):
            running[workers.executor.submit(function, item)] = item

    start = workers.advanced()
    with _cleared(workers, running, lambda: ": " + ", ".join(map(describe, running.values()))):
        submit(2 * workers.slots)
        while running:
            ended, _ = wait(running, timeout=LISTEN_SECONDS, return_when=FIRST_COMPLETED)
            advanced(workers.advanced() - start)
            for future in ended:
                result = future.result()
                item = running.pop(future)
                submit(1)
                yield item, result


def files_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: Workers,
    n_bytes: Callable[[Item], int],
    label: str,
    describe: Callable[[Item], str] = str,
) -> Iterator[tuple[Item, Result]]:
    """completed_map with a progress bar in kB: n_bytes of an item when it ends, and before what its task tells."""
    items = list(items)
    with Progress(sum(map(n_bytes, items)) // 1000, f"{label}, {workers.description}", "kB") as progress:
        ended = 0

        def show(told: float) -> None:
            progress.update(max(int(max(told, ended) / 1000) - progress.done, 0))

        for item, result in completed_map(function, items, workers, show, describe):
            ended += n_bytes(item)
            show(0)
            yield item, result


def _opened(workers: int | Workers) -> contextlib.AbstractContextManager[Workers]:
    return open_workers(n_processes=workers) if isinstance(workers, int) else contextlib.nullcontext(workers)


def _submit(function: Callable, items: Iterator, workers: Workers, n: int) -> list[Future]:
    return [workers.executor.submit(function, item) for item in islice(items, n)]


@contextlib.contextmanager
def _cleared(workers: Workers, futures: Iterable[Future], in_flight: Callable[[], str] = str) -> Iterator[None]:
    """Leaves no future behind, however the block ends; a dead worker becomes a UserError."""
    try:
        yield
    except workers.lost as error:
        workers.stop()
        raise UserError(
            f"a worker process was killed, most likely for want of memory ({workers.description}){in_flight()}; "
            "use fewer workers. Run again: what was finished is kept"
        ) from error
    except Exception:
        workers.stop()
        raise
    finally:
        for future in futures:
            future.cancel()
