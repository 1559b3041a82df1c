"""quickstart.sh, test.sh and .ci/run: what they would do, and that they say what they cannot."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL_FILES = sorted(
    path for path in (*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "data").glob("*.sh"), ROOT / ".ci" / "run")
)


def bash(script: str, *words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    dropped = "BERT_PYTHON ASR_PYTHON DRY_RUN SOURCES RESULTS_DIR DATA_DIR BERT_CONFIG INIT_CHECKPOINT".split()
    clean = {key: value for key, value in os.environ.items() if key not in dropped}
    return subprocess.run(
        ["bash", str(ROOT / script), *words], cwd=cwd, env=clean | environment, capture_output=True, text=True
    )


def test_shell_files_parse():
    assert len(SHELL_FILES) >= 11
    for path in SHELL_FILES:
        assert subprocess.run(["bash", "-n", str(path)]).returncode == 0, path


STAGES = {
    "bert": [
        "create_datasets_from_start.sh embedded",
        "write_model_config",
        f"--output_dir={ROOT}/results/quickstart_bert/phase_1",
        f"--init_checkpoint={ROOT}/results/quickstart_bert/phase_1/model.ckpt-",
        f"-m bert_tf.summary {ROOT}/results/quickstart_bert",
    ],
    "asr": [
        f"-m data.embedded_speech --output_dir {ROOT}/data/embedded_speech",
        "-m jasper_pt.run_training",
        "== test (",
        f"--output_dir={ROOT}/results/quickstart_asr/test_ema",
        "--transcribe_wav",
        f"-m jasper_pt.summary {ROOT}/results/quickstart_asr",
    ],
}


@pytest.mark.parametrize("words", [["bert"], ["asr"], ["all"], []])
def test_quickstart_stages(words: list[str], tmp_path: Path):
    python = str(tmp_path / "python")
    result = bash("scripts/quickstart.sh", *words, "--dry-run", cwd=tmp_path, BERT_PYTHON=python, ASR_PYTHON=python)
    assert result.returncode == 0, result.stderr
    wanted = words if words in (["bert"], ["asr"]) else ["bert", "asr"]
    places = [result.stdout.index(stage) for recipe in wanted for stage in STAGES[recipe]]
    assert places == sorted(places)
    for recipe in STAGES:
        assert (f"results/quickstart_{recipe}" in result.stdout) == (recipe in wanted)
    assert list(tmp_path.iterdir()) == []


def test_quickstart_of_bert_has_one_model():
    result = bash("scripts/quickstart.sh", "bert", "--dry-run")
    config = f"--bert_config_file={ROOT}/results/quickstart_bert/bert_config.json"
    assert result.stdout.count(config) == 3  # two phases and fine-tuning


def test_quickstart_of_asr_tests_what_it_trained():
    """With raw and averaged weights, of the last epoch, on the test set; whatever the environment says."""
    result = bash(
        "scripts/quickstart.sh", "asr", "--dry-run", CPU="true", CHECKPOINT="/c", TRAIN_MANIFESTS="x", BATCH_SIZE="3"
    )
    assert result.returncode == 0, result.stderr
    lines = [shlex.split(line) for line in result.stdout.splitlines() if "-m jasper_pt.run_" in line]
    training, raw, averaged, transcription = lines
    epochs = next(word for word in training if word.startswith("--epochs=")).partition("=")[2]
    checkpoint = f"--ckpt={ROOT}/results/quickstart_asr/training/QuartzNet_epoch{epochs}_checkpoint.pt"
    assert f"{ROOT}/data/embedded_speech/librispeech-train-wav.json" in training
    for line in (raw, averaged, transcription):
        assert checkpoint in line
    for line in (raw, averaged):
        assert f"{ROOT}/data/embedded_speech/librispeech-test-wav.json" in line
    assert "--ema" not in raw and "--ema" in averaged and "--ema" in transcription


@pytest.mark.parametrize("words, message", [(["tf"], "unknown"), (["a", "b"], "one of")])
def test_quickstart_refusals(words: list[str], message: str):
    result = bash("scripts/quickstart.sh", *words)
    assert result.returncode == 1 and message in result.stderr


def pytest_calls(*words: str, cwd: Path) -> dict[str, str]:
    """What test.sh would give to pytest in each environment."""
    result = bash("scripts/test.sh", "--dry-run", *words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    assert "ruff check" in result.stdout and "scripts/lib.sh" in result.stdout
    return dict(re.findall(r"/\.venv/(\w+)/bin/python -m pytest -n 2 --dist loadgroup (.*)", result.stdout))


def test_tests_run_where_their_packages_are(tmp_path: Path):
    calls = pytest_calls(cwd=tmp_path)
    speech = calls["asr"].split()
    assert speech[0] == "tests/jasper_pt" and all((ROOT / path).exists() for path in speech)
    assert calls["bert"].split() == ["tests", *(f"--ignore={path}" for path in speech)]
    assert pytest_calls("tests/runkit", "-k", "store", cwd=tmp_path) == {"bert": "tests/runkit -k store"}
    one = "tests/jasper_pt/test_summary.py::test_x"
    assert pytest_calls(f"./{one}", "-x", cwd=tmp_path) == {"asr": f"{one} -x"}
    data = pytest_calls(f"{ROOT}/tests/data/", cwd=tmp_path)
    assert data["asr"].split() == [path for path in speech if path.startswith("tests/data/")]
    assert data["bert"].split()[0] == "tests/data" and data["bert"].count("--ignore") == len(data["asr"].split())


def fake_tree(tmp_path: Path, reports: dict[str, tuple[str, int]]) -> Path:
    """A tree with test.sh and tools that only pretend: in each environment pytest prints a report and exits as told."""
    for name in ("lib.sh", "test.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    for name in ("setup.sh", "install_test_packages.sh", "install_horovod.sh"):
        (tmp_path / "scripts" / name).write_text("", encoding="utf-8")
    (tmp_path / "tests" / "jasper_pt").mkdir(parents=True)
    tools = {"dev/bin/ruff": "", "dev/bin/shellcheck": ""}
    for environment, (report, status) in reports.items():
        tools[f"{environment}/bin/python"] = f"printf '%s\\n' '{report}'\nexit {status}\n"
    for tool, body in tools.items():
        path = tmp_path / ".venv" / tool
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
        path.chmod(0o755)
    return tmp_path / "scripts" / "test.sh"


@pytest.mark.parametrize(
    "bert, asr, closing, status",
    [
        (
            ("== 5 passed, 1 skipped in 1.20s ==", 0),
            ("== 7 passed in 0.50s ==", 0),
            "12 passed, 0 failed, 1 skipped",
            0,
        ),
        (
            ("1 failed, 5 passed, 2 errors in 61.20s (0:01:01)", 1),
            ("3 passed in 1s", 0),
            "8 passed, 3 failed, 0 skipped",
            1,
        ),
        (
            ("== 4 deselected in 0.1s ==", 5),
            ("2 passed, 3 xfailed, 1 warning in 2.00s", 0),
            "5 passed, 0 failed, 0 skipped",
            0,
        ),
        (("no tests ran in 0.01s", 5), ("no tests ran in 0.01s", 5), "0 passed, 0 failed, 0 skipped", 5),
        (("5 passed in 1.00s", 0), ("Segmentation fault", 139), "5 passed, 0 failed, 0 skipped", 139),
    ],
)
def test_the_last_line_counts_both_environments(bert, asr, closing: str, status: int, tmp_path: Path):
    script = fake_tree(tmp_path, {"bert": bert, "asr": asr})
    result = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert (result.stdout.splitlines()[-1], result.returncode) == (closing, status), result.stdout + result.stderr


def test_ci_calls_the_test_script():
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert "scripts/test.sh" in run.read_text(encoding="utf-8").splitlines()[-1]
