"""Jasper (arXiv 1904.03288) and QuartzNet (arXiv 1910.10261): a stack of convolution blocks, given by the block table.

    B utterances, F mel bins, T feature frames, T' output frames, C channels, V labels and blank (the blank is last)

Parameters have the names and shapes of the published checkpoints: QuartzNet's blocks hold `mconv`, `res` and `mout`,
Jasper's `conv`, `res` and `out`; indices within count activations and dropouts too.

Padding. Frames beyond an utterance's length are zero at the input of every convolution, so that an utterance's
log-probabilities do not depend on what it is batched with. The mask is made once for each length vector (the stride of
the first block makes a second one). In training, BatchNorm's statistics include these zeros, as published.

Layout. Modules work on [B,C,T] as everywhere, or on [B,C,1,T] in channels-last memory, in which separable convolutions
are several times faster on CPUs (see channels_last.py); `AcousticModel.forward` decides once, at the door.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jasper_pt import channels_last
from jasper_pt.config import BlockConfig, Config, EncoderConfig
from jasper_pt.ops.depthwise import depthwise

BATCH_NORM_EPS, BATCH_NORM_MOMENTUM = 1e-3, 0.1  # as published

# Names of a block's main branch and of what follows its residual sum, by model family.
BRANCH_NAMES = {"quartznet": ("mconv", "mout"), "jasper": ("conv", "out")}

ACTIVATIONS = {"relu": nn.ReLU, "selu": nn.SELU, "hardtanh": nn.Hardtanh}  # hardtanh clips to -1..1

INITIALISERS = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}


def build_model(config: Config, n_classes: int | None = None) -> "AcousticModel":
    """The model of a config with freshly drawn weights; n_classes: V, by default the labels and the blank."""
    return AcousticModel(config, n_classes or config.n_classes)


class Frames:
    """Which frames of a batch are valid, at one frame rate: the lengths and the mask made of them, once."""

    def __init__(self, lengths: Tensor, total: int, masked: bool = True):
        """lengths [B] int64; total: T of the tensors; masked: whether padding is to be zeroed at all."""
        self.lengths, self.total, self.masked = lengths, total, masked
        self.valid: list[int] | None = None  # the lengths, where they can be read without waiting for a GPU
        self.padding: Tensor | None = None  # bool [B,1,T], true on padding; None: there is none to zero
        if not masked:
            return
        if lengths.device.type == "cpu":
            valid = lengths.tolist()
            if min(valid) < 0 or max(valid) > total:
                raise ValueError(f"lengths must lie in 0..{total}, got {valid}")
            if min(valid) == total:
                return
            self.valid = valid
        self.padding = (torch.arange(total, device=lengths.device) >= lengths[:, None])[:, None]

    def after(self, conv: "Conv1d") -> "Frames":
        """The frames behind a convolution; the same object where it keeps their number."""
        if conv.stride == (1,):
            return self
        return type(self)(conv.output_lengths(self.lengths), conv.output_lengths(self.total), self.masked)

    def zero(self, x: Tensor) -> Tensor:
        """x [B,C,T] or [B,C,1,T] with zeros on padding."""
        if self.padding is None:
            return x
        return x.masked_fill(self.padding if x.dim() == 3 else self.padding[:, None], 0)


# ------------------------------------------------------------------------------------------------------ layers
class Conv1d(nn.Conv1d):
    """`nn.Conv1d` without bias and with 'same' padding, on [B,C,T] or on [B,C,1,T] in channels-last memory."""

    def __init__(self, inputs: int, outputs: int, taps: int, stride: int = 1, dilation: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, taps, stride, taps // 2 * dilation, dilation, groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return super().forward(x)
        return channels_last.convolution(x, self.weight, self.bias, self.stride[0], self.dilation[0], self.groups)

    def output_lengths(self, lengths: int | Tensor) -> int | Tensor:
        """Frames behind the convolution; with odd taps and 'same' padding this is ceil(length / stride)."""
        reach = self.dilation[0] * (self.kernel_size[0] - 1) + 1
        return (lengths + 2 * self.padding[0] - reach) // self.stride[0] + 1


class Depthwise(Conv1d):
    """A filter of its own for each channel. Padding is zero behind it, since a 1x1 convolution follows."""

    def __init__(self, channels: int, taps: int, stride: int, dilation: int):
        super().__init__(channels, channels, taps, stride, dilation, groups=channels)

    def forward(self, x: Tensor, frames: Frames, behind: Frames) -> Tensor:
        """frames: those of x; behind: those of the output."""
        if x.dim() == 3:
            return behind.zero(super().forward(x))
        return depthwise(x, self.weight, self.stride[0], self.dilation[0], frames.valid, behind.valid)


class GroupNorm(nn.GroupNorm):
    """GroupNorm over an utterance's valid frames only, so that its padding does not matter (in the original it did)."""

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        """x [B,C,T]."""
        if frames.padding is None:  # nn.GroupNorm's forward refuses a single value, such as an utterance of one frame
            return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        values = frames.zero(x.float()).unflatten(1, (self.num_groups, -1))  # [B,G,C/G,T]
        count = (frames.lengths.clamp(min=1) * values.shape[2]).view(-1, 1, 1, 1)
        mean = values.sum((2, 3), keepdim=True) / count
        centred = (values - mean).masked_fill(frames.padding[:, None], 0)
        variance = centred.square().sum((2, 3), keepdim=True) / count
        normalised = (centred * (variance + self.eps).rsqrt()).flatten(1, 2)
        return (normalised * self.weight[:, None] + self.bias[:, None]).to(x.dtype)


class GroupShuffle(nn.Module):
    """Deals the channels of each group out to all groups (arXiv 1707.01083), for the next grouped convolution."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        mixed = x.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        return mixed if x.dim() == 3 else mixed.contiguous(memory_format=torch.channels_last)


def _make_norm(block: BlockConfig) -> nn.Module:
    channels = block.filters
    if block.normalization == "batch":
        return nn.BatchNorm1d(channels, eps=BATCH_NORM_EPS, momentum=BATCH_NORM_MOMENTUM)
    groups = {"instance": channels, "layer": 1, "group": channels if block.norm_groups == -1 else block.norm_groups}
    return GroupNorm(groups[block.normalization], channels)


def _normalise(norm: nn.Module, x: Tensor, frames: Frames) -> Tensor:
    if isinstance(norm, nn.Identity):  # in a model whose BatchNorms have been folded (fast.py)
        return x
    three = x if x.dim() == 3 else channels_last.to_ncl(x)
    if isinstance(norm, GroupNorm):
        y = norm(three, frames)
    elif x.dim() == 3 or type(norm) is not nn.BatchNorm1d:
        y = norm(three)
    else:  # nn.BatchNorm1d itself refuses [B,C,1,T], and is slow on a view of it
        if norm.training:
            norm.num_batches_tracked += 1
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps
        )
    return y if x.dim() == 3 else channels_last.from_ncl(y)


def _activate(activation: nn.Module, x: Tensor, frames: Frames) -> Tensor:
    """Behind it padding is zero, and stays so in a dropout."""
    if x.dim() == 4 and isinstance(activation, nn.ReLU):
        return channels_last.relu_(x, frames.valid)
    return frames.zero(activation(x))


# ------------------------------------------------------------------------------------------------------ blocks
class Block(nn.Module):
    """`repeat` sub-blocks; the sum with projections of earlier outputs, if any; activation and dropout."""

    def __init__(self, inputs: int, residuals: list[int], block: BlockConfig, activation: str, family: str):
        """inputs: channels of the main branch; residuals: channels of each earlier output that is added."""
        super().__init__()
        self.names = BRANCH_NAMES[family]
        main = nn.ModuleList()
        for repetition in range(block.repeat):
            if repetition > 0:
                main.extend([ACTIVATIONS[activation](), nn.Dropout(block.dropout)])
            if block.separable:
                main.append(Depthwise(inputs, block.kernel, block.stride, block.dilation))
                main.append(Conv1d(inputs, block.filters, 1, groups=block.groups))
            else:
                main.append(Conv1d(inputs, block.filters, block.kernel, block.stride, block.dilation, block.groups))
            main.append(_make_norm(block))
            if block.groups > 1:
                main.append(GroupShuffle(block.groups))
            inputs = block.filters
        self.res = nn.ModuleList(
            nn.ModuleList([Conv1d(channels, block.filters, 1), _make_norm(block)]) for channels in residuals
        )
        end = nn.ModuleList([ACTIVATIONS[activation](), nn.Dropout(block.dropout)])
        for name, branch in zip(self.names, (main, end), strict=True):
            self.add_module(name, branch)

    def forward(self, x: Tensor, residuals: list[Tensor], frames: Frames) -> tuple[Tensor, Frames]:
        """x [B,C,T] or [B,C,1,T], zero on padding as all of `residuals`; so is what is returned, with its frames."""
        main, end = (getattr(self, name) for name in self.names)
        projections = [
            _normalise(norm, conv(output), frames) for output, (conv, norm) in zip(residuals, self.res, strict=True)
        ]
        for layer in main:
            behind = frames.after(layer) if isinstance(layer, Conv1d) else frames
            x = layer(x, frames, behind) if isinstance(layer, Depthwise) else _apply(layer, x, behind)
            frames = behind
        for projection in projections:
            x = x + projection
        for layer in end:
            x = _apply(layer, x, frames)
        return x, frames


def _apply(layer: nn.Module, x: Tensor, frames: Frames) -> Tensor:
    if isinstance(layer, Conv1d | GroupShuffle | nn.Dropout):
        return layer(x)
    if isinstance(layer, tuple(ACTIVATIONS.values())):
        return _activate(layer, x, frames)
    return _normalise(layer, x, frames)


class Encoder(nn.Module):
    """The blocks of the table, one after the other."""

    def __init__(self, config: EncoderConfig, family: str):
        super().__init__()
        self.dense = [block.residual_dense for block in config.blocks]
        self.layers = nn.ModuleList()
        channels, dense_channels = config.in_feats, []
        for block in config.blocks:
            # Dense residual: the inputs of this and all earlier dense blocks. Ordinary: this block's input.
            if block.residual_dense:
                dense_channels.append(channels)
            residuals = list(dense_channels) if block.residual_dense else [channels] * block.residual
            self.layers.append(Block(channels, residuals, block, config.activation, family))
            channels = block.filters

    def forward(self, x: Tensor, frames: Frames) -> tuple[Tensor, Frames]:
        """x [B,F,T] or [B,F,1,T], zero on padding."""
        dense_outputs: list[Tensor] = []
        for block, dense in zip(self.layers, self.dense, strict=True):
            if dense:
                dense_outputs.append(x)
            x, frames = block(x, dense_outputs if dense else [x] * len(block.res), frames)
        return x, frames


class Decoder(nn.Module):
    """1x1 convolution to the labels, and log-softmax; in float32 whatever the precision before."""

    def __init__(self, inputs: int, n_classes: int):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(inputs, n_classes, 1)])

    def forward(self, x: Tensor) -> Tensor:
        """x [B,C,T] or [B,C,1,T] -> log-probabilities [B,T,V]."""
        (conv,) = self.layers
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            if x.dim() == 4:
                scores = F.linear(channels_last.rows(x), conv.weight.squeeze(2), conv.bias)
            else:
                scores = conv(x).transpose(1, 2)
            return scores.log_softmax(-1)


class AcousticModel(nn.Module):
    """From normalised log-mel features to the log-probabilities of labels."""

    def __init__(self, config: Config, n_classes: int):
        super().__init__()
        self.encoder = Encoder(config.encoder, config.family)
        self.decoder = Decoder(config.decoder.in_feats, n_classes)
        self.masked = config.encoder.use_conv_masks
        # auto: channels last on CPUs if convolutions are separable; wide ones gain nothing and pay for sorting weights.
        self.layout: Literal["auto", "ncl", "channels_last"] = "auto"
        self.separable = any(block.separable for block in config.encoder.blocks)
        for part, scheme in ((self.encoder, config.encoder.init), (self.decoder, config.decoder.init)):
            for module in part.modules():
                if isinstance(module, nn.Conv1d):
                    INITIALISERS[scheme](module.weight)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """features [B,F,T], lengths [B] in frames -> log-probabilities [B,T',V] float32, lengths [B] int64.

        What stands beyond an utterance's length is to be ignored. Raises ValueError for lengths outside 0..T (on CPUs;
        elsewhere nobody waits to look).
        """
        frames = Frames(lengths.to(features.device, torch.int64), features.shape[2], self.masked)
        x = frames.zero(features)
        if self.layout == "channels_last" or (self.layout == "auto" and self.separable and x.device.type == "cpu"):
            x = channels_last.from_ncl(x)
        x, frames = self.encoder(x, frames)
        return self.decoder(x), frames.lengths

    def output_lengths(self, lengths: int | Tensor) -> int | Tensor:
        """Output frames of so many feature frames."""
        for conv in self._main_convolutions():
            lengths = conv.output_lengths(lengths)
        return lengths

    @property
    def stride(self) -> int:
        """Feature frames an output frame."""
        return math.prod(conv.stride[0] for conv in self._main_convolutions())

    @property
    def receptive_field(self) -> int:
        """Feature frames that one output frame depends on."""
        frames, step = 1, 1
        for conv in self._main_convolutions():
            frames += (conv.kernel_size[0] - 1) * conv.dilation[0] * step
            step *= conv.stride[0]
        return frames

    def _main_convolutions(self) -> Iterator[Conv1d]:
        for block in self.encoder.layers:
            yield from (layer for layer in getattr(block, block.names[0]) if isinstance(layer, Conv1d))
