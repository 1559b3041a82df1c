"""Relation files in all layouts, averages by hand, the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_tf import relations
from bert_tf.glue import convert_examples, read_examples, write_test_results
from bert_tf.relations import TASKS, read_answers, relation_metrics
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer
from runkit.errors import UserError

CHEMPROT, MEDNLI = TASKS["ChemProt"], TASKS["MedNLI"]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def indices(labels: list[str]) -> list[int]:
    return [CHEMPROT.labels.index(CHEMPROT.aliases.get(label, label)) for label in labels]


# --------------------------------------------------------------------------------------------------- layouts
def test_labels_in_the_published_order():
    assert CHEMPROT.labels == ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9", "False")
    assert relations.positive_labels(CHEMPROT) == ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9")


def test_published_layout_has_no_header_and_a_flag(tmp_path):
    rows = "1\ta b\tTrue\tCPR:4\textra\n2\tc d\tFalse\tNone\textra\n"
    for name in ("trainingPosit_chem", "developPosit_chem", "testPosit_chem"):
        write(tmp_path, name, rows)
    for split in ("train", "dev", "test"):
        examples = read_examples(CHEMPROT, tmp_path, split)
        assert [(e.text_a, e.text_b, e.label) for e in examples] == [("a b", None, "CPR:4"), ("c d", None, "False")]
    path = write(tmp_path, "trainingPosit_chem", "1\ta b\tmaybe\tCPR:4\n")
    with pytest.raises(UserError, match=f"{path}:1: 'maybe' is no label of ChemProt"):
        read_examples(CHEMPROT, tmp_path, "train")


def test_headed_layout(tmp_path):
    write(tmp_path, "test.tsv", "index\tsentence\tlabel\nx.1\ta b\tCPR:9\nx.2\tc\tfalse\n")
    assert [(e.guid, e.label) for e in read_examples(CHEMPROT, tmp_path, "test")] == [
        ("test-0", "CPR:9"),
        ("test-1", "False"),
    ]


def test_json_lines_with_relation_names(tmp_path):
    names = {
        "ACTIVATOR": "CPR:3",
        "INHIBITOR": "CPR:4",
        "AGONIST": "CPR:5",
        "ANTAGONIST": "CPR:6",
        "PRODUCT-OF": "CPR:9",
    }
    lines = [json.dumps({"text": f"<< {n} >> [[ b ]]", "label": n, "metadata": []}) for n in names]
    write(tmp_path, "train.txt", "\n".join(lines) + "\n")
    examples = read_examples(CHEMPROT, tmp_path, "train")
    assert [e.label for e in examples] == list(names.values())
    assert examples[0].text_a == "<< ACTIVATOR >> [[ b ]]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', r"train\.txt:2: no text under the key 'label'; there are 'text'"),
        (
            '{"text": "a", "label": "COFACTOR"}',
            r"train\.txt:2: 'COFACTOR' is no label of ChemProt; known labels: 'CPR:3'",
        ),
        ('{"text": "a"', r"train\.txt:2:\d+: not valid JSON"),
        ("[]", r"train\.txt:2: not a JSON object"),
    ],
)
def test_broken_json_lines_are_named(tmp_path, line, message):
    write(tmp_path, "train.txt", '{"text": "a", "label": "AGONIST"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        read_examples(CHEMPROT, tmp_path, "train")


def test_mednli(tmp_path):
    entry = {"gold_label": "entailment", "sentence1": "a", "sentence2": "b", "pairID": "1"}
    write(tmp_path, "mli_train_v1.jsonl", json.dumps(entry) + "\n")
    (example,) = read_examples(MEDNLI, tmp_path, "train")
    vocab = write(tmp_path, "vocab.txt", "\n".join([*SPECIAL_TOKENS, "a", "b"]) + "\n")
    (feature,) = convert_examples([example], MEDNLI, FullTokenizer(vocab), 16)
    assert feature == ([2, 5, 3, 6, 3], [0, 0, 0, 1, 1], 1)


def test_shared_chemprot_loads_with_all_its_rows(shared):
    folder = shared / "data" / "bio_chemprot"
    assert [len(read_examples(CHEMPROT, folder, split)) for split in ("train", "dev", "test")] == [4169, 2427, 3469]


# ---------------------------------------------------------------------------------------------------- scores
def test_averages_by_hand():
    gold = ["CPR:3", "CPR:3", "CPR:4", "False", "False"]
    found = ["CPR:3", "False", "CPR:3", "CPR:4", "False"]
    scores = relation_metrics(CHEMPROT, indices(found), indices(gold))
    assert (scores["micro_precision"], scores["micro_recall"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert scores["micro_f1"] == pytest.approx(1 / 3)
    assert scores["macro_f1"] == pytest.approx((1 / 2 + 0 + 0 + 0 + 0) / 5)
    assert scores["eval_accuracy"] == pytest.approx(2 / 5)
    assert scores["average_over"] == "CPR:3, CPR:4, CPR:5, CPR:6, CPR:9"


def test_no_relation_earns_nothing():
    scores = relation_metrics(CHEMPROT, indices(["False"] * 3), indices(["False"] * 3))
    assert scores["micro_f1"] == 0.0 and scores["eval_accuracy"] == 1.0
    with pytest.raises(ValueError, match="F > 0"):
        relation_metrics(CHEMPROT, [], [])


def test_case_b03_kinds_of_averages(shared):
    folder = shared / "cases" / "B03"
    expected = json.loads((folder / "expected.json").read_text())
    rows = [line.split("\t") for line in (folder / "gold_pred.tsv").read_text().splitlines()]
    scores = relation_metrics(CHEMPROT, indices([row[1] for row in rows]), indices([row[0] for row in rows]))
    names = {"macro_f1_positive": "macro_f1", "accuracy": "eval_accuracy"}
    for key, value in expected.items():
        assert scores[names.get(key, key)] == pytest.approx(value), key
    assert [e.label for e in read_examples(CHEMPROT, folder, "test")] == ["CPR:4", "False"]


# ---------------------------------------------------------------------------------------------- command line
ANSWERS = {
    "headed": "index\tsentence\tlabel\n0\ta\tCPR:3\n1\tb\tfalse\n2\tc\tCPR:4\n",
    "published": "0\ta\tTrue\tCPR:3\n1\tb\tFalse\tNone\n2\tc\tTrue\tCPR:4\n",
    "json": '{"text": "a", "label": "ACTIVATOR"}\n{"text": "b", "label": "False"}\n{"text": "c", "label": "CPR:4"}\n',
}


@pytest.mark.parametrize("layout", ANSWERS)
def test_command_line_names_the_average(tmp_path, capsys, layout):
    answers = write(tmp_path, "answers", ANSWERS[layout])
    assert read_answers(CHEMPROT, answers) == [0, 5, 1]
    write_test_results(tmp_path / "test_results.tsv", np.eye(6)[[0, 1, 1]])
    args = ["--task", "chemprot", "--output_path", str(tmp_path / "test_results.tsv"), "--answer_path", str(answers)]
    assert relations.main(args) == 0
    assert capsys.readouterr().out.splitlines() == [
        "f1 score    : 80.00%",
        "recall      : 100.00%",
        "precision   : 66.67%",
        "micro average over CPR:3, CPR:4, CPR:5, CPR:6, CPR:9; False is not counted",
        "macro f1    : 33.33%",
        "accuracy    : 66.67%",
    ]


def test_command_line_refuses_results_of_other_data(tmp_path):
    answers = write(tmp_path, "answers", ANSWERS["headed"])
    write_test_results(tmp_path / "r.tsv", np.eye(6)[:2])
    with pytest.raises(
        UserError, match=r"2 lines of 6 probabilities, but .*answers has 3 examples and ChemProt 6 labels"
    ):
        relations.main(["--output_path", str(tmp_path / "r.tsv"), "--answer_path", str(answers)])
