"""scripts/data.sub, as Slurm would run it: a copy of the file, in the folder where the job was submitted."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "my text.txt"
    path.write_text("One is here. It is short.\n", encoding="utf-8")
    return path


def submit(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    copy = shutil.copy(ROOT / "scripts" / "data.sub", tmp_path / "slurm_script")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM") and k not in ("DRY_RUN", "N_PROCESSES")}
    return subprocess.run(
        ["bash", copy, *words],
        cwd=tmp_path,
        env=clean | {"SLURM_SUBMIT_DIR": str(ROOT), "DATA_DIR": str(tmp_path)} | environment,
        capture_output=True,
        encoding="utf-8",
    )


def test_sharding_and_records_run_on_all_tasks(tmp_path, text):
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64", "SLURM_CPUS_ON_NODE": "32", "SLURM_JOB_NODELIST": "n[1-2]"}
    result = submit(tmp_path, "text", str(text), "mine", "--dry-run", **job)
    assert result.returncode == 0, result.stderr
    assert "job 7: 64 tasks on n[1-2]" in result.stdout
    spread = [line for line in result.stdout.splitlines() if line.startswith("srun --mpi=pmix -n 64 ")]
    assert [line.split(" -m ")[1].split()[0] for line in spread] == [
        "data.text",
        "data.sharding",
        *["bert_tf.create_pretraining_data"] * 4,
    ]
    assert all(line.endswith("--executor mpi") for line in spread)


def test_what_starts_the_tasks_can_be_chosen(tmp_path, text):
    result = submit(tmp_path, "text", str(text), "mine", "--dry-run", SLURM_NTASKS="2", MPIRUN="mpirun --bind-to none")
    assert "\nmpirun --bind-to none -n 2 " in result.stdout


def test_refusals(tmp_path, text):
    outside = submit(tmp_path, "text", str(text), "mine")
    assert outside.returncode == 1 and "this is a Slurm job: sbatch" in outside.stderr
    alone = submit(tmp_path, "text", str(text), "mine", SLURM_JOB_ID="7", SLURM_NTASKS="1")
    assert alone.returncode == 1 and "ask for two or more" in alone.stderr
    elsewhere = submit(tmp_path, "embedded", SLURM_SUBMIT_DIR=str(tmp_path))
    assert elsewhere.returncode == 1 and "is not the folder of this tree" in elsewhere.stderr


def test_help_is_the_header(tmp_path):
    result = submit(tmp_path, "--help")
    assert result.returncode == 0 and "usage: sbatch" in result.stdout and "#" not in result.stdout.splitlines()[0]
