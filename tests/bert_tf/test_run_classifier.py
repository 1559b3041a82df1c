"""The GLUE main end to end with a tiny model: classes, numbers, two development sets, labels checked at inference."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_tf import checkpoint, glue, run_classifier, run_export
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.errors import UserError
from tests.bert_tf.mains import run_here

COLOURS, THINGS = ["red", "green", "blue"], ["cat", "dog", "cup", "hat"]
CONFIG = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32, "type_vocab_size": 2, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1,
}  # fmt: skip
NLI = {"red": "contradiction", "green": "entailment", "blue": "neutral"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    vocab = [*SPECIAL_TOKENS, *COLOURS, *THINGS, "a"]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(vocab)}))
    pairs = [(c, t) for c in COLOURS for t in THINGS]

    def write(name: str, header: str | None, rows: list[str]) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join([header, *rows] if header else rows) + "\n")

    for split in ("train", "dev"):
        write(f"CoLA/{split}.tsv", None, [f"x\t{int(c == 'red')}\t\ta {c} {t}" for c, t in pairs])
    write("CoLA/test.tsv", "index\tsentence", [f"{i}\ta {c} {t}" for i, (c, t) in enumerate(pairs)])
    columns = ["index", "promptID", "pairID", "genre", "p1", "p2", "p3", "p4", "sentence1", "sentence2"]
    for name in ("train", "dev_matched", "dev_mismatched"):
        rows = [f"{i}\t1\t2\tg\t\t\t\t\ta {t}\ta {c} {t}\t{NLI[c]}\t{NLI[c]}" for i, (c, t) in enumerate(pairs)]
        write(f"MNLI/{name}.tsv", "\t".join([*columns, "label1", "gold_label"]), rows)
    for name in ("test_matched", "test_mismatched"):
        rows = [f"{i}\t1\t2\tg\t\t\t\t\ta {t}\ta {c} {t}" for i, (c, t) in enumerate(pairs)]
        write(f"MNLI/{name}.tsv", "\t".join(columns), rows)
    score = {"red": 0.5, "green": 2.0, "blue": 4.5}
    for name in ("train", "dev"):
        rows = [f"{i}\ta {c}\ta {t}\t{score[c]}" for i, (c, t) in enumerate(pairs)]
        write(f"STS-B/{name}.tsv", "index\tsentence1\tsentence2\tscore", rows)
    return folder


def settings(files: Path, task: str, output: Path, **changes) -> dict:
    return {
        "task_name": task, "data_dir": files / task, "bert_config_file": files / "config.json",
        "vocab_file": files / "vocab.txt", "output_dir": output, "max_seq_length": 16, "train_batch_size": 6,
        "learning_rate": 0.004, "num_train_epochs": 100, "precision": "fp32", "optimizer_type": "adam",
    } | changes  # fmt: skip


def run(files: Path, task: str, output: Path, **changes) -> dict:
    run_here(run_classifier, settings(files, task, output, **changes))
    return json.loads((output / "summary.json").read_text())


@pytest.fixture(scope="module")
def mnli(files, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("mnli")
    run(files, "MNLI", output, do_train=True, do_eval=True, do_predict=True)
    return output


def test_mnli_scores_both_sets_and_writes_both_submissions(mnli):
    summary = json.loads((mnli / "summary.json").read_text())
    assert summary["steps"] == 200 and summary["eval_accuracy"] == summary["eval_accuracy_mismatched"] == 1.0
    assert summary["inference"]["batch_size"] == 8 and summary["prediction_mismatched"]["latency_50_ms"] > 0
    results = dict(line.split(" = ") for line in (mnli / "eval_results.txt").read_text().splitlines())
    assert results["global_step"] == "200" and float(results["eval_loss"]) == summary["eval_loss"] < 0.1
    expected = [NLI[c] for c in COLOURS for _ in THINGS]
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv"):
        lines = (mnli / name).read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert lines[1:] == [f"{i}\t{label}" for i, label in enumerate(expected)]
    probabilities = glue.read_test_results(mnli / "test_results.tsv")
    assert probabilities.shape == (12, 3) and probabilities.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert json.loads((mnli / "labels.json").read_text()) == {
        "task": "MNLI", "labels": ["contradiction", "entailment", "neutral"], "do_lower_case": True
    }  # fmt: skip


def test_a_later_call_predicts_with_what_was_trained(files, mnli, tmp_path):
    """From the output_dir itself, and from elsewhere by --init_checkpoint; in another precision within rounding."""
    before = glue.read_test_results(mnli / "test_results.tsv")
    summary = run(files, "mnli", tmp_path, data_dir=files / "MNLI", do_predict=True, init_checkpoint=mnli)
    assert summary["steps"] == 200
    np.testing.assert_allclose(glue.read_test_results(tmp_path / "test_results.tsv"), before, atol=1e-6)
    run(files, "MNLI", tmp_path, do_predict=True, init_checkpoint=mnli, precision="bf16")
    np.testing.assert_allclose(glue.read_test_results(tmp_path / "test_results.tsv"), before, atol=0.05)


def test_labels_are_checked_at_inference(files, mnli, tmp_path):
    """And a refused call leaves what belongs to a checkpoint as it is."""
    with pytest.raises(UserError, match=r"fine-tuned with task MNLI, this is CoLA"):
        run(files, "CoLA", tmp_path, do_eval=True, init_checkpoint=mnli)
    kept = {name: (mnli / name).read_bytes() for name in ("vocab.txt", "bert_config.json", "labels.json")}
    with pytest.raises(UserError, match=r"fine-tuned with task MNLI, this is CoLA"):
        run(files, "CoLA", mnli, do_eval=True)
    assert kept == {name: (mnli / name).read_bytes() for name in kept}


def test_a_prediction_in_the_run_s_folder_keeps_its_figures(files, mnli, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(mnli, copy)
    before = json.loads((copy / "summary.json").read_text())
    after = run(files, "MNLI", copy, do_predict=True)
    assert {key: after[key] for key in before if not key.startswith("prediction")} == {
        key: value for key, value in before.items() if not key.startswith("prediction")
    }


def test_a_labelled_test_set_is_scored(files, tmp_path, mnli):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mnli_matched.tsv").write_text("neutral\ta cat\ta blue cat\n")
    rows = (files / "MNLI" / "test_matched.tsv").read_text()
    (folder / "test_matched.tsv").write_text(rows)
    assert "eval_accuracy" not in run(files, "MNLI", tmp_path / "a", data_dir=folder, do_predict=True,
                                      init_checkpoint=mnli)["prediction"]  # fmt: skip
    (tmp_path / "mrpc").mkdir()
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t1\t2\ta cat\ta cat", "0\t3\t4\ta dog\ta red cup"]
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        (tmp_path / "mrpc" / name).write_text("\n".join(lines) + "\n")
    summary = run(files, "MRPC", tmp_path / "b", data_dir=tmp_path / "mrpc", do_train=True, do_predict=True)
    predicted = glue.read_test_results(tmp_path / "b" / "test_results.tsv").argmax(1)
    assert summary["prediction"]["eval_accuracy"] == np.mean(predicted == [1, 0])


def test_another_task_starts_from_a_fine_tuned_encoder(files, mnli, tmp_path, capsys):
    summary = run(files, "CoLA", tmp_path, do_train=True, do_eval=True, init_checkpoint=mnli, num_train_epochs=60)
    assert (
        "of another shape in it, left at their initial values: output_bias, output_weights" in capsys.readouterr().out
    )
    assert summary["mcc"] == 1.0


def test_cola_by_lamb_and_its_submission(files, tmp_path):
    """The published default optimizer, with accumulation."""
    summary = run(files, "CoLA", tmp_path, do_train=True, do_eval=True, do_predict=True, optimizer_type="lamb",
                  train_batch_size=3, num_accumulation_steps=2, learning_rate=0.01)  # fmt: skip
    assert summary["mcc"] == 1.0 and summary["global_batch_size"] == 6
    assert (tmp_path / "CoLA.tsv").read_text().splitlines()[1:] == [f"{i}\t{int(i < 4)}" for i in range(12)]


def test_numbers_are_learnt_and_correlated(files, tmp_path):
    summary = run(files, "STS-B", tmp_path, do_train=True, do_eval=True)
    assert summary["pearson"] > 0.98 and summary["spearmanr"] > 0.9 and summary["eval_loss"] < 0.1
    assert json.loads((tmp_path / "labels.json").read_text())["labels"] == []
    assert checkpoint.list_variables(tmp_path)["output_weights"] == (1, 32)
    with pytest.raises(UserError, match="no test set of STS-B"):
        run(files, "STS-B", tmp_path, do_predict=True)


def test_a_missing_mismatched_set_is_left_out(files, mnli, tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "dev_matched.tsv").write_bytes((files / "MNLI" / "dev_matched.tsv").read_bytes())
    summary = run(files, "MNLI", tmp_path / "out", data_dir=folder, do_eval=True, init_checkpoint=mnli)
    assert "left out: dev_mismatched" in capsys.readouterr().out
    assert summary["eval_accuracy"] == 1.0 and "eval_accuracy_mismatched" not in summary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing to do"),
        ({"do_eval": True, "task_name": "nli"}, "no task 'nli'; there are CoLA"),
        ({"do_eval": True, "data_dir": "elsewhere"}, "no dev set of CoLA; expected dev.tsv"),
        ({"do_eval": True}, "nothing to predict with"),
        ({"do_train": True, "data_dir": "elsewhere"}, r"no train set of CoLA; expected train.tsv"),
        ({"do_train": True, "learning_rate": 0.01, "warmup_proportion": 1.0}, "warmup_proportion is 1.0"),
    ],
)
def test_what_is_refused(files, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(files, "CoLA", tmp_path, **changes)


def test_the_export_classifies_as_the_model(mnli, files, tmp_path):
    run_export.main([str(mnli), f"--data_dir={files / 'MNLI'}", f"--output_dir={tmp_path / 'export'}"])
    metadata = json.loads((tmp_path / "export" / "metadata.json").read_text())
    assert metadata["task"] == "MNLI" and metadata["head"] == "class" and metadata["outputs"] == ["logits"]
    assert metadata["labels"] == ["contradiction", "entailment", "neutral"]
    for name in ("model", "model.onnx", "saved_model"):
        assert metadata["scores"][name]["eval_accuracy"] == 100
