"""Sound files to one channel at the model's rate, decoded by what is in them and not by their name.

libsndfile reads WAV, FLAC, MP3, Ogg Vorbis, Opus, NIST SPHERE, AIFF ... in any sample format and rate. Everything
that cannot be read, or not whole, is a UserError that names the file and the cause: a shortened signal under its
full transcript would teach the wrong alignment.
"""

import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from runkit.errors import UserError
from runkit.files import read_lines

SAMPLE_RATE = 16_000  # Hz, of every published model
SAMPLE_RATES = range(1_000, 768_001)  # Hz; beyond these a header is damaged
# Headers of lossy files give their length to within the encoder's padding, some thousand samples.
LOSSY_SUBTYPES = re.compile(r"MPEG|VORBIS|OPUS")
LOSSY_TOLERANCE = 0.5  # s
# What libsndfile notes where the data of a WAV file end early. A size near 2^32 was written by a program that could
# not seek back to fill it in: such a file is whole.
WAV_DATA_SIZE = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_WAV_SIZE = 0xFFFF_0000
MAX_AMPLITUDE = 2.0**32  # of float samples, which some programs scale as integers; beyond it their powers overflow
BLOCK_VALUES = 1 << 22  # decoded at a time, over all channels: 16 MB

UNREADABLE = 3  # exit code of mains when some audio files could not be read
# What counts as audio in a folder, and what is never a list of paths.
AUDIO_SUFFIXES = set(
    ".wav .flac .mp3 .ogg .oga .opus .sph .aif .aiff .aifc .au .snd .w64 .caf .raw .m4a .mp4 .aac .wma .webm".split()
)

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
        position = offset * file.samplerate  # perhaps infinite, or NaN
        start = round(position) if 0 <= position < file.frames else file.frames
        if start == file.frames:
            raise UserError(f"{_name(source)}: offset {offset} s is not within its {_seconds(file):.3f} s")
        wanted = file.frames - start
        if duration is not None:
            wanted = round(min(duration * file.samplerate, wanted)) if duration > 0 else 0
            if not wanted:
                raise UserError(f"{_name(source)}: a duration of {duration} s leaves no samples")
        file.seek(start)
        mono = _read_mono(file, wanted)
        missing = wanted - len(mono)
        tolerance = round(LOSSY_TOLERANCE * file.samplerate) if LOSSY_SUBTYPES.match(file.subtype) else 0
        if missing > tolerance or not len(mono):
            raise _cut_off(source, _seconds(file), (start + len(mono)) / file.samplerate)
        file_rate = file.samplerate
    if not np.abs(mono).max() <= MAX_AMPLITUDE:  # not so for NaN
        raise _absurd(source)
    return resample(mono, file_rate, sample_rate)


def audio_blocks(source: Source, sample_rate: int = SAMPLE_RATE, seconds: float = 10.0) -> Iterator[np.ndarray]:
    """What read_audio gives for a whole file, in pieces of about `seconds`, for files that are larger than memory.

    Raises UserError as read_audio does, though damage is met only when it is reached.
    """
    with _opened(source) as file:
        resampler, block = Resampler(file.samplerate, sample_rate), max(1, round(seconds * file.samplerate))
        tolerance = round(LOSSY_TOLERANCE * file.samplerate) if LOSSY_SUBTYPES.match(file.subtype) else 0
        done = 0
        while done < file.frames:
            wanted = min(block, file.frames - done)
            mono = _read_mono(file, wanted)
            done += len(mono)
            if len(mono) < wanted and (file.frames - done > tolerance or not done):
                raise _cut_off(source, _seconds(file), done / file.samplerate)
            if len(mono) and not np.abs(mono).max() <= MAX_AMPLITUDE:
                raise _absurd(source)
            yield resampler.feed(mono)
            if len(mono) < wanted:  # the encoder's padding, which the header counts
                break
        yield resampler.finish()


class Resampler:
    """`resample` for a signal that comes in pieces."""

    def __init__(self, from_rate: float, to_rate: float):
        self._stream = None if from_rate == to_rate else soxr.ResampleStream(from_rate, to_rate, 1, quality="HQ")

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 [N] -> what is sure of the resampled signal by now."""
        return samples if self._stream is None else self._stream.resample_chunk(samples)

    def finish(self) -> np.ndarray:
        """The rest of it."""
        empty = np.zeros(0, np.float32)
        return empty if self._stream is None else self._stream.resample_chunk(empty, last=True)


def _read_mono(file: soundfile.SoundFile, wanted: int) -> np.ndarray:
    """The next samples [N] float32, channels averaged; N below wanted where the file ends early.

    Block by block, so that a header that promises years of sound takes no memory.
    """
    blocks = []
    while wanted > 0:
        asked = min(wanted, max(BLOCK_VALUES // file.channels, 1))
        samples = file.read(asked, dtype="float32", always_2d=True)  # [n, channels]
        with np.errstate(invalid="ignore", over="ignore"):  # what comes of it is refused later
            blocks.append(samples.mean(axis=1, dtype=np.float32))
        wanted -= asked
        if len(samples) < asked:
            break
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def resample(samples: np.ndarray, from_rate: float, to_rate: float) -> np.ndarray:
    """Band-limited resampling of float32 [N] to [about N * to_rate / from_rate] (soxr, "high quality": 20 bit).

    With from_rate = speed * to_rate it is the speed perturbation of sox: a speed above 1 makes it shorter and
    higher.
    """
    if from_rate == to_rate:
        return samples
    return soxr.resample(samples, from_rate, to_rate, quality="HQ")


def loud_part(audio: np.ndarray, top_db: float = 60.0) -> slice:
    """The samples of `audio` [N] that trim_silence leaves."""
    hop = 512  # a frame is two hops on either side of its centre
    num_frames = 1 + len(audio) // hop
    padded = np.zeros((num_frames + 3) * hop, np.float32)
    padded[2 * hop : 2 * hop + len(audio)] = audio
    energies = np.square(padded, out=padded).reshape(-1, hop).sum(axis=1)  # [num_frames + 3]
    power = sum(energies[i : i + num_frames] for i in range(4)) / (4 * hop)
    level = 10 * np.log10(np.maximum(power, 1e-10))
    loud = np.flatnonzero(level > level.max() - top_db)
    return slice(int(loud[0]) * hop, min((int(loud[-1]) + 1) * hop, len(audio)))


def list_audio(paths: Sequence[str]) -> list[Path]:
    """Audio files named directly, found in folders, or listed one a line in text files.

    Relative paths in a list start from its own folder, or where that does not have them from the working directory.
    Raises UserError for what does not exist, and where there is nothing.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in AUDIO_SUFFIXES
            )
            if not inside:
                raise UserError(f"{path}: no audio files in this folder ({' '.join(sorted(AUDIO_SUFFIXES))})")
            found += inside
        elif not path.exists():
            raise UserError(f"{path}: no such file or folder")
        elif is_audio(path):
            found.append(path)
        else:
            lines = [line.strip() for line in read_lines(path) if line.strip()]
            if not lines:
                raise UserError(f"{path}: lists no files")
            found += [beside if (beside := path.parent / line).exists() else Path(line) for line in lines]
    return found


def is_audio(path: Path) -> bool:
    """Whether a file is taken for audio: by its name or by what is in it. Anything else is a list of paths."""
    if path.suffix.lower() in AUDIO_SUFFIXES:
        return True
    try:
        audio_info(path)
    except UserError:
        return False
    return True


@contextmanager
def _opened(source: Source) -> Iterator[soundfile.SoundFile]:
    """An open file with a believable header. Raises UserError otherwise, and for damage found while it is read."""
    name = _name(source)
    try:
        if not isinstance(source, bytes) and stat.S_IFMT(os.stat(source).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise UserError(f"{name}: is a device or a pipe, which may never end; give a file")
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
    except ValueError as error:  # a NUL in the name
        raise UserError(f"cannot read {name!r}: {error}") from error
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


def _absurd(source: Source) -> UserError:
    return UserError(f"{_name(source)}: holds NaN or infinite samples, or absurd ones; make it anew from its source")


def _cause(error: soundfile.LibsndfileError) -> str:
    if error.code == 1:  # SF_ERR_UNRECOGNISED_FORMAT
        return "is in no sound format known to libsndfile (headerless samples? text?); convert it to WAV or FLAC"
    return f"cannot be decoded ({error.error_string.removeprefix('Error : ').strip(' .')})"


def _name(source: Source) -> str:
    return f"audio of {len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)
