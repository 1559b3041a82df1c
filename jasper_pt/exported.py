"""Speech recognition with what run_export wrote, by ONNX Runtime: no PyTorch is needed.

    recognizer = exported.load("OUT")
    (transcript,) = recognizer.transcribe([recognizer.read("speech.flac")])

Legend: B utterances, N samples, F features, T output frames, V labels and blank (the blank is last).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from jasper_pt.config import Config, parse_config
from jasper_pt.recordings import Audio, Signal, pad, read_signal
from jasper_pt.transcript import Tokens, Transcript, transcript_of
from runkit.exports import check_files, onnx_session, read_metadata

# (features [B,F,T'] float32, lengths [B] int64) -> (log_probs [B,T,V], lengths [B])
Acoustic = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
KEYS = ("config", "labels", "min_samples", "min_frames")  # of metadata.json
# (log_probs [B,T,V], lengths [B]) -> what was recognised in each
Decoder = Callable[[np.ndarray, np.ndarray], list[Tokens]]

MAKER = "scripts/export_asr.sh"


class ExportedRecognizer:
    """The way from sounds to transcripts: features.onnx, the acoustic model, decoding."""

    def __init__(
        self, folder: str | os.PathLike, acoustic: Acoustic, decoder: Decoder | None = None, threads: int | None = None
    ):
        """acoustic: the acoustic model, wherever it runs; decoder: by default greedy; threads: for features.

        Raises UserError for a folder that is no export.
        """
        metadata = read_metadata(folder, KEYS, MAKER)
        self.config: Config = parse_config(metadata["config"], f"configuration in {folder}/metadata.json")
        self.labels: tuple[str, ...] = tuple(metadata["labels"])
        self.min_samples, self.min_frames = metadata["min_samples"], metadata["min_frames"]
        self.acoustic, self.decoder = acoustic, decoder or greedy_tokens
        self._features = onnx_function(Path(folder) / "features.onnx", ("audio", "lengths"), threads)

    def read(self, audio: Audio, sample_rate: int | None = None) -> Signal:
        """See recordings.read_signal."""
        return read_signal(audio, sample_rate, self.config.input_val.audio)

    def transcribe(self, signals: Sequence[Signal]) -> list[Transcript]:
        """What is said in each; all go through the model at once."""
        audio, lengths = pad([signal.samples for signal in signals])
        features, frames = self._features(widened(audio, self.min_samples), lengths)
        log_probs, frames = self.acoustic(widened(features, self.min_frames), frames)
        return [
            transcript_of(
                tokens, self.labels, self.config.frame_seconds, signal.duration, signal.source, first_frame=signal.start
            )
            for signal, tokens in zip(signals, self.decoder(log_probs, frames), strict=True)
        ]


def load(
    folder: str | os.PathLike, name: str = "model.onnx", decoder: Decoder | None = None, threads: int | None = None
) -> ExportedRecognizer:
    """A recognizer with an acoustic model of the folder. Raises UserError for files that are missing or changed."""
    check_files(folder, ("features.onnx", name), MAKER)
    acoustic = onnx_function(Path(folder) / name, ("features", "lengths"), threads)
    return ExportedRecognizer(folder, acoustic, decoder, threads)


def widened(array: np.ndarray, least: int) -> np.ndarray:
    """Zeros behind the last axis where it is shorter."""
    if array.shape[-1] >= least:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, least - array.shape[-1])])


def onnx_function(path: Path, names: tuple[str, str], threads: int | None = None) -> Acoustic:
    """A model of two inputs and two outputs under ONNX Runtime on the CPU. Raises UserError where it is missing."""
    session = onnx_session(path, threads)

    def function(values: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, second = session.run(None, dict(zip(names, (values, lengths), strict=True)))
        return first, second

    return function


def greedy_tokens(log_probs: np.ndarray, lengths: np.ndarray) -> list[Tokens]:
    """decode.greedy_tokens for arrays: the best label of each frame, repeats merged, blanks dropped."""
    return [_collapsed(row[: int(length)]) for row, length in zip(log_probs, lengths, strict=True)]


def _collapsed(log_probs: np.ndarray) -> Tokens:
    """log_probs [T,V] -> tokens."""
    if not len(log_probs):
        return Tokens([], [], [], [])
    best, ids = log_probs.max(1), log_probs.argmax(1)
    starts = np.flatnonzero(np.diff(ids, prepend=-1))  # of runs of one symbol
    peaks = np.exp(np.maximum.reduceat(best, starts))
    ends = np.append(starts[1:], len(ids))
    kept = ids[starts] != log_probs.shape[1] - 1
    columns = (ids[starts], starts, peaks, ends)
    return Tokens(*(column[kept].tolist() for column in columns))
