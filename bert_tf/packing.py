"""Packing: several sequences in a row of a batch, so that little is computed for padding (arXiv 2107.02027, section 3).

The B sequences of a micro-batch fill R <= B rows of S tokens. Attention stays within a sequence and positions restart
with each, so every sequence gets what it gets in a row of its own (ops.layout); losses, dropout and order are those of
the sequences, whose numbers in the batch do not change.

Where the kernels run, which take sequences of any lengths from one long row, all sequences stand end to end and nothing
is padded but the row's end. Elsewhere attention costs S^2 a row: rows are as long as the longest sequence allowed, and
best-fit decreasing says which sequences share one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

STEP = 32  # a single row's length is a multiple of this: fewer shapes, whole tiles for the products


class Rows(NamedTuple):
    """Into what rows to pack.

    capacity: tokens of a row; None: one row for all. fixed: keep the number of masked positions at B * P, for programs
    that are compiled for one shape.
    """

    capacity: int | None
    fixed: bool


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of at most `capacity` tokens that hold every sequence once; each row lists indices of sequences.

    The longest sequence first, each goes to the fullest row that has room for it, else to a new one; of equals the
    first is taken. Raises ValueError for a sequence that is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []  # tokens that still fit
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = int(lengths[index])
        if length > capacity:
            raise ValueError(f"a sequence of {length} tokens does not fit into rows of {capacity}")
        fitting = [row for row in range(len(rows)) if room[row] >= length]
        if fitting:
            row = min(fitting, key=lambda row: room[row])
            rows[row].append(index)
            room[row] -= length
        else:
            rows.append([index])
            room.append(capacity - length)
    return rows


class Plan:
    """Where the tokens of sequences go, in NumPy.

    Attributes: shape (R, S); starts [B] and lengths [B] int32 as in ops.Packing.
    """

    def __init__(self, lengths: Sequence[int], capacity: int | None):
        """capacity: tokens of a row; None: one row for all."""
        self.lengths = np.array(lengths, np.int32)
        if capacity is None:
            rows, capacity = [list(range(len(lengths)))], max(STEP, -(-int(self.lengths.sum()) // STEP) * STEP)
        else:
            rows = best_fit_decreasing(lengths, capacity)
        self.shape = len(rows), capacity
        self.starts = np.zeros(len(lengths), np.int32)
        for number, row in enumerate(rows):
            ends = np.cumsum(self.lengths[row])
            self.starts[row] = number * capacity + ends - self.lengths[row]
        # For each token, sequence after sequence: its number, its position, and its place in [R * S].
        self._example = np.repeat(np.arange(len(lengths), dtype=np.int32), self.lengths)
        ends = np.cumsum(self.lengths, dtype=np.int32)
        self._position = np.arange(len(self._example), dtype=np.int32) - np.repeat(ends - self.lengths, self.lengths)
        self._place = self.starts[self._example] + self._position

    def rows(self, tokens: np.ndarray, filler: int = 0) -> np.ndarray:
        """Values of the tokens, sequence after sequence, as rows [R, S] with `filler` as padding."""
        result = np.full(self.shape[0] * self.shape[1], filler, tokens.dtype)
        result[self._place] = tokens
        return result.reshape(self.shape)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The fields of ops.Packing."""
        return self.rows(self._example, -1), self.rows(self._position), self.starts, self.lengths
