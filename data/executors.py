"""Where the tasks of a stage run: processes of this machine, the workers of a dask cluster, or the ranks of an MPI job.

    python -m data.sharding ... --n_processes 8                                  8 processes (--executor processes)
    python -m data.sharding ... --executor dask --scheduler tcp://HOST:8786      a dask cluster that is running
    mpirun -np 9 python -m data.sharding ... --executor mpi                      rank 0 leads, 8 ranks work

All three are executors of concurrent.futures, and what a stage writes is the same bytes in all of them. Tasks take
and return small things and leave the large ones in files: workers on other machines have to see this tree and the
data under the same paths. Their functions are looked up by module, so a main runs as its importable self (see the
last lines of sharding.py).
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

from runkit.errors import UserError

EXECUTORS = ("processes", "dask", "mpi")
CONNECT_SECONDS = 30  # for a scheduler to answer, and then for its first worker
INSTALL = "install it with 'bash scripts/setup.sh data'"


class Workers:
    """An executor and what is known of it.

    executor: None when tasks run in this process, one after another. slots: tasks at a time. lost: the errors that
    mean that a worker has died.
    """

    def __init__(
        self,
        executor: Executor | None,
        slots: int,
        description: str,
        lost: tuple[type[BaseException], ...] = (BrokenExecutor,),
        signals: "_Signals | None" = None,
    ):
        self.executor, self.slots, self.description, self.lost = executor, slots, description, lost
        self._signals = signals

    def advanced(self) -> float:
        """The sum of what tasks have told by advance(); processes of this machine alone can be heard."""
        return self._signals.counter.value if self._signals else 0.0

    def stop(self) -> None:
        """Ends running tasks at their next advance(), where they can be reached; nothing can be run afterwards."""
        if self._signals:
            self._signals.stop.set()


@contextlib.contextmanager
def open_workers(executor: str = "processes", n_processes: int = 1, scheduler: str = "") -> Iterator[Workers | None]:
    """The workers of a main, which opens them before anything else and does nothing when it is given None: that is a
    rank of an MPI job, which has worked for rank 0 in the meantime.

    Raises UserError for a number of processes below 1, a scheduler that is missing, not wanted or does not answer, an
    MPI job of one rank, and a library that is not installed.
    """
    if n_processes < 1:
        raise UserError(f"--n_processes={n_processes}: must be at least 1")
    if (executor == "dask") != bool(scheduler):
        raise UserError("--executor dask and --scheduler ADDRESS go together, as in --scheduler tcp://HOST:8786")
    opened = {"processes": lambda: _processes(n_processes), "dask": lambda: _dask(scheduler), "mpi": _mpi}[executor]()
    with opened as workers:
        yield workers


def absolute_path(text: str) -> Path:
    """A path as a flag: workers elsewhere stand in other folders."""
    return Path(os.path.abspath(text))


def add_flags(parser: argparse.ArgumentParser, n_processes: int, processes_help: str = "") -> None:
    """--n_processes, --executor and --scheduler, which are the arguments of open_workers."""
    parser.add_argument(
        "--n_processes",
        type=int,
        default=n_processes,
        help=processes_help or f"on this machine (default {n_processes})",
    )
    parser.add_argument(
        "--executor", choices=EXECUTORS, default="processes", help="where the work is done (default processes)"
    )
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="of the dask cluster: tcp://HOST:8786")


def chosen_workers(arguments: dict[str, Any]) -> contextlib.AbstractContextManager[Workers | None]:
    """open_workers by the flags of add_flags, which it takes out of the parsed arguments."""
    return open_workers(*(arguments.pop(name) for name in ("executor", "n_processes", "scheduler")))


# -------------------------------------------------------------------------------------------- what a task may call


def _unheard(amount: float) -> None:
    """Nobody listens: the worker is on another machine."""


_report: Callable[[float], None] = _unheard


def advance(amount: float) -> None:
    """Tells from within a task that so much more is done, in units of the task's choice."""
    _report(amount)


@contextlib.contextmanager
def reporting_to(report: Callable[[float], None]) -> Iterator[None]:
    """Inside the block advance(), called in this process, calls report."""
    global _report
    former, _report = _report, report
    try:
        yield
    finally:
        _report = former


# ---------------------------------------------------------------------------------------- processes of this machine


class Stopped(Exception):
    """Another task has failed."""


class _Signals:
    """What worker processes share with their parent."""

    def __init__(self, context: multiprocessing.context.BaseContext):
        self.counter, self.stop = context.Value("d", 0.0), context.Event()

    def report(self, amount: float) -> None:
        if self.stop.is_set():
            raise Stopped
        with self.counter.get_lock():
            self.counter.value += amount


@contextlib.contextmanager
def _processes(n_processes: int) -> Iterator[Workers]:
    if n_processes == 1:
        yield Workers(None, 1, "this process")
        return
    # Not forked from this process: it may have threads (a progress bar's, TensorFlow's).
    context = multiprocessing.get_context("forkserver")
    signals = _Signals(context)
    with ProcessPoolExecutor(n_processes, context, _start_process, (signals.counter, signals.stop)) as pool:
        try:
            yield Workers(pool, n_processes, f"{n_processes} processes", signals=signals)
        except BaseException:
            signals.stop.set()
            pool.shutdown(cancel_futures=True)  # returns when the running tasks have ended
            raise


def _start_process(counter, stop) -> None:
    """Leaves Ctrl-C to the parent, and ends when the parent does, even by kill -9."""
    global _report
    signals = _Signals.__new__(_Signals)
    signals.counter, signals.stop = counter, stop
    _report = signals.report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


# ---------------------------------------------------------------------------------------------------- dask and MPI


def _library(name: str, executor: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library on the machine
        package = name.partition(".")[0]
        raise UserError(
            f"--executor {executor} needs {package}, which cannot be used here ({error}): {INSTALL}"
        ) from error


@contextlib.contextmanager
def _dask(scheduler: str) -> Iterator[Workers]:
    distributed = _library("distributed", "dask")
    try:
        client = distributed.Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"--scheduler {scheduler}: no dask scheduler answers ({error})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise UserError(
                f"--scheduler {scheduler}: the cluster has no workers; start some: dask worker {scheduler}"
            ) from error
        executor = client.get_executor(pure=False)
        try:
            executor.submit(os.path.samefile, __file__, __file__).result()
            executor.submit(_unheard, 0.0).result()
        except (ImportError, OSError) as error:
            raise UserError(
                f"--scheduler {scheduler}: its workers do not see this tree ({error}); start them where it has the "
                "same path, with PYTHONPATH set to it"
            ) from error
        slots = sum(client.nthreads().values())
        yield Workers(executor, slots, f"dask, {slots} threads", (distributed.KilledWorker, CancelledError))


@contextlib.contextmanager
def _mpi() -> Iterator[Workers | None]:
    mpi, futures = _library("mpi4py.MPI", "mpi"), _library("mpi4py.futures", "mpi")
    world = mpi.COMM_WORLD
    if world.size < 2:
        raise UserError("--executor mpi needs at least two ranks, one to lead and the others to work: mpirun -np 2 ...")
    with futures.MPICommExecutor(world, root=0) as executor:
        yield None if executor is None else Workers(executor, world.size - 1, f"MPI, {world.size - 1} ranks")
