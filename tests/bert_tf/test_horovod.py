"""Real processes through real Horovod: the same training for any number of them, and what happens when one is lost.

Skipped where Horovod is not installed (scripts/install_horovod.sh).
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_tf import checkpoint
from runkit.log import read_log
from runkit.store import CheckpointStore
from tests import processes
from tests.bert_tf import test_run_classifier, test_run_squad
from tests.bert_tf.test_run_classifier import files as tasks  # noqa: F401 (a fixture)
from tests.bert_tf.test_run_pretraining import CONFIG, arguments, data, settings  # noqa: F401 (data: a fixture)
from tests.bert_tf.test_run_squad import files  # noqa: F401 (a fixture)

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("horovod") is None,
        reason="Horovod is not installed: bash scripts/install_horovod.sh",
    ),
    pytest.mark.xdist_group("horovod"),
]
ROOT = Path(__file__).resolve().parents[2]
MAIN = [sys.executable, str(ROOT / "bert_tf" / "run_pretraining.py"), "--horovod"]
BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return os.environ | own | mpi | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def horovodrun(size: int) -> list[str]:
    return ["horovodrun", "--gloo", "-np", str(size), *MAIN]


def start(command: list[str], values: dict[str, str]) -> subprocess.Popen:
    return processes.start([*command, *arguments(values)], environment())


def run(command: list[str], values: dict[str, str]) -> str:
    process = start(command, values)
    try:
        output, _ = process.communicate(timeout=processes.TIMEOUT)
    finally:
        processes.kill_group(process)
    assert process.returncode == 0, output
    return output


def worker_pids(output: Path) -> list[int]:
    return processes.workers(MAIN[1], output)


def wait_for_step(process: subprocess.Popen, output: Path, step: int) -> None:
    """Returns when a checkpoint of that step or a later one is there."""
    store = CheckpointStore(output)
    processes.wait_for(lambda: max(store.steps(), default=-1) >= step, process, f"step {step}")


def losses(output: Path) -> dict[int, float]:
    """By step; what was done again after a resume counts last."""
    lines = read_log(output / "bert_dllog.json")
    return {x["step"]: x["data"]["total_loss"] for x in lines if x["type"] == "LOG" and isinstance(x["step"], int)}


def weights(output: Path, step: int) -> dict[str, np.ndarray]:
    return checkpoint.read_tensors(output / f"model.ckpt-{step}")


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert np.array_equal(value, right[name]), name


@pytest.fixture(scope="module")
def options(data) -> dict:  # noqa: F811
    # Global batch 24: three micro-batches, which two processes share unevenly.
    return {"train_batch_size": 8, "num_accumulation_steps": 3, "num_train_steps": 12, "save_checkpoints_steps": 4,
            "keep_checkpoints": 9, "eval_batch_size": 5}  # fmt: skip


@pytest.fixture(scope="module")
def alone(data, options, tmp_path_factory) -> Path:  # noqa: F811
    output = tmp_path_factory.mktemp("alone")
    run([word for word in MAIN if word != "--horovod"], settings(data, output, **options))
    return output


def continued(source: Path, step: int, output: Path) -> Path:
    """An output_dir that holds the state of `source` after `step` updates."""
    output.mkdir(exist_ok=True)
    for path in source.glob(f"model.ckpt-{step}.*"):
        shutil.copy(path, output)
    return output


def assert_agrees(output: Path, alone: Path, first: int) -> None:
    """The losses of every update from `first` on, and the scores of the held-out records, are those of one process."""
    expected, found = losses(alone), losses(output)
    assert sorted(found) == list(range(first, 13))
    np.testing.assert_allclose([found[s] for s in sorted(found)], [expected[s] for s in sorted(found)], rtol=2e-5)
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (output, alone))
    assert ours["eval_examples"] == theirs["eval_examples"] > 0
    np.testing.assert_allclose(ours["masked_lm_loss"], theirs["masked_lm_loss"], rtol=1e-4)
    np.testing.assert_allclose(ours["unigram_masked_lm_loss"], theirs["unigram_masked_lm_loss"], rtol=1e-12)


def test_resume_on_two_processes_keeps_the_global_batch(data, options, alone, tmp_path):  # noqa: F811
    """Three micro-batches an update, dealt to two processes: two and one."""
    output = continued(alone, 4, tmp_path / "pair")
    printed = run(horovodrun(2), settings(data, output, **options))
    assert "the run was begun on 1 processes, this is 2: the global batch stays 24" in printed
    assert_agrees(output, alone, 5)
    config = json.loads((output / "run_config.json").read_text())
    assert config["processes"] == 2 and config["effective_learning_rate"] == 0.01


@pytest.mark.parametrize("size", [2, 4])
def test_mpirun_gives_the_same_as_one_process(data, options, alone, tmp_path, size):  # noqa: F811
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun: apt-get install openmpi-bin libopenmpi-dev, then install_horovod.sh --rebuild")
    command = ["mpirun", "-np", str(size), "--oversubscribe", *MAIN]
    run(command, settings(data, tmp_path, **options | {"train_batch_size": 8 // size}, learning_rate=0.01 / size))
    assert_agrees(tmp_path, alone, 1)


def test_other_global_batch_is_refused(data, options, alone, tmp_path):  # noqa: F811
    output = continued(alone, 4, tmp_path / "other")
    process = start(MAIN[:2], settings(data, output, **options | {"num_accumulation_steps": 2}))
    printed, _ = process.communicate(timeout=processes.TIMEOUT)
    assert process.returncode == 2 and "global batch of 24 sequences" in printed
    process = start(
        horovodrun(2), settings(data, output, **options | {"train_batch_size": 24, "num_accumulation_steps": 1})
    )
    printed, _ = process.communicate(timeout=processes.TIMEOUT)
    assert process.returncode != 0 and "2 processes for 1 micro-batches of 24" in printed


def test_a_killed_process_ends_the_job_and_a_resume_loses_nothing(data, options, tmp_path):  # noqa: F811
    options = options | {"num_train_steps": 150, "num_accumulation_steps": 1, "do_eval": False, "keep_checkpoints": 1}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run(horovodrun(2), settings(data, straight, **options))
    process = start(horovodrun(2), settings(data, killed, **options))
    try:
        wait_for_step(process, killed, 20)
        os.kill(worker_pids(killed)[1], signal.SIGKILL)
        process.communicate(timeout=60)  # the other is ended by the launcher, at once
    finally:
        processes.kill_group(process)
    assert process.returncode != 0 and not worker_pids(killed)
    run(horovodrun(2), settings(data, killed, **options))
    assert_same(weights(killed, 150), weights(straight, 150))


def test_a_signal_to_one_process_stops_all_after_a_save(data, options, tmp_path):  # noqa: F811
    options = options | {"num_train_steps": 4000, "save_checkpoints_steps": 20, "do_eval": False}
    process = start(horovodrun(2), settings(data, tmp_path, **options))
    try:
        wait_for_step(process, tmp_path, 20)
        os.kill(worker_pids(tmp_path)[-1], signal.SIGUSR1)
        printed, _ = process.communicate(timeout=processes.TIMEOUT)
    finally:
        processes.kill_group(process)
    assert process.returncode != 0 and "stopped by" in printed
    stopped = int(printed.rsplit("after step ", 1)[1].split()[0])
    assert (tmp_path / f"model.ckpt-{stopped}.manifest.json").exists()


def test_elastic_goes_on_with_the_process_that_is_left(data, options, tmp_path):  # noqa: F811
    options = options | {"num_train_steps": 300, "save_checkpoints_steps": 10, "num_accumulation_steps": 1,
                         "do_eval": False}  # fmt: skip
    straight, elastic = tmp_path / "straight", tmp_path / "elastic"
    run(horovodrun(2), settings(data, straight, **options))
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    command = ["horovodrun", "--gloo", "-np", "2", "--min-np", "1", "--max-np", "2",
               "--host-discovery-script", str(hosts), *MAIN]  # fmt: skip
    process = start(command, settings(data, elastic, **options))
    try:
        wait_for_step(process, elastic, 40)
        os.kill(worker_pids(elastic)[0], signal.SIGKILL)
        printed, _ = process.communicate(timeout=processes.TIMEOUT)
    finally:
        processes.kill_group(process)
    assert "the run was begun on 2 processes, this is 1: the global batch stays 16" in printed
    ours, theirs = losses(elastic), losses(straight)
    assert sorted(ours) == list(range(1, 301))
    np.testing.assert_allclose([ours[s] for s in range(1, 60)], [theirs[s] for s in range(1, 60)], rtol=1e-3)
    final, expected = weights(elastic, 300), weights(straight, 300)
    table = "bert/embeddings/word_embeddings"
    np.testing.assert_allclose(final[table], expected[table], atol=0.02)


# ------------------------------------------------------------------------------------------------ fine-tuning
def test_fine_tuning_and_prediction_on_two_processes_are_those_of_one(files, tmp_path):  # noqa: F811
    """Every question is answered once and in order, whoever answered it."""
    squad = [sys.executable, str(ROOT / "bert_tf" / "run_squad.py")]
    options = {"do_train": True, "train_file": files / "train.json", "num_train_epochs": 6, "do_predict": True,
               "predict_file": files / "train.json", "predict_batch_size": 2, "display_loss_steps": 1}  # fmt: skip
    one, two, again = tmp_path / "one", tmp_path / "two", tmp_path / "again"
    start_squad = test_run_squad.settings
    run(squad, start_squad(files, one, **options))
    both = ["horovodrun", "--gloo", "-np", "2", *squad, "--horovod"]
    run(both, start_squad(files, two, **options | {"train_batch_size": 4, "learning_rate": 0.002}))
    ours, theirs = losses(two), losses(one)
    assert sorted(ours) == sorted(theirs)
    np.testing.assert_allclose([ours[s] for s in sorted(ours)], [theirs[s] for s in sorted(ours)], rtol=1e-3)

    options |= {"do_train": False, "init_checkpoint": one}
    run(both, start_squad(files, again, **options))
    for name in ("predictions.json", "nbest_predictions.json"):
        assert (again / name).read_bytes() == (one / name).read_bytes(), name
    scores = [json.loads((folder / "summary.json").read_text()) for folder in (one, again)]
    assert scores[0]["f1"] == scores[1]["f1"]


def test_sets_of_a_task_are_scored_on_two_processes(tasks, tmp_path):  # noqa: F811
    main = [sys.executable, str(ROOT / "bert_tf" / "run_classifier.py")]
    one, two = tmp_path / "one", tmp_path / "two"
    options = {"do_train": True, "do_eval": True, "do_predict": True, "num_train_epochs": 10, "eval_batch_size": 2,
               "predict_batch_size": 3}  # fmt: skip
    run(main, test_run_classifier.settings(tasks, "MNLI", one, **options))
    options |= {"do_train": False, "init_checkpoint": one}
    both = ["horovodrun", "--gloo", "-np", "2", *main, "--horovod"]
    run(both, test_run_classifier.settings(tasks, "MNLI", two, **options))
    assert (two / "test_results.tsv").read_bytes() == (one / "test_results.tsv").read_bytes()
    found, expected = (json.loads((folder / "summary.json").read_text()) for folder in (two, one))
    for key in ("eval_accuracy", "eval_accuracy_mismatched"):
        assert found[key] == expected[key]
    np.testing.assert_allclose(found["eval_loss"], expected["eval_loss"], rtol=1e-5)


# ----------------------------------------------------------------------------------------- cases on two processes
def refused(values: dict[str, str]) -> str:
    process = start(horovodrun(2), values)
    try:
        printed, _ = process.communicate(timeout=processes.TIMEOUT)
    finally:
        processes.kill_group(process)
    assert process.returncode != 0, printed
    return printed


def test_case_l01_all_processes_stop_together_with_a_diagnosis(data, options, tmp_path):  # noqa: F811
    printed = refused(settings(data, tmp_path, **options | {"num_accumulation_steps": 1}, learning_rate=1e30,
                               optimizer_type="adam", num_warmup_steps=0, nonfinite_patience=3))  # fmt: skip
    assert "the last 3 updates in a row were not finite" in printed
    for rank in range(2):
        line = next(line for line in printed.splitlines() if f"rank {rank}: loss not finite" in line)
        assert line.count("part.tfrecord:") == 8  # the records of its micro-batch
    (path,) = tmp_path.glob("model.ckpt-*.index")
    assert all(np.isfinite(value).all() for value in checkpoint.read_tensors(path.with_suffix("")).values())


def test_case_p04_records_of_another_shape_are_refused_at_the_start(data, options, shared, tmp_path):  # noqa: F811
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "seq16_pred4.tfrecord").symlink_to(shared / "cases/P04/seq16_pred4.tfrecord")
    case = json.loads((shared / "cases/P04/settings.json").read_text())
    printed = refused(settings(data, tmp_path / "out", input_files_dir=tmp_path / "records", **options | case))
    for word in json.loads((shared / "cases/P04/expected.json").read_text())["error_mentions"]:
        assert word in printed


def test_case_l05_one_shard_of_five_records(data, shared, tmp_path):  # noqa: F811
    """Both processes make every update and end together; each record is scored once."""
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "shard_0.tfrecord").symlink_to(shared / "cases/L05/shard_0.tfrecord")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 2100}))
    values = settings(data, tmp_path / "out", input_files_dir=tmp_path / "records", eval_files_dir=tmp_path / "records",
                      bert_config_file=tmp_path / "config.json", max_seq_length=16, max_predictions_per_seq=4,
                      train_batch_size=2, eval_batch_size=2, num_train_steps=8)  # fmt: skip
    run(horovodrun(2), values)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["steps"] == 8 and summary["eval_examples"] == 5
