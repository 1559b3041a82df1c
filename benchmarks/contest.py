"""Contestants that take turns: each in a process and environment of its own, measured on command.

The speed of shared machines drifts by half within minutes, so what is compared is measured A B A B within one run.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = {"ours": ".venv/bert/bin/python", "transformers": ".venv/dev/bin/python"}
OVERRIDE = {"ours": "BERT_PYTHON", "transformers": "DEV_PYTHON"}


def peak_memory() -> int:
    """The high-water mark of this process's resident memory, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def obey(
    functions: Mapping[str, Callable[[], object]], versions: str, clock: Callable[[], float] = time.perf_counter
) -> None:
    """The worker's loop: says that it is ready, then obeys one command a line, `<function> <count>`; answers with the
    seconds of each call as JSON. Built in are `peak 1`, answered with the process's highest resident memory in bytes,
    `forget_peak 1`, after which that counts from now on, and `cpu 1`: the CPU seconds of all its threads so far."""
    print(json.dumps({"ready": versions}), flush=True)
    for line in sys.stdin:
        name, count = line.split()
        if name == "forget_peak":
            Path("/proc/self/clear_refs").write_text("5")
        if name in ("peak", "forget_peak"):
            print(json.dumps(peak_memory()), flush=True)
            continue
        if name == "cpu":
            print(json.dumps(time.process_time()), flush=True)
            continue
        seconds = []
        for _ in range(int(count)):
            start = clock()
            functions[name]()
            seconds.append(clock() - start)
        print(json.dumps(seconds), flush=True)


class Contestant:
    """A worker process and its answers. environment: "ours" (.venv/bert) or "transformers" (.venv/dev)."""

    def __init__(self, label: str, environment: str, script: str, arguments: Sequence[str]):
        python = os.environ.get(OVERRIDE[environment], str(ROOT / PYTHON[environment]))
        self.label, began = label, time.perf_counter()
        self.process = subprocess.Popen(
            [python, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions = self._answer()["ready"]
        self.ready_seconds = time.perf_counter() - began  # imports, weights and all

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.label} stopped with exit code {self.process.wait()}; its message is above")
        return json.loads(line)

    def measure(self, function: str, count: int) -> list[float]:
        """Seconds of each of `count` calls."""
        return self._ask(f"{function} {count}")

    def peak(self) -> int:
        """The highest resident memory of its process so far, in bytes."""
        return self._ask("peak 1")

    def forget_peak(self) -> int:
        """Lets `peak` count from now on; what the process holds now, in bytes."""
        return self._ask("forget_peak 1")

    def cpu(self) -> float:
        """CPU seconds of all threads of its process so far."""
        return self._ask("cpu 1")

    def _ask(self, command: str):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
