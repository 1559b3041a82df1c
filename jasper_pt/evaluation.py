"""What training and inference share when they evaluate: the fastest form of a model, and the choice of a loader."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from jasper_pt.fast import FastModel
from jasper_pt.loader import EvalLoader, TrainLoader
from jasper_pt.precision import Precision

# (features [B,F,T], lengths [B]) -> (log_probs [B,T',V], lengths [B])
Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def evaluation_form(model: nn.Module, precision: Precision, device: torch.device) -> Forward:
    """The model as a function for evaluation: on a CPU a frozen FastModel, which does not see later changes of the
    model, elsewhere the model itself in evaluation mode."""
    if device.type == "cpu":
        return FastModel(model, "fp32" if precision.dtype == torch.float32 else precision.name)
    model.eval()

    @torch.inference_mode()
    def forward(features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        with precision.autocast(device):
            return model(features, lengths)

    return forward


def loader_types(dali_device: str) -> tuple[Callable[..., TrainLoader], Callable[..., EvalLoader]]:
    """The makers of training and evaluation batches for --dali_device none, cpu or gpu."""
    if dali_device == "none":
        return TrainLoader, EvalLoader
    from jasper_pt.dali_loader import DaliEvalLoader, DaliTrainLoader

    return partial(DaliTrainLoader, dali_device=dali_device), partial(DaliEvalLoader, dali_device=dali_device)
