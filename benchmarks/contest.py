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


def obey(
    functions: Mapping[str, Callable[[], object]], versions: str, clock: Callable[[], float] = time.perf_counter
) -> None:
    """The worker's loop: says that it is ready, then obeys one command a line, `<function> <count>`; answers with the
    seconds of each call as JSON."""
    print(json.dumps({"ready": versions}), flush=True)
    for line in sys.stdin:
        name, count = line.split()
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
        self.label = label
        self.process = subprocess.Popen(
            [python, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions = self._answer()["ready"]

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.label} stopped with exit code {self.process.wait()}; its message is above")
        return json.loads(line)

    def measure(self, function: str, count: int) -> list[float]:
        """Seconds of each of `count` calls."""
        self.process.stdin.write(f"{function} {count}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
