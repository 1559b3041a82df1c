"""The main from flags to files: a whole run, its continuation after kill -9, and what it refuses."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, create_pretraining_data, run_pretraining
from runkit.errors import UserError
from runkit.files import locked_directory
from runkit.log import read_log
from tests.bert_tf import mains

ROOT = Path(__file__).resolve().parents[2]
WORDS = "the a old grey small river boat mill town bird sings sleeps flows waits by under near over and then".split()
CONFIG = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32, "type_vocab_size": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Folders `training` and `test` of records made from made-up sentences, and a config that fits."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."]) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rng = random.Random(4)
    for split, documents in (("training", 60), ("test", 6)):
        (folder / f"text_{split}").mkdir()
        text = ["\n".join(" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) + " ." for _ in range(6))
                for _ in range(documents)]  # fmt: skip
        (folder / f"text_{split}" / "part.txt").write_text("\n\n".join(text) + "\n")
        create_pretraining_data.main(
            ["--vocab_file", str(folder / "vocab.txt"), "--input_file", str(folder / f"text_{split}"), "--output_dir",
             str(folder / split), "--max_seq_length", "32", "--max_predictions_per_seq", "5", "--dupe_factor", "2"]
        )  # fmt: skip
    return folder


def settings(data: Path, output: Path, **changes) -> dict[str, str]:
    values = {
        "bert_config_file": data / "config.json", "input_files_dir": data / "training", "eval_files_dir": data / "test",
        "output_dir": output, "do_train": True, "do_eval": True, "max_seq_length": 32, "max_predictions_per_seq": 5,
        "train_batch_size": 8, "eval_batch_size": 16, "num_train_steps": 6, "num_warmup_steps": 2,
        "learning_rate": 0.01, "save_checkpoints_steps": 2, "precision": "fp32", "seed": 7,
    }  # fmt: skip
    return {key: str(value) for key, value in (values | changes).items() if value is not None}


def arguments(values: dict[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in values.items()]


def run_here(values: dict[str, str]) -> None:
    mains.run_here(run_pretraining, values)


def start(values: dict[str, str], *more: str) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / "bert_tf" / "run_pretraining.py"), *arguments(values), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def losses(output: Path) -> dict[int, float]:
    lines = read_log(output / "bert_dllog.json")
    return {x["step"]: x["data"]["total_loss"] for x in lines if x["type"] == "LOG" and isinstance(x["step"], int)}


# --------------------------------------------------------------------------------------------- a whole run
@pytest.fixture(scope="module")
def phase_1(data, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("phase_1")
    run_here(settings(data, output, num_train_steps=60, num_warmup_steps=6, save_checkpoints_steps=25))
    return output


def test_run_leaves_what_it_promises(phase_1):
    summary = json.loads((phase_1 / "summary.json").read_text())
    assert summary["steps"] == 60 and summary["global_batch_size"] == 8
    assert summary["masked_lm_loss"] < summary["initial_masked_lm_loss"] - 0.1
    assert summary["sequences_per_second"] > 0
    # 24 words and a full stop, of which some are more frequent: near the entropy of that.
    assert 2.5 < summary["unigram_masked_lm_loss"] < np.log(40)
    results = dict(line.split(" = ") for line in (phase_1 / "eval_results.txt").read_text().splitlines())
    assert set(results) == {"global_step", "loss", "masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy",
                            "next_sentence_loss"}  # fmt: skip
    assert float(results["masked_lm_loss"]) == summary["masked_lm_loss"]
    assert (phase_1 / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((phase_1 / "run_config.json").read_text())["seed"] == 7
    assert [p.name for p in phase_1.glob("model.ckpt-*.index")] == ["model.ckpt-60.index"]  # only the latest is kept
    assert tf.train.latest_checkpoint(str(phase_1)).endswith("model.ckpt-60")
    assert list(phase_1.glob("events.out.tfevents.*"))
    assert sorted(losses(phase_1)) == list(range(1, 61))


def test_every_held_out_record_is_scored_once(data, phase_1):
    summary = json.loads((phase_1 / "summary.json").read_text())
    manifest = json.loads((data / "test" / "manifest.json").read_text())
    assert summary["eval_examples"] == manifest["records"]


def test_phase_2_takes_weights_only(data, phase_1, tmp_path):
    first = checkpoint.read_tensors(phase_1 / "model.ckpt-60")
    # One update of warm-up has learning rate 0: weights must be phase 1's, moments fresh, the count 1.
    run_here(settings(data, tmp_path, num_train_steps=1, num_warmup_steps=0, learning_rate=0.0, do_eval=False,
                      init_checkpoint=phase_1 / "model.ckpt-60"))  # fmt: skip
    second = checkpoint.read_tensors(tmp_path / "model.ckpt-1")
    weights = [
        name for name in second if name.startswith(("bert/", "cls/")) and not name.endswith(("adam_m", "adam_v"))
    ]
    assert len(weights) == 5 + 16 + 2 + 7
    assert all(np.array_equal(first[name], second[name]) for name in weights)
    assert int(first["global_step"]) == 60 and int(second["global_step"]) == 1
    moment = "bert/pooler/dense/kernel/adam_m"
    assert not np.array_equal(first[moment], second[moment])


def test_a_finished_run_can_be_called_again(data, phase_1):
    before = json.loads((phase_1 / "summary.json").read_text())
    run_here(settings(data, phase_1, num_train_steps=60, num_warmup_steps=6, save_checkpoints_steps=25))
    assert json.loads((phase_1 / "summary.json").read_text()) == before


# -------------------------------------------------------------------------------------------------- resume
@pytest.mark.slow
def test_kill_9_and_resume_equals_straight_through(data, tmp_path):
    options = {"num_train_steps": 120, "save_checkpoints_steps": 10, "num_accumulation_steps": 2, "do_eval": False}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run_here(settings(data, straight, **options))

    process = start(settings(data, killed, **options))
    log = killed / "bert_dllog.json"
    deadline = time.monotonic() + 120
    while not (log.exists() and b'"step": 37' in log.read_bytes()):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    at_kill = max(losses(killed))
    assert 37 <= at_kill < 120, "killed too late to show anything"

    process = start(settings(data, killed, **options))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "resuming" in output
    assert losses(killed) == losses(straight)
    expected, found = (checkpoint.read_tensors(folder / "model.ckpt-120") for folder in (straight, killed))
    assert expected.keys() == found.keys()
    for name in expected:
        assert np.array_equal(expected[name], found[name]), name


def test_resume_under_other_settings_is_refused(data, phase_1):
    with pytest.raises(UserError, match="seed 7, not 8"):
        run_here(settings(data, phase_1, num_train_steps=70, num_warmup_steps=6, seed=8))
    with pytest.raises(UserError, match="optimizer_type lamb, not adam"):
        run_here(settings(data, phase_1, num_train_steps=70, num_warmup_steps=6, optimizer_type="ADAM"))


def test_resume_from_other_initial_weights_is_refused(data, phase_1, tmp_path):
    options = {"num_train_steps": 2, "num_warmup_steps": 0, "do_eval": False, "save_checkpoints_steps": 1}
    run_here(settings(data, tmp_path / "two", init_checkpoint=phase_1 / "model.ckpt-60", **options))
    run_here(settings(data, tmp_path / "one", **options))  # other weights
    options["num_train_steps"] = 3
    with pytest.raises(UserError, match="other weights"):
        run_here(settings(data, tmp_path / "two", init_checkpoint=tmp_path / "one" / "model.ckpt-2", **options))
    run_here(settings(data, tmp_path / "two", init_checkpoint=phase_1 / "model.ckpt-60", **options))
    assert (tmp_path / "two" / "model.ckpt-3.index").exists()


def test_summary_never_pairs_figures_with_other_weights(data, phase_1, tmp_path):
    run_here(settings(data, tmp_path))
    config = (tmp_path / "run_config.json").read_bytes()
    first = json.loads((tmp_path / "summary.json").read_text())
    # Evaluation alone, called with other settings: the training's record stays.
    run_here(settings(data, tmp_path, do_train=False, train_batch_size=4, learning_rate=0.5))
    assert json.loads((tmp_path / "summary.json").read_text()) == first
    assert (tmp_path / "run_config.json").read_bytes() == config and (tmp_path / "eval_config.json").exists()
    # Trained on without an evaluation: no figures of the earlier weights.
    run_here(settings(data, tmp_path, num_train_steps=8, do_eval=False))
    last = json.loads((tmp_path / "summary.json").read_text())
    assert last["steps"] == 8 and "masked_lm_loss" not in last and last["sequences_per_second"] > 0


def test_two_runs_in_one_folder(data, tmp_path):
    with locked_directory(tmp_path, "training"), pytest.raises(UserError, match=f"{tmp_path}.*another run"):
        run_here(settings(data, tmp_path))


# --------------------------------------------------------------------------------------------------- guards
def test_updates_that_are_not_finite_stop_the_run_with_a_diagnosis(data, tmp_path):
    # The first update throws the weights so far that the next losses overflow.
    with pytest.raises(UserError) as error:
        run_here(settings(data, tmp_path, optimizer_type="adam", num_train_steps=30, num_warmup_steps=0, do_eval=False,
                          learning_rate=1e30, nonfinite_patience=3, save_checkpoints_steps=100))  # fmt: skip
    message = str(error.value)
    assert "the last 3 updates in a row were not finite" in message and "rank 0: loss not finite" in message
    assert "part.tfrecord:" in message and "lower learning_rate" in message
    step = int(message.split("diverged at step ")[1].split(":")[0])
    assert f"The state of step {step} is saved" in message
    assert [p.name for p in tmp_path.glob("model.ckpt-*.index")] == [f"model.ckpt-{step}.index"]


def test_exploding_gradients_stop_the_run(data, tmp_path):
    with pytest.raises(UserError, match="the gradient explodes: its norm was") as error:
        run_here(settings(data, tmp_path, num_train_steps=60, do_eval=False, save_checkpoints_steps=5,
                          explosion_factor=1.000001, explosion_patience=1))  # fmt: skip
    step = int(str(error.value).split("diverged at step ")[1].split(":")[0])
    assert step > 20
    assert f"The state of step {(step - 1) // 5 * 5} is saved" in str(error.value)


# ------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"max_predictions_per_seq": 20}, ["max_predictions_per_seq", "5", "20", "part.tfrecord"]),
        ({"max_seq_length": 16}, ["max_seq_length", "16", "32"]),
        ({"optimizer_type": "sgd"}, ["sgd", "lamb"]),
        ({"num_warmup_steps": 6}, ["num_warmup_steps", "6"]),
        ({"eval_files_dir": None}, ["--eval_files_dir"]),
        ({"do_train": False, "do_eval": False}, ["nothing to do"]),
        ({"eval_files_dir": "/nowhere/at/all"}, ["/nowhere/at/all"]),
        ({"do_train": False}, ["nothing to evaluate"]),
        ({"dllog_path": "/"}, ["is a folder"]),
        ({"init_checkpoint": "/nowhere/model.ckpt-1"}, ["/nowhere/model.ckpt-1"]),
        ({"bert_config_file": "/nowhere/config.json"}, ["/nowhere/config.json"]),
        ({"horovod": True}, ["install_horovod.sh"]),
    ],
)  # fmt: skip
def test_errors_name_cause_and_remedy(data, tmp_path, changes, words):
    if changes.get("horovod"):
        try:
            import horovod  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("Horovod is installed here")
    with pytest.raises(UserError) as error:
        run_here(settings(data, tmp_path, **changes))
    for word in words:
        assert word in str(error.value)
    assert not list(tmp_path.glob("model.ckpt*"))


def test_case_p04_records_of_another_shape(shared, data, tmp_path):
    case = shared / "cases" / "P04"
    folder = tmp_path / "records"
    folder.mkdir()
    os.symlink(case / "seq16_pred4.tfrecord", folder / "seq16_pred4.tfrecord")
    with pytest.raises(UserError) as error:
        run_here(
            settings(data, tmp_path / "out", input_files_dir=folder, **json.loads((case / "settings.json").read_text()))
        )
    for word in json.loads((case / "expected.json").read_text())["error_mentions"]:
        assert word in str(error.value)


def test_vocabulary_larger_than_the_model_is_refused(data, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 12}))
    with pytest.raises(UserError, match=r"26 .*12"):
        run_here(settings(data, tmp_path / "out", bert_config_file=tmp_path / "config.json"))


def test_an_empty_item_in_a_list_of_folders_is_refused(data, tmp_path):
    with pytest.raises(UserError, match="empty"):
        run_here(settings(data, tmp_path, input_files_dir=f"{data / 'training'},"))


def test_records_of_different_vocabularies_are_refused(data, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(data / "test", other)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"vocab_sha256": "0" * 64}))
    with pytest.raises(UserError, match=r"different vocabularies.*VOCAB_FILE"):
        run_here(settings(data, tmp_path / "out", eval_files_dir=other))


def test_phase_2_with_another_vocabulary_is_refused(data, phase_1, tmp_path):
    for split in ("training", "test"):
        shutil.copytree(data / split, tmp_path / split)
        manifest = json.loads((tmp_path / split / "manifest.json").read_text())
        (tmp_path / split / "manifest.json").write_text(json.dumps(manifest | {"vocab_sha256": "0" * 64}))
    folders = {"input_files_dir": tmp_path / "training", "eval_files_dir": tmp_path / "test"}
    with pytest.raises(UserError, match="another vocabulary"):
        run_here(settings(data, tmp_path / "out", init_checkpoint=phase_1 / "model.ckpt-60", **folders))


@pytest.mark.parametrize("do_eval", [True, False])
def test_foreign_records_beyond_the_vocabulary_are_named(data, tmp_path, do_eval):
    foreign = tmp_path / "foreign"
    shutil.copytree(data / "training", foreign, ignore=shutil.ignore_patterns("manifest.json"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 12}))
    with pytest.raises(UserError, match=r"part\.tfrecord: record \d+ has \d+ in input_ids, but vocab_size is 12"):
        run_here(
            settings(data, tmp_path / "out", input_files_dir=foreign, eval_files_dir=foreign, do_eval=do_eval,
                     bert_config_file=tmp_path / "config.json")
        )  # fmt: skip


def test_unknown_flag_is_refused(data, tmp_path):
    process = start(settings(data, tmp_path), "--lerning_rate=1")
    output = process.communicate()[0]
    assert process.returncode != 0 and "lerning_rate" in output
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------ divergence (case L01)
def test_a_run_of_overflows_stops_and_keeps_the_last_good_checkpoint(data, tmp_path):
    run_here(settings(data, tmp_path, do_eval=False))
    good = checkpoint.read_tensors(tmp_path / "model.ckpt-6")
    with pytest.raises(UserError, match="diverged at step"):
        run_here(settings(data, tmp_path, num_train_steps=500, learning_rate=1e30, do_eval=False))
    newest = checkpoint.resolve_prefix(tmp_path)
    assert all(np.isfinite(value).all() for value in checkpoint.read_tensors(newest).values())
    assert good.keys() == checkpoint.read_tensors(newest).keys()
