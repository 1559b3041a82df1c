"""Speech training on two processes of torchrun under chaos; what it does: chaos.py.

The whole: CHAOS_KILLS=20 CHAOS_TERMS=5 CHAOS_TABLE=table.md pytest -s tests/chaos/test_chaos_asr.py
"""

import os
import re
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


def state(output: Path) -> dict[str, np.ndarray]:
    contents = checkpoint.read(output / f"QuartzNet_epoch{EPOCHS}_checkpoint.pt")
    weights = {
        f"{kind}.{name}": w.numpy() for kind in ("state_dict", "ema_state_dict") for name, w in contents[kind].items()
    }
    moments = {f"{parameter}.{name}": np.asarray(value) for parameter, values in contents["optimizer"]["state"].items()
               for name, value in values.items()}  # fmt: skip
    return weights | moments


@pytest.fixture(scope="module")
def job(corpus, tmp_path_factory) -> chaos.Job:  # noqa: F811
    dev = tmp_path_factory.mktemp("dev") / "dev.json"
    dev.write_text((corpus / "all.json").read_text().splitlines()[0])

    def command(output: Path) -> list[str]:
        flags = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --output_dir {output}
            --seed 1 --resume --train_manifests {corpus}/all.json --val_manifests {dev} --gpu_batch_size 1
            --global_batch_size 3 --epochs {EPOCHS} --lr 0.01 --ema 0.9 --eval_frequency 1000000
            --log_frequency 1 --save_frequency 1000000 --save_steps 6 --num_workers 0 --prediction_frequency 0""".split()
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
                "-m", "jasper_pt.run_training", *flags]  # fmt: skip

    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return chaos.Job(
        name="speech, 2 x torchrun",
        command=command,
        environment=environment,
        main="jasper_pt.run_training",
        saved=lambda output: list(files(output)),
        newest=lambda output: list(files(output).values())[-1],
        losses=losses,
        state=state,
    )


def test_chaos_leaves_no_trace(job, tmp_path):
    table = chaos.chaos(job, tmp_path, KILLS, TERMS, SEED)
    assert len(table) == KILLS + TERMS + 2
