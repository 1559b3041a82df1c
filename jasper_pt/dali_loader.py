"""The loaders of `loader` with NVIDIA DALI doing the work from file to mel energies, on CPU or GPU (--dali_device).

    loader = DaliTrainLoader(utterances, config, batch_size=32, ..., device="cuda", dali_device="gpu")

Order, random choices, labels, masks, normalisation and the batch are those of `loader`, whose code they are. DALI
decodes (WAV, FLAC, Ogg), resamples, trims, perturbs and computes mel energies by the very definitions of `augment` and
`features`: features agree to float32 rounding. Where audio is resampled, for its rate or its speed, DALI has a filter
of its own: they agree to a thousandth below the edge of the band, less in the last bins.

DALI is imported when a loader is made.
"""

import collections
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from jasper_pt.audio import read_audio
from jasper_pt.augment import DITHER_PERIOD, dither_noise, dither_start, gain_db, shift_samples, speed_factor
from jasper_pt.config import Config, FeatureConfig
from jasper_pt.loader import AsrBatch, EvalLoader, Example, Reader, TrainLoader, in_order
from jasper_pt.manifest import Utterance
from runkit.errors import UserError
from runkit.guards import StallGuard

TO_THE_END = np.iinfo(np.int32).max  # samples
MAX_TRIM_FRAMES = 2**18  # of 512 samples: 2.3 h at 16 kHz, longer than any clip


def import_dali() -> Any:
    """The module nvidia.dali. Raises UserError where it is not installed."""
    try:
        import nvidia.dali.fn
        import nvidia.dali.math
        import nvidia.dali.plugin.pytorch
        import nvidia.dali.types
    except ImportError as error:
        raise UserError(
            f"--dali_device cpu and gpu need NVIDIA DALI, which cannot be imported here ({error}): install "
            "nvidia-dali-cuda130, or take --dali_device none"
        ) from error
    return nvidia.dali


def loaders(dali_device: str) -> tuple[Callable[..., TrainLoader], Callable[..., EvalLoader]]:
    """Makers of training and evaluation loaders on "cpu" or "gpu", called like TrainLoader and EvalLoader."""
    return partial(DaliTrainLoader, dali_device=dali_device), partial(DaliEvalLoader, dali_device=dali_device)


class DaliTrainLoader(TrainLoader):
    """TrainLoader through DALI; takes the same arguments and dali_device, "cpu" or "gpu"."""

    def __init__(self, *args, dali_device: str = "cpu", **kwargs):
        self.dali_device = dali_device
        super().__init__(*args, **kwargs)

    def _reader(self, *args) -> "DaliReader":
        return DaliReader(*args, dali_device=self.dali_device)

    def _batches(self, plan: list[list[int]], widths: list[int], epoch: int) -> Iterator[AsrBatch]:
        return self.reader.batches(plan, widths, epoch, self.num_workers, self.stall)


class DaliEvalLoader(EvalLoader):
    """EvalLoader through DALI; takes the same arguments but on_error, and dali_device, "cpu" or "gpu"."""

    def __init__(self, *args, dali_device: str = "cpu", **kwargs):
        if kwargs.get("on_error"):
            raise ValueError("DALI cannot leave single files out of a batch: on_error needs EvalLoader")
        self.dali_device = dali_device
        super().__init__(*args, **kwargs)

    def _reader(self, *args) -> "DaliReader":
        return DaliReader(*args, dali_device=self.dali_device)

    def __iter__(self) -> Iterator[AsrBatch]:
        return self.reader.batches(self.plan, [0] * len(self.plan), None, self.num_workers, self.stall)


# ---------------------------------------------------------------------------------------------------------- reading
class Encoded(NamedTuple):
    """A file's bytes and what DALI is to make of them."""

    data: np.ndarray  # [bytes] uint8
    rate: np.ndarray  # [] float32, Hz to decode at: the model's, or less for a faster signal
    first: np.ndarray  # [1] int32, first sample of the part, at that rate
    length: np.ndarray  # [1] int32, its samples
    gain: np.ndarray  # [] float32, factor
    shift: np.ndarray  # [1] int32, samples; positive is later
    noise: np.ndarray  # [1] int32, start in `dither_noise`


class DaliReader(Reader):
    """A Reader whose batches come out of a DALI pipeline."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        config: Config,
        train: bool,
        seed: int,
        device: Any,
        views: int = 1,
        *,
        dali_device: str,
    ):
        super().__init__(utterances, config, train, seed, device, views)
        if self.surroundings is not None:
            raise UserError(
                "DALI makes no noise_perturbation and no impulse_perturbation: set them to null, or --dali_device none"
            )
        self.dali = import_dali()
        if dali_device not in ("cpu", "gpu"):
            raise UserError(f"--dali_device {dali_device}: there are none, cpu and gpu")
        if dali_device == "gpu" and self.device.type != "cuda":
            raise UserError("--dali_device gpu needs a run on a GPU; take cpu or none")
        self.dali_device = dali_device
        # What DALI gets of each sample: all that the pipeline makes use of.
        self.fields = ["data", "rate", "first", "length"]
        self.fields += ["gain"] * bool(self.audio.gain_perturbation) + ["shift"] * bool(self.audio.shift_perturbation)
        self.dither = None  # [DITHER_PERIOD + the longest signal]
        if train and self.features.dither:
            self.fields.append("noise")
            slowest = self.audio.speed_perturbation.min_rate if self.audio.speed_perturbation else 1.0
            longest = max(utterance.duration for utterance in utterances) / slowest * self.audio.sample_rate
            self.dither = dither_noise(DITHER_PERIOD + int(longest) + 1) * np.float32(self.features.dither)

    def batches(
        self,
        plan: Sequence[Sequence[int]],
        widths: Sequence[int],
        epoch: int | None,
        num_workers: int,
        stall: StallGuard | None = None,
    ) -> Iterator[AsrBatch]:
        """Batches of the planned indices, in order, each at least so many frames wide."""
        # Examples of batches that DALI has taken and not yet given back: it works ahead.
        pending: collections.deque[list[Example]] = collections.deque()

        def source() -> Iterator[tuple[list[np.ndarray], ...]]:
            read = partial(self.read_encoded, epoch=epoch)
            for pairs in in_order(plan, read, num_workers, stall, self.file_name):
                pending.append([example for _, example in pairs])
                yield tuple([getattr(encoded, field) for encoded, _ in pairs] for field in self.fields)

        if not plan:
            return
        feed = source()
        pipeline = self.dali.Pipeline(
            batch_size=max(map(len, plan)),
            num_threads=max(1, num_workers),
            device_id=self.device.index or 0 if self.dali_device == "gpu" else None,
            prefetch_queue_depth=2,
        )
        with pipeline:
            pipeline.set_outputs(*self.graph(feed))
        try:
            for width in widths:
                try:
                    outputs = [output.as_tensor() for output in pipeline.run()]
                except RuntimeError as error:
                    raise self.explained(error, pending) from error
                yield self.dali_batch(pending.popleft(), *outputs, width)
        finally:
            feed.close()

    def read_encoded(self, index: int, epoch: int | None) -> tuple[Encoded, Example]:
        """The file of utterance `index`, not decoded; the Example has its decoding rate in place of audio."""
        utterance = self.utterances[index]
        path, offset, seconds = self.part(utterance, epoch)
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        speed, gain, shift, noise = 1.0, 0.0, 0, 0
        if epoch is not None:
            key = (self.seed, epoch, utterance.key)
            speed = speed_factor(self.audio.speed_perturbation, *key)
            gain = gain_db(self.audio.gain_perturbation, *key)
            shift = shift_samples(self.audio.shift_perturbation, self.audio.sample_rate, *key)
            noise = dither_start(*key)
        rate = self.audio.sample_rate / speed
        length = TO_THE_END if seconds is None else max(1, round(seconds * rate))
        encoded = Encoded(
            data,
            np.array(rate, np.float32),
            np.array([round(offset * rate)], np.int32),
            np.array([length], np.int32),
            np.array(10 ** (gain / 20), np.float32),
            np.array([shift], np.int32),
            np.array([noise], np.int32),
        )
        example = Example(index, encoded.rate, 0.0, *self.target(utterance), self.masks(utterance, epoch))
        return encoded, example

    def dali_batch(self, examples: list[Example], mel: Any, samples: Any, decoded: Any, width: int) -> AsrBatch:
        """The batch from DALI's tensors: mel energies [B, F, T], samples [B, 1] they are of, and decoded [B, 1]."""
        decoded = np.array(decoded)[:, 0].tolist()
        examples = [e._replace(duration=n / float(e.audio)) for e, n in zip(examples, decoded, strict=True)]
        frames = self.log_mel.num_frames(self.to_device(np.array(samples)[:, 0].astype(np.int64)))
        return self.finish(examples, *self.log_mel.normalize(self.copy(mel), frames), width)

    def copy(self, tensor: Any) -> Tensor:
        """DALI's tensor on the training device."""
        if self.dali_device == "cpu":
            return self.to_device(np.array(tensor))
        copy = torch.empty(tensor.shape(), device=self.device)
        stream = torch.cuda.current_stream(self.device)
        return self.dali.plugin.pytorch.feed_ndarray(tensor, copy, cuda_stream=stream)

    def explained(self, error: RuntimeError, pending: Iterable[Sequence[Example]]) -> UserError:
        """DALI's failure as the name of the file behind it, or else of the files that it may be."""
        paths = [self.utterances[example.index].audio_path for examples in pending for example in examples]
        for path in paths:
            try:
                read_audio(path)
            except UserError as cause:
                return cause
        first_line = next(iter(str(error).strip().splitlines()), "no reason given")
        return UserError(
            f"DALI failed ({first_line}) on one of {', '.join(map(os.fspath, paths))}; it decodes WAV, FLAC and Ogg "
            "only, --dali_device none other formats too"
        )

    # --------------------------------------------------------------------------------------------------- pipeline
    def graph(self, source: Iterator) -> tuple[Any, Any, Any]:
        """`Encoded` samples -> (mel energies [F, T], padded with 0 to the batch's T; samples they are of; decoded)."""
        fn, types = self.dali.fn, self.dali.types
        dtypes = {"data": types.UINT8, "rate": types.FLOAT, "gain": types.FLOAT}
        dtypes = [dtypes.get(field, types.INT32) for field in self.fields]
        sources = fn.external_source(source=source, num_outputs=len(dtypes), dtype=dtypes, batch=True)
        inputs = dict(zip(self.fields, sources, strict=True))
        audio, _ = fn.decoders.audio(inputs["data"], sample_rate=inputs["rate"], downmix=True, dtype=types.FLOAT)
        audio = fn.slice(audio, inputs["first"], inputs["length"], axes=[0], out_of_bounds_policy="trim_to_shape")
        decoded = audio.shape(dtype=types.INT32)
        if self.audio.trim_silence:
            audio = trim_silence(self.dali, audio)
        samples = audio.shape(dtype=types.INT32)
        if "gain" in inputs:
            audio = audio * inputs["gain"]
        if "shift" in inputs:
            audio = fn.slice(audio, -inputs["shift"], samples, axes=[0], out_of_bounds_policy="pad")
        if self.dali_device == "gpu":
            audio = audio.gpu()
        if "noise" in inputs:
            dither = types.Constant(self.dither, device=self.dali_device)
            audio = audio + fn.slice(dither, inputs["noise"], samples, axes=[0])
        mel = mel_energies(self.dali, audio, samples, self.features, self.log_mel.window.tolist())
        return fn.pad(mel, axes=[1]), samples, decoded


def mel_energies(dali: Any, audio: Any, samples: Any, config: FeatureConfig, window: list[float]) -> Any:
    """`LogMel.mel_energies` of each signal [N] with DALI: [F, ceil(N / hop)]."""
    fn = dali.fn
    # Zeros behind the signal, further than the last window reaches.
    audio = fn.slice(audio, _int32(dali, 0), samples + 2 * config.fft_length, axes=[0], out_of_bounds_policy="pad")
    if config.preemph:
        audio = fn.preemphasis_filter(audio, preemph_coeff=config.preemph, border="zero")
    spectrum = fn.spectrogram(
        audio,
        nfft=config.fft_length,
        window_length=config.win_length,
        window_step=config.hop_length,
        window_fn=window,
        center_windows=True,
        reflect_padding=True,
        power=2,
    )
    mel = fn.mel_filter_bank(
        spectrum,
        sample_rate=config.sample_rate,
        nfilter=config.n_filt,
        freq_low=config.lowfreq,
        freq_high=config.sample_rate / 2 if config.highfreq is None else config.highfreq,
        mel_formula="slaney",
        normalize=True,
    )
    frames = (samples + (config.hop_length - 1)) // config.hop_length
    return fn.slice(mel, _int32(dali, 0), frames, axes=[1])


def trim_silence(dali: Any, audio: Any, top_db: float = 60.0) -> Any:
    """`augment.trim_silence` of each signal [N] with DALI, on the CPU. (DALI's nonsilent_region frames otherwise.)"""
    fn, types = dali.fn, dali.types
    hop = 512
    samples = audio.shape(dtype=types.INT32)
    num_frames = samples // hop + 1
    padded = fn.slice(audio, _int32(dali, -2 * hop), (num_frames + 3) * hop, axes=[0], out_of_bounds_policy="pad")
    energies = fn.reductions.sum(fn.reshape(padded * padded, shape=[-1, hop]), axes=[1])  # [num_frames + 3]
    parts = [fn.slice(energies, _int32(dali, i), num_frames, axes=[0]) for i in range(4)]
    power = dali.math.max((parts[0] + parts[1] + parts[2] + parts[3]) / float(4 * hop), 1e-10)
    loud = fn.cast(power > fn.reductions.max(power) * 10 ** (-top_db / 10), dtype=types.FLOAT)
    numbers = types.Constant(np.arange(MAX_TRIM_FRAMES, dtype=np.float32), device="cpu")
    numbers = fn.slice(numbers, _int32(dali, 0), num_frames, axes=[0])
    first = fn.reductions.min(numbers + (1.0 - loud) * float(MAX_TRIM_FRAMES), keep_dims=True)
    last = fn.reductions.max(numbers * loud, keep_dims=True)
    start = fn.cast(first, dtype=types.INT32) * hop
    end = dali.math.min(fn.cast(last + 1.0, dtype=types.INT32) * hop, samples)
    return fn.slice(audio, start, end - start, axes=[0])


def _int32(dali: Any, value: int) -> Any:
    """A constant of the type that slice wants beside a computed shape."""
    return dali.types.Constant([value], dtype=dali.types.INT32)
