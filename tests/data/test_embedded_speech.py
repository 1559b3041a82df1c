"""data/embedded_speech.py: a small corpus, made twice, and looked at by numbers."""

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("soundfile", reason="speech runs in .venv/asr")
pytest.importorskip("espeakng_loader", reason="speech runs in .venv/asr")

from data import embedded_speech  # noqa: E402
from data.embedded_speech import (  # noqa: E402
    MAX_WORDS,
    SPLITS,
    TIMBRES,
    WORDS,
    make_corpus,
    require_voices,
    sentence,
    sentences,
    speakers,
)
from jasper_pt.audio import audio_info, read_audio  # noqa: E402
from jasper_pt.manifest import Utterance, check_files, read_manifest  # noqa: E402
from runkit.errors import UserError  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"train": 70, "dev": 6, "test": 12}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    make_corpus(folder, SIZES, seed=3, n_processes=2)
    return folder


def utterances(corpus: Path, split: str) -> list[Utterance]:
    return read_manifest(corpus / f"librispeech-{split}-wav.json")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -------------------------------------------------------------------------------------------------------- sentences


def test_sentences_of_the_grammar():
    made = sentences(3000, seed=1)
    assert len(set(made)) == 3000 and made == sentences(3000, seed=1) != sentences(3000, seed=2)
    assert all(2 <= len(text.split()) <= MAX_WORDS for text in made)
    assert set("".join(made)) == set(" abcdefghijklmnopqrstuvwxyz'")
    words = {word for text in made for word in text.split()}
    assert 150 <= len(words) <= 200
    known = {word for line in WORDS.values() for word in line.split()}
    assert known <= words  # no dead entry in the table
    # What a model sees in a default corpus, it sees more than once.
    counts = [sum(word in text.split() for text in made[:2000]) for word in words - {"an"}]
    assert min(counts) >= 8


def test_too_many_sentences_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(embedded_speech.RULES, "Sentence", ["Subject Smiled"])
    monkeypatch.setitem(embedded_speech.RULES, "Subject", ["Name"])
    assert len(sentences(140, seed=0)) == 140
    with pytest.raises(UserError, match="ask for fewer"):
        sentences(141, seed=0)


def test_articles():
    made = [sentence(random.Random(i)) for i in range(4000)]
    assert any(" an empty " in text for text in made)
    assert not any(re.search(r"\ba [aeiou]|\ban [^aeiou]", text) for text in made)


def test_words_that_sound_alike_are_not_in_it():
    words = {word for line in WORDS.values() for word in line.split()}
    for pair in ("two to too", "four for", "eight ate", "red read", "blue blew", "one won", "nine nein", "we wee"):
        assert len(words & set(pair.split())) <= 1


# ----------------------------------------------------------------------------------------------------------- voices


def test_no_timbre_is_in_two_splits():
    timbres = [timbre for split in SPLITS for timbre in TIMBRES[split]]
    assert len(timbres) == len(set(timbres))
    require_voices()
    for split in SPLITS:
        made = speakers(split, seed=0)
        assert len({speaker.voice for speaker in made}) == len(made) == 2 * len(TIMBRES[split])
        assert {speaker.voice.partition("+")[2] for speaker in made} == set(TIMBRES[split])
    keys = [speaker.key for split in SPLITS for speaker in speakers(split, seed=0)]
    assert len(keys) == len(set(keys))


def test_a_missing_voice_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TIMBRES, "dev", ["m2", "Nobody"])
    with pytest.raises(UserError, match="no voices Nobody"):
        require_voices()


def test_a_failing_process_is_reported(tmp_path: Path):
    reading = embedded_speech.Reading(speakers("dev", 0)[0]._replace(voice="no-such-language"), ["hello"], tmp_path, 0)
    with pytest.raises(UserError, match="reading as no-such-language failed"):
        embedded_speech.read_all([reading], n_processes=1)


# ----------------------------------------------------------------------------------------------------------- corpus


def test_times_of_words(corpus: Path):
    """They are in order, and begin and end with the speech (a stop is closed, hence silent, at first)."""
    times: dict[str, list[tuple[str, float, float]]] = {}
    for path in sorted(corpus.rglob("*.ctm")):
        for line in path.read_text().splitlines():
            key, channel, start, duration, word = line.split()
            assert channel == "1"
            times.setdefault(key, []).append((word, float(start), float(start) + float(duration)))
    for split in SPLITS:
        for utterance in utterances(corpus, split):
            words = times.pop(utterance.audio_path.stem)
            assert " ".join(word.replace("_", " ") for word, _, _ in words) == utterance.transcript
            samples = read_audio(utterance.audio_path)
            edges = [edge for _, start, end in words for edge in (start, end)]
            assert all(b > a - 0.0011 for a, b in itertools.pairwise(edges))  # written to 1 ms
            loud = np.flatnonzero(np.abs(samples) > 0.05 * np.abs(samples).max()) / 16000
            assert -0.01 < loud[0] - edges[0] < 0.12 and -0.03 < edges[-1] - loud[-1] < 0.12
            assert 0.05 <= edges[0] <= 0.26 and edges[-1] <= utterance.duration - 0.04
    assert not times


def test_layout_and_splits(corpus: Path):
    seen: set[str] = set()
    voices: set[str] = set()
    for split, size in SIZES.items():
        found, report = check_files(utterances(corpus, split))
        assert len(found) == size and report.lines() == []
        texts = {utterance.transcript for utterance in found}
        assert len(texts) == size and not texts & seen
        seen |= texts
        ids = {utterance.audio_path.parts[-3] for utterance in found}
        assert len(ids) == min(size, 2 * len(TIMBRES[split])) and not ids & voices
        voices |= ids
        for utterance in found:
            speaker, chapter, name = utterance.audio_path.parts[-3:]
            assert re.fullmatch(rf"{speaker}-{chapter}-\d{{4}}\.flac", name)
            assert utterance.audio_path.parts[-4] == split
    rows = [line.split(" | ") for line in (corpus / "SPEAKERS.TXT").read_text().splitlines()[1:]]
    assert {row[0] for row in rows} == voices


def test_sound_by_numbers(corpus: Path):
    for split in SPLITS:
        for utterance in utterances(corpus, split):
            info = audio_info(utterance.audio_path)
            assert (info.sample_rate, info.channels, info.encoding) == (16_000, 1, "FLAC PCM_16")
            samples = read_audio(utterance.audio_path)
            assert 0.5 < info.duration < 6
            assert 0.24 < np.abs(samples).max() < 0.91  # loud enough, and not clipped
            assert (np.abs(samples) > 0.999).sum() == 0
            level = np.sqrt(np.mean(samples.reshape(-1)[: len(samples) // 160 * 160].reshape(-1, 160) ** 2, axis=1))
            assert level[:4].max() < 0.01 and level[-4:].max() < 0.01  # pauses around it
            assert level.min() > 1e-5  # with room noise, so that no frame is digital silence
            assert (level > 0.01).mean() > 0.3  # and speech between them
            assert 5 < len(utterance.transcript) / info.duration < 30  # letters a second


def test_the_same_seed_gives_the_same_bytes(corpus: Path, tmp_path: Path):
    make_corpus(tmp_path / "again", SIZES, seed=3, n_processes=1)
    assert tree(tmp_path / "again") == tree(corpus)


def test_what_is_made_is_kept(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = tmp_path / "speech"
    sizes = {"train": 3, "dev": 1, "test": 2}
    make_corpus(folder, sizes)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    make_corpus(folder, sizes)
    assert "up to date" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    next(folder.rglob("*.flac")).unlink()
    make_corpus(folder, sizes)
    assert {path.relative_to(folder) for path in before} == {path.relative_to(folder) for path in folder.rglob("*")}
    make_corpus(folder, sizes | {"dev": 4})
    assert len(utterances(folder, "dev")) == 4
    # A run that was stopped leaves a record without files, and is begun anew.
    record = json.loads((folder / "stage.json").read_text())
    (folder / "stage.json").write_text(json.dumps(record | {"files": {}}))
    make_corpus(folder, sizes)
    assert len(utterances(folder, "dev")) == 1


def test_other_folders_are_left_alone(tmp_path: Path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="was not made here"):
        make_corpus(tmp_path, {"train": 1, "dev": 1, "test": 1})
    assert tree(tmp_path) == {"train/mine.txt": b"precious"}


def test_command_line(tmp_path: Path):
    def call(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "data.embedded_speech", "--output_dir", str(tmp_path / "out"), *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = call("--train", "4", "--dev", "2", "--test", "2", "--seed", "5")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert len(utterances(tmp_path / "out", "train")) == 4
    failed = call("--train", "0")
    assert failed.returncode == 2 and "at least 1" in failed.stderr


# -------------------------------------------------------------------------------------------------- another alphabet
def test_russian_sentences_and_speech(tmp_path: Path):
    made = sentences(3000, seed=1, language="ru")
    assert len(set(made)) == 3000 and all(2 <= len(text.split()) <= MAX_WORDS for text in made)
    letters = set("".join(made))
    assert letters <= set(" абвгдежзийклмнопрстуфхцчшщъыьэюяё") and len(letters) == 33  # ъ is in none of the words
    grammar = embedded_speech.GRAMMARS["ru"]
    words = {word for text in made for word in text.split()}
    assert {word for line in grammar.words.values() for word in line.split()} <= words

    sizes = {"train": 3, "dev": 1, "test": 1}
    make_corpus(tmp_path, sizes, language="ru")
    found, report = check_files(utterances(tmp_path, "train"))
    assert len(found) == 3 and report.lines() == []
    assert {u.transcript for u in found} <= set(sentences(5, 0, "ru"))
    assert "| ru+" in (tmp_path / "SPEAKERS.TXT").read_text(encoding="utf-8")
    assert all(u.duration > 0.6 for u in found)
