"""data/librispeech.py: archives from a folder that stands for the web, manifests, WAV copies."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
soundfile = pytest.importorskip("soundfile", reason="speech runs in .venv/asr")
pytest.importorskip("soxr", reason="speech runs in .venv/asr")

from data import librispeech  # noqa: E402
from data.librispeech import (  # noqa: E402
    ARCHIVES,
    Archive,
    download_subset,
    find_utterances,
    manifest_name,
    read_transcripts,
    write_manifest,
)
from jasper_pt.manifest import check_files, read_manifest  # noqa: E402
from runkit.errors import UserError  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RATE = 16_000


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> np.ndarray:
    return np.rint(8000 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.int16)


def make_layout(folder: Path, texts: dict[str, str], seconds: float = 0.5, suffix: str = ".flac") -> Path:
    """A folder in LibriSpeech layout: <speaker>/<chapter>/ with a tone for each text."""
    for key, text in texts.items():
        speaker, chapter, _ = key.split("-")
        place = folder / speaker / chapter
        place.mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{key}{suffix}", tone(seconds), RATE)
        with open(place / f"{speaker}-{chapter}.trans.txt", "a", encoding="utf-8") as stream:
            stream.write(f"{key} {text}\n")
    return folder


TEXTS = {"1-10-0000": "HELLO THERE", "1-10-0001": "GOOD  MORNING", "2-20-0000": "IT'S LATE"}


def read_json(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))


def dominant_hertz(path: Path) -> float:
    samples, rate = soundfile.read(path)
    return float(np.abs(np.fft.rfft(samples)).argmax()) * rate / len(samples)


# ------------------------------------------------------------------------------------------------------- manifests


def test_manifest_of_a_folder(tmp_path: Path):
    make_layout(tmp_path / "dev-clean", TEXTS)
    manifest = tmp_path / manifest_name("dev-clean")
    assert manifest.name == "librispeech-dev-clean-wav.json"
    assert write_manifest(tmp_path / "dev-clean", manifest) == 3
    entries = read_json(manifest)
    assert [entry["transcript"] for entry in entries] == ["hello there", "good morning", "it's late"]
    path = tmp_path / "dev-clean" / "1" / "10" / "1-10-0000.flac"
    assert entries[0] == {
        "transcript": "hello there",
        "files": [
            {
                "fname": "dev-clean/1/10/1-10-0000.flac",
                "speed": 1,
                "duration": 0.5,
                "num_samples": 8000,
                "sample_rate": 16000,
                "channels": 1,
                "bitdepth": 16,
                "bitrate": path.stat().st_size * 8 * 2,
                "encoding": "FLAC PCM_16",
            }
        ],
        "original_duration": 0.5,
        "original_num_samples": 8000,
    }
    # One object a line: a line of the file can be looked at, and named.
    lines = manifest.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", 5)
    utterances, report = check_files(read_manifest(manifest))
    assert utterances[0].audio_path == path and report.lines() == []


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = make_layout(tmp_path / "set", TEXTS)
    place = folder / "1" / "10"
    with open(place / "1-10.trans.txt", "a", encoding="utf-8") as stream:
        stream.write("1-10-0002 NO SOUND\n1-10-0003\n\n1-10-0000 AGAIN\n1-10-0004 NO FLAC\n1-10-0005 EMPTY\n")
    (place / "1-10-0004.flac").write_text("this is no sound")
    soundfile.write(place / "1-10-0005.wav", tone(0), RATE)
    soundfile.write(place / "1-10-0003.flac", tone(1), RATE)
    soundfile.write(place / "1-10-0009.flac", tone(1), RATE)
    (folder / ".hidden").mkdir()
    soundfile.write(folder / ".hidden" / "1-10-0008.flac", tone(1), RATE)
    (place / ".1-10-0007.flac").write_text("a temporary file")
    assert write_manifest(folder, tmp_path / "m.json") == 3
    left_out = (tmp_path / "m.left_out.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(line.partition(":")[0] for line in left_out) == [
        "1-10-0000 a second line in 1-10.trans.txt",
        "1-10-0002 no audio",
        "1-10-0003 no text",
        "1-10-0004 cannot be decoded",
        "1-10-0005 no samples, by its header",
        "1-10-0009 no transcript",
    ]
    out = capsys.readouterr().out
    assert "left out: 6" in out and "1-10-0002 no audio" in out
    # The list goes when it is no longer true.
    make_layout(tmp_path / "good", TEXTS)
    write_manifest(tmp_path / "good", tmp_path / "m.json")
    assert not (tmp_path / "m.left_out.txt").exists()


def test_nothing_left_is_an_error(tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "1-1.trans.txt").write_text("1-1-0000 HELLO\n")
    with pytest.raises(UserError, match="no utterance with sound and text"):
        write_manifest(tmp_path / "set", tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()
    with pytest.raises(UserError, match="no such folder"):
        write_manifest(tmp_path / "none", tmp_path / "m.json")


def test_names_outside_of_the_data_folder_are_absolute(tmp_path: Path):
    folder = make_layout(tmp_path / "elsewhere", TEXTS)
    write_manifest(folder, tmp_path / "out" / "m.json")
    assert read_json(tmp_path / "out" / "m.json")[0]["files"][0]["fname"] == str(folder / "1/10/1-10-0000.flac")
    write_manifest(folder, tmp_path / "out" / "m.json", dataset_dir=tmp_path)
    assert read_json(tmp_path / "out" / "m.json")[0]["files"][0]["fname"] == "elsewhere/1/10/1-10-0000.flac"


def test_flac_is_preferred_and_other_formats_do(tmp_path: Path):
    folder = make_layout(tmp_path / "set", TEXTS)
    soundfile.write(folder / "1" / "10" / "1-10-0000.wav", tone(2), RATE)
    (folder / "2" / "20" / "2-20-0000.flac").unlink()
    soundfile.write(folder / "2" / "20" / "2-20-0000.ogg", tone(1), RATE)
    utterances, left_out = find_utterances(folder)
    assert [u.path.suffix for u in utterances] == [".flac", ".flac", ".ogg"] and left_out == []


def test_case_a07_bom_and_crlf_in_transcripts(shared: Path):
    case = shared / "cases" / "A07"
    texts, left_out = read_transcripts(case / "19-1.trans.txt")
    assert texts == json.loads((case / "expected.json").read_text())["trans"] and left_out == []


def test_case_a13(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    case = shared / "cases" / "A13"
    expected = json.loads((case / "expected.json").read_text())
    write_manifest(case / "LibriSpeech", tmp_path / "m.json", dataset_dir=case)
    names = [Path(entry["files"][0]["fname"]).stem for entry in read_json(tmp_path / "m.json")]
    assert names == expected["manifest_from_LibriSpeech"]
    assert sorted((tmp_path / "m.left_out.txt").read_text().splitlines()) == expected["reported"]
    out = capsys.readouterr().out
    assert all(line in out for line in expected["reported"])
    command = [sys.executable, "-m", "data.librispeech", "manifest", str(case / "no_audio"), str(tmp_path / "n.json")]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 2 and "19-198-0000 no audio" in failed.stdout and not (tmp_path / "n.json").exists()


def test_real_utterances(shared: Path, tmp_path: Path):
    folder = shared / "data" / "speech_librispeech_test_other"
    rows = [line.split("\t") for line in (folder / "AUDIO_INFO.tsv").read_text().splitlines()[1:]]
    seconds = {row[0]: float(row[3]) for row in rows}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.flac")}
    assert write_manifest(folder, tmp_path / "m.json", dataset_dir=folder) == len(there) >= 60
    for entry in read_json(tmp_path / "m.json"):
        (file,) = entry["files"]
        assert file["duration"] == pytest.approx(seconds[file["fname"]], abs=6e-4)
        assert entry["transcript"] == entry["transcript"].lower() and len(entry["transcript"]) > 3
    folder = shared / "data" / "speech_librispeech_misc"
    assert write_manifest(folder, tmp_path / "m.json") == 4
    left_out = (tmp_path / "m.left_out.txt").read_text().splitlines()
    assert len(left_out) == 7 and all(line.endswith(" no transcript") for line in left_out)


# ------------------------------------------------------------------------------------------------------- WAV copies


def test_wav_copies(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = make_layout(tmp_path / "train", TEXTS)
    manifest, wav_dir = tmp_path / manifest_name("train"), tmp_path / "train-wav"
    write_manifest(folder, manifest, wav_dir=wav_dir, speeds=[1.1, 0.9, 1])
    files = read_json(manifest)[0]["files"]
    base = "train-wav/1/10/1-10-0000"
    assert [(file["fname"], file["speed"]) for file in files] == [
        (f"{base}-0.9.wav", 0.9),
        (f"{base}-1.1.wav", 1.1),
        (f"{base}.wav", 1),
    ]
    assert [file["num_samples"] for file in files] == [round(8000 / 0.9), round(8000 / 1.1), 8000]
    original, _ = soundfile.read(folder / "1/10/1-10-0000.flac", dtype="int16")
    copy, rate = soundfile.read(tmp_path / f"{base}.wav", dtype="int16")
    assert rate == RATE and np.array_equal(copy, original)
    # Faster is shorter and higher, as with sox.
    assert dominant_hertz(tmp_path / f"{base}-1.1.wav") == pytest.approx(440 * 1.1, abs=2)
    assert dominant_hertz(tmp_path / f"{base}-0.9.wav") == pytest.approx(440 * 0.9, abs=2)
    (utterance, *_), report = check_files(read_manifest(manifest))
    assert utterance.audio_path == tmp_path / f"{base}.wav" and [speed for _, speed, _ in utterance.speeds] == [
        0.9,
        1.1,
        1,
    ]
    assert utterance.duration == 0.5 and report.lines() == []


def test_an_interrupted_conversion_goes_on(tmp_path: Path):
    folder = make_layout(tmp_path / "train", TEXTS)
    whole, cut, gone = (
        tmp_path / "wav" / name for name in ("1/10/1-10-0000.wav", "1/10/1-10-0001.wav", "2/20/2-20-0000.wav")
    )
    write_manifest(folder, tmp_path / "a.json", wav_dir=tmp_path / "wav")
    stamp = whole.stat().st_mtime_ns
    cut.write_bytes(cut.read_bytes()[:2000])
    gone.unlink()
    write_manifest(folder, tmp_path / "b.json", wav_dir=tmp_path / "wav", n_processes=2)
    assert whole.stat().st_mtime_ns == stamp
    assert soundfile.info(cut).frames == 8000 and soundfile.info(gone).frames == 8000
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    write_manifest(folder, tmp_path / "c.json", wav_dir=tmp_path / "wav", sample_rate=8000)
    assert soundfile.info(whole).samplerate == 8000
    assert read_json(tmp_path / "c.json")[0]["original_num_samples"] == 4000


def test_stereo_becomes_the_average(tmp_path: Path):
    folder = make_layout(tmp_path / "set", {"1-10-0000": "HELLO"})
    both = np.stack([tone(0.5), np.zeros(8000, np.int16)], axis=1)
    soundfile.write(folder / "1/10/1-10-0000.flac", both, RATE)
    write_manifest(folder, tmp_path / "m.json", wav_dir=tmp_path / "wav")
    mono, _ = soundfile.read(tmp_path / "wav/1/10/1-10-0000.wav", dtype="int16")
    assert mono.shape == (8000,) and np.abs(mono - tone(0.5) / 2).max() <= 0.5


def test_words_that_do_not_go_together(tmp_path: Path):
    command = [sys.executable, "-m", "data.librispeech", "manifest", str(tmp_path), str(tmp_path / "m.json")]
    for words, message in ((["--speeds", "0.9"], "give --wav_dir"), (["--wav_dir", "w", "--speeds", "90"], "between")):
        failed = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)
        assert failed.returncode == 2 and message in failed.stderr


# --------------------------------------------------------------------------------------------------------- download


def make_mirror(root: Path, subset: str, texts: dict[str, str]) -> Archive:
    """<root>/mirror/<subset>.tar.gz as openslr.org has it; returns what the table would say of it."""
    tree = root / f"{subset}-tree" / "LibriSpeech"
    make_layout(tree / subset, texts)
    for name in ("SPEAKERS.TXT", "LICENSE.TXT"):
        (tree / name).write_text(f"{name} of {subset}\n")
    archive = root / "mirror" / f"{subset}.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, "LibriSpeech")
    return Archive(hashlib.md5(archive.read_bytes()).hexdigest(), len(texts))


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for subset, texts in (("dev-clean", TEXTS), ("dev-other", {"3-30-0000": "WELL"})):
        monkeypatch.setitem(ARCHIVES, subset, make_mirror(tmp_path, subset, texts))
    return str(tmp_path / "mirror")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_download(tmp_path: Path, mirror: str, capsys: pytest.CaptureFixture):
    data_dir = tmp_path / "data"
    for subset in ("dev-clean", "dev-other"):
        download_subset(subset, data_dir, [mirror], remove_archive=subset == "dev-other")
    assert names(data_dir) == ["LICENSE.TXT", "SPEAKERS.TXT", "dev-clean", "dev-clean.tar.gz", "dev-other"]
    assert (data_dir / "SPEAKERS.TXT").read_text() == "SPEAKERS.TXT of dev-clean\n"
    assert write_manifest(data_dir / "dev-clean", data_dir / manifest_name("dev-clean")) == 3
    download_subset("dev-other", data_dir, ["/nowhere"])  # it is there, so nothing is fetched
    assert "dev-other: in place" in capsys.readouterr().out


def test_an_interrupted_download_goes_on(tmp_path: Path, mirror: str):
    data_dir = tmp_path / "data"
    (data_dir / ".dev-clean.tar.gz.0123abcd.tmp" / "LibriSpeech" / "dev-clean").mkdir(parents=True)  # killed there
    whole = (tmp_path / "mirror" / "dev-clean.tar.gz").read_bytes()
    (data_dir / "dev-clean.tar.gz.partial").write_bytes(whole[:100])
    download_subset("dev-clean", data_dir, [mirror])
    assert names(data_dir) == ["LICENSE.TXT", "SPEAKERS.TXT", "dev-clean", "dev-clean.tar.gz"]
    (data_dir / "dev-clean" / "1" / "10" / "1-10-0000.flac").unlink()
    with pytest.raises(UserError, match=r"holds 2 FLAC files, and LibriSpeech has 3 there .* remove the folder"):
        download_subset("dev-clean", data_dir, [mirror])


def test_a_wrong_archive_is_never_unpacked(tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ARCHIVES, "dev-clean", Archive("0" * 32, 3))
    with pytest.raises(UserError, match="has md5"):
        download_subset("dev-clean", tmp_path / "data", [mirror])
    assert names(tmp_path / "data") == []
    right = hashlib.md5((tmp_path / "mirror" / "dev-clean.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(ARCHIVES, "dev-clean", Archive(right, 4))
    with pytest.raises(UserError, match="holds 3 FLAC files"):
        download_subset("dev-clean", tmp_path / "data", [mirror])
    assert names(tmp_path / "data") == ["dev-clean.tar.gz"]


def test_the_table_is_the_published_one(shared: Path):
    text = (shared / "spec" / "asr.md").read_text(encoding="utf-8")
    published = dict(re.findall(r"^\s+- ((?:dev|test|train)-[\w-]+) ([0-9a-f]{32})$", text, re.MULTILINE))
    assert len(published) == 7 and {name: archive.md5 for name, archive in ARCHIVES.items()} == published
    assert sum(archive.n_utterances for name, archive in ARCHIVES.items() if name.startswith("train")) == 281_241


def test_unknown_subsets_are_refused(tmp_path: Path):
    command = [sys.executable, "-m", "data.librispeech", "download", str(tmp_path), "--subsets", "dev-dirty"]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 2 and "dev-dirty" in failed.stderr and "dev-clean" in failed.stderr
    assert all(mirror.startswith("https://") for mirror in librispeech.MIRRORS)
