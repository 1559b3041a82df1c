"""The SQuAD main end to end with a tiny model: training, answers, scores, kill -9 and resume, refusals."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from bert_tf import checkpoint, run_squad
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.errors import UserError
from runkit.log import read_log
from tests.bert_tf.mains import run_here

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["rome", "paris", "oslo", "lima", "cairo", "delhi"]
PEOPLE = ["ann", "bob", "cid", "dora"]
WORDS = [*PLACES, *PEOPLE, "lives", "in", "where", "does", "live", "and", "the", "old", "town", ".", "?"]
EPOCHS = 60
STEPS = 96 // 8 * EPOCHS
CONFIG = {
    "vocab_size": len(SPECIAL_TOKENS) + len(WORDS), "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 48, "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.01, "initializer_range": 0.1,
}  # fmt: skip


def make_squad(path: Path, count: int, seed: int, impossible: bool = False, answers: bool = True) -> None:
    """Who lives where, mostly one person a context; with `impossible` every fourth asks for one not mentioned."""
    rng, paragraphs = random.Random(seed), []
    for number in range(count):
        people = rng.sample(PEOPLE, 1 + number % 8 // 7)
        homes = {person: rng.choice(PLACES) for person in people}
        context = " ".join(f"{person} lives in the old town of {home} ." if rng.random() < 0.3 else
                           f"{person} lives in {home} ." for person, home in homes.items())  # fmt: skip
        missing = impossible and number % 4 == 0
        person = next(p for p in PEOPLE if p not in homes) if missing else rng.choice(people)
        start = -1 if missing else context.index(homes[person], context.index(person))
        qa = {"id": f"q{number}", "question": f"where does {person} live ?"}
        if answers:
            qa["answers"] = [] if missing else [{"text": homes[person], "answer_start": start}]
        if impossible:
            qa["is_impossible"] = missing
        paragraphs.append({"context": context, "qas": [qa]})
    data = {"version": "v2.0" if impossible else "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("squad")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    make_squad(folder / "train.json", 96, 1)
    make_squad(folder / "dev.json", 11, 2)
    make_squad(folder / "train2.json", 96, 1, impossible=True)
    make_squad(folder / "dev2.json", 12, 2, impossible=True)
    make_squad(folder / "questions.json", 3, 3, answers=False)
    return folder


def settings(files: Path, output: Path, **changes) -> dict:
    return {
        "bert_config_file": files / "config.json", "vocab_file": files / "vocab.txt", "output_dir": output,
        "max_seq_length": 48, "doc_stride": 16, "max_query_length": 8, "train_batch_size": 8, "learning_rate": 0.004,
        "precision": "fp32", "display_loss_steps": 5, "save_checkpoints_steps": 1000, "seed": 3,
        "max_answer_length": 4,
    } | changes  # fmt: skip


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("trained")
    run_here(run_squad, settings(files, output, do_train=True, train_file=files / "train.json", num_train_epochs=EPOCHS,
                                 do_predict=True, predict_file=files / "train.json"))  # fmt: skip
    return output


def test_training_learns_its_questions(trained, files):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["f1"] > 90 and summary["exact_match"] > 85
    assert summary["steps"] == STEPS and summary["sequences_per_second"] > 0
    assert summary["inference"]["latency_99_ms"] >= summary["inference"]["latency_50_ms"] > 0
    predictions = json.loads((trained / "predictions.json").read_text())
    assert list(predictions) == [f"q{i}" for i in range(96)]
    assert {"labels.json", "vocab.txt", "bert_config.json", "run_config.json", "nbest_predictions.json",
            "train.tf_record", "loss_curve.png"} <= {p.name for p in trained.iterdir()}  # fmt: skip
    final = [x["data"] for x in read_log(trained / "bert_dllog.json") if x.get("step") == []]
    assert any("f1" in data and "throughput_val" in data for data in final)


def test_a_finished_run_says_so(trained, files, tmp_path, capsys):
    again = tmp_path / "again"
    shutil.copytree(trained, again)
    run_here(run_squad, settings(files, again, do_train=True, train_file=files / "train.json", num_train_epochs=EPOCHS,
                                 do_predict=True, predict_file=files / "train.json"))  # fmt: skip
    assert f"nothing left to train: step {STEPS} of {STEPS} is done" in capsys.readouterr().out
    before, after = (json.loads((d / "summary.json").read_text()) for d in (trained, again))
    assert {k: after[k] for k in ("f1", "exact_match", "train_loss")} == {
        k: before[k] for k in ("f1", "exact_match", "train_loss")
    }


def test_answers_do_not_depend_on_padding(trained, files, tmp_path):
    nbest = []
    for bucket, batch_size in ((True, 3), (False, 3), (True, 8)):
        output = tmp_path / f"{bucket}_{batch_size}"
        run_here(run_squad, settings(files, output, do_predict=True, predict_file=files / "dev.json", bucket=bucket,
                                     init_checkpoint=trained, predict_batch_size=batch_size))  # fmt: skip
        nbest.append(json.loads((output / "nbest_predictions.json").read_text()))
    assert len(nbest[0]) == 11
    for other in nbest[1:]:
        for key, entries in nbest[0].items():
            assert [e["text"] for e in entries] == [e["text"] for e in other[key]]
            probabilities = [[e["probability"] for e in x] for x in (entries, other[key])]
            np.testing.assert_allclose(*probabilities, atol=1e-5)


def test_questions_without_answers_are_answered_and_not_scored(trained, files, tmp_path):
    run_here(run_squad, settings(files, tmp_path, do_predict=True, predict_file=files / "questions.json",
                                 init_checkpoint=trained / f"model.ckpt-{STEPS}"))  # fmt: skip
    assert len(json.loads((tmp_path / "predictions.json").read_text())) == 3
    assert "f1" not in json.loads((tmp_path / "summary.json").read_text())


def test_version_2(files, tmp_path):
    run_here(run_squad, settings(files, tmp_path, do_train=True, train_file=files / "train2.json",
                                 num_train_epochs=EPOCHS, do_predict=True, predict_file=files / "train2.json",
                                 version_2_with_negative=True))  # fmt: skip
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["f1"] > 85 and summary["NoAns_total"] == 24 and summary["best_f1"] >= summary["f1"]
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    assert np.mean([odds[f"q{i}"] > 0 for i in range(0, 96, 4)]) > 0.8  # those without an answer


def start(values: dict) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / "bert_tf" / "run_squad.py"), *(f"--{k}={v}" for k, v in values.items())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_killed_and_resumed_equals_undisturbed(files, tmp_path):
    """Bit for bit: weights, moments, and the losses on the way."""
    values = settings(files, tmp_path / "whole", do_train=True, train_file=files / "train.json", num_train_epochs=3,
                      save_checkpoints_steps=7, display_loss_steps=1)  # fmt: skip
    whole = start(values)
    values["output_dir"] = tmp_path / "killed"
    killed = start(values)
    for line in killed.stdout:
        if "step 17/36" in line:
            killed.send_signal(signal.SIGKILL)
            break
    killed.wait()
    output, _ = whole.communicate()
    assert whole.returncode == 0, output
    resumed = start(values)
    output, _ = resumed.communicate()
    assert resumed.returncode == 0, output
    # A checkpoint is written beside the training: that of step 14 may have been under way.
    assert re.search(r"resuming .* at step (7|14)\b", output) and "features from" in output
    one, two = (checkpoint.read_tensors(tmp_path / name) for name in ("whole", "killed"))
    assert sorted(one) == sorted(two)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


# ------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing to do"),
        ({"do_train": True}, "--train_file"),
        ({"do_predict": True}, "--predict_file"),
        ({"do_predict": True, "predict_file": "dev.json"}, "nothing to predict with"),
        ({"do_predict": True, "predict_file": "dev.json", "max_query_length": 45}, "must be above max_query_length"),
        ({"do_predict": True, "predict_file": "dev.json", "max_seq_length": 64}, "beyond max_position_embeddings"),
        ({"do_train": True, "train_file": "train2.json"}, "version_2_with_negative"),
        ({"do_train": True, "train_file": "train.json", "init_checkpoint": "uncased_L-2/bert_model.ckpt",
          "do_lower_case": False}, "no checkpoint"),
    ],
)  # fmt: skip
def test_what_is_refused(files, tmp_path, changes, message):
    changes = {k: files / v if k.endswith("_file") or k == "init_checkpoint" else v for k, v in changes.items()}
    with pytest.raises(UserError, match=message):
        run_here(run_squad, settings(files, tmp_path, **changes))
    assert not (tmp_path / "summary.json").exists()


def test_a_checkpoint_without_answers_is_refused(files, trained, tmp_path):
    """One without the head, one of another version of the task, and one made with another vocabulary."""
    values = checkpoint.read_tensors(trained)
    headless = {k: v for k, v in values.items() if k.startswith("bert/") and "adam" not in k}
    checkpoint.write_tensors(tmp_path / "headless.ckpt", headless)
    run = settings(files, tmp_path / "out", do_predict=True, predict_file=files / "dev.json")
    with pytest.raises(UserError, match="not fine-tuned for this task: it lacks cls/squad"):
        run_here(run_squad, run | {"init_checkpoint": tmp_path / "headless.ckpt"})
    with pytest.raises(UserError, match=r"task squad v1.1, this is squad v2.0"):
        run_here(run_squad, run | {"init_checkpoint": trained, "version_2_with_negative": True})
    words = (files / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:])]) + "\n")
    with pytest.raises(UserError, match="another vocabulary"):
        run_here(run_squad, run | {"init_checkpoint": trained, "vocab_file": tmp_path / "vocab.txt"})
    run_here(run_squad, run | {"init_checkpoint": tmp_path / "headless.ckpt", "allow_random_weights": True})
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())) == 11


def test_a_resume_with_other_data_or_batch_is_refused(trained, files, tmp_path, capsys):
    """Another number of epochs goes on, with a warning; weights that the run did not start from are not ignored."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    run = settings(files, copy, do_train=True, train_file=files / "train.json", num_train_epochs=EPOCHS)
    make_squad(tmp_path / "other.json", 96, 7)
    features = (copy / "train.tf_record").read_bytes()
    with pytest.raises(UserError, match="trained with training_features"):
        run_here(run_squad, run | {"train_file": tmp_path / "other.json"})
    assert (copy / "train.tf_record").read_bytes() == features
    with pytest.raises(UserError, match=r"global batch of 8 sequences.* makes 16 on"):
        run_here(run_squad, run | {"train_batch_size": 16})
    with pytest.raises(UserError, match="started from random weights"):
        run_here(run_squad, run | {"init_checkpoint": trained})
    run_here(run_squad, run | {"num_train_epochs": EPOCHS - 1})
    output = capsys.readouterr().out
    assert f"num_train_steps was {STEPS}" in output and f"step {STEPS} of {STEPS - 12} is done" in output
    assert json.loads((copy / "summary.json").read_text())["steps"] == STEPS
    before = (copy / "vocab.txt").read_bytes()
    with pytest.raises(UserError, match="another vocabulary"):
        words = (files / "vocab.txt").read_text().splitlines()
        (tmp_path / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:])]) + "\n")
        run_here(run_squad, settings(files, copy, do_predict=True, predict_file=files / "dev.json",
                                     vocab_file=tmp_path / "vocab.txt"))  # fmt: skip
    assert (copy / "vocab.txt").read_bytes() == before


def test_broken_weights_do_not_answer(trained, files, tmp_path):
    values = {k: v for k, v in checkpoint.read_tensors(trained).items() if "adam" not in k}
    checkpoint.write_tensors(tmp_path / "nan.ckpt", values | {"cls/squad/output_bias": np.full(2, np.nan, np.float32)})
    with pytest.raises(UserError, match="puts out NaN"):
        run_here(run_squad, settings(files, tmp_path / "out", do_predict=True, predict_file=files / "dev.json",
                                     init_checkpoint=tmp_path / "nan.ckpt"))  # fmt: skip


@pytest.mark.parametrize("flag", ["num_train_epochs", "warmup_proportion", "learning_rate"])
@pytest.mark.parametrize("value", ["nan", "inf", "-0.5"])
def test_numbers_that_are_none_are_refused(files, tmp_path, flag, value):
    with pytest.raises((UserError, flags.IllegalFlagValueError), match=flag):
        run_here(run_squad, settings(files, tmp_path, do_train=True, train_file=files / "train.json") | {flag: value})


def test_the_case_of_a_named_checkpoint_is_checked(files, trained, tmp_path):
    named = tmp_path / "uncased_L-2_H-32"
    shutil.copytree(trained, named)
    with pytest.raises(UserError, match=r"an uncased model by its name: give --do_lower_case=True"):
        run_here(run_squad, settings(files, tmp_path / "out", do_predict=True, predict_file=files / "dev.json",
                                     init_checkpoint=named, do_lower_case=False))  # fmt: skip


def test_own_evaluator_is_run(files, trained, tmp_path, capsys):
    script = tmp_path / "evaluate.py"
    script.write_text("import json, sys\nprint(json.dumps({'exact': 12.5, 'n': len(json.load(open(sys.argv[2])))}))\n")
    run = settings(files, tmp_path / "out", do_predict=True, predict_file=files / "dev.json", init_checkpoint=trained)
    run_here(run_squad, run | {"eval_script": script})
    assert '{"exact": 12.5, "n": 11}' in capsys.readouterr().out
    script.write_text("raise SystemExit('no such metric')\n")
    with pytest.raises(UserError, match="exit code 1: no such metric"):
        run_here(run_squad, run | {"eval_script": script})


def test_latency_is_there_for_a_single_question(files, trained, tmp_path):
    make_squad(tmp_path / "one.json", 1, 9)
    started = time.monotonic()
    run_here(run_squad, settings(files, tmp_path / "out", do_predict=True, predict_file=tmp_path / "one.json",
                                 init_checkpoint=trained))  # fmt: skip
    figures = json.loads((tmp_path / "out" / "summary.json").read_text())["inference"]
    assert 0 < figures["latency_average_ms"] < 1000 * (time.monotonic() - started)
    assert figures["sequences_per_second"] > 0
