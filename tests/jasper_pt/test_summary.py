"""The closing summary: gathered from what training and the two tests left."""

import json
import sys
from pathlib import Path

import pytest

from jasper_pt import summary
from runkit.errors import UserError

# What issue and quickstart promise to be in summary.json.
PROMISED = """wer cer wer_ema insertions deletions substitutions reference_words utterances parameters
    train_audio_seconds_per_second""".split()


@pytest.fixture
def results(tmp_path: Path) -> Path:
    training = {
        "wer": 3.0,
        "parameters": 1234,
        "epochs": 9,
        "train_loss": 0.5,
        "train_audio_seconds_per_second": 321.0,
    }
    test = {
        "wer": 8.0,
        "cer": 2.0,
        "insertions": 1,
        "deletions": 2,
        "substitutions": 5,
        "reference_words": 100,
        "utterances": 20,
    }
    for name, content in (
        ("training/summary.json", training),
        ("test/summary_infer.json", test),
        ("test_ema/summary_infer.json", test | {"wer": 7.0, "insertions": 0}),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def test_figures_come_from_their_files(results: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["summary", str(results)])
    summary.main()
    written = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    assert set(PROMISED) <= set(written)
    assert (written["wer"], written["wer_ema"], written["dev_wer"]) == (8.0, 7.0, 3.0)
    assert (written["insertions"], written["parameters"]) == (1, 1234)
    shown = capsys.readouterr().out
    assert "wer_curve.png" in shown and "train_audio_seconds_per_second" in shown and "s/s" in shown


def test_what_is_missing_is_named(results: Path):
    (results / "test" / "summary_infer.json").write_text('{"wer": 1}', encoding="utf-8")
    with pytest.raises(UserError, match=r"test/summary_infer\.json: no cer"):
        summary.gather(results)
    (results / "training" / "summary.json").unlink()
    with pytest.raises(UserError, match=r"training/summary\.json"):
        summary.gather(results)
