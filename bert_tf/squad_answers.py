"""From a model's logits to answers: the candidates of all windows of a question, the best of them, their text.

The selection is that of Google's BERT. The text is a slice of the context as it stands in the file, so blanks and
letters come out as they went in; the published code joins words by single spaces.
"""

import json
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.squad import SquadExample, SquadFeature
from bert_tf.tokenization import basic_tokenize
from runkit.files import atomic_open
from runkit.progress import Progress

NO_CANDIDATE = "empty"  # the published answer of 1.1 where no span is possible
NO_CANDIDATE_ODDS = 1e6  # null odds where there is nothing but "no answer"; finite, to be valid JSON


class Answers(NamedTuple):
    """What is written for the questions of a file; every question has an entry, in the file's order."""

    predictions: dict[str, str]  # "" is "no answer"
    nbest: dict[str, list[dict[str, Any]]]  # text, probability, start_logit, end_logit; the best first
    null_odds: dict[str, float] | None  # score of "no answer" minus that of the best answer; None for SQuAD 1.1


class _Candidates(NamedTuple):
    """Spans in windows, by falling score."""

    windows: np.ndarray  # [n] int
    starts: np.ndarray  # [n] int, position in the window; 0 is "no answer"
    ends: np.ndarray  # [n] int
    start_logits: np.ndarray  # [n] float64
    end_logits: np.ndarray  # [n] float64


def select_answers(
    examples: Sequence[SquadExample],
    features: Sequence[SquadFeature],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    version_2_with_negative: bool,
    null_score_diff_threshold: float,
) -> Answers:
    """Chooses the answer of each question from logits [tokens of the window, or padded] of all windows.

    A candidate goes from one of the n_best_size best starts of a window to one of its best ends, over max_answer_length
    tokens at most, and begins where the window is the best context. SQuAD 2.0 adds "no answer" with the logits at [CLS]
    of the window where they are least; it is given when it scores better than the best text by more than the threshold.

    A blank question, or one whose context has no tokens, gets "". One without candidates gets
    NO_CANDIDATE in 1.1, as published, and "" in 2.0.
    """
    if not len(features) == len(start_logits) == len(end_logits):
        raise ValueError(f"{len(features)} windows, {len(start_logits)} start logits, {len(end_logits)} end logits")
    windows_of: list[list[int]] = [[] for _ in examples]
    for index, feature in enumerate(features):
        windows_of[feature.example_index].append(index)

    answers = Answers({}, {}, {} if version_2_with_negative else None)
    texts: dict[str, ContextText] = {}
    with Progress(len(examples), "choosing answers", "questions") as progress:
        for example, windows in zip(examples, windows_of, strict=True):
            if not example.question.strip():
                windows = []
            text = texts.get(example.context)
            if text is None:
                text = texts[example.context] = ContextText(example, do_lower_case)
            of_example = [features[i] for i in windows]
            starts = [np.asarray(start_logits[i], np.float64) for i in windows]
            ends = [np.asarray(end_logits[i], np.float64) for i in windows]
            candidates = find_candidates(
                of_example, starts, ends, n_best_size, max_answer_length, version_2_with_negative
            )
            nbest = _distinct_texts(candidates, of_example, text, n_best_size)
            if version_2_with_negative:
                prediction, answers.null_odds[example.qas_id] = _decide(nbest, starts, ends, null_score_diff_threshold)
            else:
                if not nbest:
                    nbest.append(_entry(NO_CANDIDATE if windows else "", 0.0, 0.0))
                prediction = nbest[0]["text"]
            _add_probabilities(nbest)
            answers.predictions[example.qas_id] = prediction
            answers.nbest[example.qas_id] = nbest
            progress.update()
    return answers


def _top(logits: np.ndarray, n: int) -> np.ndarray:
    """Indices of the n largest, the first of equals first."""
    return np.argsort(-logits, kind="stable")[:n]


def find_candidates(
    features: Sequence[SquadFeature],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    n_best_size: int,
    max_answer_length: int,
    with_null: bool,
) -> _Candidates:
    """All possible spans of a question's windows, "no answer" among them if with_null, by falling score."""
    parts = []
    for window, (feature, start_logit, end_logit) in enumerate(zip(features, start_logits, end_logits, strict=True)):
        low, high = feature.context_position, feature.context_position + len(feature.is_max_context)
        starts, ends = _top(start_logit, n_best_size), _top(end_logit, n_best_size)
        starts = starts[(starts >= low) & (starts < high)]
        starts = starts[feature.is_max_context[starts - low]]
        ends = ends[(ends >= low) & (ends < high)]
        lengths = ends[None, :] - starts[:, None] + 1  # [starts, ends]
        rows, columns = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
        starts, ends = starts[rows], ends[columns]
        parts.append((np.full(len(rows), window), starts, ends, start_logit[starts], end_logit[ends]))
    if with_null and features:
        null = _null_window(start_logits, end_logits)
        parts.append(([null], [0], [0], [start_logits[null][0]], [end_logits[null][0]]))
    if not parts:
        return _Candidates(*(np.empty(0, int) for _ in range(3)), np.empty(0), np.empty(0))
    windows, starts, ends, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(-(start + end), kind="stable")
    return _Candidates(windows[order], starts[order], ends[order], start[order], end[order])


def _null_window(start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray]) -> int:
    """The window that speaks least for "no answer": one window with an answer is enough."""
    return int(np.argmin([start[0] + end[0] for start, end in zip(start_logits, end_logits, strict=True)]))


def _entry(text: str, start_logit: float, end_logit: float) -> dict[str, Any]:
    return {"text": text, "probability": 0.0, "start_logit": float(start_logit), "end_logit": float(end_logit)}


def _distinct_texts(
    candidates: _Candidates, features: Sequence[SquadFeature], text: "ContextText", n_best_size: int
) -> list[dict[str, Any]]:
    """The n_best_size best candidates of different text; the kind of blanks makes no difference."""
    nbest: list[dict[str, Any]] = []
    seen = set()
    for window, start, end, start_logit, end_logit in zip(*(c.tolist() for c in candidates), strict=True):
        if len(nbest) >= n_best_size:
            break
        answer = text.answer(features[window], start, end) if start > 0 else ""
        key = " ".join(answer.split())
        if key not in seen:
            seen.add(key)
            nbest.append(_entry(answer, start_logit, end_logit))
    return nbest


def _decide(
    nbest: list[dict[str, Any]],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    threshold: float,
) -> tuple[str, float]:
    """The answer of SQuAD 2.0 and its null odds; puts "no answer" at the end of nbest if it is not in it."""
    null_start = null_end = 0.0
    if start_logits:
        null = _null_window(start_logits, end_logits)
        null_start, null_end = float(start_logits[null][0]), float(end_logits[null][0])
    best = next((entry for entry in nbest if entry["text"]), None)
    if all(entry["text"] for entry in nbest):
        nbest.append(_entry("", null_start, null_end))
    if best is None:
        return "", NO_CANDIDATE_ODDS
    odds = null_start + null_end - best["start_logit"] - best["end_logit"]
    return "" if odds > threshold else best["text"], odds


def _add_probabilities(nbest: list[dict[str, Any]]) -> None:
    """Softmax over the scores of the entries."""
    scores = [entry["start_logit"] + entry["end_logit"] for entry in nbest]
    powers = [math.exp(score - max(scores)) for score in scores]
    for entry, power in zip(nbest, powers, strict=True):
        entry["probability"] = power / sum(powers)


class ContextText:
    """Turns tokens back into a slice of the context.

    The published rule compares the words that the tokens are from with what the tokenizer's first step makes of them
    (lower-cased, without accents, split at punctuation). If both have equally many characters apart from blanks, they
    correspond one to one, and the tokens' text is looked for and cut out; else the answer is the whole words.
    """

    def __init__(self, example: SquadExample, do_lower_case: bool):
        self._context, self._starts = example.context, example.word_starts
        self._lengths = list(map(len, example.doc_tokens))
        self._basic = [" ".join(basic_tokenize(word, do_lower_case)) for word in example.doc_tokens]
        # Characters in the words before each word, as written and after the tokenizer's first step.
        self._written = [0, *accumulate(self._lengths)]
        self._cleaned = [0, *accumulate(len(basic.replace(" ", "")) for basic in self._basic)]

    def answer(self, feature: SquadFeature, start: int, end: int) -> str:
        """The text of the tokens at positions start to end (included) of a window."""
        shift = feature.context_start - feature.context_position
        start, end = start + shift, end + shift
        first, last = int(feature.context.words[start]), int(feature.context.words[end])
        whole = self._context[self._starts[first] : self._starts[last] + self._lengths[last]]
        if self._written[last + 1] - self._written[first] != self._cleaned[last + 1] - self._cleaned[first]:
            return whole
        pieces = " ".join(feature.context.tokens[start : end + 1]).replace(" ##", "").replace("##", "").strip()
        words = " ".join(filter(None, self._basic[first : last + 1]))
        position = words.find(pieces) if pieces else -1  # the first occurrence, as published
        if position < 0:
            return whole
        begin, final = (
            self._character(self._written[first] + p - words.count(" ", 0, p))
            for p in (position, position + len(pieces) - 1)
        )
        return self._context[begin : final + 1]

    def _character(self, number: int) -> int:
        """Where in the context the character is that has `number` others before it, blanks not counted."""
        word = bisect_right(self._written, number) - 1
        return self._starts[word] + number - self._written[word]


def write_answers(output_dir: str | os.PathLike, answers: Answers) -> None:
    """Writes predictions.json, nbest_predictions.json and, of SQuAD 2.0, null_odds.json, each whole or not at all."""
    files = {"predictions": answers.predictions, "nbest_predictions": answers.nbest, "null_odds": answers.null_odds}
    for name, content in files.items():
        if content is not None:
            with atomic_open(Path(output_dir, f"{name}.json"), "w") as stream:
                stream.write(json.dumps(content, indent=4) + "\n")
