"""jasper_pt/audio.py: formats, rates, channels; what is broken is named."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from jasper_pt.audio import AudioInfo, audio_info, read_audio, resample
from runkit.errors import UserError

RATE = 16_000
TIME = np.arange(RATE) / RATE
TONE = (0.4 * np.sin(2 * np.pi * 440 * TIME)).astype(np.float32)  # one second


def write(path: Path, samples: np.ndarray, rate: int = RATE, **options) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


# ---------------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    "suffix, subtype, step",
    [
        ("wav", "PCM_16", 2**-15),
        ("wav", "PCM_U8", 2**-7),
        ("wav", "PCM_24", 2**-23),
        ("wav", "PCM_32", 2**-24),
        ("wav", "FLOAT", 1e-7),
        ("wav", "DOUBLE", 1e-7),
        ("wav", "ULAW", 0.01),
        ("wav", "ALAW", 0.01),
        ("flac", "PCM_S8", 2**-7),
        ("flac", "PCM_16", 2**-15),
        ("flac", "PCM_24", 2**-23),
        ("aiff", "PCM_16", 2**-15),
        ("caf", "PCM_16", 2**-15),
    ],
)
def test_sample_formats_have_the_same_scale(tmp_path: Path, suffix: str, subtype: str, step: float):
    path = write(tmp_path / f"a.{suffix}", TONE, subtype=subtype)
    samples = read_audio(path)
    assert samples.dtype == np.float32 and samples.shape == (RATE,)
    assert np.abs(samples - TONE).max() <= step
    info = audio_info(path)
    assert info == AudioInfo(1.0, RATE, 1, RATE, f"{suffix.upper()} {subtype}")


@pytest.mark.parametrize("suffix", ["ogg", "mp3", "opus"])
def test_lossy_formats(tmp_path: Path, suffix: str):
    container = {"format": "OGG", "subtype": "OPUS"} if suffix == "opus" else {}
    samples = read_audio(write(tmp_path / f"a.{suffix}", TONE, **container))
    assert abs(len(samples) - RATE) < 0.1 * RATE
    middle = samples[4000:12000]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.4 / np.sqrt(2), rel=0.1)
    assert np.abs(np.fft.rfft(middle)).argmax() * RATE / len(middle) == pytest.approx(440, abs=3)


@pytest.mark.parametrize("name", ["a.raw", "a.mp3", "a", "a.txt", "a.au", "a.gsm", "a.vox", "a.RAW"])
def test_the_content_decides_and_not_the_name(tmp_path: Path, name: str):
    flac = write(tmp_path / "a.flac", TONE)
    shutil.copy(flac, tmp_path / name)
    assert np.array_equal(read_audio(tmp_path / name), read_audio(flac))
    (tmp_path / name).write_bytes(b"just some words, and then more of them\n" * 100)
    with pytest.raises(UserError, match=f"{name}: is in no sound format known"):
        read_audio(tmp_path / name)


def test_bytes_do_as_well(tmp_path: Path):
    path = write(tmp_path / "a.flac", TONE)
    assert np.array_equal(read_audio(path.read_bytes()), read_audio(str(path)))
    assert audio_info(path.read_bytes()) == audio_info(path)
    with pytest.raises(UserError, match="audio of 4 bytes: is in no sound format"):
        read_audio(b"ABCD")
    with pytest.raises(UserError, match="audio of 0 bytes: is empty"):
        read_audio(b"")


# ---------------------------------------------------------------------------------------- rates, channels, parts


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 32000, 44100, 48000])
def test_other_rates(tmp_path: Path, rate: int):
    tone = 0.4 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    samples = read_audio(write(tmp_path / "a.wav", tone, rate, subtype="FLOAT"))
    assert abs(len(samples) - RATE) <= 1
    inner = slice(1000, 15000)
    assert np.abs(samples[inner] - TONE[inner]).max() < 2e-4  # the same tone, as formed at 16 kHz
    assert audio_info(tmp_path / "a.wav").sample_rate == rate
    at_8k = read_audio(tmp_path / "a.wav", sample_rate=8000)
    assert abs(len(at_8k) - 8000) <= 1


def test_what_the_lower_rate_cannot_hold_is_filtered(tmp_path: Path):
    high = 0.4 * np.sin(2 * np.pi * 11_000 * np.arange(44_100) / 44_100)
    samples = read_audio(write(tmp_path / "a.wav", high, 44_100))
    assert np.sqrt(np.mean(samples[500:-500] ** 2)) < 1e-4


def test_resample_is_speed_perturbation():
    faster = resample(TONE, 1.1 * RATE, RATE)
    assert len(faster) == round(RATE / 1.1)
    expected = 0.4 * np.sin(2 * np.pi * 440 * 1.1 * np.arange(len(faster)) / RATE)
    assert np.abs(faster - expected)[500:-500].max() < 2e-3
    assert resample(TONE, RATE, RATE) is TONE


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_channels_are_averaged(tmp_path: Path, channels: int):
    parts = np.stack([TONE * (i + 1) / channels for i in range(channels)], axis=1)
    samples = read_audio(write(tmp_path / "a.wav", parts, subtype="FLOAT"))
    assert samples.shape == (RATE,) and np.abs(samples - parts.mean(axis=1)).max() < 1e-6
    assert audio_info(tmp_path / "a.wav").channels == channels


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_parts(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"a.{suffix}", TONE)
    whole = read_audio(path)
    assert np.array_equal(read_audio(path, offset=0.25, duration=0.5), whole[4000:12000])
    assert np.array_equal(read_audio(path, offset=0.75, duration=9), whole[12000:])
    assert np.array_equal(read_audio(path, duration=1.0), whole)
    for offset in (1.0, 7.0, -0.1):
        with pytest.raises(UserError, match=r"offset .* is not within its 1\.000 s"):
            read_audio(path, offset=offset)
    with pytest.raises(UserError, match="leaves no samples"):
        read_audio(path, duration=0.0)


# ------------------------------------------------------------------------------------------------------------ damage


def test_files_without_sound(tmp_path: Path):
    (tmp_path / "empty.wav").touch()
    write(tmp_path / "zero.wav", TONE[:0])
    for name, cause in (("none.wav", "No such file"), ("empty.wav", "is empty"), ("zero.wav", "holds no samples")):
        for function in (read_audio, audio_info):
            with pytest.raises(UserError, match=f"{name}.*{cause}"):
                function(tmp_path / name)
    with pytest.raises(UserError, match="Is a directory"):
        read_audio(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers(tmp_path: Path, value: float):
    samples = TONE.copy()
    samples[77] = value
    with pytest.raises(UserError, match=r"a\.wav: holds NaN or infinite samples"):
        read_audio(write(tmp_path / "a.wav", samples, subtype="FLOAT"))


def test_cut_files(tmp_path: Path):
    noise = np.random.default_rng(0).normal(0, 0.1, 5 * RATE)
    for suffix, message in (
        ("wav", "5.000 s by its header, 2.4"),
        ("flac", "cannot be decoded"),
        ("mp3", "is cut off"),
    ):
        path = write(tmp_path / f"a.{suffix}", noise)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(UserError, match=message):
            read_audio(path)


def test_a_wav_from_a_pipe_is_whole(tmp_path: Path):
    """Its header says 0xFFFFFFFF bytes, since nobody could go back and write the true number."""
    data = bytearray(write(tmp_path / "a.wav", TONE).read_bytes())
    for place in (4, data.index(b"data") + 4):
        data[place : place + 4] = b"\xff" * 4
    assert read_audio(bytes(data)).shape == (RATE,)


def test_headers_that_cannot_be_believed(tmp_path: Path):
    data = bytearray(write(tmp_path / "a.flac", TONE).read_bytes())
    data[21] &= 0xF0  # STREAMINFO: the number of samples, 36 bits, 0 for "unknown"
    data[22:26] = bytes(4)
    with pytest.raises(UserError, match="does not say how long it is"):
        read_audio(bytes(data))
    data = bytearray(write(tmp_path / "a.wav", TONE).read_bytes())
    data[24:28] = (2_000_000).to_bytes(4, "little")
    with pytest.raises(UserError, match="a sample rate of 2000000 Hz"):
        read_audio(bytes(data))


def test_damaged_bytes_never_crash(tmp_path: Path):
    rng = np.random.default_rng(1)
    for options in ({"format": "WAV"}, {"format": "FLAC"}, {"format": "OGG"}, {"format": "NIST"}):
        buffer = io.BytesIO()
        soundfile.write(buffer, TONE[:4000], RATE, **options)
        for _ in range(60):
            data = bytearray(buffer.getvalue())
            for place in rng.integers(0, min(len(data), 200), 3):
                data[place] = rng.integers(256)
            with contextlib.suppress(UserError):
                assert np.isfinite(read_audio(bytes(data))).all()


# ------------------------------------------------------------------------------------------------------- real files


def test_case_a03(shared: Path):
    case = shared / "cases" / "A03"
    expected = read_audio(case / "mono_average.wav")
    n_samples = json.loads((case / "expected.json").read_text())["samples"]
    for name in ("stereo.wav", "stereo.flac"):
        samples = read_audio(case / name)
        assert samples.shape == (n_samples,) and np.abs(samples - expected).max() <= 2**-15
    assert read_audio(case / "four_channels.wav").shape == (n_samples,)


def test_case_a04(shared: Path):
    case = shared / "cases" / "A04"
    expected = json.loads((case / "expected.json").read_text())
    paths = sorted(case.glob("*.wav"))
    assert len(paths) == 6
    true = read_audio(case / "r16000.wav")
    for path in paths:
        assert audio_info(path).duration == pytest.approx(expected["duration"], abs=1e-3)
        samples = read_audio(path)
        low, high = expected["frames_at_10ms"]
        assert low <= len(samples) // 160 + 1 <= high
        n = min(len(samples), len(true))
        correlation = np.corrcoef(samples[:n], true[:n])[0, 1]
        assert correlation > (0.999 if audio_info(path).sample_rate > RATE else 0.97)


def test_case_a05(shared: Path):
    case = shared / "cases" / "A05"
    expected = json.loads((case / "expected.json").read_text())
    for name in expected["decodable"]:
        assert read_audio(case / name).shape == (47840,)
    for name in expected["reported"]:
        with pytest.raises(UserError, match=f"{name}: ") as caught:
            read_audio(case / name)
        assert len(str(caught.value).splitlines()) == 1


def test_odd_files(shared: Path):
    """Every sound file of these folders: the facts of its AUDIO_INFO.tsv, or an error with its name."""
    checked = 0
    for folder in ("speech_odd", "speech_pocketsphinx", "speech_speechbrain", "speech_librispeech_misc"):
        root = shared / "data" / folder
        for line in (root / "AUDIO_INFO.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            name, rate, *facts = line.split("\t")
            path = root / name
            if not path.exists():
                continue
            checked += 1
            if rate == "ERR" or path.parent.name == "broken":
                with pytest.raises(UserError, match=path.name):
                    read_audio(path)
                continue
            channels, seconds = facts[:2]
            info = audio_info(path)
            assert (info.sample_rate, info.channels) == (int(rate), int(channels)), name
            assert info.duration == pytest.approx(float(seconds), abs=2e-3), name
            samples = read_audio(path)
            assert len(samples) == pytest.approx(RATE * float(seconds), abs=0.02 * RATE), name
            assert 0.001 < np.abs(samples).max() < 1.1, name
    assert checked >= 50
