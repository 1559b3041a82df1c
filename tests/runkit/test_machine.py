import json
import os
import re
import subprocess

import numpy

from runkit import machine


def test_describe():
    found = machine.describe(["numpy", "no-such-package"])
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]
    assert 1 <= found["cores"] <= os.cpu_count()
    assert found["memory_gib"] is None or found["memory_gib"] > 0.1
    assert found["packages"] == {"numpy": numpy.__version__, "no-such-package": None}
    assert found["commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", found["commit"])


def test_a_bare_machine(monkeypatch):
    """No /proc, no nvidia-smi, no git."""

    def absent(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    monkeypatch.setattr(machine.Path, "read_text", absent)
    found = machine.describe()
    assert found["cpu"]
    assert (found["memory_gib"], found["gpus"], found["cpu_flags"], found["commit"]) == (None, [], [], None)


def test_gpus_and_changed_trees(monkeypatch):
    outputs = {"nvidia-smi": "NVIDIA H100\nNVIDIA H100", "rev-parse": "a" * 40, "status": " M runkit/log.py"}
    monkeypatch.setattr(machine, "_run", lambda *command: next(outputs[w] for w in command if w in outputs))
    found = machine.describe()
    assert found["gpus"] == ["NVIDIA H100", "NVIDIA H100"]
    assert found["commit"] == "a" * 40 + "+"
