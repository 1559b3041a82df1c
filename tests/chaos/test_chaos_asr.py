"""Speech training on two processes of torchrun under chaos; what it does: chaos.py.

The whole: CHAOS_KILLS=20 CHAOS_TERMS=5 CHAOS_TABLE=table.md pytest -s tests/chaos/test_chaos_asr.py
"""

import os
import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from jasper_pt import checkpoint
from runkit.log import read_log
from tests.chaos import chaos
from tests.jasper_pt.conftest import corpus  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.dist, pytest.mark.slow]
KILLS, TERMS, SEED = chaos.counts()
EPOCHS, PER_EPOCH = 20 * (KILLS + TERMS + 2), 4
ROOT = Path(__file__).resolve().parents[2]


def files(output: Path) -> dict[int, Path]:
    """The checkpoints that are published, by updates done."""
    found = {}
    for path in output.glob("QuartzNet_epoch*_checkpoint.pt"):
        epoch, step = re.fullmatch(r"QuartzNet_epoch(\d+)(?:_step(\d+))?_checkpoint.pt", path.name).groups()
        if path.with_suffix(".manifest.json").exists():
            found[int(step or int(epoch) * PER_EPOCH)] = path
    return dict(sorted(found.items()))


def losses(output: Path) -> dict[int, float]:
    if not (output / "nvlog.json").exists():
        return {}
    records = [r for r in read_log(output / "nvlog.json") if r["type"] == "LOG" and isinstance(r["step"], list)]
    return {(r["step"][0] - 1) * PER_EPOCH + r["step"][1]: r["data"]["train_loss"]
            for r in records if r["step"] and "train_loss" in r["data"]}  # fmt: skip


def state(path: Path) -> dict[str, np.ndarray]:
    contents = checkpoint.read(path)
    weights = {
        f"{kind}.{name}": w.numpy() for kind in ("state_dict", "ema_state_dict") for name, w in contents[kind].items()
    }
    moments = {f"{parameter}.{name}": np.asarray(value) for parameter, values in contents["optimizer"]["state"].items()
               for name, value in values.items()}  # fmt: skip
    return weights | moments


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def make_job(corpus: Path, dev: Path, epochs: int) -> chaos.Job:  # noqa: F811
    dev.write_text((corpus / "all.json").read_text().splitlines()[0])

    def torchrun(output: Path, *words: str) -> list[str]:
        flags = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --output_dir {output}
            --seed 1 --resume --train_manifests {corpus}/all.json --val_manifests {dev} --gpu_batch_size 1
            --global_batch_size 3 --epochs {epochs} --lr 0.01 --ema 0.9 --eval_frequency 1000000
            --log_frequency 1 --save_frequency 1000000 --save_steps 6 --num_workers 0
            --prediction_frequency 0""".split()
        return [sys.executable, "-m", "torch.distributed.run", *words, "-m", "jasper_pt.run_training", *flags]

    def elastic(output: Path) -> list[list[str]]:
        port = free_port()
        words = f"""--nnodes=1:2 --nproc_per_node=1 --max_restarts=3 --rdzv_backend=c10d --rdzv_id=chaos
            --rdzv_endpoint=localhost:{port}""".split()
        hosts = (f"--rdzv_conf=last_call_timeout=10,is_host={is_host}" for is_host in (1, 0))
        return [torchrun(output, *words, host) for host in hosts]

    # The last one: without it the machine that stays looks for a store on the one that is gone (scripts/asr.sh).
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return chaos.Job(
        name="speech, 2 x torchrun",
        command=lambda output: torchrun(output, "--standalone", "--nproc_per_node=2"),
        elastic=elastic,
        environment=os.environ | variables,
        main="jasper_pt.run_training",
        saved=lambda output: list(files(output)),
        newest=lambda output: list(files(output).values())[-1],
        losses=losses,
        state=lambda output: state(output / f"QuartzNet_epoch{epochs}_checkpoint.pt"),
    )


def test_chaos_leaves_no_trace(corpus, tmp_path):  # noqa: F811
    table = chaos.chaos(make_job(corpus, tmp_path / "dev.json", EPOCHS), tmp_path, KILLS, TERMS, SEED)
    assert len(table) > KILLS + TERMS


def test_the_machine_that_is_left_ends_the_run(corpus, tmp_path):  # noqa: F811
    chaos.lose_one(make_job(corpus, tmp_path / "dev.json", 25), tmp_path, SEED)
