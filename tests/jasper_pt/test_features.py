"""Log-mel features against librosa, a float64 NumPy computation and the published code's output on real speech."""

import json
import math

import librosa
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from jasper_pt.audio import read_audio
from jasper_pt.config import FeatureConfig
from jasper_pt.features import LogMel, analysis_window, hz_to_mel, mel_filters, mel_to_hz

CONFIG = FeatureConfig(n_fft=512)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def reference(audio: np.ndarray) -> np.ndarray:
    """The spec's steps for one utterance in float64, the signal followed by zeros: [64, ceil(n / 160)]."""
    num_frames = -(-len(audio) // 160)
    x = np.zeros(max(160 * num_frames + 512, 1024))
    x[: len(audio)] = audio
    x[1:] -= 0.97 * x[:-1].copy()
    x = np.concatenate([x[256:0:-1], x])  # reflected start
    window = np.zeros(512)
    window[96:416] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 319)
    power = np.stack([np.abs(np.fft.rfft(x[160 * t : 160 * t + 512] * window)) ** 2 for t in range(num_frames)], 1)
    mel = librosa.filters.mel(sr=16000, n_fft=512, n_mels=64, fmin=0, fmax=8000, dtype=np.float64) @ power
    log = np.log(mel + 1e-20)
    std = log.std(1, ddof=1, keepdims=True) if num_frames > 1 else 0
    return (log - log.mean(1, keepdims=True)) / (std + 1e-5)


def batch(signals, config=CONFIG, size=None):
    lengths = torch.tensor([len(signal) for signal in signals])
    audio = torch.zeros(len(signals), size or int(lengths.max()))
    for row, signal in zip(audio, signals, strict=True):
        row[: len(signal)] = torch.as_tensor(signal)
    return LogMel(config)(audio, lengths)


def noise(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32) * 0.1


# ------------------------------------------------------------------------------------------------------ filters
def test_mel_filters_have_the_golden_values():
    fb = mel_filters(16000, 512, 64, 0, 8000)
    assert fb.shape == (64, 257)
    assert int((fb != 0).sum()) == 498
    assert fb.sum().item() == pytest.approx(2.0461816, abs=1e-6)
    assert (fb != 0).sum(1).max() == 23 and (fb != 0).sum(1).min() >= 1
    assert fb[0].nonzero().flatten().tolist() == [1, 2]
    assert fb[0, 1:3].tolist() == pytest.approx([0.01451128, 0.01407551], abs=1e-8)
    assert fb[63].nonzero().flatten().tolist() == list(range(233, 256))
    assert hz_to_mel(torch.tensor(8000.0)).item() == pytest.approx(45.24564, abs=1e-5)
    centres = mel_to_hz(torch.linspace(0, 45.24564, 66)[1:4])
    assert centres.tolist() == pytest.approx([46.406, 92.812, 139.217], abs=1e-3)


@pytest.mark.parametrize(
    ("sample_rate", "n_fft", "n_filt", "low", "high"),
    [(16000, 512, 64, 0, 8000), (8000, 256, 40, 20, 3800), (22050, 1024, 80, 0, 11025), (44100, 2048, 128, 50, 16000)],
)
def test_mel_filters_equal_librosa(sample_rate, n_fft, n_filt, low, high):
    ours = mel_filters(sample_rate, n_fft, n_filt, low, high).numpy()
    theirs = librosa.filters.mel(sr=sample_rate, n_fft=n_fft, n_mels=n_filt, fmin=low, fmax=high)
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_the_window_is_symmetric():
    window = analysis_window("hann", 320)
    assert window.sum().item() == pytest.approx(159.5, rel=1e-6)
    assert window.square().sum().item() == pytest.approx(119.625, rel=1e-6)
    assert torch.equal(analysis_window("none", 5), torch.ones(5))


# --------------------------------------------------------------------------------------------------- real speech
@pytest.fixture(scope="module")
def speech(shared):
    """Three real utterances, and the published code's features for a batch of them."""
    folder = shared / "data/truth_asr"
    names = json.loads((folder / "features.json").read_text())
    files = {file.name: file for file in (shared / "data/speech_librispeech_test_other").rglob("*.flac")}
    truth = load_file(folder / "features.safetensors")
    return [read_audio(files[name]) for name in names], truth["features"], truth["lengths"].tolist()


def test_features_equal_the_published_code_on_real_speech(speech):
    signals, truth, truth_lengths = speech
    features, lengths = batch(signals)
    assert lengths.tolist() == truth_lengths == [284, 354, 414]
    assert features.shape == (3, 64, 416)
    for i in (0, 1):  # followed by zeros there as here
        difference = (features[i, :, : lengths[i]] - truth[i, :, : lengths[i]]).abs()
        assert difference.max() < 3e-3 and difference.mean() < 1e-5  # float32 rounding of quiet bins, see below
    # The longest ends at the batch's edge there and is reflected: its last frame and, slightly, the statistics differ.
    difference = (features[2, :, :414] - truth[2]).abs()
    assert difference[:, :-1].max() < 1e-2 and difference[:, :-1].mean() < 2e-3


def test_features_equal_float64(speech):
    signals, truth, _ = speech
    features, lengths = batch(signals)
    for i, signal in enumerate(signals):
        exact = torch.from_numpy(reference(signal))
        ours = (features[i, :, : lengths[i]] - exact).abs()
        assert ours.mean() < 5e-6 and ours.max() < 3e-3
        if i < 2:  # no further from the truth than the published code
            assert ours.mean() <= 1.05 * (truth[i, :, : lengths[i]] - exact).abs().mean()  # processors differ


def test_features_do_not_depend_on_batch_padding_or_place(speech):
    signals, _, _ = speech
    together, lengths = batch(signals)
    for order in ([2, 0, 1], [1], [0, 2]):
        some, _ = batch([signals[i] for i in order], size=len(signals[2]) + 12345)
        for row, i in zip(some, order, strict=True):
            torch.testing.assert_close(row[:, : lengths[i]], together[i, :, : lengths[i]], atol=1e-5, rtol=0)
            assert not row[:, lengths[i] :].any()


def test_samples_past_a_length_are_ignored():
    signal = noise(4321)
    junk = np.concatenate([signal, noise(1000, seed=1)])
    features, lengths = LogMel(CONFIG)(torch.from_numpy(junk)[None], torch.tensor([4321]))
    clean, _ = batch([signal], size=5321)
    assert torch.equal(features, clean) and lengths.tolist() == [28]


# --------------------------------------------------------------------------------------------------------- edges
@pytest.mark.parametrize("n", [1, 2, 159, 160, 161, 256, 257, 320, 400, 1600])
def test_short_clips_have_frames(n):
    features, lengths = batch([noise(n)])
    assert lengths.tolist() == [math.ceil(n / 160)]
    assert features.shape == (1, 64, 16) and torch.isfinite(features).all()
    np.testing.assert_allclose(features[0, :, : lengths[0]].numpy(), reference(noise(n)), atol=2e-3)


def test_case_a01_short_files(shared):
    files = sorted((shared / "cases/A01").glob("*.wav"))
    assert len(files) == 6
    features, lengths = batch([read_audio(file) for file in files])
    assert (lengths >= 1).all() and torch.isfinite(features).all()


def test_case_a11_silence_is_finite_and_runs_are_equal(shared):
    files = {file.stem: read_audio(file) for file in sorted((shared / "cases/A11").glob("*.wav"))}
    assert set(files) == {"constant", "half_silence", "silence"}
    features, _ = batch(list(files.values()))
    assert torch.isfinite(features).all()
    assert torch.equal(features, batch(list(files.values()))[0])
    assert not features[list(files).index("silence")].any()  # no variation: exact zeros, in any batch


def test_cases_a03_channels_and_a04_rates(shared):
    mono, stereo, four = (
        read_audio(shared / f"cases/A03/{name}.wav") for name in ("mono_average", "stereo", "four_channels")
    )
    assert len(mono) == len(stereo) == len(four) == 47840
    features, lengths = batch([mono, stereo, read_audio(shared / "cases/A03/stereo.flac")])
    assert lengths.tolist() == [299] * 3
    # All three are within 16-bit rounding, which shows in the quietest bins of a logarithm only.
    assert (features[1:] - features[0]).abs().mean() < 0.02

    rates = [read_audio(file) for file in sorted((shared / "cases/A04").glob("*.wav"))]
    features, lengths = batch(rates)
    assert len(rates) == 6 and lengths.min() >= 297 and lengths.max() <= 302


def test_padding_to_maximum_duration_and_alignment():
    for duration, frames in ((2, 208), (7, 704), (16.7, 1680)):
        config = FeatureConfig(n_fft=512, pad_to_max_duration=True, max_duration=duration)
        features, lengths = batch([noise(16000)], config)
        assert features.shape == (1, 64, frames) and lengths.tolist() == [100]
        assert torch.equal(features[:, :, :100], batch([noise(16000)])[0][:, :, :100])


def test_the_other_normalisations():
    signals = [noise(8000), noise(3000, seed=1)]
    mel, lengths = batch(signals, FeatureConfig(n_fft=512, normalize=None, log=False))
    assert (mel >= 0).all() and mel.max() > 0
    log, _ = batch(signals, FeatureConfig(n_fft=512, normalize=None))
    torch.testing.assert_close(log[0, :, :50], (mel[0, :, :50] + 1e-20).log())
    whole, _ = batch(signals, FeatureConfig(n_fft=512, normalize="all_features"))
    for i, length in enumerate(lengths.tolist()):
        x = log[i, :, :length]
        torch.testing.assert_close(whole[i, :, :length], (x - x.mean()) / (x.std() + 1e-5), atol=1e-5, rtol=1e-5)
        assert not whole[i, :, length:].any()


def test_other_window_shapes_equal_torch_stft():
    config = FeatureConfig(
        sample_rate=8000, window_size=0.025, n_filt=40, window="hamming", preemph=None, normalize=None
    )
    assert (config.win_length, config.hop_length, config.fft_length) == (200, 80, 256)
    signal = torch.from_numpy(noise(8000))
    window = torch.hamming_window(200, periodic=False)
    padded = torch.nn.functional.pad(signal, (0, 400))
    spectrum = torch.stft(padded, 256, 80, 200, window, center=True, pad_mode="reflect", return_complex=True)
    expected = (mel_filters(8000, 256, 40, 0, 4000) @ spectrum.abs().square() + 1e-20).log()[:, :100]
    features, _ = batch([signal], config)
    torch.testing.assert_close(features[0, :, :100], expected, atol=1e-4, rtol=1e-4)


def test_mixed_precision_around_it_changes_nothing():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = batch([noise(5000)])
    assert inside.dtype == torch.float32 and torch.equal(inside, batch([noise(5000)])[0])


def test_the_constants_are_buffers_and_stay_out_of_checkpoints():
    assert set(dict(LogMel(CONFIG).named_buffers())) == {"window", "fb"}
    assert LogMel(CONFIG).state_dict() == {}


@pytest.mark.gpu
def test_gpu_equals_cpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    signals = [noise(40000), noise(33333, seed=1)]
    lengths = torch.tensor([40000, 33333])
    audio = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(s) for s in signals], batch_first=True)
    expected, _ = LogMel(CONFIG)(audio, lengths)
    features, _ = LogMel(CONFIG).cuda()(audio.cuda(), lengths.cuda())
    torch.testing.assert_close(features.cpu(), expected, atol=2e-3, rtol=0)
