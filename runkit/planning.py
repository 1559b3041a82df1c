"""A run's plan: what it will take and all that would stop it, told before anything starts. Knows no framework.

A recipe's `plan` module fills a Plan: facts as lines, memory as parts, and checks through `Plan.attempt`, which turns
each UserError into a line of the list of problems instead of ending at the first.

    --plan                the plan, in seconds
    --plan=probe          and a few updates of the real model on made-up data, for the expected time
    --plan=THROUGHPUT     and the expected time at so many examples a second, over all processes
"""

import dataclasses
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runkit.errors import UserError
from runkit.progress import duration
from runkit.tables import text_table

PROBE = "probe"
HELP = (
    "tell parameters, memory, disk, updates and every problem, and start nothing; =probe also times a few updates, "
    "=THROUGHPUT (examples a second, all processes) tells the time (added)"
)
PROBED_UPDATES = 3
RESERVE = 0.1  # of a machine's memory, left to everything else before a plan calls it too little


# ------------------------------------------------------------------------------------------------- the flag's value
def parse_request(text: str) -> str | float:
    """What --plan was given: "" (no plan), "true" (the plan alone), "probe", or a throughput. Raises ValueError."""
    text = text.strip().lower()
    if text in ("", "false", "0"):
        return ""
    if text in ("true", PROBE):
        return text
    try:
        throughput = float(text)
    except ValueError:
        throughput = math.nan
    if not 0 < throughput < math.inf:
        raise ValueError(f"{text!r} is neither {PROBE!r} nor a throughput above 0")
    return throughput


# ---------------------------------------------------------------------------------------------------------- the plan
class Part(NamedTuple):
    """Memory of one process for one kind of thing at the moment when the process has the most."""

    kind: str
    n_bytes: float
    why: str  # the formula in words


def total(parts: Sequence[Part]) -> float:
    """Bytes of all parts together."""
    return sum(part.n_bytes for part in parts)


@dataclasses.dataclass
class Plan:
    """What is told of a run. facts: (what, text). problems: what would stop the run. notes: what would not."""

    title: str
    facts: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    memory: list[Part] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def fact(self, what: str, text: str) -> None:
        self.facts.append((what, text))

    def attempt(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """function's result; None where it raises UserError, which becomes a problem. Its warnings become notes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                return function(*arguments, **keywords)
            except UserError as error:
                self.problems.append(str(error))
                return None
            finally:
                self.notes += [str(warning.message) for warning in caught if warning.category is UserWarning]

    # ---------------------------------------------------------------------------------- checks that all runs share
    def check_output(self, folder: str | Path, needed: float) -> None:
        """That `folder` can be made and written, and its disk has `needed` bytes (unknown: 0)."""
        folder = Path(folder)
        there = existing(folder)
        if not there.is_dir():
            self.problems.append(f"{folder}: {there} is a file, not a folder; give another output_dir")
        elif not writable(there):
            self.problems.append(f"{folder}: {there} cannot be written; give another output_dir, or the right to write")
        free = shutil.disk_usage(there).free
        self.fact("free disk", f"{size_text(free)} at {there}")
        if free < needed:
            self.problems.append(
                f"{folder}: its checkpoints take {size_text(needed)} and {size_text(free)} are free: make room, keep "
                "fewer checkpoints, or give another output_dir"
            )

    def check_memory(self, processes: int) -> None:
        """That this machine has the memory for a process; a note where it has not for all, which may run on several."""
        there = machine_memory()
        if there is None:
            return
        one, free = total(self.memory), there * (1 - RESERVE)
        self.fact("machine", f"{size_text(there)} of memory; {size_text(one)} for each of {processes} processes")
        if one > free:
            self.problems.append(
                f"memory: a process takes {size_text(one)} of the machine's {size_text(there)}: take a smaller batch "
                "with more accumulation steps"
            )
        elif one * processes > free:
            self.notes.append(f"this machine has the memory for {int(free / one)} of {processes} processes")

    def tell_time(self, examples: float, throughput: float, where: str, unit: str) -> None:
        """The expected time for so many examples. where: what the throughput is from."""
        text = f"{duration(examples / throughput)} at {throughput:.4g} {unit}/s ({where}), without data and evaluation"
        self.fact("expected time", text)

    # ---------------------------------------------------------------------------------------------------- the result
    def text(self) -> str:
        """The plan as it is printed."""
        width = max((len(what) for what, _ in self.facts), default=0)
        lines = [f"plan: {self.title}", *(f"  {what.ljust(width)}  {text}" for what, text in self.facts)]
        if self.memory:
            rows = [[part.kind, size_text(part.n_bytes), part.why] for part in self.memory if part.n_bytes]
            rows.append(["together", size_text(total(self.memory)), "peak of a process; formulas: docs/planning.md"])
            lines += ["", *(f"  {line}" for line in text_table(rows, ["memory", "size", "what"]).splitlines())]
        if self.notes:
            lines += ["", *(f"note: {note}" for note in self.notes)]
        lines += ["", *([f"problem: {problem}" for problem in self.problems] or ["no problem found"])]
        return "\n".join(lines)

    def finish(self) -> None:
        """Prints the plan. Raises UserError when it has problems, so that the exit code tells."""
        print(self.text(), flush=True)
        if n := len(self.problems):
            raise UserError(f"{n} problem{'s' * (n > 1)} in this plan, listed above; nothing was started")


# ---------------------------------------------------------------------------------------------------- small questions
def size_text(n_bytes: float) -> str:
    """Bytes as people read them, in powers of ten."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def existing(path: str | Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return path


def writable(folder: Path) -> bool:
    """Whether files can be made in a folder."""
    return os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def machine_memory() -> int | None:
    """Bytes of memory that processes here can have: the machine's, or the container's limit where that is lower;
    None where it is unknown (not Linux)."""
    limits = []
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            limits += [int(line.split()[1]) * 1024 for line in stream if line.startswith("MemTotal:")]
    except OSError:
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        limits += [int(limit)] if limit.isdigit() else []
    except OSError:
        pass
    return min(limits, default=None)
