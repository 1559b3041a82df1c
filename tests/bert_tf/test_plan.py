"""The plan of a run of BERT: its numbers against the model itself, its checks against broken inputs."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_tf import kernels, plan, run_classifier, run_ner, run_pretraining, run_squad
from bert_tf.model import BertConfig, BertForClassification, BertForPreTraining, variable_name
from bert_tf.plan import Head, Shape
from bert_tf.precision import PRECISIONS
from bert_tf.records import PretrainingExample, encode_example, write_tfrecord
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError
from tests.bert_tf import mains

CONFIG = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32, "type_vocab_size": 2,
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "."]


# -------------------------------------------------------------------------------------------------------- the numbers
def test_shapes_are_those_of_the_model():
    config = BertConfig(**CONFIG)
    for build in (lambda: BertForPreTraining(config, 1), lambda: BertForClassification(config, 3, 1)):
        expected = [(variable_name(variable), tuple(variable.shape)) for variable in build().variables]
        assert plan.variable_shapes(build) == [Shape(*one) for one in expected]


def test_parameters_of_bert_base():
    config = BertConfig(30522, type_vocab_size=2)
    variables = plan.variable_shapes(lambda: BertForPreTraining(config, 1))
    h, i = 768, 3072
    layer = 4 * (h * h + h) + 2 * h * i + i + h + 4 * h  # attention, feed-forward, two layer norms
    embeddings = (30522 + 2 + 512) * h + 2 * h
    heads = (h * h + h) + (h * h + h + 2 * h + 30522) + 2 * h + 2  # pooler, masked words, next sentence
    assert sum(variable.size for variable in variables) == 12 * layer + embeddings + heads


def parts_of(precision: str, micro_batches: int = 1, **changes) -> dict[str, float]:
    config = BertConfig(**CONFIG)
    variables = plan.variable_shapes(lambda: BertForPreTraining(config, 1))
    head = Head(rows=8, outputs=40, transformed=True)
    found = plan.memory(config, variables, PRECISIONS[precision], 2, 16, head, micro_batches, **changes)
    return {part.kind: part.n_bytes for part in found}


def test_memory_that_variables_take():
    model = BertForPreTraining(BertConfig(**CONFIG), 1)
    n = sum(int(np.prod(variable.shape)) for variable in model.variables)
    copies = ComputeWeights(model.variables, PRECISIONS["bf16"].compute_dtype)._copy_variables()
    assert parts_of("bf16")["compute copies"] == sum(2 * int(np.prod(copy.shape)) for copy in copies)
    assert parts_of("fp32")["compute copies"] == 0
    assert parts_of("fp32")["weights"] == 4 * n and parts_of("fp32")["moments"] == 8 * n
    assert parts_of("fp32")["gradients"] == 4 * n
    assert parts_of("fp32")["accumulators"] == 0 and parts_of("fp32", 3)["accumulators"] == 4 * n
    assert parts_of("fp32")["checkpoint snapshot"] == 12 * n == plan.checkpoint_bytes(n)
    assert parts_of("fp32", saves=False)["checkpoint snapshot"] == 0


def test_activations_by_hand():
    # R = 2 x 16 = 32 rows; a layer: 8 x 16 + 2 x 32 + 2 x 2 x 16 = 256 numbers a row and four float32
    found = plan.activation_bytes(BertConfig(**CONFIG), 2, 16, 2, Head(rows=8, outputs=40, transformed=True))
    assert found == {
        "layers": 32 * (256 * 2 + 16),
        "embeddings": 32 * 16 * (2 * 4 + 4 * 2),
        "head": 8 * (4 * 16 * 2 + 40 * (2 + 12)),
    }

    # without scores: 8 x 16 + 2 x 32 = 192 numbers a row, and four and two (the heads) float32
    found = plan.activation_bytes(BertConfig(**CONFIG), 2, 16, 2, Head(rows=8, outputs=40), keeps_scores=False)
    assert found["layers"] == 32 * (192 * 2 + (4 + 2) * 4)


def test_activations_that_are_recomputed_by_hand():
    found = plan.activation_bytes(
        BertConfig(**CONFIG | {"num_hidden_layers": 3}),
        2,
        16,
        2,
        Head(rows=8, outputs=40, transformed=True),
        recompute=True,
    )
    assert found["layers"] == 3 * 32 * 16 * 2 and found["one layer"] == 2 * 32 * (256 * 2 + 16)
    # Here the gradients outweigh what is let go while they come: layers' inputs and head.
    kept = parts_of("fp32", recompute=True)["activations"]
    assert kept == 2 * 32 * (256 * 4 + 16) + 32 * 16 * (2 * 4 + 4 * 4)


def test_kernels_update_in_place(monkeypatch):
    monkeypatch.setattr(plan.kernels, "library", lambda: None)
    without = parts_of("fp32")
    monkeypatch.setattr(plan.kernels, "library", lambda: object())
    assert parts_of("fp32")["new weights"] == 0 and without["new weights"] == 6 * without["weights"] / 4


# -------------------------------------------------------------------------------------------------------- pre-training
@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a config, a vocabulary and 20 records of length 16 in two files."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    example = encode_example(
        PretrainingExample([5] * 16, [1] * 16, [0] * 16, [1, 2, 3, 4], [5] * 4, [1.0] * 4, [0])
    )  # fmt: skip
    folder = tmp_path / "records"
    folder.mkdir()
    files = {}
    for name in ("a.tfrecord", "b.tfrecord"):
        write_tfrecord(folder / name, [example] * 10)
        files[name] = {"bytes": (folder / name).stat().st_size, "records": 10}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
    return tmp_path


def settings(data: Path, **changes) -> dict[str, object]:
    return {
        "bert_config_file": data / "config.json", "input_files_dir": data / "records", "output_dir": data / "out",
        "do_train": True, "max_seq_length": 16, "max_predictions_per_seq": 4, "train_batch_size": 2,
        "num_accumulation_steps": 5, "num_train_steps": 6, "num_warmup_steps": 2, "learning_rate": 0.01,
        "save_checkpoints_steps": 2, "precision": "fp32", "plan": True,
    } | changes  # fmt: skip


def test_a_plan_tells_and_starts_nothing(data, capsys):
    mains.run_here(run_pretraining, settings(data, plan="3", plan_processes=2))
    shown = capsys.readouterr().out
    assert "20 sequences (10 micro-batches of 2 on 2 processes)" in shown
    assert "0.02 (0.01 x 2 processes)" in shown
    assert "6, warm-up 2: 6.00 epochs of 20 records" in shown
    assert "0:00:40 at 3 sequences/s (as given)" in shown  # 6 updates of 20
    assert "no problem found" in shown and not (data / "out").exists()


def test_a_probe_times_updates(data, capsys):
    mains.run_here(run_pretraining, settings(data, plan="probe", pack_sequences=False))
    assert "sequences/s (3 updates of full-length sequences" in capsys.readouterr().out
    mains.run_here(run_pretraining, settings(data, plan="probe", pack_sequences=True))
    assert "sequences/s (3 updates of packed records" in capsys.readouterr().out
    assert not (data / "out").exists()


@pytest.mark.skipif(kernels.library() is None, reason="no kernels here")
def test_packed_batches_are_as_large_as_the_records_say(data, capsys):
    """Half of the records have 4 tokens and 1 masked, half 12 and 3: means of 8 and 2, with deviations of 4 and 1."""
    examples = [
        encode_example(PretrainingExample([5] * n + [0] * (16 - n), [1] * n + [0] * (16 - n), [0] * 16, [1, 2, 3, 0],
                                          [5] * 4, [1.0] * (n // 4) + [0.0] * (4 - n // 4), [0]))
        for n in (4, 12)
    ]  # fmt: skip
    write_tfrecord(data / "short" / "a.tfrecord", examples * 10)
    mains.run_here(run_pretraining, settings(data, input_files_dir=data / "short", train_batch_size=9))
    shown = capsys.readouterr().out
    assert "1 x 108" in shown  # 9 x 8 + 3 x sqrt(9) x 4
    mains.run_here(run_pretraining, settings(data, train_batch_size=9, pack_sequences=False))
    assert "9 x 16" in capsys.readouterr().out


def test_every_problem_of_pretraining(data, capsys):
    (data / "records" / "a.tfrecord").unlink()
    (data / "records" / "b.tfrecord").write_bytes(b"cut")
    changes = {
        "input_files_dir": f"{data / 'records'},{data / 'nowhere'}", "init_checkpoint": data / "none",
        "eval_files_dir": data / "no_eval", "do_eval": True, "num_warmup_steps": 9, "max_seq_length": 64,
    }  # fmt: skip
    with pytest.raises(UserError, match="problems in this plan"):
        mains.run_here(run_pretraining, settings(data, **changes))
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    for words in ("a.tfrecord: missing", "b.tfrecord: 3 bytes", "nowhere: no such folder", "no_eval: no such folder",
                  "no checkpoint", "max_position_embeddings 32", "warm"):  # fmt: skip
        assert sum(words in problem for problem in problems) == 1, (words, problems)


def test_files_are_looked_at_without_a_config_too(data, capsys):
    (data / "config.json").write_text("{}")
    with pytest.raises(UserError):
        mains.run_here(run_pretraining, settings(data, input_files_dir=data / "nowhere"))
    shown = capsys.readouterr().out
    assert "vocab_size is missing" in shown and "nowhere: no such folder" in shown


def test_a_checkpoint_of_another_model(data, capsys):
    mains.run_here(run_pretraining, settings(data, plan=None, num_train_steps=3))
    other = CONFIG | {"hidden_size": 32}
    (data / "config.json").write_text(json.dumps(other))
    changes = {"init_checkpoint": data / "out", "output_dir": data / "other"}
    with pytest.raises(UserError):
        mains.run_here(run_pretraining, settings(data, **changes))
    assert "does not fit the model's config" in capsys.readouterr().out


def test_what_a_resume_would_do(data, capsys):
    mains.run_here(run_pretraining, settings(data, plan=None, num_train_steps=3))
    before = {path: path.stat().st_mtime_ns for path in (data / "out").rglob("*")}
    capsys.readouterr()
    mains.run_here(run_pretraining, settings(data, plan="1", plan_processes=5))
    shown = capsys.readouterr().out
    assert "at step 3 of" in shown and "10 sequences (5 micro-batches of 2 on 5 processes)" in shown
    assert "0:00:30 at 1 sequences/s" in shown  # 3 updates of 10 are left
    assert {path: path.stat().st_mtime_ns for path in (data / "out").rglob("*")} == before
    with pytest.raises(UserError):
        mains.run_here(run_pretraining, settings(data, seed=4, train_batch_size=4))
    shown = capsys.readouterr().out
    assert "was trained with seed 12345, not 4" in shown and "a global batch of 10 sequences" in shown


# --------------------------------------------------------------------------------------------------------- fine-tuning
def fine_tuning(data: Path, **changes) -> dict[str, object]:
    shared = ("bert_config_file", "output_dir", "do_train", "max_seq_length", "train_batch_size", "precision", "plan")
    values = {key: value for key, value in settings(data).items() if key in shared}
    return values | {"vocab_file": data / "vocab.txt"} | changes


def test_plan_of_a_classification(data, capsys):
    (data / "train.tsv").write_text("\n".join(f"id{n}\t{n % 2}\t*\ta b c" for n in range(20)) + "\n")
    with pytest.raises(UserError):
        mains.run_here(
            run_classifier, fine_tuning(data, task_name="cola", data_dir=data, do_eval=True, num_train_epochs=2)
        )
    shown = capsys.readouterr().out
    assert "20, warm-up 2: 2.00 epochs of 20 examples" in shown
    assert "no dev set of CoLA" in shown and shown.count("problem:") == 1


def test_plan_of_questions(data, capsys):
    question = {"id": "1", "question": "a ?", "answers": [{"text": "b", "answer_start": 2}]}
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "a b c", "qas": [question]}]}]}
    (data / "train.json").write_text(json.dumps(squad))
    (data / "vocab.txt").unlink()
    with pytest.raises(UserError):
        mains.run_here(
            run_squad,
            fine_tuning(data, train_file=data / "train.json", do_predict=True, predict_file=data / "none.json",
                        max_query_length=4, doc_stride=2),
        )  # fmt: skip
    shown = capsys.readouterr().out
    assert "of 1 examples" in shown and "none.json" in shown and "vocab.txt" in shown
    assert shown.count("problem:") == 2


def test_plan_of_entities(data, capsys):
    (data / "train.tsv").write_text("a\t-\t0\tO\nb\t-\t0\tB\n\n")
    (data / "devel.tsv").write_text("c\t-\t0\tO\n\n")
    mains.run_here(run_ner, fine_tuning(data, task_name="bc5cdr", data_dir=data, num_train_epochs=4))
    shown = capsys.readouterr().out
    assert "epochs of 2 examples" in shown and "no problem found" in shown


def test_numbers_that_no_training_can_use(data, capsys):
    (data / "train.tsv").write_text("a\t-\t0\tO\n\n")
    with pytest.raises(UserError):
        mains.run_here(
            run_ner, fine_tuning(data, task_name="bc5cdr", data_dir=data, warmup_proportion=2, num_train_epochs=0)
        )
    assert "num_train_epochs is 0" in capsys.readouterr().out
