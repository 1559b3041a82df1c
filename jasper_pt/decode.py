"""From log-probabilities to text: the best label of each frame, repeats merged, blanks dropped.

B utterances, T output frames, V labels and blank (the blank is last)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from jasper_pt.text import decode
from jasper_pt.transcript import Tokens


def greedy(log_probs: Tensor, lengths: Tensor, labels: Sequence[str]) -> list[str]:
    """The transcripts of log_probs [B,T,V], of which the first lengths[b] frames are valid; V is len(labels) + 1."""
    if log_probs.shape[2] != len(labels) + 1:
        raise ValueError(f"{len(labels)} labels and a blank do not fit log_probs with {log_probs.shape[2]} classes")
    return [decode(tokens.ids, labels) for tokens in greedy_tokens(log_probs, lengths)]


def greedy_tokens(log_probs: Tensor, lengths: Tensor) -> list[Tokens]:
    """The same as label indices, with their times and confidences."""
    batch, frames, classes = log_probs.shape
    if frames == 0:
        return [Tokens([], [], [], [])] * batch
    best, ids = log_probs.max(-1)  # [B,T]
    valid = torch.arange(frames, device=ids.device) < lengths.to(ids.device)[:, None]
    starts = torch.ones_like(valid)
    starts[:, 1:] = ids[:, 1:] != ids[:, :-1]  # a symbol after a blank is a new one
    # Padding is below every probability, and a run's frames share the index of its start.
    runs = starts.cumsum(1) - 1
    peaks = torch.full_like(best, -torch.inf).scatter_reduce(
        1, runs, best.masked_fill(~valid, -torch.inf), "amax", include_self=False
    )
    peaks = peaks.gather(1, runs).exp()
    spans = torch.zeros_like(runs).scatter_add(1, runs, valid.long()).gather(1, runs)
    kept = starts & valid & (ids != classes - 1)
    rows, times = kept.nonzero(as_tuple=True)
    symbols, confidences = ids[kept].tolist(), peaks[kept].float().tolist()
    ends = (times + spans[kept]).tolist()
    times, counts = times.tolist(), torch.bincount(rows, minlength=batch).tolist()
    tokens, begin = [], 0
    for count in counts:
        part = slice(begin, begin + count)
        tokens.append(Tokens(symbols[part], times[part], confidences[part], ends[part]))
        begin += count
    return tokens
