"""What a model hears of a recording, given in any form. Needs no PyTorch.

Legend: N samples
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from jasper_pt.audio import MAX_AMPLITUDE, SAMPLE_RATES, loud_part, read_audio, resample
from jasper_pt.config import AudioConfig
from runkit.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

# A file (its name or its bytes), samples, or samples with their rate.
Audio: TypeAlias = "str | os.PathLike | bytes | np.ndarray | Tensor | tuple[np.ndarray | Tensor, int]"


class Signal(NamedTuple):
    """What a recognizer hears of a recording."""

    samples: np.ndarray  # [N] float32, at the model's rate
    start: float  # s of silence that were left out before them
    duration: float  # s of the whole recording
    source: str  # its name, if it has one


def read_signal(audio: Audio, sample_rate: int | None, config: AudioConfig) -> Signal:
    """A recording as the configuration says. sample_rate (Hz): of samples without a rate of their own; by default the
    model's. Raises UserError for audio that cannot be read."""
    source = ""
    if isinstance(audio, tuple):
        audio, sample_rate = audio
    if isinstance(audio, str | os.PathLike | bytes):
        source = "" if isinstance(audio, bytes) else os.fspath(audio)
        samples = read_audio(audio, config.sample_rate)
    else:
        samples = mono(audio)
        rate = sample_rate or config.sample_rate
        if rate not in SAMPLE_RATES:
            raise UserError(f"a sample rate of {rate} Hz: it must be {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}")
        samples = resample(samples, rate, config.sample_rate)
    part = loud_part(samples) if config.trim_silence else slice(0, len(samples))
    return Signal(samples[part], part.start / config.sample_rate, len(samples) / config.sample_rate, source)


def mono(samples: "np.ndarray | Tensor") -> np.ndarray:
    """Samples [N] or [N, channels], of floats or of integers, as float32 [N] in about -1..1, channels averaged.

    Raises UserError for other shapes and types, and for no samples, NaN and infinite ones.
    """
    array = samples.detach().cpu().numpy() if hasattr(samples, "detach") else np.asarray(samples)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] > array.shape[0]):
        raise UserError(f"samples of shape {list(array.shape)}: give [samples] or [samples, channels]")
    if not array.size:
        raise UserError("there are no samples")
    if np.issubdtype(array.dtype, np.signedinteger):
        array = array / -float(np.iinfo(array.dtype).min)
    elif not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"samples of type {array.dtype}: give floats in -1..1 or signed integers")
    array = array.astype(np.float32)  # a copy, for the caller may change theirs
    if array.ndim == 2:
        array = array.mean(axis=1)
    if not np.abs(array).max() <= MAX_AMPLITUDE:  # not so for NaN
        raise UserError("NaN or infinite samples, or absurd ones")
    return array


def pad(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows [n_i] -> one array [B, max n_i], zeros behind each; lengths [B] int64."""
    lengths = np.array([len(row) for row in rows], np.int64)
    padded = np.zeros((len(rows), lengths.max()), rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded, lengths
