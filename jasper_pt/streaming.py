"""Speech of any length: log-probabilities window by window, stitched, and words as they become final.

    stream = Stream(recognise, config, STREAM)
    for samples in source:
        update = stream.feed(samples)      # update.words are final, update.pending may still change
    transcript = stream.finish()

A window is a chunk with context on both sides; of what the model says about it the chunk's frames are kept. A frame
depends on those within half the model's receptive field; where the context covers these, stitched log-probabilities are
those of one pass. What a pass over a whole file knows and a window cannot is mean and deviation of the features:
they are taken over the window, or over the last `memory` seconds, or, for files, over the whole file in a pass of their
own.

Latency: a chunk's words are known when the chunk and its right context have been heard, chunk + right + 10 ms after its
first sample, plus the time to compute it.

F mel bins, T feature frames, T' output frames, V labels and blank
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from jasper_pt.audio import Resampler, audio_blocks
from jasper_pt.config import Config
from jasper_pt.decode import greedy_tokens
from jasper_pt.evaluation import Forward
from jasper_pt.features import STD_GUARD, LogMel
from jasper_pt.text import are_subwords
from jasper_pt.transcript import Character, Tokens, Transcript, Word, transcript_of
from runkit.errors import UserError

PAUSE = 0.4  # s of blanks that end a segment, and with it a word
LONGEST = 30.0  # s of a segment without a pause, cut between two words
SEARCHED = 2.0  # s before a chunk's end in which it is cut where the sound is quietest
SMOOTHED = 10  # frames over which quietness is measured

Decoder = Callable[[Tensor, Tensor], list[Tokens]]  # log_probs [B,T',V], lengths [B] -> tokens of each


@dataclasses.dataclass(frozen=True)
class Windows:
    """Seconds of a chunk and of its context on both sides. memory: over which features are normalised, backwards from
    the newest sound; 0: over the window itself. quiet: end chunks where the sound is quietest."""

    chunk: float
    left: float
    right: float
    memory: float = 0.0
    quiet: bool = False

    def __post_init__(self):
        if not (0 < self.chunk < math.inf and 0 <= self.left < math.inf and 0 <= self.right < math.inf):
            raise UserError("chunk, left and right context are seconds: a positive chunk, and no negative context")
        if not 0 <= self.memory < math.inf:
            raise UserError("memory is a number of seconds (0: the window)")

    @property
    def latency(self) -> float:
        """Seconds after a sample that its words can be known, at most."""
        return self.chunk + self.right


FILE = Windows(chunk=30.0, left=5.0, right=5.0, quiet=True)
STREAM = Windows(chunk=0.48, left=4.0, right=0.96, memory=15.0)


# ------------------------------------------------------------------------------------------------------------ features
class FeatureStream:
    """Log-mel frames of a signal that comes in pieces, not normalised; together they are those of the whole signal."""

    def __init__(self, front: LogMel):
        self.front = front
        self._samples = np.zeros(0, np.float32)  # from sample first on
        self._first = 0
        self._frames = 0  # given out

    def feed(self, samples: np.ndarray) -> Tensor:
        """float32 [N] -> the frames [F, k] that no later sample changes."""
        self._samples = np.concatenate([self._samples, samples])
        heard = self._first + len(self._samples)
        behind = self.front.config.win_length - self.front.lead  # samples of a window behind its instant
        return self._take((heard - behind) // self.front.hop_length + 1 if heard >= behind else 0)

    def finish(self) -> Tensor:
        """The frames [F, k] that are left, run into zeros as at the end of any signal."""
        return self._take(self.front.num_frames(self._first + len(self._samples)))

    def _take(self, total: int) -> Tensor:
        """Frames up to `total`, made from samples that begin two windows early: a front end reflects the start."""
        if total <= self._frames:
            return torch.zeros(self.front.config.n_filt, 0)
        early = -(-2 * self.front.config.win_length // self.front.hop_length)
        start = max(0, self._frames - early)
        offset = start * self.front.hop_length
        audio = torch.from_numpy(self._samples[offset - self._first :])[None]
        device = self.front.fb.device
        mel = self.front.mel_energies(audio.to(device), torch.tensor([audio.shape[1]], device=device))[0]
        x = mel[:, self._frames - start : total - start]
        self._frames = total
        keep = max(0, self._frames - early) * self.front.hop_length
        self._samples, self._first = self._samples[keep - self._first :], keep
        return (x + self.front.config.log_guard).log() if self.front.config.log else x


class Statistics(NamedTuple):
    """Mean and deviation [F, 1] (or [1, 1]: over all bins) that features are normalised with."""

    mean: Tensor
    deviation: Tensor

    def normalise(self, x: Tensor) -> Tensor:
        return (x - self.mean) / (self.deviation + STD_GUARD)


def statistics(x: Tensor, mode: str | None) -> Statistics | None:
    """Of frames [F, T], as LogMel.normalize takes them; None where nothing is to be normalised."""
    if mode is None:
        return None
    dims = (1,) if mode == "per_feature" else (0, 1)
    count = x.shape[1] if mode == "per_feature" else x.numel()
    x = x.double()
    mean = x.mean(dims, keepdim=True)
    variance = (x - mean).square().sum(dims, keepdim=True) / max(count - 1, 1)
    return Statistics(mean.float(), variance.sqrt().float())


def file_statistics(blocks: Iterable[np.ndarray], front: LogMel) -> Statistics | None:
    """Of a whole file, in a pass of its own that keeps nothing but sums."""
    mode = front.config.normalize
    if mode is None:
        return None
    stream, count, shift, total, squares = FeatureStream(front), 0, None, 0.0, 0.0
    for x in _feature_blocks(stream, blocks):
        if not x.shape[1]:
            continue
        x = x.double()
        shift = x[:, :1] if shift is None else shift  # so that squares of large means do not swallow the deviation
        total, squares = total + (x - shift).sum(1), squares + (x - shift).square().sum(1)
        count += x.shape[1]
    if shift is None:
        raise UserError("there is no sound to take statistics of")
    mean, square = total / count, squares / count
    if mode == "all_features":
        overall = (shift[:, 0] + mean).mean()
        variance = (square - mean.square() + (shift[:, 0] + mean - overall).square()).mean()
        count *= len(mean)
        mean, shift = overall[None], torch.zeros(1, 1, dtype=torch.float64)
        variance = variance[None]
    else:
        variance = square - mean.square()
    deviation = (variance.clamp(min=0) * count / max(count - 1, 1)).sqrt()
    return Statistics((shift + mean[:, None]).float(), deviation[:, None].float())


def _feature_blocks(stream: FeatureStream, blocks: Iterable[np.ndarray]) -> Iterator[Tensor]:
    for block in blocks:
        yield stream.feed(block)
    yield stream.finish()


# --------------------------------------------------------------------------------------------------- log-probabilities
class LogProbStream:
    """The model's log-probabilities for a signal that comes in pieces, stitched from windows."""

    def __init__(self, forward: Forward, front: LogMel, stride: int, windows: Windows, fixed: Statistics | None = None):
        """stride: feature frames an output frame. fixed: statistics of the whole file, where they are known."""
        self.forward, self.front, self.stride, self.windows, self.fixed = forward, front, stride, windows, fixed
        second = front.config.sample_rate / front.hop_length
        self.chunk, self.left, self.right = (
            math.ceil(length * second / stride) * stride for length in (windows.chunk, windows.left, windows.right)
        )
        self.memory = round(windows.memory * second)
        self.searched = min(round(SEARCHED * second), self.chunk // 2) if windows.quiet else 0
        self._features = FeatureStream(front)
        self._x = torch.zeros(front.config.n_filt, 0, device=front.fb.device)  # frames from first on
        self._first = 0
        self._done = 0  # frames whose log-probabilities have been given out

    def feed(self, samples: np.ndarray) -> Tensor:
        """float32 [N] -> the next log-probabilities [t, V] float32 on the CPU; t may be 0."""
        return self._advance(self._features.feed(samples), False)

    def finish(self) -> Tensor:
        """The rest of them."""
        return self._advance(self._features.finish(), True)

    def _advance(self, x: Tensor, last: bool) -> Tensor:
        self._x = torch.cat([self._x, x.to(self._x.device)], 1)
        total, rows = self._first + self._x.shape[1], []
        while total >= self._done + self.chunk + self.right or (last and self._done < total):
            rest = total - self._done
            end = total if last and rest <= self.chunk + self.right else self._cut(self._done + self.chunk)
            rows.append(self._window(end, min(total, end + self.right)))
            self._done = end
            keep = max(self._first, min(self._done - self.left, total - self.memory) // self.stride * self.stride)
            self._x, self._first = self._x[:, keep - self._first :], keep
        return torch.cat(rows) if rows else torch.zeros(0, 0)

    def _cut(self, end: int) -> int:
        """Where a chunk that ends at `end` at the latest is cut."""
        if not self.searched:
            return end
        before = self._x[:, end - self.searched - self._first : end - self._first].mean(0)
        smooth = torch.nn.functional.avg_pool1d(before[None], SMOOTHED, 1)[0]
        quietest = end - self.searched + int(smooth.argmin()) + SMOOTHED // 2
        return max(quietest // self.stride * self.stride, self._done + self.stride)

    def _window(self, end: int, stop: int) -> Tensor:
        """Log-probabilities of the frames from done to end, of the window that stops at `stop`."""
        start = max(self._first, (self._done - self.left) // self.stride * self.stride)
        x = self._x[:, start - self._first : stop - self._first]
        since = max(self._first, stop - self.memory) if self.memory else start
        known = self.fixed or statistics(
            self._x[:, since - self._first : stop - self._first], self.front.config.normalize
        )
        if known is not None:
            x = known.normalise(x)
        log_probs, _ = self.forward(x[None], torch.tensor([x.shape[1]], device=x.device))
        first, behind = (self._done - start) // self.stride, -(-(end - start) // self.stride)
        return log_probs[0, first:behind].float().cpu()


# -------------------------------------------------------------------------------------------------------------- words
class Update(NamedTuple):
    """What a piece of sound brought: words that are final now, and the text behind them that may still change."""

    words: tuple[Word, ...]
    pending: str


class Stream:
    """Words of one recording or one microphone, as it is heard. One object a recording; finish() ends it."""

    def __init__(
        self,
        forward: Forward,
        config: Config,
        stride: int,
        windows: Windows = STREAM,
        sample_rate: float | None = None,
        decoder: Decoder = greedy_tokens,
        fixed: Statistics | None = None,
        source: str = "",
        front: LogMel | None = None,
    ):
        """forward: the model, e.g. evaluation.evaluation_form; sample_rate: of what is fed (default: the model's)."""
        front = front or LogMel(config.input_val.features)
        rate = config.input_val.features.sample_rate
        self.config, self.decoder, self.source = config, decoder, source
        self.frame_seconds = stride * front.hop_length / rate
        self.heard = 0.0  # s
        self._from_rate = float(sample_rate or rate)
        self._resampler = Resampler(self._from_rate, rate)
        self._log_probs = LogProbStream(forward, front, stride, windows, fixed)
        self._segment = torch.zeros(0, config.n_classes)
        self._segment_start = 0  # output frame
        self._words: list[Word] = []
        self._characters: list[Character] = []
        self._finished = False

    def feed(self, samples: np.ndarray) -> Update:
        """float32 samples [N] in about -1..1, one channel."""
        if self._finished:
            raise ValueError("this stream has ended; begin another for the next recording")
        samples = np.ascontiguousarray(samples, np.float32)
        if samples.ndim != 1:
            raise ValueError(f"samples of one channel are wanted, [N], not {list(samples.shape)}")
        self.heard += len(samples) / self._from_rate
        new = self._log_probs.feed(self._resampler.feed(samples))
        if not len(new):
            return Update((), self._pending())
        return self._take(new)

    def finish(self) -> Transcript:
        """The end of the sound: everything that was said, the last word too."""
        if not self._finished:
            self._finished = True
            rows = [self._log_probs.feed(self._resampler.finish()), self._log_probs.finish()]
            for new in rows:
                if len(new):
                    self._take(new)
            self._close(len(self._segment))
        return Transcript.of(self._words, self._characters, self.heard, self.source)

    def _take(self, new: Tensor) -> Update:
        before = len(self._words)
        self._segment = torch.cat([self._segment, new])
        while cut := self._segment_end():
            self._close(cut)
        return Update(tuple(self._words[before:]), self._pending())

    def _segment_end(self) -> int:
        """Frames that make up a segment whose words are final; 0: none yet."""
        best = self._segment.argmax(1)
        frames = len(best)
        is_blank = (best == self.config.n_classes - 1).numpy()
        length = round(PAUSE / self.frame_seconds)
        if frames >= length:
            silent = np.convolve(is_blank, np.ones(length, int), "valid") == length  # windows of blanks alone
            if silent.any():
                first = int(silent.argmax())
                later = np.flatnonzero(~is_blank[first:])
                return first + int(later[0]) if len(later) else frames
        if frames * self.frame_seconds < LONGEST:
            return 0
        if are_subwords(self.config.labels):  # cut before a piece that begins a word
            begins = np.array([*(label.startswith(" ") for label in self.config.labels), False])[best.numpy()]
            places = np.flatnonzero(begins[1:] & (best[1:] != best[:-1]).numpy())
            return int(places[-1]) + 1 if len(places) else frames
        between = is_blank if " " not in self.config.labels else (best == self.config.labels.index(" ")).numpy()
        places = np.flatnonzero(between[: frames - 1] & ~between[1:])  # a run's last frame
        return int(places[-1]) + 1 if len(places) else frames

    def _close(self, frames: int) -> None:
        """The first frames of the segment are decoded for good, and the rest begins the next one."""
        spoken = self._transcript(self._segment[:frames])
        self._words += spoken.words
        self._characters += spoken.characters
        self._segment = self._segment[frames:]
        self._segment_start += frames

    def _transcript(self, log_probs: Tensor) -> Transcript:
        if not len(log_probs):
            return Transcript.of((), (), 0.0)
        (tokens,) = self.decoder(log_probs[None], torch.tensor([len(log_probs)]))
        start = self._segment_start * self.frame_seconds
        return transcript_of(tokens, self.config.labels, self.frame_seconds, self.heard, first_frame=start)

    def _pending(self) -> str:
        return self._transcript(self._segment).text


def transcribe_file(
    path: str | os.PathLike,
    forward: Forward,
    config: Config,
    stride: int,
    windows: Windows = FILE,
    whole: bool = False,
    decoder: Decoder = greedy_tokens,
    on_update: Callable[[Update], None] | None = None,
    front: LogMel | None = None,
) -> Transcript:
    """A file of any length in bounded memory. whole: features are normalised over the whole file, which is then read
    twice. Raises UserError as audio.read_audio does."""
    front = front or LogMel(config.input_val.features)
    rate = config.input_val.features.sample_rate
    fixed = file_statistics(audio_blocks(path, rate), front) if whole else None
    stream = Stream(
        forward, config, stride, windows, decoder=decoder, fixed=fixed, source=os.fspath(path), front=front
    )  # fmt: skip
    told = 0
    for block in audio_blocks(path, rate):
        update = stream.feed(block)
        if on_update is not None:
            on_update(update)
            told += len(update.words)
    transcript = stream.finish()
    if on_update is not None:
        on_update(Update(transcript.words[told:], ""))
    return transcript
