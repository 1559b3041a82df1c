"""Training on two processes: the curve of one, also where the batch does not come out even; a worker killed in mid-run
and started again by torchrun; going on with another number of processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jasper_pt import checkpoint, run_training
from jasper_pt.train_step import TrainingStep
from runkit.errors import run_main
from runkit.log import read_log

pytestmark = pytest.mark.dist
ROOT = Path(__file__).resolve().parents[2]
LAST = "QuartzNet_epoch3_checkpoint.pt"


def command(corpus, output, *flags):
    """3 epochs of 4 updates of 3 utterances, one at a time: one process has two of them. One utterance to evaluate."""
    (output.parent / "dev.json").write_text((corpus / "all.json").read_text().splitlines()[0])
    fixed = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --output_dir {output} --seed 1
        --train_manifests {corpus}/all.json --val_manifests {output.parent}/dev.json --gpu_batch_size 1
        --global_batch_size 3 --epochs 3 --lr 0.02 --ema 0.9 --eval_frequency 4 --log_frequency 1 --save_frequency 1
        --keep_milestones 1 2 --num_workers 0""".split()
    return [*fixed, *map(str, flags)]


def killed_at(update):
    """TrainingStep.__call__ that, in the second process torchrun started first, ends there by SIGKILL."""
    call = TrainingStep.__call__

    def deadly(self, batches, learning_rate, number, *rest):
        if number == update and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(self, batches, learning_rate, number, *rest)

    return deadly


def torchrun(*words):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def log_values(output, key):
    records = [r for r in read_log(output / "nvlog.json") if r["type"] == "LOG" and isinstance(r["step"], list)]
    return {tuple(r["step"][:2]): r["data"][key] for r in records if r["step"] and key in r["data"]}


def weights(path):
    contents = checkpoint.read(path)
    return {f"{kind}.{name}": w for kind in ("state_dict", "ema_state_dict") for name, w in contents[kind].items()}


@pytest.fixture(scope="module")
def one(corpus, tmp_path_factory):
    torch.set_num_threads(1)
    output = tmp_path_factory.mktemp("one") / "run"
    assert run_training.main(command(corpus, output)) == 0
    return output


@pytest.fixture(scope="module")
def two(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("two") / "run"
    run = torchrun("-m", "jasper_pt.run_training", *command(corpus, output))
    assert run.returncode == 0, run.stderr
    return output


def test_two_processes_give_the_run_of_one(one, two):
    """Data order, dropout, and BatchNorm's running statistics too."""
    for key in ("train_loss", "train_gradient_norm", "dev_loss", "dev_ema_loss"):
        assert log_values(two, key) == pytest.approx(log_values(one, key), rel=1e-4)
    assert len(log_values(two, "train_loss")) == 12
    expected = weights(one / LAST)
    for name, found in weights(two / LAST).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=1e-5)
    summary = json.loads((two / "summary.json").read_text())
    assert (summary["processes"], summary["utterances"], summary["updates"]) == (2, 1, 12)


def test_two_processes_give_the_run_of_one_with_noise_and_two_views(corpus, tmp_path):
    flags = ["--consistency", 0.5, "--override_config", "input_train.audio_dataset.noise_perturbation.p=0.7"]
    torch.set_num_threads(1)
    assert run_training.main(command(corpus, tmp_path / "one", "--max_updates", 4, *flags)) == 0
    run = torchrun("-m", "jasper_pt.run_training", *command(corpus, tmp_path / "two", "--max_updates", 4, *flags))
    assert run.returncode == 0, run.stderr
    one, two = (log_values(tmp_path / name, "train_loss") for name in ("one", "two"))
    assert len(one) == 4 and two == pytest.approx(one, rel=1e-4)


def test_a_run_goes_on_with_another_number_of_processes(corpus, one, two, tmp_path):
    """From what two processes left after two epochs, with the flags of before."""
    output = tmp_path / "run"
    output.mkdir()
    name = "QuartzNet_epoch2_checkpoint.pt"
    (output / name).write_bytes((two / name).read_bytes())
    flags = command(corpus, output, "--resume")
    given = flags.index("--global_batch_size")
    assert run_training.main(flags[:given] + flags[given + 2 :]) == 0
    expected = {place: loss for place, loss in log_values(one, "train_loss").items() if place[0] == 3}
    assert log_values(output, "train_loss") == pytest.approx(expected, rel=1e-4)


def test_a_killed_worker_costs_nothing(corpus, two, tmp_path):
    """The other one notices at once and saves its last whole update; torchrun starts both again from there."""
    flags = command(corpus, tmp_path / "run", "--save_steps", 3)
    run = torchrun("--max_restarts=1", __file__, *flags)
    assert run.returncode == 0, run.stderr
    assert "step5_checkpoint.pt: 1 epochs and 1 updates done" in run.stdout
    found, expected = weights(tmp_path / "run" / LAST), weights(two / LAST)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert log_values(tmp_path / "run", "train_loss") == log_values(two, "train_loss")


if __name__ == "__main__":
    torch.set_num_threads(1)
    TrainingStep.__call__ = killed_at(6)
    run_main(run_training.main, sys.argv[1:])
