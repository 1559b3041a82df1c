"""Log-mel features in torch, batched, on any device.

    features, feature_lengths = LogMel(config.input_val.features)(audio, lengths)

Legend: B utterances, N samples, T frames, F mel bins.

What an utterance yields depends on its own samples only, not on the batch around it, its padding or its place. For
that each signal counts as followed by zeros without end: pre-emphasis and the last windows run into those zeros. This
is what the published batched code gives every utterance of a batch except the longest, whose end it reflects instead
(its very last frame and, through the statistics, a few thousandths elsewhere come out differently there). The start is
reflected, as published.
"""

import math

import torch
from torch import Tensor, nn

from jasper_pt.config import FeatureConfig

STD_GUARD = 1e-5  # added to the standard deviation


class LogMel(nn.Module):
    """Audio to normalised log-mel features.

    Pre-emphasis, centred STFT, power, Slaney mel filters, natural logarithm, then normalisation by mean and unbiased
    standard deviation over each utterance's own frames. Frames past an utterance's end are exact zeros. There is no
    dither: it is noise for training, which `augment` adds to the waveform.
    """

    window: Tensor  # [win_length]
    fb: Tensor  # [F, n_fft // 2 + 1]

    def __init__(self, config: FeatureConfig):
        super().__init__()
        self.config = config
        self.hop_length = config.hop_length
        self.n_fft = config.fft_length
        # Samples of a window that lie before the instant its frame stands for.
        self.lead = self.n_fft // 2 - (self.n_fft - config.win_length) // 2
        self.register_buffer("window", analysis_window(config.window, config.win_length), persistent=False)
        high = config.sample_rate / 2 if config.highfreq is None else config.highfreq
        filters = mel_filters(config.sample_rate, self.n_fft, config.n_filt, config.lowfreq, high)
        self.register_buffer("fb", filters, persistent=False)

    def num_frames(self, num_samples):
        """Frames of a signal, ceil(samples / hop); takes and returns an int or a tensor of them."""
        return -(-num_samples // self.hop_length)

    @property
    def max_frames(self) -> int:
        """Frames that `pad_to_max_duration` extends every batch to, before alignment; 0 without it."""
        if not self.config.pad_to_max_duration:
            return 0
        beyond = self.config.max_duration * self.config.sample_rate - self.config.win_length
        return 1 + math.ceil(beyond / self.hop_length)

    @torch.no_grad()
    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """audio [B, N] float32 in [-1, 1], lengths [B] int64 samples -> features [B, F, T] float32, frames [B] int64.

        Samples past a length are ignored. T is ceil(N / hop) or `max_frames`, made a multiple of `pad_align`.
        """
        return self.normalize(self.mel_energies(audio, lengths), self.num_frames(lengths))

    def mel_energies(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """audio [B, N], lengths [B] -> mel energies [B, F, ceil(N / hop)], neither logarithmic nor normalised."""
        num_samples = audio.shape[1]
        num_frames = max(self.num_frames(num_samples), 1)
        # [lead reflected samples | signal | zeros]
        span = self.hop_length * (num_frames - 1) + self.config.win_length
        start, end = self.lead, self.lead + num_samples
        signal = audio.new_zeros(len(audio), max(span, end + 1, 2 * start + 1), dtype=torch.float32)
        signal[:, start:end] = torch.where(_valid(lengths, num_samples), audio, 0)
        if self.config.preemph:
            signal[:, start + 1 : end + 1] -= self.config.preemph * signal[:, start:end]
        signal[:, :start] = signal[:, start + 1 : 2 * start + 1].flip(1)

        frames = signal[:, :span].unfold(1, self.config.win_length, self.hop_length)  # [B, T, win]
        # Mixed precision would lose the quiet bins. (Where TF32 is allowed in matmuls expect 1e-3 instead of 1e-6.)
        with torch.autocast(audio.device.type, enabled=False):
            if audio.device.type == "cpu":  # row by row: the working set stays in cache
                return torch.stack([self._mel(row) for row in frames])
            return self._mel(frames)

    def _mel(self, frames: Tensor) -> Tensor:
        """frames [..., T, win] -> mel energies [..., F, T]."""
        # Where the window stands within n_fft changes phases only: it is padded on one side, which is the fast way.
        spectrum = torch.fft.rfft(frames * self.window, n=self.n_fft)
        squares = torch.view_as_real(spectrum).flatten(-2).square_()  # [..., T, n_fft + 2]: re^2, im^2, re^2, ...
        return self.fb.repeat_interleave(2, dim=1) @ squares.transpose(-1, -2)

    @torch.no_grad()
    def normalize(self, mel: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """mel energies [B, F, T], frames [B] -> normalised features [B, F, T'] padded as `forward` says, frames [B].

        An utterance of one frame, or without any change, becomes zeros.
        """
        x = mel + self.config.log_guard if self.config.log else mel.clone()
        if self.config.log:
            x.log_()
        valid = _valid(frames, x.shape[2])[:, None]  # [B, 1, T]
        if self.config.normalize:
            dims = (2,) if self.config.normalize == "per_feature" else (1, 2)
            count = frames[:, None, None] * (1 if len(dims) == 1 else x.shape[1])
            # Seen from the first frame, so that a constant is exactly zero whatever the rounding of sums.
            x.sub_((x[:, :, :1] if len(dims) == 1 else x[:, :1, :1]).clone()).mul_(valid)
            x.sub_(x.sum(dims, keepdim=True) / count.clamp(min=1)).mul_(valid)
            variance = x.square().sum(dims, keepdim=True) / (count - 1).clamp(min=1)
            x.div_(variance.sqrt_() + STD_GUARD)
        else:
            x.mul_(valid)
        width = max(x.shape[2], self.max_frames) if self.max_frames else x.shape[2]
        width += -width % self.config.pad_align
        return nn.functional.pad(x, (0, width - x.shape[2])), frames


def _valid(lengths: Tensor, size: int) -> Tensor:
    """lengths [B] -> mask [B, size], true before each length."""
    return torch.arange(size, device=lengths.device, dtype=torch.int32) < lengths[:, None].int()


def analysis_window(name: str, length: int) -> Tensor:
    """Symmetric window [length], float32, of torch's formula; "none" is rectangular."""
    if name == "none":
        return torch.ones(length)
    windows = {
        "hann": torch.hann_window,
        "hamming": torch.hamming_window,
        "blackman": torch.blackman_window,
        "bartlett": torch.bartlett_window,
    }
    return windows[name](length, periodic=False)


def mel_filters(sample_rate: int, n_fft: int, n_filt: int, lowfreq: float, highfreq: float) -> Tensor:
    """Triangular filters [n_filt, n_fft // 2 + 1] of unit area in Hz on the Slaney mel scale, float32.

    Source: Slaney, Auditory Toolbox (1998), `mfcc.m`; equal to librosa.filters.mel with its defaults.
    """
    bins = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    low, high = hz_to_mel(torch.tensor([lowfreq, highfreq], dtype=torch.float64)).tolist()
    corners = mel_to_hz(torch.linspace(low, high, n_filt + 2, dtype=torch.float64))  # left, centre, right of neighbours
    left, centre, right = (corners[i : i + n_filt, None] for i in range(3))
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * 2 / (right - left)).float()


# Slaney's scale: linear up to 1000 Hz with 200/3 Hz a mel, above it 27 mels for each factor of 6.4.
_HZ_PER_MEL = 200 / 3
_KNEE_HZ, _KNEE_MEL = 1000.0, 15.0
_LOG_STEP = math.log(6.4) / 27


def hz_to_mel(hz: Tensor) -> Tensor:
    """Slaney mel of a frequency in Hz."""
    above = _KNEE_MEL + (hz.clamp(min=_KNEE_HZ) / _KNEE_HZ).log() / _LOG_STEP
    return torch.where(hz < _KNEE_HZ, hz / _HZ_PER_MEL, above)


def mel_to_hz(mel: Tensor) -> Tensor:
    """Frequency in Hz of a Slaney mel."""
    above = _KNEE_HZ * ((mel.clamp(min=_KNEE_MEL) - _KNEE_MEL) * _LOG_STEP).exp()
    return torch.where(mel < _KNEE_MEL, mel * _HZ_PER_MEL, above)
