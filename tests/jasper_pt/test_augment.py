"""Augmentation: what it does to a signal, and that its random choices belong to the utterance."""

import librosa
import numpy as np
import pytest
import torch

from jasper_pt.audio import read_audio
from jasper_pt.augment import (
    DITHER_PERIOD,
    change_speed,
    dither_noise,
    dither_start,
    draw_masks,
    enlarge_time_masks,
    gain_db,
    mask_features,
    perturb,
    shift,
    shift_samples,
    speed_factor,
    trim_silence,
    utterance_rng,
)
from jasper_pt.config import (
    AudioConfig,
    CutoutConfig,
    FeatureConfig,
    GainPerturbation,
    ShiftPerturbation,
    SpecAugmentConfig,
    SpeedPerturbation,
)

ALL = AudioConfig(
    speed_perturbation=SpeedPerturbation(p=1.0),
    gain_perturbation=GainPerturbation(p=1.0),
    shift_perturbation=ShiftPerturbation(p=1.0),
)


def tone(hz=440.0, seconds=1.0, rate=16000):
    return np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate).astype(np.float32) * 0.5


def peak_hz(audio, rate=16000):
    return np.abs(np.fft.rfft(audio * np.hanning(len(audio)))).argmax() * rate / len(audio)


# --------------------------------------------------------------------------------------------------- random keys
def test_generators_depend_on_seed_epoch_key_and_purpose_only():
    base = utterance_rng(1, 2, "a", "speed").random(4).tolist()
    assert utterance_rng(1, 2, "a", "speed").random(4).tolist() == base
    others = [
        utterance_rng(*key).random(4).tolist()
        for key in [(2, 2, "a", "speed"), (1, 3, "a", "speed"), (1, 2, "b", "speed")]
    ]
    assert len({tuple(x) for x in [base, *others, utterance_rng(1, 2, "a", "gain").random(4).tolist()]}) == 5


def test_perturbations_do_not_disturb_each_other():
    audio = tone()
    gain_only = AudioConfig(gain_perturbation=ALL.gain_perturbation)
    both = AudioConfig(gain_perturbation=ALL.gain_perturbation, speed_perturbation=ALL.speed_perturbation)
    gain = np.abs(perturb(audio, gain_only, 0, 7, 1, "key")).max() / np.abs(audio).max()
    assert np.abs(perturb(audio, both, 0, 7, 1, "key")[2000:-2000]).max() / np.abs(audio).max() == pytest.approx(
        gain, rel=0.01
    )


def test_perturb_repeats_and_varies():
    audio = tone()
    first = perturb(audio, ALL, 1e-5, 0, 1, "key")
    assert np.array_equal(first, perturb(audio, ALL, 1e-5, 0, 1, "key"))
    lengths = {len(perturb(audio, ALL, 1e-5, 0, epoch, "key")) for epoch in range(8)}
    assert len(lengths) > 5 and first.dtype == np.float32
    assert np.array_equal(perturb(audio, AudioConfig(), 0, 0, 1, "key"), audio)


# ------------------------------------------------------------------------------------------------------ waveforms
@pytest.mark.parametrize("factor", [0.85, 1.0, 1.1, 1.15])
def test_faster_is_shorter_and_higher(factor):
    audio = change_speed(tone(400.0), factor, 16000)
    assert len(audio) == pytest.approx(16000 / factor, abs=1)
    assert peak_hz(audio) == pytest.approx(400 * factor, abs=2)
    assert len(change_speed(np.ones(1, np.float32), 1.15, 16000)) == 1


def test_speed_factors_follow_the_configuration():
    uniform = [speed_factor(SpeedPerturbation(0.85, 1.15, p=0.25), 0, 0, str(i)) for i in range(4000)]
    assert np.mean(np.array(uniform) != 1) == pytest.approx(0.25, abs=0.03)
    assert min(uniform) < 0.87 and max(uniform) > 1.13 and min(uniform) >= 0.85 and max(uniform) <= 1.15
    discrete = [speed_factor(SpeedPerturbation(0.9, 1.1, discrete=True, p=1), 0, 0, str(i)) for i in range(3000)]
    assert {0.9, 1.0, 1.1} == set(discrete)
    assert discrete.count(1.0) == pytest.approx(1000, abs=120)
    assert speed_factor(None, 0, 0, "key") == 1


def test_gain_is_in_decibels():
    config = AudioConfig(gain_perturbation=GainPerturbation(min_gain_dbfs=-6, max_gain_dbfs=-6, p=1))
    assert np.abs(perturb(tone(), config, 0, 0, 0, "k")).max() == pytest.approx(0.5 * 10 ** (-6 / 20), rel=1e-3)
    assert gain_db(GainPerturbation(p=0), 0, 0, "key") == gain_db(None, 0, 0, "key") == 0


def test_shift_moves_and_fills_with_zeros():
    audio = np.arange(1, 6, dtype=np.float32)
    assert shift(audio, 2).tolist() == [0, 0, 1, 2, 3]
    assert shift(audio, -2).tolist() == [3, 4, 5, 0, 0]
    assert shift(audio, 0).tolist() == audio.tolist()
    assert shift(audio, 7).tolist() == shift(audio, -7).tolist() == [0] * 5
    shifts = [shift_samples(ShiftPerturbation(p=1), 16000, 0, 0, str(i)) for i in range(2000)]
    assert min(shifts) >= -80 and max(shifts) <= 80 and min(shifts) < -70 and max(shifts) > 70


def test_dither_has_the_amplitude():
    noise = perturb(np.zeros(50000, np.float32), AudioConfig(), 1e-5, 0, 0, "k")
    assert noise.std() == pytest.approx(1e-5, rel=0.02) and abs(noise.mean()) < 1e-6
    other = perturb(np.zeros(50000, np.float32), AudioConfig(), 1e-5, 0, 1, "k")
    assert abs(np.corrcoef(noise, other)[0, 1]) < 0.03


def test_dither_noise_goes_on_without_end():
    assert np.array_equal(dither_noise(3 * DITHER_PERIOD + 5)[-5:], dither_noise(5))
    assert all(0 <= dither_start(0, epoch, "k") < DITHER_PERIOD for epoch in range(100))


# ------------------------------------------------------------------------------------------------------- trimming
def with_silence(speech, before, after):
    return np.concatenate([np.zeros(before, np.float32), speech, np.zeros(after, np.float32)])


@pytest.mark.parametrize("n", [1, 511, 512, 2048, 40000])
def test_trim_equals_librosa_on_synthetic_signals(n):
    rng = np.random.default_rng(n)
    for audio in (
        rng.standard_normal(n).astype(np.float32),
        with_silence(rng.standard_normal(n).astype(np.float32), 5000, 7001),
        with_silence(tone(seconds=n / 16000) * 1e-3, 3000, 100)
        + 1e-7 * rng.standard_normal(n + 3100).astype(np.float32),
        np.zeros(n, np.float32),
    ):
        expected, _ = librosa.effects.trim(audio, top_db=60)
        assert np.array_equal(trim_silence(audio), expected)


def test_trim_equals_librosa_on_real_speech(shared):
    files = sorted((shared / "data/speech_librispeech_test_other").rglob("*.flac"))
    assert len(files) >= 50
    trimmed = 0
    for file in files[::3]:
        audio = read_audio(file)
        for top_db in (60, 40, 25):
            expected, _ = librosa.effects.trim(audio, top_db=top_db)
            ours = trim_silence(audio, top_db)
            assert np.array_equal(ours, expected), file
            trimmed += len(ours) < len(audio)
    assert trimmed > 20


# ----------------------------------------------------------------------------------------------------- SpecAugment
def masked(config, lengths, frames, keys, epoch=0):
    draws = torch.from_numpy(np.stack([draw_masks(config, utterance_rng(0, epoch, key, "masks")) for key in keys]))
    return mask_features(torch.ones(len(keys), 64, frames), torch.tensor(lengths), draws, config) == 0


def runs(row):
    """Lengths of the runs of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.numpy().astype(int), [0]])))
    return (edges[1::2] - edges[::2]).tolist()


def test_spec_augment_masks_whole_bins_and_whole_frames():
    config = FeatureConfig(spec_augment=SpecAugmentConfig(freq_masks=2, max_freq=15, time_masks=2, max_time=55))
    keys = [f"u{i}" for i in range(300)]
    holes = masked(config, [400] * 300, 416, keys)
    freq, time = holes[:, :, 399].float().mean(0), holes.all(1)  # a time mask reaching the last frame is rare
    assert (freq > 0).all()  # every bin is masked at times, the last too
    assert not time[:, 400:].any() and time[:, 395:].any() and time[:, :5].any()
    for utterance in holes:
        columns, rows = utterance.all(0), utterance.all(1)
        assert torch.equal(utterance, columns[None, :] | rows[:, None])  # bands only
        assert max(runs(columns), default=0) <= 110 and max(runs(rows), default=0) <= 30
    widths = [columns.sum().item() for columns in holes.all(1)]
    assert np.mean(widths) == pytest.approx(2 * 27.5, rel=0.1)  # less the overlap of two masks


def test_width_and_place_are_uniform():
    config = FeatureConfig(spec_augment=SpecAugmentConfig(time_masks=1, min_time=2, max_time=4))
    holes = masked(config, [10] * 6000, 16, [str(i) for i in range(6000)]).all(1)
    widths = holes.sum(1)
    assert [int((widths == w).sum()) for w in (2, 3, 4)] == pytest.approx([2000] * 3, rel=0.08)
    starts = holes[widths == 4].float().argmax(1)
    assert set(starts.tolist()) == set(range(7))
    assert torch.bincount(starts).tolist() == pytest.approx([2000 / 7] * 7, rel=0.25)


def test_masks_do_not_depend_on_the_batch():
    config = FeatureConfig(
        spec_augment=SpecAugmentConfig(freq_masks=2, max_freq=15, time_masks=2, max_time=55),
        cutout_augment=CutoutConfig(masks=3),
    )
    together = masked(config, [100, 300, 250], 304, ["a", "b", "c"])
    assert torch.equal(masked(config, [250], 256, ["c"])[0, :, :250], together[2, :, :250])
    assert torch.equal(masked(config, [300, 100], 304, ["b", "a"]).flip(0), together[:2])
    assert not torch.equal(masked(config, [250], 256, ["c"], epoch=1)[0, :, :250], together[2, :, :250])


def test_masks_are_cut_down_to_short_utterances():
    config = FeatureConfig(
        spec_augment=SpecAugmentConfig(time_masks=2, min_time=50, max_time=50), cutout_augment=CutoutConfig(masks=2)
    )
    holes = masked(config, [3, 0, 1], 16, ["a", "b", "c"])
    assert holes[0, :, :3].all() and not holes[0, :, 3:].any() and not holes[1].any()


def test_cutout_makes_rectangles():
    config = FeatureConfig(cutout_augment=CutoutConfig(masks=1, min_freq=20, max_freq=20, min_time=5, max_time=5))
    for hole in masked(config, [200] * 50, 208, [str(i) for i in range(50)]):
        assert runs(hole.any(1)) == [20] and runs(hole.any(0)) == [5] and hole.sum() == 100


def test_no_masks_configured_changes_nothing():
    assert draw_masks(FeatureConfig(), np.random.default_rng(0)).shape == (0, 4)
    assert not masked(FeatureConfig(), [10], 16, ["a"]).any()


# --------------------------------------------------------------------------------------------- adaptive time masks
def adaptive(**spec):
    return FeatureConfig(spec_augment=SpecAugmentConfig(time_masks=7, max_time=1000, **spec))


def test_adaptive_masks_are_counted_by_length():
    config = adaptive(min_time=1, adaptive_multiplicity=0.05, adaptive_size=1e-9)  # masks of one frame
    lengths = [19, 20, 99, 100, 2000]
    counts = [masked(config, lengths, 2000, [f"{i} {n}" for n in lengths]).all(1).sum(1).tolist() for i in range(60)]
    # floor(0.05 T), at most 20; two masks may fall on one frame
    assert np.max(counts, axis=0).tolist() == [0, 1, 4, 5, 20]
    assert np.mean(counts, axis=0)[1:] == pytest.approx([1, 4, 5, 20], rel=0.1)


def test_adaptive_masks_are_as_wide_as_the_length_says():
    config = FeatureConfig(spec_augment=SpecAugmentConfig(time_masks=1, max_time=1000, adaptive_size=0.29))
    lengths = [100] * 3000 + [10] * 3000 + [3] * 100
    widths = masked(config, lengths, 112, [str(i) for i in range(len(lengths))]).all(1).sum(1)
    # floor(0.29 T): 0.29 * 100 is a little below 29 in floating point
    assert widths[:3000].max() == 29 and widths[3000:6000].max() == 2 and not widths[6000:].any()
    assert widths[:3000].float().mean().item() == pytest.approx(14.5, rel=0.05)


def test_adaptive_masks_do_not_depend_on_the_batch_and_leave_the_others_alone():
    config = FeatureConfig(
        spec_augment=SpecAugmentConfig(freq_masks=2, adaptive_multiplicity=0.04, adaptive_size=0.04),
        cutout_augment=CutoutConfig(masks=2),
    )
    together = masked(config, [100, 300], 304, ["a", "b"])
    assert torch.equal(masked(config, [300], 304, ["b"])[0], together[1])
    rows = together[1].float().mean(1)
    assert (rows == 1).sum() > 0  # whole bins are masked still


def test_more_time_masks():
    config = enlarge_time_masks(FeatureConfig(spec_augment=SpecAugmentConfig(time_masks=2, max_time=15)), 2.5)
    assert config.spec_augment == SpecAugmentConfig(time_masks=5, max_time=15, max_time_masks=50)
    more = enlarge_time_masks(adaptive(adaptive_multiplicity=0.04, adaptive_size=0.04), 2.5).spec_augment
    assert (more.adaptive_multiplicity, more.adaptive_size, more.max_time_masks) == (pytest.approx(0.1), 0.04, 50)
    assert enlarge_time_masks(FeatureConfig(), 2.5) == FeatureConfig()
