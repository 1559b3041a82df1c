"""Rooms and noise for training: what config.ImpulsePerturbation and NoisePerturbation say, added to clean waveforms.

    surroundings = make_surroundings(config.input_train.audio)
    noisy = surroundings(audio, seed, epoch, key)

Every choice is that of the utterance in the epoch, as in augment.py; recordings are read when they are drawn, so that
any number of them takes no memory.

Legend: N samples, L samples of an impulse response.
"""

import os
import warnings
from collections.abc import Sequence

import numpy as np

from jasper_pt.audio import read_audio
from jasper_pt.augment import utterance_rng
from jasper_pt.config import AudioConfig, ImpulsePerturbation, NoisePerturbation
from jasper_pt.manifest import Utterance, check_files, read_manifest

LOWEST = 50.0  # Hz, of generated noise
MIN_NOISE = 4096  # samples made at least, so that there are some frequencies to weigh


class Surroundings:
    """Reverberation, then noise, as far as they are configured."""

    def __init__(self, config: AudioConfig):
        """Reads the manifests. Raises UserError where one cannot be read, or none of its files."""
        self.room, self.noise, self.sample_rate = (
            config.impulse_perturbation,
            config.noise_perturbation,
            config.sample_rate,
        )
        self.responses = read_sounds(self.room.manifests) if self.room else []
        self.noises = read_sounds(self.noise.manifests) if self.noise else []

    def __call__(self, audio: np.ndarray, seed: int, epoch: int, key: str) -> np.ndarray:
        """audio [N] float32 -> [N] float32, in time with it."""
        if self.room:
            audio = self.in_room(audio, self.room, utterance_rng(seed, epoch, key, "room"))
        if self.noise:
            audio = self.in_noise(audio, self.noise, utterance_rng(seed, epoch, key, "noise"))
        return audio

    def in_room(self, audio: np.ndarray, config: ImpulsePerturbation, rng: np.random.Generator) -> np.ndarray:
        """With probability p reverberated, see `reverberate`."""
        if rng.random() >= config.p:
            return audio
        if self.responses:
            chosen = self.responses[rng.integers(len(self.responses))]
            response = read_audio(chosen.audio_path, self.sample_rate, chosen.offset, chosen.duration or None)
        else:
            rt60 = rng.uniform(config.min_rt60, config.max_rt60)
            drr_db = rng.uniform(config.min_drr_db, config.max_drr_db)
            response = impulse_response(rt60, drr_db, self.sample_rate, rng)
        return reverberate(audio, response)

    def in_noise(self, audio: np.ndarray, config: NoisePerturbation, rng: np.random.Generator) -> np.ndarray:
        """With probability p with noise, see `add_noise`."""
        if rng.random() >= config.p:
            return audio
        snr_db = rng.uniform(config.min_snr_db, config.max_snr_db)
        if self.noises:
            noise = self.recorded_noise(len(audio), rng)
        else:
            exponent = rng.uniform(config.min_exponent, config.max_exponent)
            noise = coloured_noise(len(audio), exponent, self.sample_rate, rng)
        return add_noise(audio, noise, snr_db)

    def recorded_noise(self, length: int, rng: np.random.Generator) -> np.ndarray:
        """A random part [length] of a random recording; a shorter recording over and over, from a random start."""
        chosen = self.noises[rng.integers(len(self.noises))]
        place = rng.random()
        spare = chosen.duration - length / self.sample_rate
        if spare > 0:
            part = read_audio(
                chosen.audio_path, self.sample_rate, chosen.offset + place * spare, length / self.sample_rate
            )
        else:
            part = read_audio(chosen.audio_path, self.sample_rate, chosen.offset, chosen.duration or None)
            part = np.roll(part, -int(place * len(part)))
        return np.resize(part, length)


def make_surroundings(config: AudioConfig) -> Surroundings | None:
    """What adds room and noise; None where neither is configured."""
    return Surroundings(config) if config.impulse_perturbation or config.noise_perturbation else None


def read_sounds(manifests: Sequence[str | os.PathLike]) -> list[Utterance]:
    """The readable recordings of manifests, whose relative paths start from the manifest's folder."""
    sounds = [sound for path in manifests for sound in read_manifest(path, spoken=False)]
    if not sounds:
        return []
    sounds, report = check_files(sounds)
    for line in report.lines():
        warnings.warn(f"noise and impulse responses: {line}", stacklevel=2)
    return sounds


def add_noise(audio: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """audio [N] + noise [N], the noise at such a level that mean power of audio / mean power of noise is snr_db (dB).

    Digital silence stays as it is, and so does what is given silence as noise.
    """
    signal_power, noise_power = (float(np.mean(np.square(x, dtype=np.float64))) for x in (audio, noise))
    if signal_power == 0 or noise_power == 0:
        return audio
    level = np.sqrt(signal_power / noise_power * 10 ** (-snr_db / 10))
    return audio + np.float32(level) * noise.astype(np.float32)


def coloured_noise(length: int, exponent: float, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise [length] float32 whose power density falls as 1 / frequency^exponent (Timmer and Koenig 1995);
    of power about 1. Below LOWEST there is none: nearly all of a brown noise's power would be where nothing is heard.
    """
    size = 1 << max(length - 1, MIN_NOISE).bit_length()  # a power of two, for the FFT
    spectrum = np.fft.rfft(rng.standard_normal(size, dtype=np.float32))
    frequencies = np.arange(len(spectrum)) * (sample_rate / size)
    weights = np.where(frequencies < LOWEST, 0.0, np.maximum(frequencies, LOWEST) ** (-exponent / 2))
    weights /= np.sqrt(np.square(weights).mean())
    return np.fft.irfft(spectrum * weights, size)[:length].astype(np.float32)


def impulse_response(rt60: float, drr_db: float, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    """A generated room [L = rt60 long] float32: 1, then Gaussian noise under an envelope that falls by 60 dB in rt60
    (s) (Polack 1988). The 1 has drr_db (dB) times the energy of all the rest."""
    length = max(round(rt60 * sample_rate), 2)
    envelope = 10 ** (-3 * np.arange(length) / length)
    response = rng.standard_normal(length) * envelope
    response *= np.sqrt(10 ** (-drr_db / 10) / np.square(response[1:]).sum())
    response[0] = 1
    return response.astype(np.float32)


def reverberate(audio: np.ndarray, response: np.ndarray) -> np.ndarray:
    """audio [N] filtered with response [L] -> [N], with the power it had.

    The response's greatest sample counts as the direct sound and keeps its place, so that the transcript's timing
    stays; what rings on beyond the end is cut.
    """
    direct = int(np.abs(response).argmax())
    size = 1 << (len(audio) + len(response)).bit_length()
    wet = np.fft.irfft(np.fft.rfft(audio, size) * np.fft.rfft(response, size), size)[direct : direct + len(audio)]
    power, wet_power = (float(np.mean(np.square(x, dtype=np.float64))) for x in (audio, wet))
    if wet_power == 0:
        return audio
    return (wet * np.sqrt(power / wet_power)).astype(np.float32)
