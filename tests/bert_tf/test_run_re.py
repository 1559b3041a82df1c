"""The relations main end to end with a tiny model, and its results scored again by the command line."""

import json
from pathlib import Path

import pytest

from bert_tf import relations, run_re
from bert_tf.glue import read_test_results
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.errors import UserError
from tests.bert_tf.mains import run_here

CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,  # a small model learns from it at once
}
VERBS = {"raises": "CPR:3", "inhibits": "CPR:4", "mimics": "CPR:5", "blocks": "CPR:6", "feeds": "CPR:9", "and": "False"}
WORDS = ["a", "b", "c", "d", *VERBS]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("re")
    rows = [
        f"{i}\t{x} {verb} {y}\t{label != 'False'}\t{label}"
        for i, (verb, label) in enumerate(VERBS.items())
        for x, y in ("ab", "cd", "ad", "cb")
    ]
    for name in ("trainingPosit_chem", "developPosit_chem", "testPosit_chem"):
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    vocab = [*SPECIAL_TOKENS, *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(vocab)}))
    return folder


def flags_of(files: Path, output_dir: Path, **more) -> dict:
    return {
        "task_name": "chemprot",
        "data_dir": files,
        "vocab_file": files / "vocab.txt",
        "bert_config_file": files / "bert_config.json",
        "output_dir": output_dir,
        "max_seq_length": 16,
        "precision": "fp32",
        **more,
    }


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory) -> Path:
    output_dir = tmp_path_factory.mktemp("out") / "run"
    more = {"do_train": True, "do_eval": True, "do_predict": True, "learning_rate": 1e-2, "num_train_epochs": 60}
    run_here(run_re, flags_of(files, output_dir, train_batch_size=12, **more))
    return output_dir


def test_training_learns_its_examples(trained):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["steps"] == 120
    assert summary["micro_f1"] == summary["macro_f1"] == summary["test"]["micro_f1"] == 1.0
    assert summary["average_over"] == "CPR:3, CPR:4, CPR:5, CPR:6, CPR:9"
    results = dict(line.split(" = ") for line in (trained / "eval_results.txt").read_text().splitlines())
    assert results["micro_f1"] == "1.0" and results["global_step"] == "120"
    probabilities = read_test_results(trained / "test_results.tsv")
    assert probabilities.shape == (24, 6)
    assert probabilities.sum(1) == pytest.approx(1.0, abs=1e-5)


def test_command_line_gives_the_same_scores(files, trained, capsys):
    args = ["--output_path", str(trained / "test_results.tsv"), "--answer_path", str(files / "testPosit_chem")]
    relations.main(["--task", "chemprot", *args])
    assert capsys.readouterr().out.splitlines()[0] == "f1 score    : 100.00%"


def test_prediction_alone_from_the_checkpoint(files, trained, tmp_path):
    run_here(run_re, flags_of(files, tmp_path / "out", do_predict=True, init_checkpoint=trained))
    again = read_test_results(tmp_path / "out" / "test_results.tsv")
    assert again == pytest.approx(read_test_results(trained / "test_results.tsv"), abs=1e-6)


def test_refusals(files, tmp_path):
    with pytest.raises(UserError, match="nothing to do"):
        run_here(run_re, flags_of(files, tmp_path / "a"))
    with pytest.raises(UserError, match="no task 'gad'; there are ChemProt, MedNLI"):
        run_here(run_re, flags_of(files, tmp_path / "b", do_eval=True, task_name="gad"))
    with pytest.raises(UserError, match="nothing to predict with"):
        run_here(run_re, flags_of(files, tmp_path / "c", do_eval=True))
