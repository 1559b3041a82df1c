"""Scores against the official rules' figures, and by hand."""

import json
import subprocess
import sys

import pytest

from bert_tf import squad_evaluate
from bert_tf.squad_evaluate import (
    Question,
    best_threshold,
    evaluate,
    exact_match,
    f1_score,
    main,
    normalize_answer,
    version_of,
)
from runkit.errors import UserError

SETS = {"cs224n_dev_v2": "squad_v2_cs224n/dev-v2.0.json", "xquad_en": "squad_xquad/xquad.en.json"}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def dataset(*qas) -> list:
    return [{"paragraphs": [{"context": "c", "qas": list(qas)}]}]


def qa(qas_id, *answers, **more) -> dict:
    return {"id": qas_id, "question": "q", "answers": [{"text": a, "answer_start": 0} for a in answers], **more}


# ------------------------------------------------------------------------------------------------- shared vectors
def test_pairs_score_as_officially(shared):
    lines = (shared / "data/truth_squad_eval/pair_vectors.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 22
    for pair in map(json.loads, lines):
        for key, version in (("v1", "1.1"), ("v2", "2.0")):
            scores = evaluate(dataset(qa("a", *pair["golds"])), {"a": pair["pred"]}, version=version)
            exact = scores["exact_match" if version == "1.1" else "exact"]
            assert exact == 100 * pair[f"{key}_exact"], pair
            assert scores["f1"] == pytest.approx(100 * pair[f"{key}_f1"], abs=1e-9), pair


@pytest.mark.parametrize("name", SETS)
def test_files_score_as_officially(shared, name):
    truth = shared / "data/truth_squad_eval"
    data = read(shared / "data" / SETS[name])["data"]
    predictions, na_probs, expected = (read(truth / f"{name}.{k}.json") for k in ("predictions", "na_prob", "expected"))
    assert evaluate(data, predictions, version="2.0") == pytest.approx(expected["no_na_prob"], abs=1e-9)
    scores = evaluate(data, predictions, na_probs, "2.0", na_prob_thresh=0.5)
    assert scores == pytest.approx(expected["na_prob_thresh_0.5"] | expected["best"], abs=1e-9)


def test_the_command_prints_what_the_official_scripts_print(shared, tmp_path, capsys):
    truth = shared / "data/truth_squad_eval"
    files = [str(shared / "data" / SETS["cs224n_dev_v2"]), str(truth / "cs224n_dev_v2.predictions.json")]
    expected = read(truth / "cs224n_dev_v2.expected.json")
    main([*files, "--na-prob-file", str(truth / "cs224n_dev_v2.na_prob.json"), "--na-prob-thresh", "0.5"])
    out, err = capsys.readouterr()
    assert json.loads(out) == pytest.approx(expected["na_prob_thresh_0.5"] | expected["best"], abs=1e-9)
    assert list(json.loads(out))[:4] == ["exact", "f1", "total", "HasAns_exact"] and not err
    main([*files, "--out-file", str(tmp_path / "scores.json")])
    assert not capsys.readouterr().out
    assert read(tmp_path / "scores.json") == pytest.approx(expected["no_na_prob"], abs=1e-9)
    main([str(shared / "data" / SETS["xquad_en"]), str(truth / "xquad_en.predictions.json")])
    scores = json.loads(capsys.readouterr().out)
    assert list(scores) == ["exact_match", "f1"]
    assert scores["exact_match"] == pytest.approx(read(truth / "xquad_en.expected.json")["no_na_prob"]["exact"])


# --------------------------------------------------------------------------------------------------------- rules
def test_normalized_by_hand():
    assert normalize_answer(" The  U.S.\tan a-b; “The”\u00a0A ") == "us ab “ ”"
    assert exact_match("The tea!", "tea") == 1.0 and exact_match("theatre", "atre") == 0.0


def test_f1_by_hand():
    assert f1_score("tea and tea", "tea tea coffee cake") == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert [f1_score("the", "", v) for v in ("1.1", "2.0")] == [0.0, 1.0]
    assert f1_score("tea", "") == f1_score("", "tea") == 0.0


def test_version_2_by_hand():
    data = dataset(qa("a", "tea", "hot tea"), qa("b"), qa("c"), qa("d", "the", "Rose"))
    scores = evaluate(data, {"a": "hot coffee", "b": "", "c": "x", "d": ""}, version="2.0")
    assert scores == {
        "exact": 25.0, "f1": 37.5, "total": 4,
        "HasAns_exact": 0.0, "HasAns_f1": 25.0, "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
    }  # fmt: skip
    assert evaluate(dataset(qa("a", "tea")), {"a": "tea"}, version="2.0").keys().isdisjoint({"NoAns_exact"})


def test_odds_change_nothing_unless_there_is_a_threshold():
    """null_odds.json holds differences of logits, which are above the official 1.0 for good answers too."""
    data, predictions, odds = dataset(qa("a", "tea"), qa("b")), {"a": "tea", "b": ""}, {"a": 3.0, "b": 9.0}
    scores = evaluate(data, predictions, odds, "2.0")
    assert (scores["exact"], scores["best_exact"], scores["best_exact_thresh"]) == (100.0, 100.0, 3.0)
    assert evaluate(data, predictions, odds, "2.0", na_prob_thresh=1.0)["exact"] == 50.0
    assert evaluate(data, predictions, odds, "2.0", na_prob_thresh=3.0)["exact"] == 100.0  # strictly above


def test_the_best_threshold_by_hand():
    questions = [Question("a", ["x"], True), Question("b", [""], False), Question("c", ["x"], True)]
    predictions, scores = {"a": "x", "b": "y", "c": "x"}, {"a": 1.0, "b": 0.0, "c": 1.0}
    # None answered: b is right, 1 of 3. Up to 0.1 a is, too; up to 0.2 b is lost; up to 0.3 c is won: no better.
    assert best_threshold(questions, predictions, scores, {"c": 0.3, "a": 0.1, "b": 0.2}) == (
        pytest.approx(200 / 3),
        0.1,
    )
    assert best_threshold(questions, predictions, {"a": 0.0, "b": 0.0, "c": 0.0}, {"c": 0.3, "a": 0.1, "b": 0.2}) == (
        pytest.approx(100 / 3),
        0.0,
    )
    assert best_threshold(questions, predictions | {"b": ""}, scores, {"c": 0.3, "a": 0.1, "b": 0.2}) == (100.0, 0.3)


# ------------------------------------------------------------------------------------- files that are not complete
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_a_question_without_prediction_scores_0_and_counts(version):
    scores = evaluate(dataset(qa("a", "tea"), qa("b", "tea"), qa("c")), {"a": "tea"}, version=version)
    assert scores["f1"] == pytest.approx(100 / 3)


def test_a_question_without_known_answer_is_not_scored():
    data = dataset(qa("a", "tea"), {"id": "b", "question": "q"}, {"id": "c", "question": "q", "is_impossible": True})
    assert evaluate(data, {"a": "tea", "b": "x", "c": ""}, version="2.0")["total"] == 2


def test_refusals(tmp_path, capsys):
    data = dataset(qa("a", "tea"))
    with pytest.raises(UserError, match="no questions with answers"):
        evaluate(dataset({"id": "b", "question": "q"}), {})
    with pytest.raises(UserError, match=r"no probability of no answer for the question a"):
        evaluate(data, {"a": "tea"}, {"b": 0.5}, "2.0")
    with pytest.raises(UserError, match="no SQuAD version '2'"):
        evaluate(data, {}, version="2")
    with pytest.raises(UserError, match=r"data\[0\]\.paragraphs\[0\]\.qas\[0\]\.answers: should be a list"):
        evaluate(dataset({"id": "a", "answers": ["tea"]}), {})
    with pytest.raises(UserError, match=r"qas\[0\]: should be an object"):
        version_of(dataset(3))
    for name, content in (("list", []), ("data", {"data": data}), ("numbers", {"a": 1}), ("texts", {"a": "tea"})):
        (tmp_path / name).write_text(json.dumps(content))

    def run(*names):
        main([str(tmp_path / name) for name in names])

    with pytest.raises(UserError, match="list: no list under the key 'data'"):
        run("list", "texts")
    with pytest.raises(UserError, match="numbers: the value of 'a' should be text, is 1"):
        run("data", "numbers")
    with pytest.raises(UserError, match="list: should be an object"):
        run("data", "list")
    capsys.readouterr()
    (tmp_path / "texts").write_text(json.dumps({"z": "tea"}))
    run("data", "texts")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"exact_match": 0.0, "f1": 0.0}
    assert "1 questions have no prediction and score 0: a" in err and "1 predictions are for other questions: z" in err
    with pytest.raises(SystemExit):
        main(["data", "texts", "--unknown"])


def test_it_runs_as_a_file(tmp_path):
    """As run_squad's --eval_script does it."""
    (tmp_path / "data").write_text(json.dumps({"data": dataset(qa("a", "tea"))}))
    (tmp_path / "predictions").write_text(json.dumps({"a": "the tea"}))
    command = [sys.executable, squad_evaluate.__file__, tmp_path / "data", tmp_path / "predictions"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"exact_match": 100.0, "f1": 100.0}


def test_the_version_is_the_files():
    assert version_of(dataset(qa("a", "tea"))) == "1.1"
    assert version_of(dataset(qa("a", "tea"), qa("b", is_impossible=True))) == "2.0"
