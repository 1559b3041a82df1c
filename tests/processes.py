"""Jobs of several processes as tests start them: with a limit to every wait, and nothing left running."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

TIMEOUT = 240  # seconds that anything may take on a busy machine
LAUNCHERS = ("horovodrun", "mpirun", "torch.distributed.run")


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
    """A job in a process group of its own, its output in one pipe."""
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(environment), start_new_session=True,
    )  # fmt: skip


def kill_group(process: subprocess.Popen) -> None:
    """Ends what is left of a job."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers(main: str, output: Path) -> list[int]:
    """Pids of the training processes of a run: those with `main` and `output` in their words that are no launchers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        launcher = any(word.endswith(LAUNCHERS) for word in words)
        if not launcher and main in words and any(word.removeprefix("--output_dir=") == str(output) for word in words):
            found.append(int(entry.name))
    return sorted(found)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, what: str) -> None:
    """Returns when the condition holds; fails when the job ends before, or after TIMEOUT."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"ended before {what}: {process.stdout.read()}")
        if time.monotonic() > deadline:
            pytest.fail(f"no {what} within {TIMEOUT} s")
        time.sleep(0.01)
