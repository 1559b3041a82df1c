"""The report: what it reads of a run, how it compares several, and how the page looks in a browser."""

import itertools
import json
import math
import statistics
from pathlib import Path

import pytest

from runkit.errors import UserError
from runkit.files import write_json
from runkit.log import RunLog
from runkit.report import (
    POINTS,
    Curve,
    compare,
    permutation_test,
    read_curves,
    read_run,
    thinned,
    try_report,
    write_report,
)
from tests.browser import chromium, open_page


def make_run(folder: Path, seed: int, score: float, rate: float = 0.1, steps: int = 5) -> Path:
    """A run as the launchers leave it."""
    folder.mkdir(parents=True)
    log = RunLog(folder / "log.json")
    log.metadata("train_loss", unit="nat")
    log.parameters({"learning_rate": rate, "seed": seed, "output_dir": str(folder), "machine": {"cpu": "Abacus"}})
    for step in range(1, steps + 1):
        log.log(step, {"train_loss": 10.0 / step, "learning_rate": rate, "applied": True})
    log.warning("one <b>file</b> was skipped")
    log.close()
    write_json(folder / "summary.json", {"f1": score, "steps": steps, "name": "text"})
    return folder


def test_everything_of_a_run_is_read(tmp_path: Path):
    run = read_run(make_run(tmp_path / "run", 7, 81.5))
    (part,) = run.parts
    assert part.curves["train_loss"] == Curve("train_loss", [1, 2, 3, 4, 5], [10.0, 5.0, 10 / 3, 2.5, 2.0])
    assert set(part.curves) == {"train_loss", "learning_rate"}  # a truth value is no curve
    assert part.units["train_loss"] == "nat"
    assert part.messages == ["one <b>file</b> was skipped"]
    assert part.config["machine"] == {"cpu": "Abacus"}
    assert run.figures() == {"f1": 81.5, "steps": 5}


def test_parts_of_a_run_are_its_folders(tmp_path: Path):
    make_run(tmp_path / "run" / "phase_1", 1, 1.0)
    make_run(tmp_path / "run" / "phase_2" / "again", 1, 2.0)
    run = read_run(tmp_path / "run")
    assert [part.name for part in run.parts] == ["phase_1", "phase_2/again"]
    assert run.figures()["phase_2/again: f1"] == 2.0


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no such folder"):
        read_run(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(UserError, match=r"neither a log .* nor a summary\.json"):
        read_run(tmp_path)


def test_steps_of_epochs_become_updates_and_later_lines_win():
    def line(step, value):
        return {"type": "LOG", "step": step, "data": {"wer": value}}

    records = [line([1, 50, 100], 3.0), line([2, 50, 100], 2.0), line([2, 50, 100], 1.5), line([], 9.0)]
    assert read_curves(records) == {"wer": Curve("wer", [50, 150], [3.0, 1.5])}
    assert read_curves([line(4, 1.0)]) == {}  # one point is no curve


def test_long_curves_are_thinned_to_means():
    curve = thinned(Curve("loss", list(range(10 * POINTS)), [float(i % 10) for i in range(10 * POINTS)]))
    assert len(curve.x) == POINTS
    assert curve.y == [4.5] * POINTS
    assert curve.x[0] == 4.5
    assert thinned(Curve("loss", [1, 2, 3], [1.0, math.nan, 2.0])).x == [1, 3]
    assert thinned(Curve("loss", [1, 2], [math.nan, math.inf])).x == []


def test_permutation_test_against_all_labellings():
    assert permutation_test([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(2 / math.comb(6, 3))
    assert permutation_test([1.0, 2.0], [1.0, 2.0]) == 1.0
    a, b = [3.1, 2.7, 3.3, 2.9], [2.8, 2.2, 2.5]
    seen = abs(statistics.fmean(a) - statistics.fmean(b))
    together, at_least = a + b, []
    for order in itertools.permutations(range(7)):
        first = [together[i] for i in order[:4]]
        second = [together[i] for i in order[4:]]
        at_least.append(abs(statistics.fmean(first) - statistics.fmean(second)) >= seen - 1e-12)
    assert permutation_test(a, b) == pytest.approx(statistics.fmean(at_least))


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path: Path):
    scores = {"a": (0.1, [80.0, 82.0, 84.0]), "b": (0.2, [70.0, 71.0, 72.0])}
    runs = [
        read_run(make_run(tmp_path / f"{name}_{seed}", seed, score, rate))
        for name, (rate, values) in scores.items()
        for seed, score in enumerate(values)
    ]
    comparison = compare(runs)
    assert [[run.path.name for run in group] for group in comparison.groups] == [
        ["a_0", "a_1", "a_2"],
        ["b_0", "b_1", "b_2"],
    ]
    assert comparison.differences == [("learning_rate", ["0.1", "0.2"])]
    (row,) = comparison.rows  # steps are the same everywhere
    assert row["name"] == "f1"
    assert row["groups"] == [(82.0, 2.0, 3), (71.0, 1.0, 3)]
    assert row["p"] == pytest.approx(0.1)


def test_text_of_a_run_cannot_become_markup(tmp_path: Path):
    page = write_report([make_run(tmp_path / "run", 1, 1.0)]).read_text()
    assert "one &lt;b&gt;file&lt;/b&gt; was skipped" in page
    assert "<b>file</b>" not in page


def test_samples_and_hashes(tmp_path: Path):
    folder = make_run(tmp_path / "run", 1, 1.0)
    (folder / "utterances.tsv").write_text("key\treference\thypothesis\n" + 'a\tsaid "so\tsaid so\n' * 100)
    write_json(folder / "c.manifest.json", {"files": {"c.pt": {"bytes": 1, "sha256": "ab12"}}})
    page = write_report([folder]).read_text()
    assert page.count("said &#34;so") == 12
    assert "ab12" in page


def test_predictions_stand_beside_questions(tmp_path: Path):
    folder = make_run(tmp_path / "run", 1, 1.0)
    question = {"id": "q1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    data = {"data": [{"paragraphs": [{"context": "Ada.", "qas": [question]}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(data))
    write_json(folder / "predictions.json", {"q1": "Bob", "q2": "else"})
    write_json(folder / "run_config.json", {"predict_file": str(tmp_path / "dev.json")})
    (part,) = read_run(folder).parts
    assert part.samples == (["question", "answer", "expected"], [["Who?", "Bob", "Ada"], ["q2", "else", ""]])


def test_a_report_never_fails_the_run(tmp_path: Path, capsys):
    folder = make_run(tmp_path / "run", 1, 1.0)
    (folder / "utterances.tsv").write_bytes(b"\xff\xfe broken")
    try_report(folder, RunLog(None))
    assert "warning: no report: " in capsys.readouterr().out
    assert not (folder / "report.html").exists()


# ------------------------------------------------------------------------------------------------------ in a browser
@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("count", [1, 3])
def test_the_page_in_a_browser(browser, tmp_path: Path, width: int, count: int):
    runs = [make_run(tmp_path / f"run_{seed}", seed, 80.0 + seed) for seed in range(count)]
    target = write_report(runs, tmp_path / "page.html")
    page, problems = open_page(browser, width)
    page.goto(target.as_uri())
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways
    plots = page.locator("figure svg")
    assert plots.count() == 2  # loss, learning rate
    for plot in plots.all():
        box = plot.bounding_box()
        assert box["width"] >= min(300, 0.8 * width)
        assert box["height"] > 150
        assert plot.locator("path").count() > 5
        text = plot.locator("text").first.bounding_box()
        assert text["height"] >= 7  # pixels: to be read on a phone
    assert page.locator("text=Abacus").count() == count
    page.close()
