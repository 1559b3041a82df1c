"""Masked depthwise 1-D convolution of channels-last tensors: our C++ kernel, and the same in PyTorch.

B utterances, C channels, T frames, K taps
"""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from jasper_pt.ops import native

Lengths = list[int] | None  # valid frames of each utterance; None: all


def depthwise(
    x: Tensor,
    weight: Tensor,
    stride: int = 1,
    dilation: int = 1,
    lengths: Lengths = None,
    out_lengths: Lengths = None,
) -> Tensor:
    """Each channel with its own filter and 'same' padding; x [B,C,1,T] in channels-last memory, weight [C,1,K], K odd.

    Frames of x from lengths[b] on are taken as zero and receive no gradient; frames of the result from out_lengths[b]
    on are zero. It has the type that autocast asks for, or else that of x; products and sums are float32 at least.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    rows = x.squeeze(2).transpose(1, 2).to(dtype)
    if dtype in (torch.float32, torch.bfloat16) and native.library() is not None:
        y = _Native.apply(rows, weight.squeeze(1), stride, dilation, lengths, out_lengths)
    else:
        y = reference(rows, weight.squeeze(1), stride, dilation, lengths, out_lengths)
    return y.transpose(1, 2).unsqueeze(2)


def reference(x: Tensor, weight: Tensor, stride: int, dilation: int, lengths: Lengths, out_lengths: Lengths) -> Tensor:
    """In PyTorch alone: x [B,T,C], weight [C,K]."""
    wide = _zero_tails(x if x.dtype == torch.float64 else x.float(), lengths)
    with torch.autocast("cpu", enabled=False):
        y = F.conv2d(
            wide.transpose(1, 2).unsqueeze(2),  # [B,C,1,T], channels last
            weight.to(wide.dtype)[:, None, None],
            stride=(1, stride),
            padding=(0, weight.shape[1] // 2 * dilation),
            dilation=(1, dilation),
            groups=x.shape[2],
        )
    return _zero_tails(y.squeeze(2).transpose(1, 2), out_lengths).to(x.dtype)


def _zero_tails(x: Tensor, lengths: Lengths) -> Tensor:
    if lengths is None:
        return x
    return x.masked_fill((torch.arange(x.shape[1]) >= torch.tensor(lengths)[:, None])[:, :, None], 0)


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, stride, dilation, lengths, out_lengths):
        ctx.save_for_backward(x, weight)
        ctx.options = stride, dilation, lengths, out_lengths
        return _forward(x, weight, stride, dilation, lengths, out_lengths, -(-x.shape[1] // stride))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        stride, dilation, lengths, out_lengths = ctx.options
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(grad, x, weight, stride, dilation, lengths, out_lengths)
        if ctx.needs_input_grad[0]:
            if stride > 1:  # spread to the input's frame rate, with zeros between, and go on as with stride 1
                spread = grad.new_zeros(x.shape)
                spread[:, ::stride] = grad
                grad = spread
                out_lengths = None if out_lengths is None else [max(stride * (n - 1) + 1, 0) for n in out_lengths]
            # A correlation with the reversed filters
            grad_x = _forward(grad, weight.flip(1), 1, dilation, out_lengths, lengths, x.shape[1])
        return grad_x, grad_weight, None, None, None, None


# ------------------------------------------------------------------------------------------------ the C functions
def _forward(x, weight, stride, dilation, lengths, out_lengths, out_frames) -> Tensor:
    x, weight = x.contiguous(), weight.float().contiguous()
    y = x.new_empty(x.shape[0], out_frames, x.shape[2])
    sizes = (x.shape[1], out_frames, weight.shape[1], stride, dilation, weight.shape[1] // 2 * dilation)
    _call("depthwise_forward", (x, weight, y), (lengths, out_lengths), sizes)
    return y


def _weight_gradient(grad, x, weight, stride, dilation, lengths, out_lengths) -> Tensor:
    x, grad = x.contiguous(), grad.contiguous()
    result = torch.empty(weight.shape, dtype=torch.float32)
    sizes = (x.shape[1], grad.shape[1], weight.shape[1], stride, dilation, weight.shape[1] // 2 * dilation)
    _call("depthwise_weight_gradient", (x, grad, result), (lengths, out_lengths), sizes)
    return result.to(weight.dtype)


def _call(name: str, tensors: tuple[Tensor, ...], lengths: tuple[Lengths, Lengths], sizes: tuple[int, ...]) -> None:
    """Calls a function of depthwise.cpp; the first tensor, [B,T,C], gives the type, `sizes` are its int arguments."""
    batch, _, channels = tensors[0].shape
    getattr(native.library(), name)(
        ctypes.c_int(tensors[0].dtype == torch.bfloat16),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        *(None if values is None else (ctypes.c_int * batch)(*values) for values in lengths),
        ctypes.c_long(batch),
        ctypes.c_long(channels),
        *map(ctypes.c_int, sizes),
        ctypes.c_int(torch.get_num_threads()),
    )
