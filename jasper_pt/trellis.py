"""The most probable times of given labels: Viterbi over the trellis of CTC (Graves et al. 2006).

T output frames, V labels and blank (the blank is last), U labels of the text, S = 2 U + 1 states
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from jasper_pt.ops import native
from jasper_pt.text import frames_needed
from jasper_pt.transcript import Tokens

SEGMENT = 1024  # frames between the columns of scores that are kept
LOWEST = -1e5  # log-probabilities below it count as it, so that every path is possible


def align_labels(log_probs: np.ndarray, ids: Sequence[int]) -> Tokens:
    """The most probable alignment of the labels ids [U] to log_probs [T,V], with the frames that each label spans.

    States are the blank before each label, the label, and the blank behind the last. The scores of all states are kept
    for every SEGMENT-th frame only; the path is found from the end, a segment at a time, among the states that it can
    have come from: two for each frame. So memory is S T / SEGMENT scores and not S T steps: for an hour of speech about
    0.15 GB, not 16.

    Raises ValueError where the frames are too few for the labels.
    """
    frames, blank = log_probs.shape[0], log_probs.shape[1] - 1
    needed = frames_needed(list(ids))
    if frames < needed:
        raise ValueError(f"{len(ids)} labels need {needed} frames, there are {frames}")
    if not ids:
        return Tokens([], [], [], [])
    log_probs = np.maximum(log_probs, LOWEST, dtype=np.float64, order="C")
    symbols = np.full(2 * len(ids) + 1, blank, np.int64)  # of states
    symbols[1::2] = ids
    # Added to the score of the state two before: a blank cannot be left out between equal labels, nor a label at all.
    skips = np.full(len(symbols), -np.inf)
    skips[3::2][symbols[3::2] != symbols[1:-2:2]] = 0.0

    scores = np.full(len(symbols), -np.inf)
    scores[:2] = log_probs[0, symbols[:2]]
    kept = [scores.copy()]
    for start in range(1, frames, SEGMENT):
        stop = min(start + SEGMENT, frames)
        # Of the states, those that can be reached by then, and that the end can be reached from.
        part = slice(max(len(symbols) - 2 * (frames - start) - 2, 0), 2 * stop)
        advance(scores[part], skips[part], symbols[part], log_probs[start:stop])
        kept.append(scores.copy())

    path = np.empty(frames, np.int64)  # states
    path[-1] = len(symbols) - 1 - (scores[-2] > scores[-1])
    kept.pop()
    for index in range(len(kept) - 1, -1, -1):
        start, end = index * SEGMENT, min((index + 1) * SEGMENT, frames - 1)
        high = int(path[end]) + 1
        low = max(high - 1 - 2 * (end - start), 0)
        steps = np.empty((end - start, high - low), np.uint8)
        advance(kept.pop()[low:high], skips[low:high], symbols[low:high], log_probs[start + 1 : end + 1], steps)
        for frame in range(end, start, -1):
            path[frame - 1] = path[frame] - steps[frame - start - 1, path[frame] - low]
    return _tokens(log_probs, ids, path)


def advance(
    scores: np.ndarray,
    skips: np.ndarray,
    symbols: np.ndarray,
    log_probs: np.ndarray,
    steps: np.ndarray | None = None,
) -> None:
    """Moves the scores [S] of the best paths to all states on by the frames of log_probs [frames,V], in place.

    skips [S]: added to the score of the state two before; symbols [S] int64. steps [frames,S] uint8, if given, is
    filled with the number of states by which the best path to each has moved. In C++ (ops/trellis.cpp), or in NumPy.
    """
    library = native.library()
    if library is None:
        advance_reference(scores, skips, symbols, log_probs, steps)
        return
    arrays = (scores, skips, symbols, log_probs, steps)
    pointers = [ctypes.c_void_p(None if array is None else array.ctypes.data) for array in arrays]
    library.trellis_advance(*pointers, *map(ctypes.c_int64, (len(scores), log_probs.shape[1], len(log_probs))))


def advance_reference(
    scores: np.ndarray,
    skips: np.ndarray,
    symbols: np.ndarray,
    log_probs: np.ndarray,
    steps: np.ndarray | None = None,
) -> None:
    """The same in NumPy."""
    if steps is not None:
        steps[:] = 0
    for frame, row in enumerate(log_probs):
        best = scores.copy()
        for step, before in ((1, scores[:-1]), (2, scores[:-2] + skips[2:])):
            if steps is not None:
                steps[frame, step:][before > best[step:]] = step
            np.maximum(best[step:], before, out=best[step:])
        scores[:] = best + row[symbols]


def _tokens(log_probs: np.ndarray, ids: Sequence[int], path: np.ndarray) -> Tokens:
    """The frames that a path of states [T] spends on each label, and the label's greatest probability there."""
    on_label = np.flatnonzero(path % 2)
    labels, firsts, counts = np.unique(path[on_label] // 2, return_index=True, return_counts=True)
    assert len(labels) == len(ids)
    frames = on_label[firsts]
    probabilities = log_probs[on_label, np.asarray(ids)[path[on_label] // 2]]
    peaks = np.exp(np.maximum.reduceat(probabilities, firsts))
    return Tokens(list(ids), frames.tolist(), peaks.tolist(), (frames + counts).tolist())
