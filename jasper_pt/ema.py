"""Exponential moving average of a model's weights and BatchNorm statistics (section 7 of arXiv 1412.6980)."""

import copy

import torch
from torch import nn

from runkit.errors import UserError


class Ema:
    """A copy of the model whose every state-dict entry follows average = decay * average + (1 - decay) * entry.

    No bias correction: the average starts as the model's copy. Whole numbers (BatchNorm's counters) are copied.
    `model` is in evaluation mode and takes no gradients.
    """

    def __init__(self, model: nn.Module, decay: float):
        """decay in (0, 1). Raises UserError otherwise."""
        if not 0 < decay < 1:
            raise UserError(f"ema is {decay}; a decay lies in (0, 1), and 0 switches averaging off")
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        averages, entries = self.model.state_dict(), model.state_dict()
        self._floats = [(averages[key], entries[key]) for key in entries if entries[key].is_floating_point()]
        self._others = [(averages[key], entries[key]) for key in entries if not entries[key].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Takes in the model's present state. To be called after each update that changed the model."""
        averages, entries = zip(*self._floats, strict=True)
        torch._foreach_lerp_(averages, entries, 1 - self.decay)
        for average, entry in self._others:
            average.copy_(entry)
