"""Augmentation for training, and silence trimming.

Every random choice for an utterance comes from a generator of its own, made from (seed, epoch, utterance key, purpose).
What happens to an utterance therefore depends neither on the batch, its order or the worker, nor on which other
augmentations are switched on; another epoch or seed makes other choices.

Legend: B utterances, N samples, T frames, F mel bins, M masks.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from jasper_pt.audio import loud_part, resample
from jasper_pt.config import AudioConfig, FeatureConfig, GainPerturbation, ShiftPerturbation, SpeedPerturbation


def utterance_rng(seed: int, epoch: int, key: str, purpose: str) -> np.random.Generator:
    """The generator for one choice about one utterance in one epoch: the same wherever and whenever it is asked for."""
    digest = hashlib.blake2b(f"{seed}|{epoch}|{purpose}|{key}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))


# ---------------------------------------------------------------------------------------------------- waveforms
def perturb(
    audio: np.ndarray,
    config: AudioConfig,
    dither: float,
    seed: int,
    epoch: int,
    key: str,
    surroundings: Callable[[np.ndarray, int, int, str], np.ndarray] | None = None,
) -> np.ndarray:
    """Speed, room and noise, gain, shift, then dither of `audio` [N] float32, as far as they are configured -> [N']
    float32. surroundings: adds room and noise, see surroundings.py."""
    owner = (seed, epoch, key)
    audio = change_speed(audio, speed_factor(config.speed_perturbation, *owner), config.sample_rate)
    if surroundings is not None:
        audio = surroundings(audio, *owner)
    if gain := gain_db(config.gain_perturbation, *owner):
        audio = audio * np.float32(10 ** (gain / 20))
    if samples := shift_samples(config.shift_perturbation, config.sample_rate, *owner):
        audio = shift(audio, samples)
    if dither:
        start = dither_start(*owner)
        audio = audio + np.float32(dither) * dither_noise(start + len(audio))[start:]
    return audio


def speed_factor(config: SpeedPerturbation | None, seed: int, epoch: int, key: str) -> float:
    """The utterance's playback rate: above 1 is faster, shorter and higher, as in sox's `speed`. 1 with probability
    1 - p; else uniform in [min_rate, max_rate], or one of min_rate, 1, max_rate if discrete."""
    if config is None:
        return 1.0
    rng = utterance_rng(seed, epoch, key, "speed")
    if rng.random() >= config.p:
        return 1.0
    if config.discrete:
        return float(rng.choice([config.min_rate, 1.0, config.max_rate]))
    return float(rng.uniform(config.min_rate, config.max_rate))


def change_speed(audio: np.ndarray, factor: float, sample_rate: int) -> np.ndarray:
    """audio [N] -> about [N / factor], never empty: what `sample_rate` hears of a tape run `factor` times as fast."""
    faster = resample(audio, factor * sample_rate, sample_rate)
    return faster if len(faster) else audio[:1]


def gain_db(config: GainPerturbation | None, seed: int, epoch: int, key: str) -> float:
    """The utterance's gain in dB: 0 with probability 1 - p, else uniform."""
    if config is None:
        return 0.0
    rng = utterance_rng(seed, epoch, key, "gain")
    return float(rng.uniform(config.min_gain_dbfs, config.max_gain_dbfs)) if rng.random() < config.p else 0.0


def shift_samples(config: ShiftPerturbation | None, sample_rate: int, seed: int, epoch: int, key: str) -> int:
    """The utterance's shift in samples, positive is later: 0 with probability 1 - p, else uniform."""
    if config is None:
        return 0
    rng = utterance_rng(seed, epoch, key, "shift")
    if rng.random() >= config.p:
        return 0
    return round(rng.uniform(config.min_shift_ms, config.max_shift_ms) / 1000 * sample_rate)


def shift(audio: np.ndarray, samples: int) -> np.ndarray:
    """audio [N] moved later by `samples` (earlier if negative), same length, zeros where nothing is left."""
    kept = audio[max(-samples, 0) : max(len(audio) - samples, 0)]
    before = min(max(samples, 0), len(audio))
    return np.pad(kept, (before, len(audio) - before - len(kept)))


DITHER_PERIOD = 2**20  # samples; 65 s at 16 kHz


@functools.lru_cache(maxsize=1)
def _dither_period() -> np.ndarray:
    # Twice over: utterances shorter than the period, starting anywhere in it, then need no copy.
    return np.tile(np.random.default_rng(0).standard_normal(DITHER_PERIOD, dtype=np.float32), 2)


def dither_noise(length: int) -> np.ndarray:
    """Normal noise [length] float32, always the same. Utterances start at different places of it: drawing it anew for
    each would cost as much as all their features."""
    noise = _dither_period()
    return noise[:length] if length <= len(noise) else np.resize(noise, length)


def dither_start(seed: int, epoch: int, key: str) -> int:
    """Where the utterance's part of `dither_noise` starts."""
    return int(utterance_rng(seed, epoch, key, "dither").integers(DITHER_PERIOD))


def trim_silence(audio: np.ndarray, top_db: float = 60.0) -> np.ndarray:
    """`audio` [N] without its leading and trailing silence -> [N'], a view; never empty.

    Silent are frames of 2048 samples, hop 512, whose power is more than `top_db` below that of the loudest frame, with
    powers below -100 dB counted as -100 dB; exactly librosa.effects.trim. Digital silence is returned whole.
    """
    return audio[loud_part(audio, top_db)]


# ----------------------------------------------------------------------------------------------------- features
def enlarge_time_masks(config: FeatureConfig, ratio: float) -> FeatureConfig:
    """`ratio` times as many time masks, of the same widths."""
    spec = config.spec_augment
    if spec is None:
        return config
    more = dataclasses.replace(
        spec,
        time_masks=round(spec.time_masks * ratio),
        adaptive_multiplicity=min(spec.adaptive_multiplicity * ratio, 1.0),
        max_time_masks=round(spec.max_time_masks * ratio),
    )
    return dataclasses.replace(config, spec_augment=more)


def draw_masks(config: FeatureConfig, rng: np.random.Generator) -> np.ndarray:
    """Uniform numbers [M, 4] float32 for the M masks of one utterance: they become masks in `mask_features`.

    M counts SpecAugment's frequency masks, its time masks (the most there can be), then cutout's rectangles.
    """
    return rng.random((sum(_mask_counts(config)), 4), dtype=np.float32)


def mask_features(features: Tensor, lengths: Tensor, draws: Tensor, config: FeatureConfig) -> Tensor:
    """SpecAugment (arXiv 1904.08779; its adaptive time masks arXiv 1912.05533) and cutout (arXiv 1708.04552): zeroes
    features [B, F, T] under masks, in place.

    lengths [B] frames, draws [B, M, 4] from `draw_masks`. Zero is the mean, as features are normalised. A mask's size
    is uniform over the whole numbers of its closed interval, its place uniform over those where it fits among the bins
    or among the utterance's own frames (a mask longer than those covers them all). Works on the features' device
    without looking at a value.
    """
    num_freq, num_time, num_cutout = _mask_counts(config)
    if num_freq + num_time + num_cutout == 0:
        return features
    bins = torch.arange(features.shape[1], device=features.device)
    frames = torch.arange(features.shape[2], device=features.device)
    all_bins = torch.full_like(lengths, features.shape[1])[:, None]

    def share_of_frames(share):  # [B, 1]; the tiny addition makes 0.29 * 100 frames 29
        return (lengths[:, None].double() * share + 1e-9).long()

    def spans(draws, low, high, limit, positions, count=None):  # draws [B, m, 2], high and limit [B, 1] or a number
        size = torch.minimum(low + (draws[..., 0] * (high - low + 1)).long(), limit)  # [B, m]
        if count is not None:  # [B, 1]: so many of the masks
            size = size.masked_fill(torch.arange(size.shape[1], device=size.device) >= count, 0)
        start = (draws[..., 1] * (limit - size + 1)).long()
        return (positions >= start[..., None]) & (positions < (start + size)[..., None])  # [B, m, positions]

    if num_freq or num_time:
        spec = config.spec_augment
        freq = spans(draws[:, :num_freq, :2], spec.min_freq, spec.max_freq, all_bins, bins).any(1)  # [B, F]
        time_draws = draws[:, num_freq : num_freq + num_time, :2]
        widest, count = spec.max_time, None
        if spec.adaptive_size:
            widest = share_of_frames(spec.adaptive_size).clamp(min=spec.min_time)
        if spec.adaptive_multiplicity:
            count = share_of_frames(spec.adaptive_multiplicity)  # there are draws for max_time_masks
        time = spans(time_draws, spec.min_time, widest, lengths[:, None], frames, count).any(1)  # [B, T]
        features.masked_fill_(freq[:, :, None] | time[:, None, :], 0)
    if num_cutout:
        cutout, cutout_draws = config.cutout_augment, draws[:, num_freq + num_time :]
        freq = spans(cutout_draws[..., :2], cutout.min_freq, cutout.max_freq, all_bins, bins)  # [B, m, F]
        time = spans(cutout_draws[..., 2:], cutout.min_time, cutout.max_time, lengths[:, None], frames)  # [B, m, T]
        for mask in range(num_cutout):  # one rectangle at a time: memory of one [B, F, T] mask
            features.masked_fill_(freq[:, mask, :, None] & time[:, mask, None, :], 0)
    return features


def _mask_counts(config: FeatureConfig) -> tuple[int, int, int]:
    """Frequency masks, time masks, cutout rectangles."""
    spec, cutout = config.spec_augment, config.cutout_augment
    time_masks = (spec.max_time_masks if spec.adaptive_multiplicity else spec.time_masks) if spec else 0
    return spec.freq_masks if spec else 0, time_masks, cutout.masks if cutout else 0
