"""scripts/download_librispeech.sh, preprocess_librispeech.sh, download_quartznet.sh: words, variables, whole runs
without a network."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from data.quartznet import MODELS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("download_librispeech", "preprocess_librispeech", "download_quartznet")
VARIABLES = (
    """DATA_DIR SUBSETS KEEP_ARCHIVES MIRROR WAV SPEEDS LANGUAGE MODEL_DIR NGC_MIRROR ASR_PYTHON DRY_RUN""".split()
)


def bash(name: str, *words: str, cwd: Path = ROOT, **environment: object) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / f"{name}.sh"), *words],
        cwd=cwd,
        env=clean | {key: str(value) for key, value in environment.items()},
        capture_output=True,
        text=True,
    )


def dry(name: str, *words: str, **environment: object) -> list[list[str]]:
    """The commands of a dry run, from "-m" on."""
    result = bash(name, *words, "--dry-run", **environment)
    assert result.returncode == 0, result.stderr
    return [shlex.split(line)[1:] for line in result.stdout.splitlines() if " -m data." in line]


@pytest.fixture(scope="module")
def speech_python() -> str:
    for python in (str(ROOT / ".venv" / "asr" / "bin" / "python"), sys.executable):
        if os.path.exists(python) and subprocess.run([python, "-c", "import soundfile, soxr"]).returncode == 0:
            return python
    pytest.skip("no Python with soundfile: bash scripts/setup.sh asr")


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_tells_every_variable(name: str):
    result = bash(name, "--help")
    assert result.returncode == 0 and "usage:" in result.stdout and "example" in result.stdout
    text = (ROOT / "scripts" / f"{name}.sh").read_text(encoding="utf-8")
    for variable in set(VARIABLES) - {"DRY_RUN"}:
        if f"${{{variable}:-" in text:
            assert variable in result.stdout, variable


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_missing_environment_is_named(name: str, tmp_path: Path):
    result = bash(name, DATA_DIR=tmp_path, SUBSETS="dev-clean", ASR_PYTHON=tmp_path / "none")
    assert result.returncode == 1 and "ASR_PYTHON" in result.stderr


# --------------------------------------------------------------------------------------------- download_librispeech


def test_download_words():
    (command,) = dry("download_librispeech")
    assert command == ["-m", "data.librispeech", "download", "/datasets/LibriSpeech"]
    (command,) = dry("download_librispeech", "/big disk/LS", DATA_DIR="/other")
    assert command[-1] == "/big disk/LS"
    (command,) = dry(
        "download_librispeech",
        DATA_DIR="ls",
        SUBSETS="dev-clean  train-clean-100",
        MIRROR="file:///copy",
        KEEP_ARCHIVES="false",
    )
    assert command[3:] == "ls --subsets dev-clean train-clean-100 --mirror file:///copy --remove_archives".split()


def test_download_refusals(tmp_path: Path, speech_python: str):
    assert "KEEP_ARCHIVES must be" in bash("download_librispeech", KEEP_ARCHIVES="maybe").stderr
    assert "one word" in bash("download_librispeech", "a", "b").stderr
    options = {"DATA_DIR": tmp_path / "data", "ASR_PYTHON": speech_python}
    result = bash("download_librispeech", SUBSETS="dev-clean", MIRROR=tmp_path / "none", **options)
    assert result.returncode == 2 and "dev-clean.tar.gz: No such file" in result.stderr
    assert list((tmp_path / "data").iterdir()) == []
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "dev-clean.tar.gz").write_bytes(b"another file")
    result = bash("download_librispeech", SUBSETS="dev-clean", MIRROR=tmp_path / "mirror", **options)
    assert result.returncode == 2 and "not 42e2234ba48799c1f50f24a7926300a1" in result.stderr
    assert list((tmp_path / "data").iterdir()) == []


def test_whole_subsets_are_kept(tmp_path: Path, speech_python: str):
    folder = tmp_path / "dev-clean" / "1" / "2"
    folder.mkdir(parents=True)
    for i in range(2703):
        (folder / f"1-2-{i:04d}.flac").touch()
    result = bash(
        "download_librispeech", tmp_path, SUBSETS="dev-clean", MIRROR="/nowhere", ASR_PYTHON=speech_python, cwd=tmp_path
    )
    assert result.returncode == 0 and "in place, 2703 utterances" in result.stdout, result.stderr


# ------------------------------------------------------------------------------------------- preprocess_librispeech


def manifest_command(subset: str, *flags: str) -> list[str]:
    root = "/datasets/LibriSpeech"
    return ["-m", "data.librispeech", "manifest", f"{root}/{subset}", f"{root}/librispeech-{subset}-wav.json", *flags]


def test_preprocess_words():
    subsets = "dev-clean dev-other test-clean test-other train-clean-100 train-clean-360 train-other-500".split()
    assert dry("preprocess_librispeech") == [manifest_command(subset) for subset in subsets]
    wav = [("--wav_dir", f"/datasets/LibriSpeech/{subset}-wav") for subset in subsets]
    assert dry("preprocess_librispeech", WAV="true") == [
        manifest_command(subset, *flags) for subset, flags in zip(subsets, wav, strict=True)
    ]
    # Speeds as words, as one word, or in the environment: for the training sets only.
    published = [
        manifest_command(subset, *flags, *(["--speeds", "0.9", "1.1"] if subset.startswith("train") else []))
        for subset, flags in zip(subsets, wav, strict=True)
    ]
    assert dry("preprocess_librispeech", "0.9", "1.1") == published
    assert dry("preprocess_librispeech", "0.9 1.1") == published
    assert dry("preprocess_librispeech", SPEEDS="0.9 1.1") == published
    assert len(dry("preprocess_librispeech", SUBSETS="a b")) == 2


def test_preprocess_refusals(tmp_path: Path):
    for words, environment, message in (
        ([], {"DATA_DIR": tmp_path / "none"}, "does not exist"),
        ([], {"DATA_DIR": tmp_path}, "none of LibriSpeech's subsets"),
        (["0.9"], {"WAV": "false"}, "SPEEDS needs WAV=true"),
        ([], {"WAV": "yes"}, "WAV must be true or false"),
    ):
        result = bash("preprocess_librispeech", *words, **({"ASR_PYTHON": sys.executable} | environment))
        assert result.returncode == 1 and message in result.stderr


def test_preprocess_real_utterances(shared: Path, tmp_path: Path, speech_python: str):
    for subset in ("test-other", "train-clean-100"):
        (tmp_path / subset).symlink_to(shared / "data" / "speech_librispeech_misc")
    result = bash("preprocess_librispeech", DATA_DIR=tmp_path, SPEEDS="0.9", ASR_PYTHON=speech_python)
    assert result.returncode == 0, result.stderr
    test, train = (
        json.loads((tmp_path / f"librispeech-{subset}-wav.json").read_text())
        for subset in ("test-other", "train-clean-100")
    )
    assert len(test) == len(train) == 4
    assert [file["fname"] for file in test[0]["files"]] == ["test-other-wav/1089-134686-0000.wav"]
    assert [file["speed"] for file in train[0]["files"]] == [0.9, 1]
    assert all((tmp_path / file["fname"]).is_file() for entry in test + train for file in entry["files"])
    result = bash("preprocess_librispeech", DATA_DIR=tmp_path, SUBSETS="test-other", ASR_PYTHON=speech_python)
    assert result.returncode == 0, result.stderr
    (file,) = json.loads((tmp_path / "librispeech-test-other-wav.json").read_text())[0]["files"]
    assert file["fname"] == "test-other/1089-134686-0000.flac"  # the same manifest name, from the FLAC files


# ------------------------------------------------------------------------------------------------ download_quartznet


def test_quartznet_words():
    (command,) = dry("download_quartznet")
    assert command == "-m data.quartznet en --model_dir pretrained_models/quartznet_en".split()
    assert dry("download_quartznet", "de", LANGUAGE="fr")[0][2:] == [
        "de",
        "--model_dir",
        "pretrained_models/quartznet_de",
    ]
    assert dry("download_quartznet", LANGUAGE="fr", MODEL_DIR="m", NGC_MIRROR="file:///x")[0][2:] == [
        *("fr", "--model_dir", "m"),
        *("--mirror", "file:///x"),
    ]
    assert dry("download_quartznet", LANGUAGE="de_DE:de")[0][2] == "en"  # what desktops keep in that variable
    for language in MODELS:
        assert dry("download_quartznet", language)[0][2] == language
    for words, environment in ((["xx"], {}), ([], {"LANGUAGE": "tlh"}), (["en", "de"], {})):
        assert bash("download_quartznet", *words, **environment).returncode == 1


def test_quartznet_urls_are_the_published_ones():
    urls = {language: f"{model.path}/versions/{model.version}/zip" for language, model in MODELS.items()}
    assert urls["en"] == "quartznet_pyt_ckpt_amp/versions/21.03.0/zip"
    assert urls["zh"] == "nemo/stt_zh_quartznet15x5/versions/1.0.0rc1/zip"
    assert (
        MODELS["en"].archive == "quartznet_pyt_ckpt_amp_21.03.0.zip"
        and MODELS["ru"].file == "stt_ru_quartznet15x5.nemo"
    )


@pytest.fixture
def ngc(tmp_path: Path) -> Path:
    """A folder in the place of NGC, with the English and the German model, and a wrong archive for French."""
    for language, name in (("en", None), ("de", None), ("fr", "readme.txt")):
        model = MODELS[language]
        folder = tmp_path / "ngc" / model.path / "versions" / model.version
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "zip", "w") as archive:
            archive.writestr(name or model.file, f"weights of {language}")
    return tmp_path / "ngc"


@pytest.mark.parametrize("language", ["en", "de"])
def test_quartznet_download(tmp_path: Path, ngc: Path, language: str):
    options = {"ASR_PYTHON": sys.executable, "NGC_MIRROR": ngc.as_uri(), "cwd": tmp_path}
    result = bash("download_quartznet", language, **options)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "pretrained_models" / f"quartznet_{language}"
    assert [path.name for path in folder.iterdir()] == [MODELS[language].file]
    assert (folder / MODELS[language].file).read_text() == f"weights of {language}"
    again = bash("download_quartznet", language, **(options | {"NGC_MIRROR": "file:///nowhere"}))
    assert again.returncode == 0 and "in place" in again.stdout


def test_quartznet_failures(tmp_path: Path, ngc: Path):
    options = {"ASR_PYTHON": sys.executable, "NGC_MIRROR": ngc, "MODEL_DIR": tmp_path / "models"}
    wrong = bash("download_quartznet", "fr", **options)
    assert wrong.returncode == 2 and "stt_fr_quartznet15x5.nemo is not in it, but readme.txt" in wrong.stderr
    absent = bash("download_quartznet", "pl", **options)
    assert absent.returncode == 2 and "No such file" in absent.stderr
    assert [path.name for path in (tmp_path / "models").iterdir()] == [MODELS["fr"].archive]  # to be looked at
