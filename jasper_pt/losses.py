"""The training losses."""

import torch
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


def consistency_loss(log_probs: Tensor, other: Tensor, out_lengths: Tensor) -> Tensor:
    """CR-CTC's regulariser (Yao et al., arXiv 2410.05101): what the model makes of two views a and b of the same
    utterances is drawn together. The batch mean, in nats, of

        1/2 sum_t [ KL(sg(b_t) || a_t) + KL(sg(a_t) || b_t) ]

    over an utterance's frames t, where sg stops the gradient: each view learns from the other as from a fixed target.
    log_probs, other [B,T',V] of the two views; out_lengths [B], the same for both.
    """
    frames = torch.arange(log_probs.shape[1], device=log_probs.device)
    valid = frames < out_lengths.to(log_probs.device)[:, None]  # [B,T']

    def divergence(target: Tensor, learner: Tensor) -> Tensor:
        return F.kl_div(learner, target.detach(), reduction="none", log_target=True).sum(2)  # [B,T']

    both = divergence(other, log_probs) + divergence(log_probs, other)
    return (both * valid).sum() / (2 * len(log_probs))
