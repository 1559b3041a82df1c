"""Triton's model from sound to words: reads the audio, makes features, asks the acoustic model, decodes.

Requests that wait together go through the acoustic model as one batch, whatever their lengths. Runs inside the server.
"""

import json
from typing import Any

import numpy as np

from jasper_pt.audio import audio_info
from jasper_pt.decoder_options import beam_decoder, read_options
from jasper_pt.exported import ExportedRecognizer
from jasper_pt.recordings import Signal
from jasper_pt.transcript import Transcript
from runkit.errors import UserError
from runkit.serving.model import Arguments, call, respond, tensor


class TritonPythonModel:
    """Triton's name for it."""

    def initialize(self, args: dict[str, str]) -> None:
        arguments = Arguments(args)
        parameters = arguments.parameters
        self.acoustic_model = parameters["acoustic_model"]
        self.max_seconds, self.max_bytes = float(parameters["max_seconds"]), int(parameters["max_bytes"])
        self.recognizer = ExportedRecognizer(arguments.folder, self.acoustic, threads=1)
        options = read_options(arguments.folder / "decoder.json")
        if options.decoder == "beam":
            self.recognizer.decoder = beam_decoder(options, self.recognizer.labels).tokens

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond(requests, self.read, self.answer)

    # ------------------------------------------------------------------------------------------------ what it does
    def read(self, request: Any) -> list[Signal]:
        """The recordings of a request. Raises UserError for what is none, or too much."""
        files, samples = tensor(request, "AUDIO_FILE"), tensor(request, "AUDIO_SIGNAL")
        if (files is None) == (samples is None):
            raise UserError("give either AUDIO_FILE, the bytes of a sound file, or AUDIO_SIGNAL, its samples")
        if files is not None:
            return [self.read_file(content) for content in files.reshape(-1)]
        counts = tensor(request, "NUM_SAMPLES")
        counts = np.full(len(samples), samples.shape[1]) if counts is None else counts.reshape(-1)
        return [self.read_samples(row, int(count)) for row, count in zip(samples, counts, strict=True)]

    def read_file(self, content: bytes) -> Signal:
        if len(content) > self.max_bytes:
            raise UserError(f"a sound file of {len(content) / 1e6:.0f} MB; {self.max_bytes / 1e6:g} MB are the most")
        if not content:
            raise UserError("the sound file is empty")
        self.check_duration(audio_info(content).duration)
        return self.recognizer.read(content)

    def read_samples(self, samples: np.ndarray, count: int) -> Signal:
        if not len(samples):
            raise UserError("AUDIO_SIGNAL has no samples")
        if not 0 < count <= len(samples):
            raise UserError(f"NUM_SAMPLES is {count}; it must be 1 to {len(samples)}, the width of AUDIO_SIGNAL")
        self.check_duration(count / self.recognizer.config.input_val.audio.sample_rate)
        return self.recognizer.read(samples[:count])

    def check_duration(self, seconds: float) -> None:
        if seconds > self.max_seconds:
            raise UserError(
                f"{seconds:.0f} s of sound; {self.max_seconds:g} s are the most here (transcribe.sh has no limit)"
            )

    def acoustic(self, features: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs = {"features": features, "lengths": lengths.reshape(-1, 1)}
        log_probs, frames = call(self.acoustic_model, inputs, ("log_probs", "output_lengths"))
        return log_probs, frames.reshape(-1)

    def answer(self, asked: list[list[Signal]]) -> list[dict[str, np.ndarray]]:
        transcripts = iter(self.recognizer.transcribe([signal for signals in asked for signal in signals]))
        return [outputs([next(transcripts) for _ in signals]) for signals in asked]


def outputs(transcripts: list[Transcript]) -> dict[str, np.ndarray]:
    """The outputs [B, 1] of a request."""

    def column(values: list, dtype: Any) -> np.ndarray:
        return np.array(values, dtype).reshape(-1, 1)

    words = [json.dumps(transcript.to_dict()["words"], ensure_ascii=False) for transcript in transcripts]
    return {
        "TRANSCRIPT": column([transcript.text.encode() for transcript in transcripts], object),
        "WORDS": column([text.encode() for text in words], object),
        "CONFIDENCE": column([transcript.confidence for transcript in transcripts], np.float32),
        "DURATION": column([transcript.duration for transcript in transcripts], np.float32),
    }
