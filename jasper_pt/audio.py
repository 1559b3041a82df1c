"""Sound files to one channel at the model's rate, decoded by what is in them and not by their name.

libsndfile reads WAV, FLAC, MP3, Ogg Vorbis, Opus, NIST SPHERE, AIFF ... in any sample format and rate. Everything
that cannot be read, or not whole, is a UserError that names the file and the cause: a shortened signal under its
full transcript would teach the wrong alignment.
"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from runkit.errors import UserError

SAMPLE_RATE = 16_000  # Hz, of every published model
SAMPLE_RATES = range(1_000, 768_001)  # Hz; beyond these a header is damaged
# Headers of lossy files give their length to within the encoder's padding, some thousand samples.
LOSSY_SUBTYPES = re.compile(r"MPEG|VORBIS|OPUS")
LOSSY_TOLERANCE = 0.5  # s
# What libsndfile notes where the data of a WAV file end early. A size near 2^32 was written by a program that could
# not seek back to fill it in: such a file is whole.
WAV_DATA_SIZE = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_WAV_SIZE = 0xFFFF_0000

Source = str | os.PathLike | bytes


class AudioInfo(NamedTuple):
    duration: float  # s
    sample_rate: int  # Hz
    channels: int
    num_samples: int  # of each channel
    encoding: str  # container and sample format as libsndfile calls them, "FLAC PCM_16"


def audio_info(source: Source) -> AudioInfo:
    """What the header of a sound file says. Raises UserError as read_audio does, save for damage behind the
    header."""
    with _opened(source) as file:
        return AudioInfo(
            file.frames / file.samplerate, file.samplerate, file.channels, file.frames, f"{file.format} {file.subtype}"
        )


def read_audio(
    source: Source, sample_rate: int = SAMPLE_RATE, offset: float = 0.0, duration: float | None = None
) -> np.ndarray:
    """Decodes a file, or the bytes of one, to float32 samples [N] in about -1..1, channels averaged, at sample_rate.

    offset and duration (s) choose a part; a duration beyond the end means up to the end. Raises UserError when the
    file is missing, empty, in no known format, cut off, damaged, holds NaN or infinite samples, or ends before
    offset.
    """
    with _opened(source) as file:
        start = round(offset * file.samplerate)
        if not 0 <= start < file.frames:
            raise UserError(f"{_name(source)}: offset {offset} s is not within its {_seconds(file):.3f} s")
        wanted = file.frames - start
        if duration is not None:
            wanted = min(wanted, round(duration * file.samplerate))
            if wanted <= 0:
                raise UserError(f"{_name(source)}: a duration of {duration} s leaves no samples")
        file.seek(start)
        samples = file.read(wanted, dtype="float32", always_2d=True)  # [n, channels]
        missing = wanted - len(samples)
        tolerance = round(LOSSY_TOLERANCE * file.samplerate) if LOSSY_SUBTYPES.match(file.subtype) else 0
        if missing > tolerance or not len(samples):
            raise _cut_off(source, _seconds(file), (start + len(samples)) / file.samplerate)
        file_rate = file.samplerate
    mono = samples.mean(axis=1, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise UserError(f"{_name(source)}: holds NaN or infinite samples; make it anew from its source")
    return resample(mono, file_rate, sample_rate)


def resample(samples: np.ndarray, from_rate: float, to_rate: float) -> np.ndarray:
    """Band-limited resampling of float32 [N] to [about N * to_rate / from_rate] (soxr, "high quality": 20 bit).

    With from_rate = speed * to_rate it is the speed perturbation of sox: a speed above 1 makes it shorter and
    higher.
    """
    if from_rate == to_rate:
        return samples
    return soxr.resample(samples, from_rate, to_rate, quality="HQ")


@contextmanager
def _opened(source: Source) -> Iterator[soundfile.SoundFile]:
    """An open file with a believable header. Raises UserError otherwise, and for damage found while it is read."""
    name = _name(source)
    try:
        # By descriptor: given a name, soundfile and libsndfile take some suffixes for the format.
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb", buffering=0) as stream:
            if not stream.read(1):
                raise UserError(f"{name}: is empty")
            stream.seek(0)
            handle = stream if isinstance(source, bytes) else stream.fileno()
            with soundfile.SoundFile(handle, closefd=False) as file:
                _check_header(file, source)
                yield file
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error
    except soundfile.LibsndfileError as error:
        raise UserError(f"{name}: {_cause(error)}") from error


def _check_header(file: soundfile.SoundFile, source: Source) -> None:
    if file.frames <= 0:
        raise UserError(f"{_name(source)}: holds no samples")
    if file.frames == np.iinfo(np.int64).max:
        raise UserError(
            f"{_name(source)}: its header does not say how long it is; write it anew: ffmpeg -i <file> <new file>"
        )
    if file.samplerate not in SAMPLE_RATES:
        raise UserError(f"{_name(source)}: a sample rate of {file.samplerate} Hz; its header is damaged")
    if file.format in ("WAV", "WAVEX") and (sizes := WAV_DATA_SIZE.search(file.extra_info)):
        promised, there = map(int, sizes.groups())
        if there < promised < UNKNOWN_WAV_SIZE:
            raise _cut_off(source, _seconds(file) * promised / there, _seconds(file))


def _seconds(file: soundfile.SoundFile) -> float:
    return file.frames / file.samplerate


def _cut_off(source: Source, promised: float, there: float) -> UserError:
    return UserError(f"{_name(source)}: is cut off: {promised:.3f} s by its header, {there:.3f} s in it")


def _cause(error: soundfile.LibsndfileError) -> str:
    if error.code == 1:  # SF_ERR_UNRECOGNISED_FORMAT
        return "is in no sound format known to libsndfile (headerless samples? text?); convert it to WAV or FLAC"
    return f"cannot be decoded ({error.error_string.removeprefix('Error : ').strip(' .')})"


def _name(source: Source) -> str:
    return f"audio of {len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)
