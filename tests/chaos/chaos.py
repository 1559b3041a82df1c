"""What clusters do to jobs, done to a job of two processes again and again; in the end nothing may show.

A job is trained undisturbed, and once more under a random sequence of events: kill -9 of one process or of all, SIGTERM
or SIGUSR1 to one, the newest checkpoint corrupted, the disk full. After each event the job must end within a limit;
then the same command goes on. In the end weights, moments and logged losses must be those of the undisturbed run, bit
for bit, and the folder must hold the same files. In a run of its own a process is lost for good, and the one that is
left has to end it: as the undisturbed one but for rounding.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from runkit.tables import markdown_table
from tests import processes
from tests.runkit.small_disk import small_disk

LIMIT = 90  # seconds in which a disturbed job must end
DISK_KILOBYTES = 65536
AGREES = 1e-2  # relative: what another number of processes may change by the order of its sums


class Job(NamedTuple):
    """A recipe's training run of two processes, as the caller starts it."""

    name: str
    command: Callable[[Path], list[str]]  # of the run in an output folder; the same command starts and resumes it
    elastic: Callable[[Path], list[list[str]]]  # of the run that outlives a loss: one command, or one a machine
    environment: Mapping[str, str]
    main: str  # the word that marks its training processes
    saved: Callable[[Path], list[int]]  # updates at its published checkpoints, oldest first
    newest: Callable[[Path], Path]  # the largest file of the newest of them
    losses: Callable[[Path], dict]  # by update, what was done again counts last
    state: Callable[[Path], dict[str, np.ndarray]]  # weights and moments at the end


class Event(NamedTuple):
    """What was done, and what came of it.

    ended_after_s: until the launcher had ended the job; where a process was lost for good, until the other went on.
    updates_lost: logged, but beyond the newest checkpoint by then.
    """

    recipe: str
    event: str
    at_update: int
    ended_after_s: float
    exit_code: int
    updates_lost: int
    result: str = ""  # the run's in the end, against the undisturbed one


def run_to_the_end(job: Job, output: Path) -> str:
    """Starts or resumes the job and returns its output; it must succeed."""
    process = processes.start(job.command(output), job.environment)
    try:
        printed, _ = process.communicate(timeout=processes.TIMEOUT)
    finally:
        end(job, output, process)
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
        while left := processes.workers(job.main, output):
            assert time.monotonic() < began + LIMIT, f"{event}: processes {left} are left running"
            time.sleep(0.05)
        ended = time.monotonic() - began
    finally:
        end(job, output, process)
    assert process.returncode != 0, printed
    if event == "disk full":
        assert "cannot write" in printed and "No space left on device" in printed, printed
        ballast.unlink()
    saved, logged = max(job.saved(output)), max(job.losses(output), default=0)
    if event in ("SIGTERM", "SIGUSR1"):
        assert saved >= logged, f"{event}: update {logged} was not saved, the newest is {saved}"
    return Event(job.name, event, logged, round(ended, 1), process.returncode, max(0, logged - saved))


def end(job: Job, output: Path, *launchers: subprocess.Popen) -> None:
    """Ends what is left of a run."""
    for process in launchers:
        processes.kill_group(process)
    for pid in processes.workers(job.main, output):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    """The whole sequence, on a small disk; see the module's docstring. Where none can be mounted, none gets full."""
    rng = random.Random(seed)
    straight, disturbed = folder / "straight", folder / "disk" / "disturbed"
    with contextlib.ExitStack() as stack:
        events = [rng.choice(["kill -9 of one", "kill -9 of all"]) for _ in range(kills)]
        events += ["SIGTERM"] * terms + ["SIGUSR1"] * (terms // 5)
        try:
            stack.enter_context(small_disk(folder / "disk", DISK_KILOBYTES))
            events.append("disk full")
        except pytest.skip.Exception as reason:
            print(f"no full disk: {reason}", flush=True)
        run_to_the_end(job, straight)
        rng.shuffle(events)
        events.insert(rng.randrange(2, len(events)), "corrupted checkpoint")  # each of two others has left one more
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
    table = [event._replace(result="bit for bit") for event in table]
    report(table)
    return table


def lose_one(job: Job, folder: Path, seed: int) -> Event:
    """Loses one of two processes for good, and its launcher where each machine has one."""
    rng, straight, output = random.Random(seed), folder / "straight", folder / "elastic"
    run_to_the_end(job, straight)
    launchers = [processes.start(command, job.environment) for command in job.elastic(output)]
    try:
        processes.wait_for(lambda: max(job.saved(output), default=0) > 0, launchers[0], "a save")
        assert size(output) == 2
        time.sleep(rng.uniform(0, 0.2))
        own = processes.workers(job.main, output)
        lost = [rng.choice(own)]
        if len(launchers) > 1:
            lost = [launchers[-1].pid, *(pid for pid in own if parent(pid) == launchers[-1].pid)]
            assert len(lost) == 2
        began = time.monotonic()
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        processes.wait_for(lambda: size(output) == 1, launchers[0], "going on with one process")
        went_on = time.monotonic() - began
        saved, logged = max(job.saved(output)), max(job.losses(output))
        printed, _ = launchers[0].communicate(timeout=processes.TIMEOUT)
    finally:
        end(job, output, *launchers)
    ours, theirs = job.losses(output), job.losses(straight)
    assert ours.keys() == theirs.keys(), printed
    np.testing.assert_allclose(list(ours.values()), [theirs[update] for update in ours], rtol=AGREES)
    ours, theirs = job.state(output), job.state(straight)
    assert ours.keys() == theirs.keys()
    assert names(output) == names(straight)
    apart = {name: distance(value, theirs[name]) for name, value in ours.items()}
    furthest = max(apart.values())
    assert furthest < AGREES, apart
    result = f"agrees within {furthest:.0e}" if furthest else "bit for bit"
    event = Event(job.name, "worker lost for good", logged, round(went_on, 1), launchers[0].returncode,
                  max(0, logged - saved), result)  # fmt: skip
    report([event])
    return event


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """The norm of the difference, relative to that of `right`; both are zero where nothing has flowed."""
    norm = float(np.linalg.norm(np.asarray(right, np.float64)))
    return float(np.linalg.norm(np.asarray(left, np.float64) - np.asarray(right, np.float64))) / (norm or 1.0)


def size(output: Path) -> int:
    """The number of processes that the run was started on last."""
    config = output / "run_config.json"
    return json.loads(config.read_text())["processes"] if config.exists() else 0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


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


REPORTED: list[Event] = []


def report(events: list[Event]) -> None:
    """$CHAOS_TABLE (a file): all events so far by kind, in markdown; each of them in JSON beside it."""
    REPORTED.extend(events)
    if target := os.environ.get("CHAOS_TABLE"):
        Path(target).write_text(f"{markdown_table(summary(REPORTED))}\n")
        Path(target).with_suffix(".json").write_text(json.dumps([event._asdict() for event in REPORTED], indent=1))


def summary(events: list[Event]) -> list[dict[str, object]]:
    """A row for each recipe and kind of event."""
    rows = []
    for (recipe, kind), group in itertools.groupby(sorted(events), lambda event: (event.recipe, event.event)):
        group = list(group)
        seconds = [event.ended_after_s for event in group]
        rows.append(
            {
                "recipe": recipe,
                "event": kind,
                "count": len(group),
                "noticed after s, median": statistics.median(seconds),
                "at most": max(seconds),
                "updates lost, at most": max(event.updates_lost for event in group),
                "result": ", ".join(sorted({event.result for event in group})),
            }
        )
    return rows


def counts() -> tuple[int, int, int]:
    """$CHAOS_KILLS, $CHAOS_TERMS, $CHAOS_SEED: how much, by default so little that it can run with every test."""
    kills, terms, seed = (
        int(os.environ.get(f"CHAOS_{name}", n)) for name, n in (("KILLS", 2), ("TERMS", 1), ("SEED", 1))
    )
    return kills, terms, seed
