"""trellis.py against all paths of small trellises, and against torchaudio."""

import itertools

import numpy as np
import pytest
import torch

from jasper_pt import trellis
from jasper_pt.ops import native
from jasper_pt.text import frames_needed
from jasper_pt.trellis import align_labels


def random_log_probs(rng, frames, classes, scale=2.0):
    scores = scale * rng.standard_normal((frames, classes))
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


def collapse(path, blank):
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank]


def score_of(log_probs, tokens):
    """Log-probability of the path that the tokens tell."""
    path = np.full(len(log_probs), log_probs.shape[1] - 1)
    for index, frame, end in zip(tokens.ids, tokens.frames, tokens.ends, strict=True):
        path[frame:end] = index
    assert collapse(path.tolist(), log_probs.shape[1] - 1) == list(tokens.ids)
    return log_probs[np.arange(len(path)), path].sum()


@pytest.fixture(params=["kernel", "reference"])
def way(request, monkeypatch):
    """Both ways of computing the scores."""
    if request.param == "reference":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C++ compiler")


@pytest.mark.parametrize("segment", [1, 2, 3, 1024])
def test_the_best_of_all_paths(monkeypatch, segment, way):
    monkeypatch.setattr(trellis, "SEGMENT", segment)
    rng = np.random.default_rng(segment)
    for _ in range(60):
        frames, classes = int(rng.integers(1, 7)), int(rng.integers(2, 4))
        ids = rng.integers(0, classes - 1, rng.integers(1, 5)).tolist()
        if frames_needed(ids) > frames:
            continue
        log_probs = random_log_probs(rng, frames, classes)
        paths = itertools.product(range(classes), repeat=frames)
        best = max(
            sum(log_probs[frame, symbol] for frame, symbol in enumerate(path))
            for path in paths
            if collapse(path, classes - 1) == ids
        )
        assert score_of(log_probs, align_labels(log_probs, ids)) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("segment", [7, 1024])
def test_the_same_path_as_torchaudio(monkeypatch, segment, way):
    """A program of others, on trellises too large for all paths; log-probabilities are such that no two paths tie."""
    functional = pytest.importorskip("torchaudio.functional")
    monkeypatch.setattr(trellis, "SEGMENT", segment)
    rng = np.random.default_rng(0)
    for frames, size in ((50, 10), (120, 60), (400, 90)):
        log_probs = random_log_probs(rng, frames, 29).astype(np.float32)
        ids = rng.integers(0, 28, size).tolist()
        path, _ = functional.forced_align(torch.tensor(log_probs)[None], torch.tensor([ids]), blank=28)
        tokens = align_labels(log_probs, ids)
        expected = [
            (symbol, [frame for _, frame in group])
            for symbol, group in itertools.groupby(
                zip(path[0].tolist(), range(frames), strict=True), lambda pair: pair[0]
            )
            if symbol != 28
        ]
        assert tokens.ids == [symbol for symbol, _ in expected] == ids
        assert tokens.frames == [run[0] for _, run in expected]
        assert tokens.ends == [run[-1] + 1 for _, run in expected]
        peaks = [np.exp(log_probs[run, symbol].max()) for symbol, run in expected]
        assert tokens.confidences == pytest.approx(peaks, rel=1e-5)


def test_as_many_frames_as_needed_and_one_less(way):
    log_probs = random_log_probs(np.random.default_rng(1), 5, 4)
    tokens = align_labels(log_probs, [1, 1, 0, 2])
    assert (tokens.frames, tokens.ends) == ([0, 2, 3, 4], [1, 3, 4, 5])
    with pytest.raises(ValueError, match="4 labels need 5 frames, there are 4"):
        align_labels(log_probs[:4], [1, 1, 0, 2])


def test_no_labels_and_impossible_ones(way):
    log_probs = random_log_probs(np.random.default_rng(1), 5, 4)
    assert align_labels(log_probs, []).ids == []
    log_probs[:, 1] = -np.inf  # the path has probability 0; there still is one
    assert align_labels(log_probs, [0, 1]).ids == [0, 1]


def test_the_kernel_is_the_reference():
    if native.library() is None:
        pytest.skip("no C++ compiler")
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 8, 61):
        skips = np.where(rng.random(size) < 0.5, 0.0, -np.inf)
        symbols = rng.integers(0, 5, size)
        log_probs = random_log_probs(rng, 40, 5)
        scores = np.where(rng.random(size) < 0.3, -np.inf, rng.standard_normal(size))
        ours, theirs = scores.copy(), scores.copy()
        our_steps, their_steps = np.empty((2, 40, size), np.uint8)
        trellis.advance(ours, skips, symbols, log_probs, our_steps)
        trellis.advance_reference(theirs, skips, symbols, log_probs, their_steps)
        assert np.array_equal(ours, theirs) and np.array_equal(our_steps, their_steps)
        trellis.advance(scores, skips, symbols, log_probs)
        assert np.array_equal(scores, ours)
