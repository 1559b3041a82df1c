"""losses.py against the definition of CTC, and case A09."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from jasper_pt.losses import consistency_loss, ctc_loss


def by_enumeration(log_probs, target):
    """-log of the sum over all labelings of the frames that collapse to the target."""
    frames, classes = log_probs.shape
    total = 0.0
    for path in itertools.product(range(classes), repeat=frames):
        merged = [symbol for i, symbol in enumerate(path) if i == 0 or symbol != path[i - 1]]
        if [symbol for symbol in merged if symbol != classes - 1] == target:
            total += math.exp(sum(log_probs[t, symbol].item() for t, symbol in enumerate(path)))
    return -math.log(total)


def test_loss_is_the_mean_over_utterances_of_all_alignments():
    log_probs = torch.randn(3, 5, 3, generator=torch.manual_seed(0)).log_softmax(-1)
    targets, lengths, frames = [[0, 1], [1, 1], [0]], torch.tensor([2, 2, 1]), torch.tensor([5, 4, 2])
    padded = torch.tensor([[0, 1], [1, 1], [0, 0]])
    expected = [by_enumeration(p[:t], target) for p, t, target in zip(log_probs, frames, targets, strict=True)]
    assert ctc_loss(log_probs, frames, padded, lengths).item() == pytest.approx(sum(expected) / 3, rel=1e-6)


def test_what_cannot_be_aligned_counts_as_zero_and_has_no_gradient():
    log_probs = torch.randn(2, 6, 4, generator=torch.manual_seed(0)).log_softmax(-1).requires_grad_()
    # 0 0 0 0 needs seven frames: a blank between equal neighbours
    loss = ctc_loss(log_probs, torch.tensor([6, 6]), torch.tensor([[0, 0, 0, 0], [0, 1, 0, 1]]), torch.tensor([4, 4]))
    loss.backward()
    assert math.isfinite(loss.item()) and loss.item() > 0
    assert not log_probs.grad[0].any()
    assert log_probs.grad[1].any() and log_probs.grad.isfinite().all()


def test_empty_targets_and_empty_utterances():
    log_probs = torch.randn(2, 3, 4).log_softmax(-1)
    loss = ctc_loss(log_probs, torch.tensor([3, 0]), torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(-log_probs[0, :, 3].sum().item() / 2, rel=1e-5)


def test_case_a09(shared):
    """Targets longer than the network's output: the batch's loss and gradient are finite, feasible ones have a loss."""
    folder = shared / "cases" / "A09"
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    texts = [row["text"] for row in rows]
    frames = [math.ceil(math.ceil(row["duration"] * 100) / 2) for row in rows]
    assert frames[0] in expected["output_frames_0.3s_stride2"]
    targets = torch.nn.utils.rnn.pad_sequence([torch.tensor([ord(c) % 28 for c in text]) for text in texts], True)
    log_probs = torch.randn(4, max(frames), 29, generator=torch.manual_seed(0)).log_softmax(-1).requires_grad_()
    loss = ctc_loss(log_probs, torch.tensor(frames), targets, torch.tensor([len(text) for text in texts]))
    loss.backward()
    assert math.isfinite(loss.item()) and log_probs.grad.isfinite().all()
    for row, gradient in enumerate(log_probs.grad):
        assert gradient.any() == expected[f"row{row}"].startswith("feasible")


# --------------------------------------------------------------------------------------------------- consistency
def two_views(frames=6, classes=4):
    generator = torch.manual_seed(0)
    return [torch.randn(3, frames, classes, generator=generator, dtype=torch.float64) for _ in range(2)]


def test_consistency_is_the_mean_divergence_of_valid_frames():
    a, b = (scores.log_softmax(-1) for scores in two_views())
    lengths = [6, 4, 0]
    expected = 0.0
    for i, length in enumerate(lengths):
        p, q = (np.exp(view[i, :length].numpy()) for view in (a, b))
        expected += 0.5 * (q * np.log(q / p) + p * np.log(p / q)).sum()
    assert consistency_loss(a, b, torch.tensor(lengths)).item() == pytest.approx(expected / 3, rel=1e-12)
    assert consistency_loss(a, a, torch.tensor(lengths)).item() == 0


def test_each_view_learns_from_the_other_as_a_fixed_target():
    scores_a, scores_b = (scores.requires_grad_() for scores in two_views())
    lengths = torch.tensor([6, 4, 2])
    consistency_loss(scores_a.log_softmax(-1), scores_b.log_softmax(-1), lengths).backward()
    # d KL(q || softmax(z)) / dz = softmax(z) - q, for q fixed
    p, q = scores_a.detach().softmax(-1), scores_b.detach().softmax(-1)
    valid = torch.arange(6)[None, :, None] < lengths[:, None, None]
    torch.testing.assert_close(scores_a.grad, (p - q) * valid / 6)
    torch.testing.assert_close(scores_b.grad, (q - p) * valid / 6)
