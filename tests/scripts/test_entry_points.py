"""quickstart.sh, test.sh and .ci/run: what they would do, and that they say what they cannot."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL_FILES = sorted(
    path for path in (*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "data").glob("*.sh"), ROOT / ".ci" / "run")
)


def bash(script: str, *words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    dropped = "BERT_PYTHON DRY_RUN SOURCES RESULTS_DIR DATA_DIR BERT_CONFIG INIT_CHECKPOINT".split()
    clean = {key: value for key, value in os.environ.items() if key not in dropped}
    return subprocess.run(
        ["bash", str(ROOT / script), *words], cwd=cwd, env=clean | environment, capture_output=True, text=True
    )


def test_shell_files_parse():
    assert len(SHELL_FILES) >= 11
    for path in SHELL_FILES:
        assert subprocess.run(["bash", "-n", str(path)]).returncode == 0, path


@pytest.mark.parametrize("what", [["bert"], ["all"], []])
def test_quickstart_stages(what: list[str], tmp_path: Path):
    result = bash("scripts/quickstart.sh", *what, "--dry-run", cwd=tmp_path, BERT_PYTHON=str(tmp_path / "python"))
    assert result.returncode == 0, result.stderr
    stages = [
        "create_datasets_from_start.sh embedded",
        "write_model_config",
        f"--output_dir={ROOT}/results/quickstart_bert/phase_1",
        f"--init_checkpoint={ROOT}/results/quickstart_bert/phase_1/model.ckpt-",
        f"-m bert_tf.summary {ROOT}/results/quickstart_bert",
    ]
    places = [result.stdout.index(stage) for stage in stages]
    assert places == sorted(places)
    assert result.stdout.count(f"--bert_config_file={ROOT}/results/quickstart_bert/bert_config.json") == 2
    assert ("not in this tree yet" in result.stdout) == (what != ["bert"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words, message", [(["asr"], "not in this tree yet"), (["tf"], "unknown"), (["a", "b"], "one of")]
)
def test_quickstart_refusals(words: list[str], message: str):
    result = bash("scripts/quickstart.sh", *words)
    assert result.returncode == 1 and message in result.stderr


def test_test_script(tmp_path: Path):
    result = bash("scripts/test.sh", "--dry-run", "tests/runkit", "-k", "store", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "ruff check" in result.stdout and "scripts/lib.sh" in result.stdout
    assert result.stdout.rstrip().endswith("-m pytest -n 2 tests/runkit -k store")


def test_ci_calls_the_test_script():
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert "scripts/test.sh" in run.read_text(encoding="utf-8").splitlines()[-1]
