"""The tagging main end to end with a tiny model, its files, and what it refuses."""

import json
from pathlib import Path

import pytest

from bert_tf import run_export, run_ner
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
WORDS = "aspirin ibuprofen acid helps hurts mice men and the 5 mg".split()
# Drugs are entities, "acid" goes on with one; \u200b leaves no piece, the last sentence fits no window of 8.
SENTENCES = [
    "aspirin/B-Chemical helps/O mice/O",
    "the/O ibuprofen/B-Chemical acid/I-Chemical hurts/O men/O",
    "\u200b/O mice/O and/O men/O",
    "5/O mg/O aspirin/B-Chemical acid/I-Chemical and/O ibuprofen/B-Chemical helps/O men/O and/O the/O mice/O",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ner")
    text = "\n\n".join(sentence.replace(" ", "\n").replace("/", "\t") for sentence in SENTENCES)
    for name in ("train.tsv", "devel.tsv", "test.tsv"):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n", encoding="utf-8")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(SPECIAL_TOKENS) + len(WORDS)}))
    return folder


def flags_of(files: Path, output_dir: Path, **more) -> dict:
    return {
        "data_dir": files,
        "vocab_file": files / "vocab.txt",
        "bert_config_file": files / "bert_config.json",
        "output_dir": output_dir,
        "max_seq_length": 8,
        "precision": "fp32",
        **more,
    }


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory) -> Path:
    output_dir = tmp_path_factory.mktemp("out") / "run"
    run_here(
        run_ner,
        flags_of(
            files,
            output_dir,
            do_train=True,
            do_eval=True,
            do_predict=True,
            train_batch_size=4,
            learning_rate=5e-3,
            num_train_epochs=100,
        ),
    )
    return output_dir


def test_training_learns_its_sentences_and_writes_the_published_files(trained):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["steps"] == 200
    assert summary["f1"] == summary["test"]["f1"] == 1.0
    results = dict(line.split(" = ") for line in (trained / "eval_results.txt").read_text().splitlines())
    assert {"precision", "recall", "f1", "loss", "global_step"} <= set(results) and results["global_step"] == "200"

    lines = (trained / "test_labels.txt").read_text(encoding="utf-8").splitlines()
    expected = [tagged.replace("-Chemical", "").split("/") for sentence in SENTENCES for tagged in sentence.split()]
    assert [line.split(" ")[:2] for line in lines if line] == expected
    assert [line.split(" ")[2] for line in lines if line] == [tag for _, tag in expected]
    assert (trained / "test_labels_errs.txt").read_text(encoding="utf-8") == "3 1 \u200b [PAD] O\n"
    report = (trained / "test_results_conlleval.txt").read_text()
    assert report.startswith("processed 23 tokens with 4 phrases; found: 4 phrases; correct: 4.\n")
    assert json.loads((trained / "label2id.json").read_text())["B"] == 1
    assert json.loads((trained / "labels.json").read_text())["labels"] == ["B", "I", "O", "X", "[CLS]", "[SEP]"]
    assert not list(trained.glob("*.pkl"))


def test_prediction_alone_from_the_checkpoint_and_without_buckets_is_the_same(files, trained, tmp_path):
    run_here(
        run_ner,
        flags_of(files, tmp_path / "out", do_predict=True, init_checkpoint=trained, task_name="BC5CDR", bucket=False),
    )
    for name in ("test_labels.txt", "label_test.txt", "test_results_conlleval.txt"):
        assert (tmp_path / "out" / name).read_text() == (trained / name).read_text(), name


def test_a_finished_run_says_so(files, trained, capsys):
    run_here(
        run_ner,
        flags_of(files, trained, do_train=True, train_batch_size=4, learning_rate=5e-3, num_train_epochs=100),
    )
    assert "nothing left to train: step 200 of 200 is done" in capsys.readouterr().out


def test_refusals(files, trained, tmp_path):
    with pytest.raises(UserError, match="nothing to do: give --do_train, --do_eval or --do_predict"):
        run_here(run_ner, flags_of(files, tmp_path / "a"))
    with pytest.raises(UserError, match="no task 'conll'; there are bc5cdr, clefe, i2b2"):
        run_here(run_ner, flags_of(files, tmp_path / "b", do_predict=True, task_name="conll"))
    with pytest.raises(UserError, match="was fine-tuned with task bc5cdr, this is clefe"):
        run_here(run_ner, flags_of(files, tmp_path / "c", do_predict=True, task_name="clefe", init_checkpoint=trained))


def test_the_export_tags_as_the_model(trained, files, tmp_path):
    run_export.main([str(trained), f"--data_dir={files}", f"--output_dir={tmp_path / 'export'}"])
    metadata = json.loads((tmp_path / "export" / "metadata.json").read_text())
    assert metadata["task"] == "bc5cdr" and metadata["head"] == "tags" and metadata["labels"][:3] == ["B", "I", "O"]
    f1 = json.loads((trained / "summary.json").read_text())["f1"]
    for name in ("model", "model.onnx", "saved_model"):
        assert metadata["scores"][name]["f1"] == pytest.approx(100 * f1) and f1 > 0.9
