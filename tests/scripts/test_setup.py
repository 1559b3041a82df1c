"""scripts/setup.sh in a copy of the tree, with an interpreter that only pretends to make environments."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIN = r'[\w.-]+(\[[\w-]+\])?==[\w.]+(; platform_(machine [=!]= "x86_64"|system == "Linux"))?'
REQUIREMENTS = sorted((ROOT / "docker").glob("requirements-*.txt"))
# Stands for the interpreter and for those in the environments it makes: notes its calls, and fails as told.
PYTHON = r"""#!/usr/bin/env bash
fake=@FAKE@
case "$1 $2" in
    "-c import ensurepip, venv") [[ ! -e $fake/no_venv ]] ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "venv ${3##*/}" >>"$fake/calls" ;;
    "-m pip")
        echo "pip ${!#}" | sed 's,/.*/,,' >>"$fake/calls"
        echo "looking for packages"
        [[ ! -e $fake/killed ]] || { kill -9 $PPID; exit 1; }
        [[ ! -e $fake/offline ]] || { echo "ERROR: no network"; exit 1; }
        [[ ! -e $fake/offline_once ]] || { rm "$fake/offline_once"; exit 1; }
        ;;
    "-c "*) cat "$fake/version"; grep -qE '^3\.1[123]\.' "$fake/version" ;;
    *) exit 64 ;;
esac
"""


class Tree:
    """A tree with only what setup.sh needs."""

    def __init__(self, root: Path):
        self.root = root / "tree"
        self.fake = root / "fake"
        self.fake.mkdir()
        (self.fake / "version").write_text("3.11.9\n")
        self.python = self.fake / "python3"
        self.python.write_text(PYTHON.replace("@FAKE@", str(self.fake)))
        self.python.chmod(0o755)
        (self.root / "scripts").mkdir(parents=True)
        for name in ("lib.sh", "setup.sh"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts")
        shutil.copytree(ROOT / "docker", self.root / "docker")

    def setup(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        clean = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "DRY_RUN")}
        path = f"{self.fake}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(self.root / "scripts" / "setup.sh"), *words],
            env=clean | {"PATH": path} | environment,
            capture_output=True,
            text=True,
        )

    def calls(self) -> list[str]:
        """What was done since the last look."""
        path = self.fake / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


BERT = ["venv bert", "pip requirements-bert-cpu.txt"]
ASR = ["venv asr", "pip requirements-asr.txt"]
DALI = [*ASR, "pip requirements-dali.txt"]
DATA = [*BERT, "pip requirements-data.txt"]
DEV = [
    *DATA,
    "pip requirements-test.txt",
    *DALI,
    "pip requirements-asr-test.txt",
    "venv serving",
    "pip requirements-serving.txt",
    "venv dev",
    "pip requirements-dev.txt",
]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_every_requirement_is_pinned():
    assert len(REQUIREMENTS) == 11
    for path in [*REQUIREMENTS, *(ROOT / "docker").glob("constraints*.txt")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            line = line.partition("#")[0].strip()
            if line and not line.startswith(("-r ", "-c ")):
                assert re.fullmatch(PIN, line), f"{path.name}: {line}"


def test_sets_and_idempotence(tree: Tree):
    first = tree.setup("all", "--cpu")
    assert first.returncode == 0, first.stderr
    assert tree.calls() == DEV
    again = tree.setup("--cpu")  # all is the default
    assert again.returncode == 0 and tree.calls() == []
    assert again.stdout.count("in place") == 8
    for what in ("bert", "data", "asr", "dali", "dev"):
        assert tree.setup(what, "--cpu").returncode == 0
        assert tree.calls() == []


def test_the_machine_chooses_the_build(tree: Tree):
    smi = tree.fake / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexit 0\n")
    smi.chmod(0o755)
    assert tree.setup("bert").returncode == 0
    assert tree.calls() == ["venv bert", "pip requirements-bert-gpu.txt"]
    smi.write_text("#!/bin/sh\nexit 9\n")  # a driver that does not answer
    changed = tree.setup("bert")
    assert changed.returncode == 0 and "removing it" in changed.stdout
    assert tree.calls() == BERT  # the two builds never share an environment
    assert tree.setup("bert", "--gpu").returncode == 0
    assert tree.calls() == ["venv bert", "pip requirements-bert-gpu.txt"]


def test_engines_of_the_data_stages_are_added(tree: Tree):
    assert tree.setup("bert", "--cpu").returncode == 0
    assert tree.calls() == BERT
    assert tree.setup("data", "--cpu").returncode == 0
    assert tree.calls() == DATA[-1:]


def test_speech_has_one_build(tree: Tree):
    assert tree.setup("asr", "--cpu").returncode == 0
    assert tree.calls() == ASR
    assert tree.setup("dali", "--gpu").returncode == 0
    assert tree.calls() == DALI[-1:]


@pytest.mark.parametrize(
    "changed, installed",
    [
        ("bert", ["bert-cpu"]),
        ("test", ["test", "asr-test"]),
        ("asr-test", ["asr-test"]),
    ],
)
def test_changed_requirements_are_installed(tree: Tree, changed: str, installed: list[str]):
    """In the sets that name them, and in those that start from such a set."""
    tree.setup("dev", "--cpu")
    tree.calls()
    with open(tree.root / "docker" / f"requirements-{changed}.txt", "a", encoding="utf-8") as stream:
        stream.write("another==1.0\n")
    assert tree.setup("dev", "--cpu").returncode == 0
    assert tree.calls() == [f"pip requirements-{name}.txt" for name in installed]


def test_an_interrupted_set_up_is_redone(tree: Tree):
    (tree.fake / "killed").touch()
    assert tree.setup("bert", "--cpu").returncode != 0
    assert tree.calls() == BERT
    (tree.fake / "killed").unlink()
    redone = tree.setup("bert", "--cpu")
    assert redone.returncode == 0 and "removing it" in redone.stdout
    assert tree.calls() == BERT
    assert tree.setup("bert", "--cpu").returncode == 0 and tree.calls() == []


def test_a_moved_tree_is_redone(tree: Tree):
    tree.setup("bert", "--cpu")
    tree.calls()
    tree.root = tree.root.rename(tree.root.with_name("moved"))
    assert tree.setup("bert", "--cpu").returncode == 0 and tree.calls() == BERT


def test_a_broken_environment_is_redone(tree: Tree):
    tree.setup("bert", "--cpu")
    tree.calls()
    (tree.root / ".venv" / "bert" / "bin" / "python").unlink()
    assert tree.setup("bert", "--cpu").returncode == 0 and tree.calls() == BERT


def test_pip_is_tried_twice(tree: Tree):
    (tree.fake / "offline_once").touch()
    result = tree.setup("bert", "--cpu")
    assert result.returncode == 0 and "trying once more" in result.stdout
    assert tree.calls() == [*BERT, BERT[-1]]


def test_a_failed_installation_shows_its_log(tree: Tree):
    (tree.fake / "offline").touch()
    result = tree.setup("bert", "--cpu")
    assert result.returncode == 1
    assert "ERROR: no network" in result.stderr
    log = tree.root / ".venv" / "bert-bert-cpu.log"
    assert str(log) in result.stderr and "looking for packages" in log.read_text()
    (tree.fake / "offline").unlink()
    tree.calls()
    assert tree.setup("bert", "--cpu").returncode == 0 and tree.calls() == BERT


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0", "2.7.18"])
def test_other_versions_of_python_are_refused(tree: Tree, version: str):
    (tree.fake / "version").write_text(f"{version}\n")
    result = tree.setup("bert", "--cpu", PYTHON=str(tree.python))
    assert result.returncode == 1 and tree.calls() == []
    assert "Python 3.11 to 3.13 is needed" in result.stderr and f"{tree.python}: {version}" in result.stderr


def test_a_usable_interpreter_is_searched_for(tree: Tree):
    """python3 is too old, or only a shim that does not run: the next name is taken."""
    other = tree.fake / "python3.13"
    shutil.copy(tree.python, other)
    tree.python.write_text("#!/bin/sh\nexit 127\n")
    result = tree.setup("bert", "--cpu")
    assert result.returncode == 0, result.stderr
    assert tree.calls() == BERT


def test_a_missing_venv_module_names_the_package(tree: Tree):
    (tree.fake / "no_venv").touch()
    result = tree.setup("bert", "--cpu")
    assert result.returncode == 1 and "apt-get install python3.11-venv" in result.stderr


def test_dry_run_and_unknown_words(tree: Tree):
    dry = tree.setup("bert", "--gpu", "--dry-run")
    assert dry.returncode == 0 and tree.calls() == []
    assert "-m venv" in dry.stdout and "requirements-bert-gpu.txt" in dry.stdout
    wrong = tree.setup("tf")
    assert wrong.returncode == 1 and "unknown argument 'tf'" in wrong.stderr
