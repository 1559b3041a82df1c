"""What the pre-training launchers refuse before anything runs."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAMB = "16 4 64 1e-2 1.5e-3 fp32 false 1".split()


def dry_run(*words: str, launcher: str = "run_pretraining_lamb.sh", **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(ROOT / "scripts" / launcher), *words, "--dry-run"]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, cwd="/")


@pytest.mark.parametrize(
    "warmup1, warmup2, train_steps, words",
    [("10", "20", "100", ["warmup_steps_phase2=20"]), ("90", "1", "100", ["warmup_steps_phase1=90", "90 updates"])],
)
def test_a_warm_up_that_outlasts_its_phase(warmup1, warmup2, train_steps, words):
    # 100 steps: 90 updates of phase 1, and 10 * 16 * 1 / 8 = 20 of phase 2.
    result = dry_run("16", "8", *LAMB[2:], warmup1, warmup2, train_steps, "50", "1", "1", "tiny")
    assert result.returncode != 0
    for word in words:
        assert word in result.stderr


def test_a_warm_up_that_outlasts_adam():
    result = dry_run("8", "8", "1e-4", "fp32", "false", "1", "50", "50", launcher="run_pretraining_adam.sh")
    assert result.returncode != 0 and "warmup_steps=50" in result.stderr


@pytest.mark.parametrize(
    "flag", ["--output_dir=/x", "--num_train_steps=3", "--nouse_xla", "--init_checkpoint=/x/model"]
)
def test_flags_that_words_set(flag):
    result = dry_run(*LAMB, flag)
    assert (
        result.returncode != 0 and flag.split("=")[0].removeprefix("--no").removeprefix("--") in result.stderr.lower()
    )


def test_cdpath_does_not_change_where_the_tree_is():
    assert dry_run(CDPATH=f".:/tmp:{ROOT.parent}").returncode == 0


def test_dry_run_by_environment():
    result = subprocess.run(
        ["bash", str(ROOT / "scripts" / "run_pretraining_lamb.sh")],
        env=os.environ | {"DRY_RUN": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0 and "--num_train_steps=7038" in result.stdout


def test_the_data_stage_s_folder_is_the_launchers_default(tmp_path):
    result = dry_run(BERT_PREP_WORKING_DIR=str(tmp_path))
    assert result.returncode == 0 and f"--input_files_dir={tmp_path}/tfrecord/" in result.stdout.replace("\\", "")
