"""jasper_pt/manifest.py: three forms of manifest, errors with their place, files compared with what is said of them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from jasper_pt.manifest import NAMES_SHOWN, Utterance, check_files, read_manifest, write_manifest
from runkit.errors import UserError

NEMO = {"audio_filepath": "a.wav", "duration": 1.0, "text": " hello "}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a.wav (1 s), b.wav (2 s)."""
    for name, seconds in (("a", 1), ("b", 2)):
        soundfile.write(tmp_path / f"{name}.wav", np.full(16_000 * seconds, 0.1), 16_000)
    return tmp_path


def lines(path: Path, *entries: dict | str) -> Path:
    texts = (entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------------- reading


def test_the_published_form(folder: Path):
    entry = {
        "transcript": " it's late ",
        "files": [
            {"fname": "a-0.9.wav", "speed": 0.9, "duration": 1.1, "sample_rate": 16000},
            {"fname": "a.wav", "speed": 1, "duration": 1.0, "sample_rate": 16000, "channels": 1},
        ],
        "original_duration": 1.0,
        "original_num_samples": 16000,
    }
    (folder / "m.json").write_text(json.dumps([entry], indent=2))
    expected = Utterance(
        audio_path=folder / "a.wav",
        transcript="it's late",
        duration=1.0,
        sample_rate=16000,
        offset=0.0,
        speeds=((folder / "a-0.9.wav", 0.9, 1.1), (folder / "a.wav", 1.0, 1.0)),
        key="a.wav",
    )
    assert read_manifest(folder / "m.json") == [expected]
    assert read_manifest(lines(folder / "m.jsonl", entry)) == [expected]  # an object a line does as well
    assert read_manifest(lines(folder / "m.jsonl", entry | {"original_duration": None})) == [expected]


def test_nemos_form(folder: Path):
    part = {"audio_filepath": "b.wav", "duration": 0.5, "text": "part", "offset": 0.25}
    first, second = read_manifest(lines(folder / "m.jsonl", NEMO, "", "  ", part))
    assert first == Utterance(folder / "a.wav", "hello", 1.0, None, 0.0, ((folder / "a.wav", 1.0, 1.0),), "a.wav")
    assert (second.offset, second.duration, second.key) == (0.25, 0.5, "b.wav@0.25")


def test_words_from_a_file(folder: Path):
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfhello\r\nthere\r\n")
    (utterance,) = read_manifest(lines(folder / "m.jsonl", {"audio_filepath": "a.wav", "text_filepath": "a.txt"}))
    assert utterance.transcript == "hello there"


def test_where_relative_paths_begin(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "lists").mkdir()
    lines(folder / "lists" / "m.jsonl", NEMO, NEMO | {"audio_filepath": "/abs/x.wav"})
    assert [u.audio_path for u in read_manifest(folder / "lists" / "m.jsonl")] == [
        folder / "lists" / "a.wav",
        Path("/abs/x.wav"),
    ]
    assert read_manifest(folder / "lists" / "m.jsonl", folder)[0].audio_path == folder / "a.wav"
    # A relative manifest is taken from the working directory, else from the data folder.
    monkeypatch.chdir(folder / "lists")
    assert len(read_manifest("m.jsonl", folder)) == 2
    monkeypatch.chdir("/")
    assert len(read_manifest("lists/m.jsonl", folder)) == 2
    with pytest.raises(UserError, match="No such file"):
        read_manifest("m.jsonl", folder)


@pytest.mark.parametrize("duration", [None, 0, 0.0, -1, "x", float("nan"), float("inf"), [], "absent"])
def test_a_duration_that_is_none_is_read_from_the_file(folder: Path, duration: object):
    entry = {key: value for key, value in NEMO.items() if key != "duration"}
    if duration != "absent":
        entry["duration"] = duration
    part = entry | {"audio_filepath": "b.wav", "offset": 0.5}
    first, second = read_manifest(lines(folder / "m.jsonl", entry, part))
    assert (first.duration, second.duration) == (1.0, 1.5)
    assert first.speeds == ((folder / "a.wav", 1.0, 1.0),)


def test_a_duration_nobody_knows_is_zero(folder: Path):
    entry = {"audio_filepath": "none.wav", "text": "x"}
    assert [u.duration for u in read_manifest(lines(folder / "m.jsonl", entry, NEMO))] == [0.0, 1.0]


def test_bom_and_crlf(folder: Path):
    (folder / "m.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(NEMO).encode() + b"\r\n\r\n")
    assert read_manifest(folder / "m.jsonl")[0].transcript == "hello"
    (folder / "m.json").write_bytes(b"\xef\xbb\xbf[\r\n" + json.dumps(NEMO).encode() + b"\r\n]\r\n")
    assert len(read_manifest(folder / "m.json")) == 1


FILES = {"transcript": "x", "original_duration": 1.0}


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"audio_filename": "a.wav", "text": "x"}, "no 'audio_filepath'; its keys are: audio_filename, text"),
        ({"audio_filepath": "a.wav"}, "no 'transcript' or 'text'"),
        ({"audio_filepath": 5, "text": "x"}, "'audio_filepath' is 5, not a string"),
        ({"audio_filepath": "a.wav", "text": None}, "'text' is null, not a string"),
        ({"audio_filepath": "a.wav", "text": "x", "offset": -2}, "'offset' is -2"),
        ({"audio_filepath": "a.wav", "text": "x", "offset": "late"}, "'offset' is 'late'"),
        (FILES | {"files": []}, "'files' is not a list of objects"),
        (FILES | {"files": ["a.wav"]}, "'files' is not a list of objects"),
        (FILES | {"files": [{"speed": 1}]}, "'files': no 'fname'; its keys are: speed"),
        (FILES | {"files": [{"fname": "a.wav", "speed": 0.9}]}, "no file of speed 1"),
        ("{'audio_filepath': 'a.wav'}", "not valid JSON: .* one JSON object a line"),
        ('{"audio_filepath": "a.wav", "text": "hello', "not valid JSON: Unterminated"),
        ('"a.wav"', "an object is wanted"),
        ("[1]", "an object is wanted"),
    ],
)
def test_errors_name_their_place(folder: Path, bad: dict | str, message: str):
    with pytest.raises(UserError, match=rf"m\.jsonl:3[:,].*{message}"):
        read_manifest(lines(folder / "m.jsonl", NEMO, "", bad, NEMO))
    if isinstance(bad, dict):
        (folder / "m.json").write_text(json.dumps([NEMO, bad]))
        with pytest.raises(UserError, match=rf"m\.json: entry 2[:,].*{message}"):
            read_manifest(folder / "m.json")


def test_broken_arrays_and_empty_manifests(folder: Path):
    with pytest.raises(UserError, match=r"m\.json:3:1: not valid JSON"):
        read_manifest(lines(folder / "m.json", "[", json.dumps(NEMO) + ",", "]"))
    for content in ("", "\n\n", "[]"):
        with pytest.raises(UserError, match="no utterances in it"):
            read_manifest(lines(folder / "m.json", content))


# -------------------------------------------------------------------------------------------------------- checking


def test_check_files(folder: Path):
    (folder / "broken.wav").write_text("no sound")
    entries = [
        NEMO,
        NEMO | {"audio_filepath": "none.wav"},
        NEMO | {"audio_filepath": "broken.wav"},
        NEMO | {"duration": 9999},
        NEMO | {"duration": 1.04},  # rounded: put right without a word
        NEMO | {"audio_filepath": "b.wav", "offset": 2.5},
        NEMO | {"audio_filepath": "b.wav", "duration": 0.5, "offset": 0.5},
        NEMO | {"audio_filepath": "b.wav", "duration": 0.5},
    ]
    kept, report = check_files(read_manifest(lines(folder / "m.jsonl", *entries)))
    assert [(u.key, u.duration) for u in kept] == [
        ("a.wav", 1.0),
        ("a.wav", 1.0),
        ("a.wav", 1.0),
        ("b.wav@0.5", 0.5),
        ("b.wav", 0.5),
    ]
    assert [key for key, _ in report.left_out] == ["none.wav", "broken.wav", "b.wav@2.5"]
    assert report.corrected == (("a.wav", 9999.0, 1.0),) and report.cut == ("b.wav",)
    text = "\n".join(report.lines())
    for part in ("3 utterances left out", "none.wav: No such file", "broken.wav: is in no sound", "shorter than the"):
        assert part in text
    assert kept[1].speeds == ((folder / "a.wav", 1.0, 1.0),)


def test_a_missing_copy_at_another_speed_is_noticed(folder: Path):
    files = [{"fname": "a-1.1.wav", "speed": 1.1}, {"fname": "a.wav", "speed": 1}]
    utterances = read_manifest(lines(folder / "m.jsonl", NEMO, FILES | {"files": files}))
    kept, report = check_files(utterances)
    assert len(kept) == 1 and "a-1.1.wav" in report.left_out[0][1]


def test_nothing_left(folder: Path):
    entries = [NEMO | {"audio_filepath": f"{i}.wav"} for i in range(NAMES_SHOWN + 5)]
    with pytest.raises(UserError) as caught:
        check_files(read_manifest(lines(folder / "m.jsonl", *entries)))
    message = str(caught.value).splitlines()
    assert message[0].startswith("no utterance") and message[-1] == "  and 5 more" and len(message) == NAMES_SHOWN + 3


# --------------------------------------------------------------------------------------------------------- writing


def test_what_is_written_is_read_back(folder: Path):
    files = [{"fname": "a.wav", "speed": 1, "duration": 1.0, "sample_rate": 16000}]
    elsewhere = NEMO | {"audio_filepath": "/abs/x.wav", "offset": 0.5, "text": "größe \u2028 x"}
    utterances = read_manifest(lines(folder / "m.jsonl", NEMO, elsewhere, FILES | {"files": files}))
    write_manifest(folder / "out.json", utterances)
    assert read_manifest(folder / "out.json") == utterances
    assert [entry["files"][0]["fname"] for entry in json.loads((folder / "out.json").read_text())] == [
        "a.wav",
        "/abs/x.wav",
        "a.wav",
    ]
    (folder / "lists").mkdir()
    write_manifest(folder / "lists" / "out.json", utterances, folder)
    assert read_manifest(folder / "lists" / "out.json", folder) == utterances
    assert not any(name.endswith(".tmp") for name in os.listdir(folder))


# ------------------------------------------------------------------------------------------------------------ cases


def test_case_a07(shared: Path):
    case = shared / "cases" / "A07"
    found = read_manifest(case / "manifest_bom_crlf.jsonl")
    assert len(found) == json.loads((case / "expected.json").read_text())["utterances"]
    assert found[0].transcript == "he was not an ill disposed young man"


def test_case_a12(shared: Path):
    case = shared / "cases" / "A12"
    for name, place in (("wrong_key", 2), ("broken_line", 3), ("single_quotes", 1)):
        with pytest.raises(UserError, match=rf"{name}\.jsonl:{place}:"):
            read_manifest(case / f"{name}.jsonl")
    with pytest.raises(UserError, match="audio_filename"):
        read_manifest(case / "wrong_key.jsonl")
    assert len(read_manifest(case / "pretty_printed.json")) == 1
    assert read_manifest(case / "no_duration.jsonl")[0].duration == 2.99
    kept, report = check_files(read_manifest(case / "bad_duration.jsonl"))
    assert [utterance.duration for utterance in kept] == [2.99] * 5 and len(report.corrected) == 1


def test_case_a13(shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    kept, report = check_files(read_manifest(shared / "cases" / "A13" / "manifest.jsonl"))
    assert len(kept) == 1 and len(report.left_out) == 2
    assert [key for key, _ in report.left_out] == [
        "LibriSpeech/dev/19/198/nothing.flac",
        "/no/such/dir/a.flac",
    ]
