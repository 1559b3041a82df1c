"""The closing figures of a two-phase run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.summary import KEYS, closing_table, gather
from runkit.errors import UserError

PHASE_1 = dict(zip(KEYS, (450, 5.25, 9.5, 4.5, 0.25, 0.75, 0.5, 800.5, 6.125), strict=True))
PHASE_2 = dict(zip(KEYS, (200, 4.5, 4.5, 4.0, 0.3, 0.5, 0.75, 90.25, 3.875), strict=True))


def write(folder: Path, **phases: dict) -> Path:
    for name, figures in phases.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "summary.json").write_text(json.dumps(figures | {"seed": 1}), encoding="utf-8")
    return folder


def test_main_writes_and_prints(tmp_path: Path):
    write(tmp_path, phase_1=PHASE_1, phase_2=PHASE_2)
    command = [sys.executable, "-m", "bert_tf.summary", str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert json.loads((tmp_path / "summary.json").read_text()) == {"phase_1": PHASE_1, "phase_2": PHASE_2}
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line[:1].isalpha()}
    assert rows["masked_lm_loss"] == ["4.5", "4"] and rows["sequences_per_second"] == ["800.5", "90.25"]
    assert len([key for key in KEYS if key in rows]) == len(KEYS)


def test_the_verdict_is_honest(tmp_path: Path):
    table = closing_table(gather(write(tmp_path, phase_1=PHASE_1, phase_2=PHASE_2)))
    assert "phase_1: masked-LM loss 1.625 below" in table
    assert "phase_2: masked-LM loss NOT below" in table


def test_missing_phase_and_figure_are_named(tmp_path: Path):
    write(tmp_path, phase_1=PHASE_1)
    with pytest.raises(UserError, match=r"phase_2/summary\.json"):
        gather(tmp_path)
    write(tmp_path, phase_2={key: PHASE_2[key] for key in KEYS if key != "masked_lm_loss"})
    with pytest.raises(UserError, match=r"phase_2/summary\.json: no masked_lm_loss"):
        gather(tmp_path)
