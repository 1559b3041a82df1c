"""The command that transcribes: sources, display, files that cannot be read."""

import contextlib
import io
import os
import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from jasper_pt import checkpoint, transcribe
from jasper_pt.model import build_model
from jasper_pt.streaming import Update
from jasper_pt.transcript import Word
from runkit.errors import UserError
from tests.jasper_pt.test_streaming import RATE, config, hears_tones, say


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A training folder with two checkpoints, the newer of which counts."""
    folder = tmp_path_factory.mktemp("training")
    chosen = config(normalize=None)
    weights = build_model(chosen).state_dict()
    for age, name in ((100, "QuartzNet_epoch1_checkpoint.pt"), (0, "QuartzNet_epoch2_checkpoint.pt")):
        contents = {"state_dict": weights, "ema_state_dict": None, "config": chosen.to_dict()}
        checkpoint.write(folder / name, contents)
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    return folder


@pytest.fixture
def tones(monkeypatch):
    """The network hears tones, so that what is said is known."""
    monkeypatch.setattr("jasper_pt.recognizer.evaluation_form", lambda *_: hears_tones)


def test_files_and_their_transcripts(model, tones, tmp_path, capsys):
    soundfile.write(tmp_path / "one.wav", say("abc de"), RATE)
    soundfile.write(tmp_path / "two.flac", say("cab,bad"), RATE)
    (tmp_path / "broken.wav").write_bytes(b"RIFF nothing")
    code = transcribe.main(
        [str(tmp_path), "--cpu", "--model", str(model), "--output_format", "txt", "ctm", "-o", str(tmp_path / "out")]
    )
    shown = capsys.readouterr()
    assert code == 3
    assert shown.out.splitlines() == ["abc de", "cab", "bad"]  # a line a pause
    assert "QuartzNet_epoch2_checkpoint.pt" in shown.err
    assert "broken.wav" in shown.err and "1 of 3 audio files could not be read" in shown.err
    assert (tmp_path / "out" / "one.txt").read_text() == "abc de\n"
    assert [line.split()[4] for line in (tmp_path / "out" / "two.ctm").read_text().splitlines()] == ["cab", "bad"]


def wav(samples: np.ndarray, width: int, channels: int = 1) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((channels, width, RATE, 0, "NONE", ""))
        scale = {1: 127, 2: 32767, 4: 2**31 - 200}[width]
        values = np.round(samples.astype(np.float64) * scale)
        values = (values + 128).astype(np.uint8) if width == 1 else values.astype(f"<i{width}")
        file.writeframes(np.repeat(values[:, None], channels, 1).tobytes())
    return stream.getvalue()


def float_wav(samples: np.ndarray) -> bytes:
    data = samples.astype("<f4").tobytes()
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, RATE, RATE * 4, 4, 32)
    junk = b"LIST" + (4).to_bytes(4, "little") + b"abcd"
    return b"RIFF" + bytes(4) + b"WAVE" + junk + head + b"data" + b"\xff\xff\xff\xff" + data  # as a pipe writes it


@pytest.mark.parametrize(
    "content",
    [
        (say("abc de") * 32767).astype("<i2").tobytes(),
        wav(say("abc de"), 1),
        wav(say("abc de"), 2, channels=2),
        wav(say("abc de"), 4),
        float_wav(say("abc de")),
    ],
    ids=["raw", "wav8", "stereo", "wav32", "float"],
)
def test_stdin(content: bytes, model, tones, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert transcribe.main(["-", "--cpu", "--model", str(model), "--memory", "0"]) == 0
    assert capsys.readouterr().out == "abc de\n"


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "stdin: is empty"),
        (b"RIFFxxxxWAVE", "ends before its samples"),
        (b"RIFFxxxxWAVEdata\0\0\0\0", "unusual format"),
        (float_wav(np.full(100, np.nan)), "NaN"),
    ],
)
def test_streams_that_are_none(content: bytes, message: str):
    with pytest.raises(UserError, match=message):
        list(transcribe.read_stream(io.BytesIO(content), RATE)[1])


def test_an_interrupt_ends_with_the_last_words(model, tones, monkeypatch, capsys):
    def heard(_rate):
        def pieces():
            yield from np.array_split(say("abc de"), 20)
            raise KeyboardInterrupt

        return contextlib.nullcontext(pieces())

    monkeypatch.setattr(transcribe, "microphone", heard)
    assert transcribe.main(["--microphone", "--cpu", "--model", str(model)]) == 0
    assert capsys.readouterr().out == "abc de\n"


def test_without_a_microphone_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(UserError, match="needs the package sounddevice"), transcribe.microphone(RATE):
        pass


def test_a_terminal_shows_what_may_still_change():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    display = transcribe.Display(stream)
    display.show(Update((), "hel"))
    display.show(Update((Word("hello", 0.0, 0.4, 1.0),), "wor"))
    display.show(Update((Word("world", 0.5, 0.9, 1.0), Word("again", 3.0, 3.4, 1.0)), ""))
    display.end_line()
    written = stream.getvalue()
    assert "hello \x1b[2mwor\x1b[0m" in written
    lines = [line.split("\r\x1b[K")[-1] for line in written.split("\n")]
    assert lines == ["hello world", "again", ""]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "name files"),
        (["a.wav", "--microphone"], "one of the two"),
        (["-", "a.wav"], "cannot stand beside files"),
        (["-", "--rate", "10"], "--rate 10"),
        (["nowhere.wav"], "no such file or folder"),
        (["-", "--chunk", "0", "--model", "x"], "chunk, left and right"),
    ],
)
def test_what_is_refused(words: list[str], message: str):
    with pytest.raises(UserError, match=message):
        transcribe.main([*words])


def test_models_that_are_not_there(tmp_path: Path, monkeypatch):
    with pytest.raises(UserError, match="no folder with a checkpoint"):
        checkpoint.find_model(str(tmp_path))
    monkeypatch.setattr(checkpoint, "RESULTS", tmp_path)
    with pytest.raises(UserError, match="give --model, or run"):
        checkpoint.find_model(None)
