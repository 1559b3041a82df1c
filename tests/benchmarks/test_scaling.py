"""The arithmetic of benchmarks/scaling.py, and what it refuses; the runs themselves are left to it."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling
from runkit.log import RunLog

SCRIPT = Path(scaling.__file__)


def test_slowed_seconds():
    """Updates of 1 s after three that compile, saves every six: one costs 0.5 s and slows two updates, one nothing."""
    steps = [9.0, 5.0, 1.5, 1.0, 1.0, 1.0] + [1.5, 1.25, 1.25, 1.0, 1.0, 1.0] + [1.0] * 6
    assert scaling.slowed_seconds(steps, 6) == pytest.approx([1.0, 0.0])


def test_step_seconds(tmp_path):
    log = RunLog(tmp_path / "log.json")
    log.log(1, {"throughput_train": 4.0}, echo=False)
    log.log(2, {"throughput_train": 16.0}, echo=False)
    log.log((), {"throughput_train": 10.0}, echo=False)  # of the whole run
    log.close()
    assert scaling.step_seconds(tmp_path / "log.json", 8) == [2.0, 0.5]


def test_ratios_are_of_the_same_round():
    options = argparse.Namespace(batch=8, accumulation=2)
    rates = {"alone": [10.0, 5.0, 10.0], "weak": [16.0, 8.0, 12.0], "fixed": [12.0, 6.0, 10.0]}
    weak, fixed = (scaling.throughput_row(name, rates, options) for name in ("weak", "fixed"))
    assert (weak["global_batch"], fixed["global_batch"]) == (32, 16)
    assert (weak["over_alone"], weak["efficiency"]) == (1.6, 0.8)
    assert (fixed["over_alone"], fixed["efficiency"]) == (1.2, 0.6)
    assert weak["over_apart"] is None
    assert weak["examples_per_second"] == 12.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--part bert --contestants alone,together", "together unknown"),
        ("--part bert --accumulation 3", "cannot be halved"),
        ("--part speech --updates 1", "first epoch"),
        ("--part checkpoint --updates 25", "three times"),
        ("--part checkpoint --updates 12 --interval 4", "--interval"),
    ],
)
def test_refusals(words, message):
    done = subprocess.run([sys.executable, SCRIPT, *words.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr


def test_two_processes_have_the_flags_of_one(tmp_path):
    options = argparse.Namespace(bert_model="tiny", speech_model="quartznet5x5", batch=8)
    for make, launcher, tail in (
        (scaling.bert_command, "horovodrun", (12, 12)),
        (scaling.speech_command, "torch.distributed.run", (3,)),
    ):
        one, two = (make(options, tmp_path, tmp_path / "out", processes, 2, *tail) for processes in (1, 2))
        assert any(word.endswith(launcher) for word in two)
        added = {word for word in two if word.startswith("--")} - {word for word in one if word.startswith("--")}
        assert added <= {"--gloo", "--horovod", "--standalone", "--nproc_per_node"}


def test_a_failed_run_shows_what_it_printed(tmp_path):
    log = tmp_path / "log"
    process = scaling.start([sys.executable, "-c", "import sys; sys.exit('no data')"], os.sched_getaffinity(0), 1, log)
    with pytest.raises(scaling.UserError, match=r"exit code 1 of .*\n.*no data"):
        scaling.finish(process, log)
