"""The Dockerfile and its launchers, without a Docker engine: linted, its steps run on copies, its commands read."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD, LAUNCH = ROOT / "scripts/docker/build.sh", ROOT / "scripts/docker/launch.sh"
HADOLINT = ROOT / ".venv/dev/bin/hadolint"


def bash(script: Path, *words: str, **environment: object) -> subprocess.CompletedProcess:
    keep = {k: v for k, v in os.environ.items() if k not in ("DATA_DIR", "RESULT_DIR", "OUTPUT_DIR", "CHECKPOINT_DIR")}
    return subprocess.run(
        ["bash", str(script), *words],
        env=keep | {key: str(value) for key, value in environment.items()},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def docker(script: Path, *words: str, **environment: object) -> list[list[str]]:
    """The docker commands that a script would run."""
    result = bash(script, *words, DRY_RUN="true", **environment)
    assert result.returncode == 0, result.stderr
    return [shlex.split(line) for line in result.stdout.splitlines() if line.startswith("docker ")]


# -------------------------------------------------------------------------------------------------------- Dockerfile
def stages() -> dict[str, list[tuple[str, str]]]:
    """Name of each stage -> its (instruction, rest) in order."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            name = rest.split()[-1]
            found[name] = []
        if name and instruction.isupper():
            found[name].append((instruction, rest))
    return found


def test_dockerfile_is_linted():
    if not HADOLINT.exists():
        pytest.skip("no hadolint (scripts/setup.sh dev)")
    result = subprocess.run([HADOLINT, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_base_images_are_arguments_and_pinned():
    text = (ROOT / "Dockerfile").read_text()
    bases = dict(re.findall(r"^ARG (\w+_BASE)=(\S+)$", text, re.M))
    assert set(bases) == {"BERT_BASE", "ASR_BASE", "CPU_BASE", "TRITON_BASE"}
    for base in bases.values():
        assert re.fullmatch(r"[\w./-]+:\d+[\w.-]*", base), f"{base} is not pinned to a version"
    assert {rest.split()[0] for steps in stages().values() for kind, rest in steps if kind == "FROM"} == {
        f"${{{name}}}" for name in bases
    }


@pytest.mark.parametrize("stage", ["bert", "asr", "cpu", "triton"])
def test_every_step_runs_from_what_was_copied_before(stage: str, tmp_path: Path):
    """In a folder with only what COPY put there; the scripts say what they would run (test.sh runs them for real)."""
    steps = stages()[stage]
    tree = tmp_path / "recipes"
    tree.mkdir()
    ran = []
    for kind, rest in steps:
        if kind == "COPY" and rest != ". .":
            *sources, target = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, tree / target)
                else:
                    (tree / target).mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, tree / target)
        if kind == "RUN":
            words = shlex.split(rest)
            assert words[0] == "bash" and words[1].startswith("scripts/"), f"{rest}: only scripts of ours are steps"
            result = subprocess.run(
                [*words, "--dry-run"], cwd=tree, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
            )
            assert result.returncode == 0, f"{rest}: {result.stderr}"
            ran.append(result.stdout)
    together = "\n".join(ran)
    assert "apt-get -qq -y install --no-install-recommends ca-certificates" in together
    if stage == "triton":
        assert "requirements-serving.txt" in together
        assert ("ENTRYPOINT", '["/opt/recipes/.venv/serving/bin/python", "-m", "runkit.serving.server"]') in steps
        return
    if stage != "asr":
        assert "requirements-bert-" + ("cpu" if stage == "cpu" else "gpu") in together
        assert "requirements-horovod.txt" in together
        # Building Horovod must not make the environment anew for another build.
        assert ("requirements-bert-gpu" if stage == "cpu" else "requirements-bert-cpu") not in together
    if stage != "bert":
        assert "requirements-asr.txt" in together
    assert ("ENTRYPOINT", '["bash", "/opt/recipes/scripts/docker/entrypoint.sh"]') in steps
    assert (tree / "scripts/docker/entrypoint.sh").exists()


def test_nothing_that_git_ignores_gets_into_an_image():
    ignored = {
        line.strip().strip("/")
        for line in (ROOT / ".gitignore").read_text().splitlines()
        if line.strip() and not line.startswith(("#", "*", "!"))
    }
    patterns = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert {name for name in ignored if "*" not in name and "." not in name} <= patterns
    assert {".git", ".venv"} <= patterns


# --------------------------------------------------------------------------------------------------------- launchers
def test_images_and_their_names():
    assert docker(BUILD) == [["docker", "build", "--target", "bert", "--tag", "bert", str(ROOT)]]
    commands = docker(BUILD, "all", "--no-cache", ASR_BASE="nvcr.io/other:1")
    assert [command[3] for command in commands] == ["bert", "asr", "cpu", "triton"]
    assert commands[1] == shlex.split(
        f"docker build --target asr --tag asr --tag quartznet --tag jasper --build-arg ASR_BASE=nvcr.io/other:1 "
        f"--no-cache {ROOT}"
    )
    assert docker(BUILD, "--pull") == [["docker", "build", "--target", "bert", "--tag", "bert", "--pull", str(ROOT)]]
    assert "unknown image 'gpu'" in bash(BUILD, "gpu", DRY_RUN="true").stderr


def volumes(command: list[str]) -> dict[str, str]:
    pairs = [command[i + 1].rsplit(":", 1) for i, word in enumerate(command) if word == "--volume"]
    return {inside: outside for outside, inside in pairs}


def test_launch_as_published_for_bert(tmp_path: Path):
    (command,) = docker(LAUNCH, "bash", "scripts/run_squad.sh", "--dry-run", RESULT_DIR=tmp_path / "my results")
    assert command[-4:] == ["bert", "bash", "scripts/run_squad.sh", "--dry-run"]
    for words in ("--net=host", "--shm-size=1g", "--ulimit memlock=-1", "--ulimit stack=67108864", "--rm",
                  f"--user {os.getuid()}:{os.getgid()}", "--workdir /workspace/bert"):  # fmt: skip
        assert f" {words} " in " ".join(command)
    assert volumes(command) == {
        "/workspace/bert": str(ROOT),
        "/results": str(tmp_path / "my results"),
        "/checkpoints": str(ROOT / "checkpoints"),
    }
    assert not (tmp_path / "my results").exists()  # a dry run makes nothing


def test_launch_as_published_for_speech(tmp_path: Path):
    (command,) = docker(LAUNCH, "asr", DATA_DIR=tmp_path, OUTPUT_DIR=tmp_path / "out", CHECKPOINT_DIR=tmp_path / "c")
    assert command[-1] == "asr"
    assert {"--ipc=host", "--shm-size=4g", "--interactive"} <= set(command)
    assert volumes(command) == {
        "/workspace/asr": str(ROOT),
        "/datasets": str(tmp_path),
        "/results": str(tmp_path / "out"),
        "/checkpoints": str(tmp_path / "c"),
    }


def test_gpus_are_given_where_there_are_any(tmp_path: Path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-0)'\n")
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    (command,) = docker(LAUNCH, "bert", "true", PATH=path)
    assert command[command.index("--gpus") + 1] == "all"
    (command,) = docker(LAUNCH, "asr", "true", PATH=path, NVIDIA_VISIBLE_DEVICES="2,3")
    assert command[command.index("--gpus") + 1] == "2,3"
    (command,) = docker(LAUNCH, "cpu", "true", PATH=path)
    assert "--gpus" not in command
    assert "finds no GPU" in bash(LAUNCH, "bert", "true", DRY_RUN="true").stdout


def test_options_of_docker_stand_before_the_command():
    (command,) = docker(LAUNCH, "cpu", "--publish", "80:80", "--env", "A=b c", "env")
    assert command[-6:] == ["--publish", "80:80", "--env", "A=b c", "recipes-cpu", "env"]
    assert "--env wants a value" in bash(LAUNCH, "--env", DRY_RUN="true").stderr


def test_docker_is_started_with_folders_of_the_caller(tmp_path: Path):
    """With a program in Docker's place, which writes down how it was called."""
    fake = tmp_path / "docker"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/call"\nexit 7\n')
    fake.chmod(0o755)
    site = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RESULT_DIR": tmp_path / "r", "CHECKPOINT_DIR": tmp_path / "c"}
    result = bash(LAUNCH, "cpu", "echo", "a  b", **site)
    assert result.returncode == 7  # the command's own
    assert (tmp_path / "r").is_dir() and (tmp_path / "c").is_dir()
    assert (tmp_path / "call").read_text().splitlines()[-3:] == ["recipes-cpu", "echo", "a  b"]


def test_without_docker_the_message_says_what_to_do(tmp_path: Path):
    for name in ("bash", "dirname", "id", "mkdir", "realpath", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name))
    for script in (LAUNCH, BUILD):
        result = bash(script, "cpu", PATH=tmp_path, RESULT_DIR=tmp_path / "r", CHECKPOINT_DIR=tmp_path / "c")
        assert result.returncode == 1
        assert "docker is not on PATH: install Docker, or run the recipes without (scripts/setup.sh)" in result.stderr


def test_entrypoint_runs_the_command_or_welcomes():
    entry = ROOT / "scripts/docker/entrypoint.sh"
    assert bash(entry, "echo", "a  b", CONTAINER="cpu").stdout == "a  b\n"
    shown = {}
    for container in ("bert", "asr", "cpu"):
        # script(1) gives it a terminal; the shell that follows ends at once.
        command = ["script", "-qec", f"bash {shlex.quote(str(entry))}", "/dev/null"]
        result = subprocess.run(
            command, env=os.environ | {"CONTAINER": container, "ENV": "", "PS1": ""}, input="exit\n",
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        shown[container] = result.stdout
        named = re.findall(r"bash (scripts/\S+\.sh)", result.stdout)
        assert named and all((ROOT / name).exists() for name in named)
    assert "run_squad.sh" in shown["bert"] and "train.sh" not in shown["bert"]
    assert "train.sh" in shown["asr"] and "run_squad.sh" not in shown["asr"]
    assert "run_squad.sh" in shown["cpu"] and "train.sh" in shown["cpu"]
