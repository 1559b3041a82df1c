"""Word and character error rates."""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


class ErrorCounts(NamedTuple):
    """Edits that turn references into hypotheses, over any number of utterances.

    Counts of parts add up to those of the whole: a rate does not depend on batches or processes.
    """

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    hits: int = 0

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def errors(self) -> int:
        """All edits."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def reference_units(self) -> int:
        """Words (or characters) of the references."""
        return self.substitutions + self.deletions + self.hits

    @property
    def wer(self) -> float:
        """Errors per reference unit, as a fraction. Without any unit: the number of insertions, as jiwer has it; a set
        of which this is true deserves a remark (`reference_units == 0`)."""
        return self.errors / max(self.reference_units, 1)


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Counts of words, which blanks separate. Raises ValueError if there are more of one than of the other."""
    return _count((text.split() for text in references), (text.split() for text in hypotheses))


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Counts of characters, blanks within (not around) a text among them; see word_errors."""
    return _count((text.strip() for text in references), (text.strip() for text in hypotheses))


def _count(references: Iterable[Sequence[Hashable]], hypotheses: Iterable[Sequence[Hashable]]) -> ErrorCounts:
    counts = ErrorCounts()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        counts += align(reference, hypothesis)
    return counts


def align(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> ErrorCounts:
    """Counts of one shortest edit script (Levenshtein distance, unit costs).

    Where several are shortest, the one that rapidfuzz (hence jiwer) takes, so that the three kinds of errors agree too:
    what both begin and end with is matched; then, from the end, a deletion if one leads to the minimum, else an
    insertion if it is better than a substitution or as good as a match, else the diagonal.

    The table of distances is kept as differences between neighbouring cells, a whole row in two integers of one bit a
    reference unit (Hyyro, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances", 2003).
    """
    begin = _common_prefix(reference, hypothesis)
    end = _common_prefix(reference[begin:][::-1], hypothesis[begin:][::-1])
    reference = reference[begin : len(reference) - end]
    hypothesis = hypothesis[begin : len(hypothesis) - end]
    rows = _difference_rows(reference, hypothesis)
    substitutions = insertions = deletions = 0
    hits = begin + end
    i, j = len(reference), len(hypothesis)
    while i and j:
        if rows[j - 1][0] >> (i - 1) & 1:  # D[i, j] = D[i - 1, j] + 1
            deletions += 1
            i -= 1
            continue
        j -= 1
        if j and rows[j - 1][1] >> (i - 1) & 1:  # D[i, j] = D[i - 1, j] - 1, for the row before
            insertions += 1
            continue
        i -= 1
        if reference[i] == hypothesis[j]:
            hits += 1
        else:
            substitutions += 1
    return ErrorCounts(substitutions, insertions + j, deletions + i, hits)


def _common_prefix(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


def _difference_rows(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[tuple[int, int]]:
    """For each j from 1 on, where D[i, j] - D[i - 1, j] is +1 and where it is -1, as bits i - 1."""
    places: dict[Hashable, int] = {}
    for index, unit in enumerate(reference):
        places[unit] = places.get(unit, 0) | 1 << index
    full = (1 << len(reference)) - 1
    plus, minus = full, 0
    rows = []
    for unit in hypothesis:
        match = places.get(unit, 0)
        diagonal = (((match & plus) + plus) ^ plus) | match | minus  # where D[i, j] = D[i - 1, j - 1]
        right_plus = (minus | ~(diagonal | plus)) << 1 | 1  # D[i, j] - D[i, j - 1], moved down by one unit
        right_minus = (diagonal & plus) << 1
        plus = (right_minus | ~(diagonal | right_plus)) & full
        minus = right_plus & diagonal & full
        rows.append((plus, minus))
    return rows
