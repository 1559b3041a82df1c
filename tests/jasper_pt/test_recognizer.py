"""recognizer.py and jasper_pt.load: a small network that reads tones, asked from Python."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import jasper_pt
from jasper_pt import checkpoint, recognizer
from jasper_pt.decode import Tokens, greedy_tokens
from jasper_pt.metrics import character_errors
from jasper_pt.streaming import Windows
from jasper_pt.transcript import Transcript
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
RATE, TONE = 16000, 0.12  # as conftest.py makes them: Hz; seconds a letter or blank
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def reader(trained):
    return jasper_pt.load(trained, device="cpu")


@pytest.fixture(scope="module")
def spoken(corpus):
    """(file, words) of all utterances."""
    rows = map(json.loads, (corpus / "all.json").read_text().splitlines())
    return [(corpus / row["audio_filepath"], row["text"]) for row in rows]


def word_times(text):
    """(word, start, end) of the tones."""
    return [(match[0], match.start() * TONE, match.end() * TONE) for match in re.finditer(r"\S+", text)]


def test_importing_the_package_brings_no_pytorch():
    script = "import sys, jasper_pt; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


# --------------------------------------------------------------------------------------------------------- transcribe
def test_texts_and_times(reader, spoken):
    for path, text in spoken:
        transcript = reader.transcribe(path)
        assert isinstance(transcript, Transcript)
        assert transcript.text == text and transcript.source == str(path)
        assert transcript.duration == pytest.approx(len(text) * TONE)
        assert 0.5 < transcript.confidence <= 1
        for word, (expected, start, end) in zip(transcript.words, word_times(text), strict=True):
            assert word.text == expected
            assert abs(word.start - start) < 0.08 and abs(word.end - end) < 0.08
        assert "".join(character.text for character in transcript.characters) == text.replace(" ", "")


def test_every_form_of_audio(reader, spoken):
    path, text = spoken[0]
    samples, _ = soundfile.read(path)
    pcm = np.rint(samples * 32767).astype(np.int16)
    at_8k = samples.reshape(-1, 2).mean(1)
    forms = [
        str(path),
        path.read_bytes(),
        samples,
        samples.astype(np.float32),
        torch.tensor(samples),
        pcm,
        (pcm.astype(np.int32) << 16),
        np.stack([samples, samples], axis=1),
        (at_8k, 8000),
        (np.repeat(samples, 2), 32000),
    ]
    assert [transcript.text for transcript in reader.transcribe(forms)] == [text] * len(forms)
    assert reader.transcribe(at_8k, 8000).text == reader.transcribe(at_8k, sample_rate=8000).text == text
    assert np.array_equal(samples, soundfile.read(path)[0])  # nothing was written into


def test_a_list_is_the_same_whatever_the_batches(reader, spoken):
    paths = [path for path, _ in spoken]
    alone = [reader.transcribe(path) for path in paths]
    for size in (1, 5, 100):
        together = reader.transcribe(paths, batch_size=size)
        assert [each.text for each in together] == [text for _, text in spoken]
        for a, b in zip(alone, together, strict=True):
            assert [word.start for word in a.words] == [word.start for word in b.words]
            assert a.confidence == pytest.approx(b.confidence, abs=1e-4)
    assert reader.transcribe([]) == []


@pytest.mark.parametrize(
    "audio, message",
    [
        ("nowhere.wav", "nowhere.wav"),
        (np.zeros(0), "no samples"),
        (np.zeros((2, 3, 4)), r"shape \[2, 3, 4\]"),
        (np.zeros((2, 16000)), r"give \[samples\] or \[samples, channels\]"),
        (np.full(100, np.nan), "NaN"),
        (np.zeros(100, np.uint8), "type uint8"),
        (np.array(["a"]), "samples of type"),
        ((np.zeros(100), 3), "sample rate of 3 Hz"),
        (b"", "is empty"),
        (b"no sound", "in no sound format"),
    ],
)
def test_bad_audio(reader, audio, message):
    with pytest.raises(UserError, match=message):
        reader.transcribe(audio)


def test_bad_batch_size(reader):
    with pytest.raises(UserError, match="batch_size is 0"):
        reader.transcribe([], batch_size=0)


def test_a_decoder_of_ones_own(trained, spoken):
    seen = []

    def first_only(log_probs, lengths):
        seen.append((tuple(log_probs.shape), lengths.tolist()))
        return [Tokens(*(values[:1] for values in tokens)) for tokens in greedy_tokens(log_probs, lengths)]

    path, text = spoken[0]
    assert jasper_pt.load(trained, "cpu", decoder=first_only).transcribe(path).text == text[0]
    frames = math.ceil(len(text) * TONE / 0.02)
    assert seen == [((1, frames, 6), [frames])]


# ---------------------------------------------------------------------------------------------------------- long audio
def test_long_audio_in_windows(reader, spoken, monkeypatch):
    pause = 1e-3 * np.random.default_rng(0).standard_normal(round(TONE * RATE))
    samples = np.concatenate([part for path, _ in spoken for part in (soundfile.read(path)[0], pause)])
    text = " ".join(text for _, text in spoken)
    monkeypatch.setattr(recognizer, "WHOLE_SECONDS", 2.0)
    monkeypatch.setattr(recognizer, "BLOCK_SECONDS", 0.7)
    monkeypatch.setattr(recognizer, "FILE", Windows(chunk=2.5, left=1.0, right=1.0, quiet=True))
    for end in (len(samples), len(samples) - 1, 5 * RATE // 2, 5 * RATE // 2 + 1):
        parts = reader.log_probs(samples[:end])
        assert len(parts) == math.ceil(math.ceil(end / 160) / 2)
    # The network was not trained on such pauses, and takes some for no blank.
    heard = reader.transcribe(samples, batch_size=3).text
    assert character_errors([text.replace(" ", "")], [heard.replace(" ", "")]).wer < 0.05
    aligned = reader.align(samples, text)
    for word, (expected, start, end) in zip(aligned.words, word_times(text), strict=True):
        assert word.text == expected and abs(word.start - start) < 0.1 and abs(word.end - end) < 0.1


def test_trimmed_silence_counts_in_times(trained, spoken, tmp_path):
    contents = checkpoint.read(trained)
    contents["config"]["input_val"]["audio_dataset"]["trim_silence"] = True
    checkpoint.write(tmp_path / "trimming.pt", contents)
    trimming = jasper_pt.load(tmp_path / "trimming.pt", "cpu")
    path, text = spoken[0]
    silence = 1e-4 * np.random.default_rng(0).standard_normal(RATE)
    samples = np.concatenate([silence, soundfile.read(path)[0], silence])
    transcript = trimming.transcribe(samples)
    assert transcript.duration == pytest.approx(2 + len(text) * TONE)
    assert abs(transcript.words[0].start - 1) < 0.08
    for word, (_, start, end) in zip(trimming.align(samples, text).words, word_times(text), strict=True):
        assert abs(word.start - 1 - start) < 0.08 and abs(word.end - 1 - end) < 0.08
    assert len(trimming.log_probs(samples)) < 2.5 / 0.02 < 3 / 0.02


# --------------------------------------------------------------------------------------------------------------- align
def test_alignment_of_what_was_said(reader, spoken):
    for path, text in spoken:
        given = text.upper().replace(" ", ", ") + "!"
        transcript = reader.align(path, given)
        assert transcript.text == given and [word.text for word in transcript.words] == given.split()
        for word, (_, start, end) in zip(transcript.words, word_times(text), strict=True):
            assert abs(word.start - start) < 0.08 and abs(word.end - end) < 0.08


def test_what_was_not_said_has_a_low_confidence(reader, spoken):
    path, text = spoken[0]
    wrong = text.translate(str.maketrans("abcd", "bcda"))
    assert reader.align(path, wrong).confidence < 0.2 < 0.5 < reader.align(path, text).confidence


@pytest.mark.parametrize(
    "text, message",
    [
        ("ab xz ξ", r"no label for: 'x' x 1, 'z' x 1, 'ξ' x 1; its labels are ' abcd'"),
        ("", "no words to align"),
        ("- !", "no words to align"),
        ("ab " * 40, r"too long for the audio: its 119 labels need 119 frames of 20 ms, and there are 30"),
        ("aaaaaaaaaaaaaaaaaaaa", r"its 20 labels need 39 frames of 20 ms, and there are 30"),
    ],
)
def test_texts_that_cannot_be_aligned(reader, spoken, text, message):
    path, _ = spoken[0]
    with pytest.raises(UserError, match=message) as caught:
        reader.align(path, text)
    assert str(path) in str(caught.value)


# --------------------------------------------------------------------------------------------------------------- load
def test_averaged_weights_unless_not_wanted(trained):
    contents = checkpoint.read(trained)
    audio = np.random.default_rng(0).standard_normal(RATE)
    averaged, raw = (jasper_pt.load(trained, "cpu", ema=ema).log_probs(audio) for ema in (True, False))
    assert contents["ema_state_dict"] and not torch.allclose(averaged, raw)


def test_what_cannot_be_loaded(trained, tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        jasper_pt.load(tmp_path / "none.pt")
    contents = checkpoint.read(trained)
    del contents["config"]
    checkpoint.write(tmp_path / "bare.pt", contents)
    with pytest.raises(UserError, match=r"bare\.pt holds no configuration"):
        jasper_pt.load(tmp_path / "bare.pt")
    with pytest.raises(UserError, match="precision 'fp8' is unknown"):
        jasper_pt.load(trained, "cpu", precision="fp8")


# ------------------------------------------------------------------------------------------------ threads and memory
def test_threads_at_a_time(reader, spoken):
    expected = {path: text for path, text in spoken}
    wrong = []

    def ask(offset):
        for i in range(20):
            path, _ = spoken[(offset + i) % len(spoken)]
            found = reader.transcribe(path) if i % 2 else reader.align(path, expected[path])
            if found.text != expected[path]:
                wrong.append((path, found.text))

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_does_not_grow(reader, spoken):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def ask(times):
        for i in range(times):
            path, text = spoken[i % len(spoken)]
            reader.transcribe(path)
            reader.align(path, text)

    ask(60)
    before = resident()
    ask(300)
    assert resident() - before < 4e6  # a leaked result, of 30 frames, would be small; a leaked activation is not


# ----------------------------------------------------------------------------------------------------------- the page
def test_the_examples_of_the_page(trained, spoken, tmp_path, monkeypatch, capsys):
    """Runs all Python of docs/python_api.md, in order, beside files of the names it uses."""
    page = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "results").mkdir()
    shutil.copy(trained, tmp_path / "results" / "QuartzNet_best_checkpoint.pt")
    for name, (path, text) in zip(("speech.flac", "call.flac"), spoken, strict=False):
        samples, rate = soundfile.read(path)
        soundfile.write(tmp_path / name, samples, rate)
        (tmp_path / name).with_suffix(".txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/python_api.md", "exec"), names)
    assert names["transcript"].text == spoken[0][1]
    assert spoken[0][1] in capsys.readouterr().out
