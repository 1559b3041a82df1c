"""The beam search in plain Python: what beam.cpp computes, and its stand-in where C++ cannot be compiled.

T frames, V classes (the labels, and the blank as the last); scores are natural logarithms
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jasper_pt.transcript import Tokens

Ids = tuple[int, ...]
LN_10 = math.log(10)
MINUS_INFINITY = -math.inf
RESCORED = 4  # so many of the best prefixes at least are scored exactly at the end


class TextScore(NamedTuple):
    """What a prefix scores beside CTC."""

    score: float
    outlook: float  # credit of an unfinished hot word
    lm: float  # log10
    bonus: float
    words: int
    unknown: int


class Reference:
    """One utterance, frame by frame. `problem`: the jasper_pt.beam.Problem to solve."""

    def __init__(self, problem):
        self.problem = problem
        self.blank = len(problem.labels)
        self.beam: dict[Ids, tuple[float, float]] = {(): (0.0, MINUS_INFINITY)}
        self.log_probs = np.empty((0, self.blank + 1), np.float32)
        self._texts: dict[Ids, TextScore | None] = {}
        spelled = problem.words  # {spelling: word of the model}, or None
        self._parts = {word[:i] for word in spelled for i in range(len(word) + 1)} if spelled is not None else None

    def feed(self, log_probs: np.ndarray) -> None:
        """The next frames [T,V]. Raises ValueError for what is no log-probability."""
        if np.isnan(log_probs).any() or (log_probs > 1e-3).any():
            raise ValueError("these are no log-probabilities")
        options = self.problem.options
        for row in log_probs:
            beam = self._step(row, options.token_threshold, options.top_k, options.beam_threshold)
            if not beam:
                beam = self._step(row, MINUS_INFINITY, None, math.inf)
            if not beam:
                raise ValueError("a frame allows no hypothesis to go on")
            self.beam = beam
            self.log_probs = np.concatenate([self.log_probs, row[None].astype(np.float32)])

    def _step(self, row, token_threshold: float, top_k: int | None, beam_threshold: float):
        best = int(row.argmax())
        candidates = [c for c, p in enumerate(row) if p > MINUS_INFINITY and (c == best or p >= token_threshold)]
        candidates = sorted(sorted(candidates, key=lambda c: -row[c])[:top_k])
        scores = {ids: log_add(*ends) + self._score(ids) for ids, ends in self.beam.items()}
        least = max(scores.values()) + float(row[best]) - beam_threshold
        blanks: dict[Ids, float] = {}
        label_ends: dict[Ids, float] = {}
        for ids, (blank, label_end) in self.beam.items():
            total = log_add(blank, label_end)
            for c in candidates:
                p = float(row[c])
                if c == self.blank:
                    blanks[ids] = log_add(blanks.get(ids, MINUS_INFINITY), total + p)
                    continue
                extended = total
                if ids and c == ids[-1]:
                    label_ends[ids] = log_add(label_ends.get(ids, MINUS_INFINITY), label_end + p)
                    extended = blank
                if extended == MINUS_INFINITY or extended + self._score(ids) + p < least:
                    continue
                longer = (*ids, c)
                if self._text(longer) is not None:
                    label_ends[longer] = log_add(label_ends.get(longer, MINUS_INFINITY), extended + p)
        found = {
            ids: (blanks.get(ids, MINUS_INFINITY), label_ends.get(ids, MINUS_INFINITY)) for ids in blanks | label_ends
        }
        scores = {ids: log_add(*ends) + self._score(ids) for ids, ends in found.items() if max(ends) > MINUS_INFINITY}
        greatest = max(scores.values(), default=MINUS_INFINITY)
        kept = [ids for ids, score in scores.items() if score >= greatest - beam_threshold]
        kept = sorted(kept, key=lambda ids: -scores[ids])[: self.problem.options.width]
        return {ids: found[ids] for ids in kept}

    def best(self):
        """See beam.BeamDecoder.best; the fields of a beam.Hypothesis but its text."""
        ids = max(self.beam, key=lambda ids: log_add(*self.beam[ids]) + self._score(ids))
        return self._evaluate(ids, self._text(ids))

    def finish(self, n_best: int):
        """See beam.BeamDecoder.finish."""
        ends = {ids: self._read(ids, ended=True) for ids in self.beam}
        ends = {ids: log_add(*self.beam[ids]) + text.score for ids, text in ends.items() if text is not None}
        candidates = sorted(ends, key=lambda ids: -ends[ids])[: max(n_best, RESCORED)]
        if not candidates:
            ids = max(self.beam, key=lambda ids: log_add(*self.beam[ids]) + self._score(ids))
            while self._read(ids, ended=True) is None:
                ids = ids[:-1]
            candidates = [ids]
        path = self.log_probs.argmax(-1).tolist() if len(self.log_probs) else []
        greedy = tuple(c for c, before in zip(path, [None, *path], strict=False) if c not in (self.blank, before))
        if greedy not in candidates:
            candidates.append(greedy)
        read = [(ids, self._read(ids, ended=True)) for ids in candidates]
        found = [self._evaluate(ids, text) for ids, text in read if text is not None]
        return sorted(found, key=lambda entry: -entry[1])[:n_best]

    def _evaluate(self, ids: Ids, text: TextScore):
        ctc = ctc_score(self.log_probs, ids)
        tokens = align(self.log_probs, ids)
        return tokens, ctc + text.score, ctc, text.lm, text.bonus, text.words, text.unknown

    # ---------------------------------------------------------------------------------------------- the text's score
    def _text(self, ids: Ids) -> TextScore | None:
        if ids not in self._texts:
            self._texts[ids] = self._read(ids, ended=False)
        return self._texts[ids]

    def _score(self, ids: Ids) -> float:
        text = self._text(ids)
        return text.score + text.outlook

    def _read(self, ids: Ids, ended: bool) -> TextScore | None:
        """None: the word list does not allow it."""
        problem, options = self.problem, self.problem.options
        pieces = [problem.labels[i] for i in ids]
        if problem.characters:
            words, unfinished = pieces, ""
        else:
            text = "".join(pieces)
            words = text.split(" ")
            unfinished = "" if ended else words.pop()
            words = [word for word in words if word]
        listed = problem.words
        if problem.closed and not (all(word in listed for word in words) and unfinished in self._parts):
            return None
        hot = {word for phrase in problem.hot_phrases for word in ([*phrase] if problem.characters else phrase.split())}
        lm, unknown = 0.0, 0
        if problem.lm is not None:
            names = [word if listed is None else listed.get(word, "<unk>") for word in words]
            lm = sum(problem.lm.scores(names, end=ended and options.sentence_ends))
            unknown = sum(
                not problem.lm.knows(name) and word not in hot for name, word in zip(names, words, strict=True)
            )
            unknown += self._parts is not None and unfinished not in self._parts
        bonus = sum(
            weight
            for start in range(len(words))
            for end in range(start + 1, len(words) + 1)
            if (weight := problem.hot_phrases.get(("" if problem.characters else " ").join(words[start:end])))
        )
        n_words = len(words) + bool(unfinished)
        score = options.alpha * LN_10 * lm + options.beta * n_words + options.unknown * unknown + bonus
        return TextScore(score, self._outlook(words, unfinished), lm, bonus, n_words, unknown)

    def _outlook(self, words: Sequence[str], unfinished: str) -> float:
        phrases = self.problem.hot_phrases
        place: str | None = ""
        for word in [*words, *([unfinished] if unfinished else [])]:
            if place:
                place = place if self.problem.characters else place + " "
            if not place or not any(phrase.startswith(place) for phrase in phrases):
                place = ""
            for character in word:
                place = None if place is None else place + character
                if place is not None and not any(phrase.startswith(place) for phrase in phrases):
                    place = None
        if not place or (place in phrases and not unfinished):
            return 0.0
        ahead = [phrase for phrase in phrases if phrase.startswith(place)]
        depth = len(place.encode())
        return max(phrases[p] for p in ahead) * depth / max(depth, min(len(p.encode()) for p in ahead))


def log_add(a: float, b: float) -> float:
    """ln(exp a + exp b)"""
    if a < b:
        a, b = b, a
    return a if b == MINUS_INFINITY else a + math.log1p(math.exp(b - a))


def _states(log_probs: np.ndarray, ids: Ids) -> tuple[np.ndarray, list[bool]]:
    """Log-probabilities [T,2L+1] of blank, label 1, blank ... blank; before which a blank may be left out."""
    blank = log_probs.shape[1] - 1
    labels = [blank, *(label for index in ids for label in (index, blank))]
    skips = [s % 2 == 1 and s > 1 and labels[s] != labels[s - 2] for s in range(len(labels))]
    return log_probs[:, labels].astype(np.float64), skips


def ctc_score(log_probs: np.ndarray, ids: Ids) -> float:
    """ln p(ids | log_probs [T,V]), the sum over all alignments (Graves et al. 2006)."""
    if not len(log_probs):
        return MINUS_INFINITY if ids else 0.0
    p, skips = _states(log_probs, ids)
    forward = np.full(p.shape[1], MINUS_INFINITY)
    forward[:2] = p[0, :2]
    for row in p[1:]:
        before = forward
        forward = before.copy()
        forward[1:] = np.logaddexp(forward[1:], before[:-1])
        forward[2:] = np.where(skips[2:], np.logaddexp(forward[2:], before[:-2]), forward[2:])
        forward += row
    return float(np.logaddexp.reduce(forward[-2:]))


def align(log_probs: np.ndarray, ids: Ids) -> Tokens:
    """The labels in their most probable alignment."""
    if not ids:
        return Tokens([], [], [], [])
    p, skips = _states(log_probs, ids)
    forward = np.full(p.shape[1], MINUS_INFINITY)
    forward[:2] = p[0, :2]
    steps = [np.zeros(p.shape[1], int)]
    for row in p[1:]:
        ways = np.full((3, len(forward)), MINUS_INFINITY)
        ways[0] = forward
        ways[1, 1:] = forward[:-1]
        ways[2, 2:] = np.where(skips[2:], forward[:-2], MINUS_INFINITY)
        steps.append(ways.argmax(0))
        forward = ways.max(0) + row
    state = len(forward) - 1 if forward[-1] >= forward[-2] else len(forward) - 2
    frames, ends, peaks = [0] * len(ids), [0] * len(ids), [0.0] * len(ids)
    for t in range(len(p) - 1, -1, -1):
        if state % 2:
            frames[state // 2] = t
            ends[state // 2] = max(ends[state // 2], t + 1)
            peaks[state // 2] = max(peaks[state // 2], math.exp(p[t, state]))
        state -= int(steps[t][state])
    return Tokens(list(ids), frames, peaks, ends)
