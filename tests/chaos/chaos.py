"""What clusters do to jobs, done to a job of two processes again and again; in the end nothing may show.

A job is trained undisturbed, and once more under a random sequence of events: kill -9 of one process or of all, SIGTERM
or SIGUSR1 to one, the newest checkpoint corrupted, the disk full. After each event the job must end within a limit;
then the same command goes on. In the end weights, moments and logged losses must be those of the undisturbed run, bit
for bit, and the folder must hold the same files.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runkit.tables import markdown_table
from tests import processes
from tests.runkit.small_disk import small_disk

LIMIT = 90  # seconds in which a disturbed job must end
DISK_KILOBYTES = 65536


class Job(NamedTuple):
    """A recipe's training run of two processes, as the caller starts it."""

    name: str
    command: Callable[[Path], list[str]]  # of the run in an output folder; the same command starts and resumes it
    environment: Mapping[str, str]
    main: str  # the word that marks its training processes
    saved: Callable[[Path], list[int]]  # updates at its published checkpoints, oldest first
    newest: Callable[[Path], Path]  # the largest file of the newest of them
    losses: Callable[[Path], dict]  # by update, what was done again counts last
    state: Callable[[Path], dict[str, np.ndarray]]  # weights and moments at the end


class Event(NamedTuple):
    """A row of the table. updates_lost: logged, but beyond the newest checkpoint when the job had ended."""

    recipe: str
    event: str
    at_update: int
    ended_after_s: float
    exit_code: int
    updates_lost: int


def run_to_the_end(job: Job, output: Path) -> str:
    """Starts or resumes the job and returns its output; it must succeed."""
    process = processes.start(job.command(output), job.environment)
    try:
        printed, _ = process.communicate(timeout=processes.TIMEOUT)
    finally:
        processes.kill_group(process)
    assert process.returncode == 0, printed
    return printed


def disturb(job: Job, output: Path, event: str, rng: random.Random, ballast: Path | None = None) -> Event:
    """Starts the job, lets it get beyond its newest checkpoint, does something to it, and sees how it ends."""
    before = max(job.saved(output), default=0)
    process = processes.start(job.command(output), job.environment)
    try:
        processes.wait_for(lambda: max(job.saved(output), default=0) > before, process, f"a save after {before}")
        time.sleep(rng.uniform(0, 0.2))
        began = time.monotonic()
        own = processes.workers(job.main, output)
        if event == "kill -9 of one":
            os.kill(rng.choice(own), signal.SIGKILL)
        elif event == "kill -9 of all":
            for pid in own:
                os.kill(pid, signal.SIGKILL)
        elif event in ("SIGTERM", "SIGUSR1"):
            os.kill(rng.choice(own), signal.Signals[event])
        elif event == "disk full":
            fill(ballast)
        printed, _ = process.communicate(timeout=LIMIT)
        ended = time.monotonic() - began
    finally:
        processes.kill_group(process)
    deadline = time.monotonic() + LIMIT
    while processes.workers(job.main, output):
        assert time.monotonic() < deadline, f"{event}: processes are left running"
        time.sleep(0.05)
    assert process.returncode != 0, printed
    if event == "disk full":
        assert "cannot write" in printed and "No space left on device" in printed, printed
        ballast.unlink()
    saved, logged = max(job.saved(output)), max(job.losses(output), default=0)
    if event in ("SIGTERM", "SIGUSR1"):
        assert saved >= logged, f"{event}: update {logged} was not saved, the newest is {saved}"
    return Event(job.name, event, logged, round(ended, 1), process.returncode, max(0, logged - saved))


def fill(ballast: Path) -> None:
    """Takes all that is left of a small disk."""
    with ballast.open("wb") as stream:
        try:
            while True:
                stream.write(bytes(1 << 16))
                stream.flush()
        except OSError:
            pass


def corrupt(job: Job, output: Path, rng: random.Random) -> Event:
    """Flips bytes in the middle of the newest checkpoint's largest file."""
    path = job.newest(output)
    data = bytearray(path.read_bytes())
    for _ in range(8):
        data[rng.randrange(len(data) // 4, 3 * len(data) // 4)] ^= 0xFF
    path.write_bytes(data)
    steps = job.saved(output)
    return Event(job.name, "corrupted checkpoint", steps[-1], 0.0, 0, steps[-1] - steps[-2])


def chaos(job: Job, folder: Path, kills: int, terms: int, seed: int) -> list[Event]:
    """The whole sequence; see the module's docstring. Skips where no small disk can be mounted."""
    rng = random.Random(seed)
    straight, disturbed = folder / "straight", folder / "disk" / "disturbed"
    with small_disk(folder / "disk", DISK_KILOBYTES):
        run_to_the_end(job, straight)
        events = [rng.choice(["kill -9 of one", "kill -9 of all"]) for _ in range(kills)]
        events += [("SIGTERM", "SIGUSR1")[i % 2] for i in range(terms)] + ["disk full"]
        rng.shuffle(events)
        events.insert(1 + rng.randrange(len(events)), "corrupted checkpoint")
        table = []
        for event in events:
            if event == "corrupted checkpoint":
                table.append(corrupt(job, disturbed, rng))
            else:
                table.append(disturb(job, disturbed, event, rng, folder / "disk" / "ballast"))
            print(table[-1], flush=True)
        printed = run_to_the_end(job, disturbed)
        assert max(event.at_update for event in table) < max(job.losses(straight)), "it was over before all was done"
        assert "resum" in printed or "going on" in printed
        compare(job, disturbed, straight)
        report(table)
    return table


def compare(job: Job, disturbed: Path, straight: Path) -> None:
    """Bit for bit, and the same files."""
    assert job.losses(disturbed) == job.losses(straight)
    ours, theirs = job.state(disturbed), job.state(straight)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert np.array_equal(value, theirs[name], equal_nan=True), name
    assert names(disturbed) == names(straight)


def names(output: Path) -> set[str]:
    """All files below, those of TensorBoard by kind: each start makes one."""
    found = (str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
    return {name.split("tfevents")[0] for name in found}


def report(table: list[Event]) -> None:
    """$CHAOS_TABLE (a file): the table as markdown, and as JSON beside it."""
    if target := os.environ.get("CHAOS_TABLE"):
        rows = [list(event) for event in table]
        Path(target).write_text(markdown_table(rows, list(Event._fields)) + "\n")
        Path(target).with_suffix(".json").write_text(json.dumps([event._asdict() for event in table], indent=1))


def counts() -> tuple[int, int, int]:
    """$CHAOS_KILLS, $CHAOS_TERMS, $CHAOS_SEED: how much, by default so little that it can run with every test."""
    kills, terms, seed = (
        int(os.environ.get(f"CHAOS_{name}", n)) for name, n in (("KILLS", 2), ("TERMS", 1), ("SEED", 1))
    )
    return kills, terms, seed
