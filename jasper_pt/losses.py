"""The training loss."""

import torch.nn.functional as F
from torch import Tensor


def ctc_loss(log_probs: Tensor, out_lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """Connectionist temporal classification (Graves et al., ICML 2006): the batch mean of -log p(target), in nats.

    log_probs [B,T',V], blank last; out_lengths [B]; targets [B,U], padded with anything valid; target_lengths [B].
    An utterance's loss is the sum over its frames, not divided by its length, as published. A target that cannot be
    aligned (more characters and adjacent repeats than frames) has an infinite loss; it counts as zero and has no
    gradient, where the original took the weights to NaN.
    """
    losses = F.ctc_loss(
        log_probs.transpose(0, 1),  # [T',B,V]
        targets,
        out_lengths,
        target_lengths,
        blank=log_probs.shape[2] - 1,
        reduction="none",
        zero_infinity=True,
    )
    return losses.mean()
