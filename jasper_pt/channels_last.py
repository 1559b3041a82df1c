"""Convolutions for CPUs on [B,C,1,T] in channels-last memory.

    B utterances, C channels, T frames, K taps

In this layout a frame's channels lie side by side: a 1x1 convolution is one matrix product over all frames, a depthwise
one (ops/depthwise.py) runs along vectors of channels, and nothing is transposed between them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def from_ncl(x: Tensor) -> Tensor:
    """[B,C,T] to [B,C,1,T] in channels-last memory: the one transposition, at the door."""
    return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def to_ncl(x: Tensor) -> Tensor:
    """[B,C,1,T] to [B,C,T], a view."""
    return x.squeeze(2)


def rows(x: Tensor) -> Tensor:
    """[B,C,1,T] as [B,T,C], a contiguous view of channels-last memory."""
    return x.squeeze(2).transpose(1, 2)


def from_rows(x: Tensor) -> Tensor:
    """[B,T,C] as [B,C,1,T], a view."""
    return x.transpose(1, 2).unsqueeze(2)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, dilation: int = 1, groups: int = 1
) -> Tensor:
    """Convolution with 'same' padding; weight [C_out, C_in / groups, K], K odd, and bias as of `nn.Conv1d`."""
    taps = weight.shape[2]
    if taps == stride == groups == 1:
        return from_rows(F.linear(rows(x), weight.squeeze(2), bias))
    padding = taps // 2 * dilation
    return F.conv2d(x, weight.unsqueeze(2), bias, (1, stride), (0, padding), (1, dilation), groups)


def relu_(x: Tensor, lengths: list[int] | None = None) -> Tensor:
    """ReLU in place, with zero (and no gradient) in frames from lengths[b] on; lengths None: there are none."""
    return _Relu.apply(x, lengths)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        ctx.mark_dirty(x)
        x.relu_()
        if lengths is not None:
            for utterance, length in zip(x, lengths, strict=True):
                utterance[..., length:] = 0
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, y, 0), None
