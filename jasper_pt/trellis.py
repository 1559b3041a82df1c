"""The most probable times of given labels: Viterbi over the trellis of CTC (Graves et al. 2006), in NumPy.

T output frames, V labels and blank (the blank is last), U labels of the text, S = 2 U + 1 states
"""

from collections.abc import Sequence

import numpy as np

from jasper_pt.decode import Tokens
from jasper_pt.text import frames_needed

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
    log_probs = np.maximum(log_probs, LOWEST)
    symbols = np.full(2 * len(ids) + 1, blank)  # of states
    symbols[1::2] = ids
    # Added to the score of the state two before: a blank cannot be left out between equal labels, nor a label at all.
    skips = np.full(len(symbols), -np.inf)
    skips[3::2][symbols[3::2] != symbols[1:-2:2]] = 0.0

    kept = _columns(log_probs, np.asarray(ids), skips[3::2])
    scores = kept.pop()
    path = np.empty(frames, np.int64)  # states
    path[-1] = len(symbols) - 1 - (scores[-2] > scores[-1])
    for index in range(len(kept) - 1, -1, -1):
        start, end = index * SEGMENT, min((index + 1) * SEGMENT, frames - 1)
        high = int(path[end]) + 1
        low = max(high - 1 - 2 * (end - start), 0)
        columns = log_probs[start + 1 : end + 1, symbols[low:high]]  # [end - start, high - low]
        steps = _steps(kept.pop()[low:high], columns, skips[low:high])
        for frame in range(end, start, -1):
            path[frame - 1] = path[frame] - steps[frame - start - 1, path[frame] - low]
    return _tokens(log_probs, ids, path)


def _columns(log_probs: np.ndarray, ids: np.ndarray, skips: np.ndarray) -> list[np.ndarray]:
    """Scores [S] float64 of the best paths to all states at frame 0, each SEGMENT-th frame, and the last.

    skips [U - 1]: added where a label follows the one before it.

    Blanks and labels are kept apart, and every array is reused: this loop takes nearly all the time.
    """
    row = log_probs[0].astype(np.float64)
    blanks, labels = np.full(len(ids) + 1, -np.inf), np.full(len(ids), -np.inf)
    blanks[0], labels[0] = row[-1], row[ids[0]]
    new_blanks, new_labels, skipped = np.empty_like(blanks), np.empty_like(labels), np.empty_like(skips)
    emitted = np.empty(len(ids), log_probs.dtype)
    kept = []
    for frame in range(len(log_probs)):
        if frame:
            row = log_probs[frame]
            np.maximum(blanks[1:], labels, out=new_blanks[1:])
            new_blanks[0] = blanks[0]
            new_blanks += row[-1]
            np.maximum(blanks[:-1], labels, out=new_labels)
            np.add(labels[:-1], skips, out=skipped)
            np.maximum(new_labels[1:], skipped, out=new_labels[1:])
            new_labels += row.take(ids, out=emitted, mode="clip")  # (with "raise" it would make a copy)
            blanks, new_blanks, labels, new_labels = new_blanks, blanks, new_labels, labels
        if frame % SEGMENT == 0 or frame == len(log_probs) - 1:
            kept.append(np.empty(2 * len(ids) + 1))
            kept[-1][0::2], kept[-1][1::2] = blanks, labels
    return kept


def _steps(scores: np.ndarray, columns: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """By how many states the best path to each state has just moved: uint8 as columns [frames, states], the
    log-probabilities of the states' symbols. scores [states]: before the first of the frames."""
    steps = np.zeros(columns.shape, np.uint8)
    for row, column in zip(steps, columns, strict=True):
        best = scores.copy()
        for step, before in ((1, scores[:-1]), (2, scores[:-2] + skips[2:])):
            better = before > best[step:]
            best[step:][better] = before[better]
            row[step:][better] = step
        scores = best + column
    return steps


def _tokens(log_probs: np.ndarray, ids: Sequence[int], path: np.ndarray) -> Tokens:
    """The frames that a path of states [T] spends on each label, and the label's greatest probability there."""
    on_label = np.flatnonzero(path % 2)
    labels, firsts, counts = np.unique(path[on_label] // 2, return_index=True, return_counts=True)
    assert len(labels) == len(ids)
    frames = on_label[firsts]
    probabilities = log_probs[on_label, np.asarray(ids)[path[on_label] // 2]]
    peaks = np.exp(np.maximum.reduceat(probabilities, firsts))
    return Tokens(list(ids), frames.tolist(), peaks.tolist(), (frames + counts).tolist())
