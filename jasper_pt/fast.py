"""Inference on CPUs: the acoustic model with BatchNorm folded into the convolutions, in float32 or bfloat16.

B utterances, F mel bins, T feature frames, T' output frames, V labels and blank
"""

import copy

import torch
from torch import Tensor, nn

from jasper_pt.model import AcousticModel, Conv1d, Depthwise
from runkit.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class FastModel:
    """A frozen copy of a model, called as the model is.

    fp32: log-probabilities of valid frames are those of the model but for rounding (within 1e-4). bf16: activations and
    the factors of matrix products are rounded to 8 bits; sums, depthwise filters, the last layer and the softmax are
    float32.
    """

    def __init__(self, model: AcousticModel, precision: str = "fp32"):
        """precision: fp32 or bf16. Raises UserError for others. Later changes of `model` have no effect."""
        if precision not in DTYPES:
            raise UserError(f"precision {precision!r} is not available on CPUs; choose {' or '.join(DTYPES)}")
        self.dtype = DTYPES[precision]
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        wide = precision == "fp32" and not model.separable  # then nn.Conv1d is the faster one
        self.model.layout = "ncl" if wide else "channels_last"
        for block in self.model.encoder.layers:
            for branch in (getattr(block, block.names[0]), *block.res):
                fold_batch_norm(branch)
        for module in self.model.encoder.modules():
            if isinstance(module, Conv1d) and not isinstance(module, Depthwise):
                module.to(self.dtype)
                if (
                    not wide
                ):  # [C_out, K, C_in] in memory: wide convolutions do not have to sort their weights each time
                    module.weight.data = module.weight.transpose(1, 2).contiguous().transpose(1, 2)

    @torch.inference_mode()
    def __call__(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """features [B,F,T], lengths [B] -> log-probabilities [B,T',V] float32, lengths [B] int64; see AcousticModel."""
        return self.model(features.to(self.dtype), lengths)


@torch.no_grad()
def fold_batch_norm(layers: nn.ModuleList) -> None:
    """Moves each BatchNorm's affine map into the convolution before it; an identity takes its place."""
    for index, norm in enumerate(layers):
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            conv = layers[index - 1]
            scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
            conv.bias = nn.Parameter((norm.bias - norm.running_mean.double() * scale).to(conv.weight.dtype), False)
            conv.weight.copy_(conv.weight.double() * scale[:, None, None])
            layers[index] = nn.Identity()
