"""Speech recognition from Python: a model that is loaded once and then asked.

    recognizer = jasper_pt.load("results/QuartzNet_best_checkpoint.pt")
    recognizer.transcribe("speech.flac").text
    recognizer.align("speech.flac", "What was said.").words

One recognizer may be asked from several threads at a time. docs/python_api.md has examples.

Legend: N samples, T output frames, V labels and blank (the blank is last).
"""

import dataclasses
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from jasper_pt import checkpoint
from jasper_pt.config import Config, parse_config
from jasper_pt.decode import greedy_tokens
from jasper_pt.evaluation import evaluation_form
from jasper_pt.features import LogMel
from jasper_pt.model import AcousticModel, build_model
from jasper_pt.precision import choose_precision
from jasper_pt.recordings import Audio, Signal, pad, read_signal
from jasper_pt.streaming import FILE, STREAM, Decoder, LogProbStream, Stream, Update, Windows, transcribe_file
from jasper_pt.text import encode, frames_needed, transcript_rules
from jasper_pt.transcript import Tokens, Transcript, respelled, transcript_of
from jasper_pt.trellis import align_labels
from runkit.errors import UserError

WHOLE_SECONDS = 120.0  # longer audio is recognised in windows (streaming.FILE): memory stays bounded
BLOCK_SECONDS = 10.0  # of samples handed to them at a time


def load(
    path: str | os.PathLike,
    device: str | torch.device | None = None,
    precision: str | None = None,
    decoder: Decoder | None = None,
    ema: bool = True,
) -> "Recognizer":
    """A recognizer with the weights of a checkpoint (.pt of this recipe, or .nemo).

    device: by default a GPU if there is one; precision: fp32, tf32, bf16 or fp16, by default tf32 on a GPU and fp32 on
    a CPU; decoder: by default greedy; ema: the averaged weights, where the checkpoint has them. Raises UserError naming
    the file.
    """
    contents = checkpoint.read(path)
    if "config" not in contents:
        raise UserError(f"{path} holds no configuration: make a checkpoint with run_training, or use run_inference")
    config = parse_config(contents["config"], f"configuration in {path}")
    config = dataclasses.replace(config, labels=tuple(contents.get("labels", config.labels)))
    model = build_model(config, config.n_classes).eval()
    weights = (ema and contents.get("ema_state_dict")) or contents["state_dict"]
    checkpoint.load_weights(model, weights, path)
    return Recognizer(model, config, device, precision, decoder)


class Recognizer:
    """A frozen model with what stands before and behind it. Calls change nothing in it."""

    def __init__(
        self,
        model: AcousticModel,
        config: Config,
        device: str | torch.device | None = None,
        precision: str | None = None,
        decoder: Decoder | None = None,
    ):
        """As for `load`. Later changes of the model may have no effect."""
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        chosen = choose_precision(precision, False, self.device)
        chosen.activate()
        self.precision = chosen.name
        self.config = config
        self.labels: tuple[str, ...] = tuple(config.labels)
        self.decoder: Decoder = decoder or greedy_tokens
        self.sample_rate: int = config.input_val.audio.sample_rate
        self.stride: int = config.stride
        self.frame_seconds: float = config.frame_seconds
        self._log_mel = LogMel(config.input_val.features).to(self.device)
        self._forward = evaluation_form(model.to(self.device), chosen, self.device)
        self._rules = transcript_rules(config.input_val.audio.normalize_transcripts, self.labels)

    # -------------------------------------------------------------------------------------------------- what it does
    @overload
    def transcribe(self, audio: Audio, sample_rate: int | None = None, batch_size: int = 8) -> Transcript: ...

    @overload
    def transcribe(
        self, audio: Sequence[Audio], sample_rate: int | None = None, batch_size: int = 8
    ) -> list[Transcript]: ...

    def transcribe(self, audio, sample_rate=None, batch_size=8):
        """What is said in a recording; of a list, in each.

        sample_rate (Hz): of samples without a rate of their own; by default the model's. batch_size: recordings that go
        through the model at a time; those longer than WHOLE_SECONDS go window by window. Samples are [N] or
        [N, channels], floats in about -1..1 or integers of their full range. Raises UserError for audio that cannot be
        read.
        """
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be 1 or more")
        if not isinstance(audio, list):
            return self.transcribe([audio], sample_rate, batch_size)[0]
        transcripts = []
        for start in range(0, len(audio), batch_size):
            signals = [self._read(one, sample_rate) for one in audio[start : start + batch_size]]
            for signal, log_probs in zip(signals, self._log_probs(signals, batch_size), strict=True):
                (tokens,) = self.decoder(log_probs[None], torch.tensor([len(log_probs)], device=log_probs.device))
                transcripts.append(self._transcript(signal, tokens))
        return transcripts

    def align(self, audio: Audio, text: str, sample_rate: int | None = None) -> Transcript:
        """When the words of a known text are said: the most probable way to say all of it in this recording.

        The words come back as they are spelled in the text. They are aligned as the model spells them (by the rules of
        its transcripts: lower case, numbers in words, punctuation left out). The confidence of a word that was not said
        is low. Raises UserError for audio that cannot be read, characters without a label, and a text that is too long.
        """
        signal = self._read(audio, sample_rate)
        where = f"{signal.source}: " if signal.source else ""
        words = text.split()
        unknown: Counter[str] = Counter()
        pieces = [self._rules(word, self.labels, unknown) for word in words]
        if missing := {character: n for character, n in unknown.items() if is_spoken(character)}:
            counts = ", ".join(f"{character!r} x {n}" for character, n in sorted(missing.items()))
            raise UserError(
                f"{where}the text has characters that the model has no label for: {counts}; "
                f"its labels are {''.join(self.labels)!r}"
            )
        ids = encode((" " if " " in self.labels else "").join(filter(None, pieces)), self.labels)
        if not ids:
            raise UserError(f"{where}there are no words to align in the text {text[:40]!r}")
        (log_probs,) = self._log_probs([signal], batch_size=4)
        if (needed := frames_needed(ids)) > len(log_probs):
            raise UserError(
                f"{where}the text is too long for the audio: its {len(ids)} labels need {needed} frames of "
                f"{1000 * self.frame_seconds:g} ms, and there are {len(log_probs)}"
            )
        tokens = align_labels(log_probs.float().cpu().numpy(), ids)
        return respelled(self._transcript(signal, tokens), words, pieces)

    def stream(
        self, sample_rate: float | None = None, windows: Windows = STREAM, decoder: Decoder | None = None
    ) -> Stream:
        """A stream for one recording that is heard piece by piece: feed(samples), and finish() for all of it.

        sample_rate (Hz): of what is fed; by default the model's. windows: chunk and context, which decide the latency.
        """
        return Stream(
            self._forward, self.config, self.stride, windows, sample_rate, decoder or self.decoder, front=self._log_mel
        )

    def transcribe_long(
        self,
        path: str | os.PathLike,
        windows: Windows = FILE,
        whole: bool = False,
        on_update: Callable[[Update], None] | None = None,
    ) -> Transcript:
        """A file of any length in bounded memory, see streaming.transcribe_file; on_update is told of words as they
        become final."""
        return transcribe_file(
            path, self._forward, self.config, self.stride, windows, whole, self.decoder, on_update, self._log_mel
        )

    def log_probs(self, audio: Audio, sample_rate: int | None = None) -> Tensor:
        """Log-probabilities [T,V] of the labels and, last, the blank, every `frame_seconds` s; float32, on the CPU.

        Where the model's configuration trims silence, frame 0 stands for the end of the silence at the start.
        """
        return self._log_probs([self._read(audio, sample_rate)], batch_size=4)[0].float().cpu()

    # -------------------------------------------------------------------------------------------------- how it does it
    def _read(self, audio: Audio, sample_rate: int | None) -> Signal:
        return read_signal(audio, sample_rate, self.config.input_val.audio)

    def _log_probs(self, signals: Sequence[Signal], batch_size: int) -> list[Tensor]:
        """Log-probabilities [T,V] of each signal."""
        found: dict[int, Tensor] = {}
        short = [i for i, signal in enumerate(signals) if len(signal.samples) <= WHOLE_SECONDS * self.sample_rate]
        for start in range(0, len(short), batch_size):
            batch = short[start : start + batch_size]
            arrays = pad([signals[i].samples for i in batch])
            audio, lengths = (torch.from_numpy(array).to(self.device) for array in arrays)
            log_probs, frames = self._forward(*self._log_mel(audio, lengths))
            for i, row, length in zip(batch, log_probs, frames.tolist(), strict=True):
                found[i] = row[:length].clone()  # without the rest of the batch
        return [found[i] if i in found else self._in_windows(signal.samples) for i, signal in enumerate(signals)]

    def _in_windows(self, samples: np.ndarray) -> Tensor:
        """Log-probabilities [T,V] of a long signal."""
        windows = LogProbStream(self._forward, self._log_mel, self.stride, FILE)
        size = round(BLOCK_SECONDS * self.sample_rate)
        parts = [windows.feed(samples[start : start + size]) for start in range(0, len(samples), size)]
        return torch.cat([part for part in (*parts, windows.finish()) if len(part)])

    def _transcript(self, signal: Signal, tokens: Tokens) -> Transcript:
        return transcript_of(
            tokens, self.labels, self.frame_seconds, signal.duration, signal.source, first_frame=signal.start
        )


def is_spoken(character: str) -> bool:
    """Whether a character without a label is more than punctuation."""
    return unicodedata.category(character)[0] not in "PZC"
