"""Hostile sound files."""

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from jasper_pt.audio import audio_info, read_audio
from tests.fuzz.mutations import answer, fuzz, mutated

N = 1600
FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "float": ("WAV", "FLOAT"),
    "adpcm": ("WAV", "MS_ADPCM"),
    "wavex": ("WAVEX", "PCM_24"),
    "rf64": ("RF64", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "sphere": ("NIST", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "au": ("AU", "ULAW"),
    "caf": ("CAF", "PCM_16"),
    "w64": ("W64", "PCM_16"),
}


def sample(name: str, channels: int = 1) -> bytes:
    form, subtype = FORMATS[name]
    tones = 0.3 * np.sin(np.arange(N)[:, None] * np.linspace(0.1, 0.2, channels))
    buffer = io.BytesIO()
    soundfile.write(buffer, tones, 16000, subtype, format=form)
    return buffer.getvalue()


SAMPLES = {name: [sample(name), sample(name, 2)] for name in FORMATS}


@fuzz
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_sound_files(place, name, data):
    path = place / "sound"
    path.write_bytes(data.draw(mutated(SAMPLES[name])))
    info = answer(lambda: audio_info(path), path)
    samples = answer(lambda: read_audio(path), path)
    if samples is not None:
        assert samples.dtype == np.float32 and samples.ndim == 1 and len(samples)
        assert np.isfinite(samples).all()
        # All of what the header promises, but for the slack of lossy formats.
        assert info is not None
        assert len(samples) / 16000 >= info.duration - 0.51


@fuzz
@given(data=st.sampled_from(sorted(SAMPLES)).flatmap(lambda name: mutated(SAMPLES[name] + SAMPLES["wav"], most=8)))
def test_chimeras_as_bytes(data):
    samples = answer(lambda: read_audio(data), f"audio of {len(data)} bytes")
    assert samples is None or np.isfinite(samples).all()


@fuzz
@given(
    offset=st.floats(allow_nan=True) | st.sampled_from([0.0, 0.05, 1e300, float("inf"), -1.0]),
    duration=st.none() | st.floats(allow_nan=True) | st.sampled_from([0.05, 1e-9, 1e305, float("inf")]),
)
def test_parts(place, offset, duration):
    path = place / "whole.wav"
    path.write_bytes(SAMPLES["wav"][0])
    samples = answer(lambda: read_audio(path, offset=offset, duration=duration), path)
    if samples is not None:
        assert 0 < len(samples) <= N


# ------------------------------------------------------------------------------------- minimal inputs of faults found
def long_flac() -> bytes:
    """A FLAC file of 0.1 s whose header promises 2^36 - 1 samples, 19 hours at 1 MHz."""
    data = bytearray(SAMPLES["flac"][0])
    data[21:26] = bytes([data[21] | 0x0F, 0xFF, 0xFF, 0xFF, 0xFF])  # the last 36 of STREAMINFO's 64 bits
    return bytes(data)


def test_a_promise_of_samples_takes_no_memory(place):
    path = place / "sound.flac"
    path.write_bytes(long_flac())
    assert audio_info(path).num_samples == (1 << 36) - 1
    assert answer(lambda: read_audio(path), path, memory=64 << 20) is None


@pytest.mark.parametrize("value", [3e38, -1e20, float("nan"), float("inf")])
def test_samples_that_overflow_are_refused(place, value):
    path = place / "sound.wav"
    soundfile.write(path, np.array([0.1, value, 0.1] * 500, np.float32), 22050, "FLOAT")
    assert answer(lambda: read_audio(path), path) is None


def test_what_is_no_file_is_not_opened(place):
    import os

    path = place / "pipe"
    if not path.exists():
        os.mkfifo(path)
    assert answer(lambda: read_audio(path), path) is None
    assert answer(lambda: audio_info("/dev/zero"), "/dev/zero") is None
