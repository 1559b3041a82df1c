"""A contestant: measured on command, with its memory and CPU time."""

import sys
from pathlib import Path

from benchmarks.contest import OVERRIDE, Contestant

WORKER = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.contest import obey

def allocate():
    bytearray(200 << 20)

obey({{"allocate": allocate, "work": lambda: sum(range(3_000_000))}}, "none 1.0")
"""


def test_seconds_peak_memory_and_cpu_time(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(root=str(Path(__file__).resolve().parents[2])))
    monkeypatch.setenv(OVERRIDE["ours"], sys.executable)
    contestant = Contestant("one", "ours", str(script), [])
    assert contestant.versions == "none 1.0" and contestant.ready_seconds > 0
    small = contestant.peak()
    assert len(contestant.measure("allocate", 2)) == 2
    assert contestant.peak() > small + (150 << 20)
    contestant.forget_peak()
    assert contestant.peak() < small + (50 << 20)
    before = contestant.cpu()
    contestant.measure("work", 1)
    assert contestant.cpu() > before
    contestant.close()
