"""Windows stitched to what one pass gives, and words that are final in time and never lost."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from jasper_pt.audio import audio_blocks, read_audio
from jasper_pt.config import load_config, parse_config
from jasper_pt.features import LogMel
from jasper_pt.model import build_model
from jasper_pt.streaming import (
    FILE,
    STREAM,
    FeatureStream,
    LogProbStream,
    Stream,
    Windows,
    file_statistics,
    transcribe_file,
)
from runkit.errors import UserError

RATE = 16000
LABELS = [" ", "a", "b", "c", "d", "e"]
TONES = {"a": 500, "b": 900, "c": 1500, "d": 2400, "e": 3700}  # Hz
LETTER, GAP, BREAK, SILENCE = 0.12, 0.06, 0.12, 1.0  # s


def config(**features):
    """The embedded corpus's small QuartzNet, with other labels."""
    raw = load_config("quartznet_quickstart").to_dict() | {"labels": LABELS}
    raw["input_val"]["filterbank_features"] |= features
    return parse_config(raw)


def hears_tones(features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """A stand-in for a model: every second frame, the label of the tone in it; short silence is " ", long none.

    It looks at 13 frames on either side, as a model looks at its receptive field.
    """
    front = LogMel(config().input_val.features)
    bins = [int(front.fb[:, round(hz * 512 / RATE)].argmax()) for hz in TONES.values()]
    x = features[0].clamp(min=-12)
    loud = torch.stack([x[max(0, b - 1) : b + 2].amax(0) for b in bins])  # [5, T]
    best = loud.argmax(0) + 1
    best[loud.amax(0) < -6] = 0  # silence
    labels = torch.full((x.shape[1],), len(LABELS))
    for frame in range(x.shape[1]):
        around = best[max(0, frame - 13) : frame + 14]
        if best[frame]:
            labels[frame] = best[frame]
        elif (best[max(0, frame - 4) : frame + 5] == 0).all() and around[:13].any() and around[14:].any():
            labels[frame] = 0  # a break between two words
    scores = torch.full((x.shape[1], len(LABELS) + 1), -9.0)
    scores[torch.arange(len(labels)), labels] = 0.0
    return scores[::2].log_softmax(-1)[None], -(-lengths // 2)


def say(text: str) -> np.ndarray:
    """Words as tones; "," is a long silence."""
    pieces = [np.zeros(int(0.3 * RATE))]
    for letter in text:
        if letter in TONES:
            time = np.arange(int(LETTER * RATE)) / RATE
            pieces += [0.3 * np.sin(2 * np.pi * TONES[letter] * time), np.zeros(int(GAP * RATE))]
        else:
            pieces.append(np.zeros(int((SILENCE if letter == "," else BREAK) * RATE)))
    return np.concatenate([*pieces, np.zeros(int(0.05 * RATE))]).astype(np.float32)


def pieces_of(samples: np.ndarray, rng: np.random.Generator, longest: int) -> list[np.ndarray]:
    cuts = np.cumsum(rng.integers(1, longest, 1 + 2 * len(samples) // longest))
    return np.split(samples, cuts[cuts < len(samples)])


# ----------------------------------------------------------------------------------------------------------- features
@pytest.mark.parametrize("length", [1, 161, 319, 5000, 16000, 40013])
@pytest.mark.parametrize("longest", [100, 3000])
def test_frames_of_pieces_are_those_of_the_whole(length: int, longest: int):
    rng = np.random.default_rng(length)
    samples = rng.normal(size=length).astype(np.float32) * 0.1
    front = LogMel(config().input_val.features)
    stream = FeatureStream(front)
    parts = [stream.feed(piece) for piece in pieces_of(samples, rng, longest)] + [stream.finish()]
    mel = front.mel_energies(torch.from_numpy(samples)[None], torch.tensor([length]))[0]
    expected = (mel + front.config.log_guard).log()
    together = torch.cat(parts, 1)
    assert together.shape == expected.shape
    torch.testing.assert_close(together, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("normalize", ["per_feature", "all_features", None])
def test_statistics_of_a_file_are_those_of_its_features(normalize):
    rng = np.random.default_rng(0)
    samples = rng.normal(size=30000).astype(np.float32) * np.linspace(0.001, 0.5, 30000, dtype=np.float32)
    front = LogMel(config(normalize=normalize, pad_align=1).input_val.features)
    found = file_statistics(np.split(samples, [7000, 7001, 25000]), front)
    mel = front.mel_energies(torch.from_numpy(samples)[None], torch.tensor([30000]))
    expected, _ = front.normalize(mel, torch.tensor([mel.shape[2]]))
    x = (mel + front.config.log_guard).log()[0]
    torch.testing.assert_close(x if found is None else found.normalise(x), expected[0], atol=1e-4, rtol=1e-4)
    assert (found is None) == (normalize is None)
    if normalize:
        with pytest.raises(UserError, match="no sound"):
            file_statistics([np.zeros(0, np.float32)], front)


# -------------------------------------------------------------------------------------------------- log-probabilities
@pytest.mark.parametrize("quiet", [False, True])
def test_stitched_log_probabilities_are_those_of_one_pass(quiet: bool):
    """With context that covers half the receptive field, and the statistics of the whole."""
    torch.manual_seed(0)
    chosen = config()
    model = build_model(chosen).eval()
    model.decoder.layers[0].weight.data *= 100  # fresh weights put out much the same everywhere
    samples = np.random.default_rng(1).normal(size=20 * RATE).astype(np.float32) * 0.1
    samples[5 * RATE : 6 * RATE] *= 0.01
    front = LogMel(chosen.input_val.features)
    half = model.receptive_field / 2 / 100
    windows = Windows(chunk=3.1, left=half, right=half, quiet=quiet)

    @torch.inference_mode()
    def forward(features, lengths):
        return model(features, lengths)

    expected, lengths = forward(*front(torch.from_numpy(samples)[None], torch.tensor([len(samples)])))
    statistics = file_statistics([samples], front)
    stream = LogProbStream(forward, front, model.stride, windows, statistics)
    parts = [stream.feed(piece) for piece in pieces_of(samples, np.random.default_rng(2), 50000)] + [stream.finish()]
    together = torch.cat([part for part in parts if len(part)])
    assert len(together) == lengths[0] == 1000
    torch.testing.assert_close(together, expected[0], atol=5e-3, rtol=0)
    assert sum(len(part) > 0 for part in parts) > 3  # not all at the end
    less = Windows(chunk=3.1, left=0.1, right=0.1)  # and without that context it is not
    stream = LogProbStream(forward, front, model.stride, less, statistics)
    other = torch.cat([part for part in (stream.feed(samples), stream.finish()) if len(part)])
    assert (other - expected[0]).abs().max() > 0.05


# -------------------------------------------------------------------------------------------------------------- words
def streamed(text: str, windows: Windows, rng: np.random.Generator, longest: int, cut: int | None = None):
    """(transcript, all updates) of the text said in random pieces."""
    stream = Stream(hears_tones, config(normalize=None), 2, windows)
    updates = [stream.feed(piece) for piece in pieces_of(say(text)[:cut], rng, longest)]
    return stream.finish(), updates


def test_the_last_word_is_never_lost():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(TONES), rng.integers(2, 5))) for _ in range(20)]
    words = [
        "".join(letter for letter, before in zip(word, " " + word, strict=False) if letter != before) for word in words
    ]
    for case in range(20):
        text = words[: 1 + case % 7]
        joined = "".join(word + (", " if rng.random() < 0.3 else " ") for word in text[:-1]) + text[-1]
        windows = Windows(chunk=rng.uniform(0.1, 1.0), left=rng.uniform(0.2, 1), right=rng.uniform(0.2, 0.6))
        transcript, updates = streamed(joined, windows, rng, int(rng.integers(200, 20000)))
        assert transcript.text.split() == text, (joined, windows)
        final = [word.text for update in updates for word in update.words]
        assert final == text[: len(final)]  # what was final never changed
        assert [word.start for word in transcript.words] == sorted(word.start for word in transcript.words)
        assert transcript.words[-1].end <= transcript.duration == pytest.approx(len(say(joined)) / RATE)


def test_words_are_final_within_the_latency():
    """Behind a pause, at the latest when it, a chunk and the context have been heard."""
    stream = Stream(hears_tones, config(normalize=None), 2, STREAM)
    samples = say("abc,de,cab,e")
    known: dict[str, float] = {}
    for start in range(0, len(samples), 800):
        update = stream.feed(samples[start : start + 800])
        for word in update.words:
            known[word.text] = stream.heard
    transcript = stream.finish()
    assert transcript.text == "abc de cab e"
    ends = {word.text: word.end for word in transcript.words}
    for word in ("abc", "de"):
        assert 0 < known[word] - ends[word] <= STREAM.latency + 0.6
    for word in transcript.words:  # their times are where they were put
        assert word.end - word.start == pytest.approx(len(word.text) * (LETTER + GAP) - GAP, abs=0.1)


def test_pending_words_show_before_they_are_final():
    _, updates = streamed("abc dea", Windows(0.2, 0.4, 0.3), np.random.default_rng(0), 2000)
    pending = [update.pending for update in updates if update.pending]
    assert "a" in pending[0]
    assert any(text.startswith("abc d") for text in pending)


def test_long_speech_without_a_pause_is_cut_between_words():
    words = ["abc", "de", "cad", "be"] * 20  # three quarters of a minute
    transcript, updates = streamed(" ".join(words), Windows(1.0, 0.5, 0.5), np.random.default_rng(0), 16000)
    assert transcript.text.split() == words
    assert max(len(update.words) for update in updates) > 10  # they came before the end


def test_streams_are_separate_and_end_once():
    first, second = (Stream(hears_tones, config(normalize=None), 2) for _ in range(2))
    first.feed(say("abc"))
    second.feed(say("de"))
    assert first.finish().text == "abc" and second.finish().text == "de"
    assert first.finish().text == "abc"
    with pytest.raises(ValueError, match="this stream has ended"):
        first.feed(say("a"))
    with pytest.raises(ValueError, match="one channel"):
        Stream(hears_tones, config(), 2).feed(np.zeros((10, 2), np.float32))
    assert Stream(hears_tones, config(normalize=None), 2).finish().text == ""


@pytest.mark.parametrize("rate", [8000, 44100])
def test_other_rates_are_resampled(rate: int):
    import soxr

    stream = Stream(hears_tones, config(normalize=None), 2, sample_rate=rate)
    samples = soxr.resample(say("abc de"), RATE, rate)
    for piece in np.array_split(samples, 30):
        stream.feed(piece)
    transcript = stream.finish()
    assert transcript.text == "abc de"
    assert transcript.duration == pytest.approx(len(samples) / rate)


def test_windows_are_checked():
    for wrong in ({"chunk": 0}, {"left": -1}, {"right": float("nan")}, {"memory": float("inf")}):
        with pytest.raises(UserError, match=r"chunk, left and right|memory is"):
            Windows(**{"chunk": 1.0, "left": 1.0, "right": 1.0, **wrong})


# -------------------------------------------------------------------------------------------------------------- files
@pytest.mark.parametrize("rate, kind", [(16000, "FLAC"), (22050, "WAV"), (16000, "OGG")])
def test_blocks_are_the_file(tmp_path: Path, rate: int, kind: str):
    samples = np.random.default_rng(0).normal(size=(3 * rate + 17, 2)) * 0.1
    path = tmp_path / f"a.{kind.lower()}"
    soundfile.write(path, samples, rate)
    together = np.concatenate(list(audio_blocks(path, seconds=0.7)))
    whole = read_audio(path)
    assert abs(len(together) - len(whole)) <= 2
    shorter = min(len(together), len(whole))
    np.testing.assert_allclose(together[:shorter], whole[:shorter], atol=1e-4 if rate == RATE else 2e-3)


def test_a_cut_off_file_is_named(tmp_path: Path):
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).normal(size=60000) * 0.1, RATE)
    path.write_bytes(path.read_bytes()[:40000])
    with pytest.raises(UserError, match=r"a\.flac"):
        list(audio_blocks(path, seconds=0.5))


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_in_windows(tmp_path: Path, whole: bool):
    words = ["abc", "de", "cad", "be"] * 12
    path = tmp_path / "long.wav"
    text = " ".join(word + ("," if i % 3 == 2 else "") for i, word in enumerate(words))
    soundfile.write(path, say(text), RATE)
    updates = []
    windows = Windows(chunk=4.0, left=1.0, right=1.0, quiet=True)
    transcript = transcribe_file(path, hears_tones, config(normalize=None), 2, windows, whole, on_update=updates.append)
    assert transcript.text.split() == words
    assert [word for update in updates for word in update.words] == list(transcript.words)
    assert transcript.source == str(path)
    assert FILE.quiet and FILE.chunk >= 10
