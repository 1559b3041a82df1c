"""--plan of the training launchers: what they start, for how many processes, and that a plan covers both phases."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAMB = "4 2 8 1e-3 5e-4 fp32 false 3 3 2 80 5 2 4 tiny".split()
VARIABLES = "PLANNING PHASE_1_PLANNED DRY_RUN INIT_CHECKPOINT RESULTS_DIR DATA_DIR OUTPUT_DIR NUM_GPUS CPU".split()


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """An environment whose interpreters note their calls; those with a word of $FAIL in them have problems."""
    python = tmp_path / "python"
    python.write_text(
        """#!/usr/bin/env bash
[[ $1 == -m && $2 != data.layout ]] || exit 2
printf '%q ' "$@" >>"$CALLS"
printf '\\n' >>"$CALLS"
[[ -z ${FAIL:-} || $* != *"$FAIL"* ]] || exit 2
"""
    )
    python.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return clean | {
        "BERT_PYTHON": str(python), "ASR_PYTHON": str(python), "CALLS": str(tmp_path / "calls"), "CPU": "true",
        "RESULTS_DIR": str(tmp_path / "results"), "DATA_DIR": str(tmp_path / "data"), "DALI_DEVICE": "none",
    }  # fmt: skip


def start(environment: dict[str, str], script: str, *words: str) -> subprocess.CompletedProcess:
    command = ["bash", str(ROOT / "scripts" / script), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def calls(environment: dict[str, str]) -> list[list[str]]:
    path = Path(environment["CALLS"])
    return [shlex.split(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_plan_of_both_phases(fake):
    result = start(fake, "run_pretraining_lamb.sh", *LAMB, "--plan=12")
    assert result.returncode == 0, result.stderr
    phase1, phase2 = calls(fake)
    for call in (phase1, phase2):
        assert call[:2] == ["-m", "bert_tf.run_pretraining"] and "--plan=12" in call
        assert "--horovod" in call and "--plan_processes=3" in call
        assert not any(word.startswith("--init_checkpoint") for word in call)
    assert "--max_seq_length=128" in phase1 and "--max_seq_length=512" in phase2
    assert "which phase 1 is going to make" in result.stdout
    assert not Path(fake["RESULTS_DIR"]).exists()


def test_problems_of_the_first_phase_do_not_hide_those_of_the_second(fake):
    result = start(fake | {"FAIL": "--max_seq_length=128"}, "run_pretraining_lamb.sh", *LAMB, "--plan")
    assert result.returncode == 2 and len(calls(fake)) == 2


def test_the_second_phase_alone_needs_its_weights(fake):
    result = start(fake, "run_pretraining_lamb_phase2.sh", *LAMB, "--plan")
    assert result.returncode == 0, result.stderr
    (call,) = calls(fake)
    assert any(word.startswith("--init_checkpoint=") for word in call)  # the program tells that it is not there


@pytest.mark.parametrize(
    "script, module",
    [("run_pretraining_adam.sh", "run_pretraining"), ("run_squad.sh", "run_squad"),
     ("biobert/ner_bc5cdr-chem.sh", "run_ner"), ("biobert/rel_chemprot.sh", "run_re"),
     ("biobert/run_pretraining_pubmed_base_phase_1.sh", "run_pretraining")],
)  # fmt: skip
def test_every_launcher_of_bert(fake, script, module):
    result = start(fake, script, "--plan")
    assert result.returncode == 0, result.stderr
    (call,) = calls(fake)
    assert call[1] == f"bert_tf.{module}" and "--plan" in call and "--do_train" in call
    assert not Path(fake["RESULTS_DIR"]).exists()


def test_glue(fake):
    assert start(fake, "run_glue.sh", "MRPC", "--plan").returncode == 0
    assert calls(fake)[0][1] == "bert_tf.run_classifier"


def test_speech_is_planned_by_one_process(fake):
    result = start(fake | {"NUM_GPUS": "4", "OUTPUT_DIR": fake["RESULTS_DIR"]}, "train.sh", "--plan=probe")
    assert result.returncode == 0, result.stderr
    (call,) = calls(fake)
    assert call[:2] == ["-m", "jasper_pt.run_training"] and "--plan=probe" in call and "--plan_processes=4" in call
    assert not Path(fake["RESULTS_DIR"]).exists()


def test_each_run_of_a_benchmark(fake):
    environment = fake | {"OUTPUT_DIR": fake["RESULTS_DIR"], "NUM_GPUS_SEQ": "1 2", "GRAD_ACC_SEQ": "2"}
    result = start(environment, "train_benchmark.sh", "--plan")
    assert result.returncode == 0, result.stderr
    assert [call[-1] for call in calls(fake)] == ["--plan_processes=1", "--plan_processes=2"]


def test_a_dry_run_shows_the_command_with_the_plan(fake):
    result = start(fake, "run_pretraining_lamb_phase1.sh", *LAMB, "--plan", "--dry-run")
    assert result.returncode == 0 and calls(fake) == []
    assert "--plan" in result.stdout and "horovodrun" in result.stdout
