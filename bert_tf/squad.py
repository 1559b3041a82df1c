"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; 2018,
https://arxiv.org/abs/1806.03822): files -> examples -> windows that fit the model.

A context is cut into words at blanks, words into WordPiece tokens. A context too long for the model is read through
windows that overlap; a token that several windows hold belongs to the one that shows most of its surroundings.
Offsets are code points of the context as it stands in the file. Choosing answers is squad_answers', scoring them
squad_evaluate's.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from bert_tf.records import Feature
from bert_tf.tokenization import CLS, SEP, FullTokenizer, basic_tokenize
from runkit.errors import UserError
from runkit.files import read_json
from runkit.progress import Progress

# What the tokenizer takes for blanks: these control characters are deleted, and what they separate is one word. The
# published code splits at ASCII blanks and U+202F alone, which gives the same tokens but longer words.
_WORD = re.compile(r"(?:\S|[\x0b\x0c\x1c-\x1f\x85])+")

# An answer_start that is wrong by no more than this points at the nearest of several occurrences.
MAX_SHIFT = 10  # code points


class SquadExample(NamedTuple):
    """One question about one context. doc_tokens and word_starts are shared by the questions of a paragraph."""

    qas_id: str
    question: str
    context: str  # as in the file
    doc_tokens: list[str]  # its words
    word_starts: list[int]  # where each begins, in code points
    answers: list[str]  # all answers that count as right
    is_impossible: bool  # the context has no answer
    answer_text: str | None = None  # in training: the answer that is learnt, words start_word to end_word
    start_word: int | None = None
    end_word: int | None = None


class ContextTokens(NamedTuple):
    """The n tokens of a context, shared by all windows on it."""

    ids: list[int]  # [n]
    tokens: list[str]  # [n] "##" begins a piece inside a word
    words: np.ndarray  # [n] int32, index into doc_tokens
    word_ends: list[int]  # [words + 1] tokens in the words before: word w is tokens word_ends[w] to word_ends[w + 1]


class SquadFeature(NamedTuple):
    """A window: [CLS] question [SEP] part of the context [SEP]."""

    example_index: int
    doc_span_index: int  # number of the window among those of its question
    feature: Feature
    context: ContextTokens
    context_start: int  # the window's first token of the context, counted in the context
    context_position: int  # and its position in input_ids
    is_max_context: np.ndarray  # [tokens of the context in the window] bool: no other window suits the token better


# ---------------------------------------------------------------------------------------------- files -> examples
def read_examples(
    path: str | os.PathLike, is_training: bool, version_2_with_negative: bool, warn: Callable[[str], None]
) -> list[SquadExample]:
    """Reads the questions of a SQuAD file in its order; see examples_of."""
    return examples_of(read_json(path), str(path), is_training, version_2_with_negative, warn)


def examples_of(
    content: Any, name: str, is_training: bool, version_2_with_negative: bool, warn: Callable[[str], None]
) -> list[SquadExample]:
    """The questions of a parsed file called `name`, in its order; warn gets a sentence for each kind of flaw, with its
    number.

    In training an answer that does not stand at its answer_start is looked for (locate_answer), and the question left
    out where it cannot be found; of several answers the first is learnt. Prediction needs no answers.

    Raises UserError naming the file and the place in it (data[3].paragraphs[1].qas[0]) for anything missing or of the
    wrong kind, an id that stands twice, and unanswerable questions in training without version_2_with_negative.
    """
    examples: list[SquadExample] = []
    places: dict[str, str] = {}
    moved, lost, blank = [], [], []
    impossible = 0
    for context, qa, where in iter_questions(content, name):
        if not examples or examples[-1].context is not context:
            words = list(_WORD.finditer(context))
            doc_tokens, word_starts = [word[0] for word in words], [word.start() for word in words]
        example = SquadExample(
            question_id(qa, where),
            _get(qa, "question", str, where),
            context,
            doc_tokens,
            word_starts,
            [_get(answer, "text", str, place) for answer, place in _answers(qa, where)],
            _get(qa, "is_impossible", bool, where) if "is_impossible" in qa else False,
        )
        first = places.setdefault(example.qas_id, where)
        if first != where:
            raise UserError(f"{where}: the id {example.qas_id!r} stands already at {first.removeprefix(f'{name}: ')}")
        if not (doc_tokens and example.question.strip()):
            blank.append(example.qas_id)
        impossible += example.is_impossible
        if is_training and example.is_impossible and not version_2_with_negative:
            raise UserError(
                f"{where}: the question {example.qas_id} has no answer (is_impossible), so this is data of SQuAD 2.0: "
                "give --version_2_with_negative"
            )
        if is_training and not example.is_impossible:
            answer, place = _first_answer(qa, where)
            offset = _get(answer, "answer_start", int, place)
            span = locate_answer(context, example.answers[0], offset)
            if span is None:
                lost.append(example.qas_id)
                continue
            start, end = span
            if context[offset : offset + len(example.answers[0])] != example.answers[0]:
                moved.append(example.qas_id)
            example = example._replace(
                answer_text=context[start:end],
                start_word=bisect_right(word_starts, start) - 1,
                end_word=bisect_right(word_starts, end - 1) - 1,
            )
        examples.append(example)

    _warn_of(warn, name, moved, "answers did not stand at their answer_start, and were found where their text is")
    _warn_of(warn, name, lost, "questions are left out: their answer's text is not in the context, or in many places")
    _warn_of(warn, name, blank, "questions are blank or have a blank context")
    if not is_training and impossible and not version_2_with_negative:
        warn(
            f"{name}: {impossible} questions have no answer, but will be given one: "
            "without --version_2_with_negative every question is"
        )
    if not examples:
        raise UserError(f"{name}: no questions{' with an answer to learn' if lost else ''}")
    return examples


def iter_questions(file: Any, path: str) -> Iterator[tuple[str, dict, str]]:
    """Yields (context, question entry with an id, "<path>: <place in the file>") in order.

    Raises UserError where a part is missing or of the wrong kind.
    """
    for i, article in enumerate(_get(file, "data", list, f"{path}: top level")):
        where = f"{path}: data[{i}]"
        for j, paragraph in enumerate(_get(article, "paragraphs", list, where)):
            inner = f"{where}.paragraphs[{j}]"
            context = _get(paragraph, "context", str, inner)
            for k, qa in enumerate(_get(paragraph, "qas", list, inner)):
                question_id(qa, f"{inner}.qas[{k}]")
                yield context, qa, f"{inner}.qas[{k}]"


def question_id(qa: Any, where: str) -> str:
    """The id of a question entry; numbers are ids too, as text."""
    return str(_get(qa, "id", (str, int), where))


def _get(entry: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """entry[key], which has to be of that kind."""
    if not isinstance(entry, dict):
        raise UserError(f"{where}: should be an object, is {_kind_of(entry)}")
    if key not in entry:
        raise UserError(f"{where}: no key {key!r}; SQuAD's format has it")
    value = entry[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = kind if isinstance(kind, type) else kind[0]
        raise UserError(f"{where}.{key}: should be {_KINDS[wanted]}, is {_kind_of(value)}")
    return value


_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a whole number"}


def _kind_of(value: Any) -> str:
    return _KINDS.get(type(value), "null" if value is None else "a number")


def _answers(qa: dict, where: str) -> Iterator[tuple[Any, str]]:
    """The answer entries of a question and their places; none where there is no such key."""
    for i, answer in enumerate(_get(qa, "answers", list, where) if "answers" in qa else ()):
        yield answer, f"{where}.answers[{i}]"


def _first_answer(qa: dict, where: str) -> tuple[Any, str]:
    _get(qa, "answers", list, where)
    for found in _answers(qa, where):
        return found
    raise UserError(f"{where}.answers: is empty; give an answer, or mark the question is_impossible (SQuAD 2.0)")


def _warn_of(warn: Callable[[str], None], path: str, ids: list[str], what: str) -> None:
    if ids:
        warn(f"{path}: {len(ids)} {what}: {', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''}")


def locate_answer(context: str, text: str, offset: int) -> tuple[int, int] | None:
    """Where an answer begins and ends in the context, in code points; None when that is not certain.

    At offset, if its text is there. Else where the text, of whole words if there is such a place, occurs once; or the
    nearest of several places, if it is within MAX_SHIFT. Blanks around the text and the kind of blanks in it do not
    matter.
    """
    stripped = text.strip()
    if not basic_tokenize(stripped):  # nothing, or nothing that becomes a token
        return None
    offset += len(text) - len(text.lstrip())
    if offset >= 0 and context.startswith(stripped, offset):
        return offset, offset + len(stripped)
    pattern = r"\s+".join(map(re.escape, stripped.split()))
    spans = [match.span() for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", context)]
    spans = spans or [match.span() for match in re.finditer(pattern, context)]
    if len(spans) > 1:
        distances = [abs(start - offset) for start, _ in spans]
        nearest = min(distances)
        spans = [span for span, d in zip(spans, distances, strict=True) if d == nearest <= MAX_SHIFT]
    return spans[0] if len(spans) == 1 else None


# ------------------------------------------------------------------------------------------- examples -> windows
def convert_examples(
    examples: Sequence[SquadExample],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> Iterator[SquadFeature]:
    """Yields the windows of all examples in order, as Google's BERT makes them; a context without tokens has none.

    Windows begin doc_stride tokens apart. Questions are cut to max_query_length tokens. The label is (0, 0) where the
    window does not hold the whole answer, and in prediction. Raises UserError at once when the lengths leave no room
    for a token of the context.
    """
    if max_query_length < 1 or doc_stride < 1:
        raise UserError(f"max_query_length {max_query_length} and doc_stride {doc_stride} must be at least 1")
    if max_seq_length <= max_query_length + 3:
        raise UserError(
            f"max_seq_length {max_seq_length} must be above max_query_length {max_query_length} + 3 "
            "([CLS] question [SEP] context [SEP]), or no token of the context fits"
        )
    return _windows(examples, tokenizer, max_seq_length, doc_stride, max_query_length, is_training)


def _windows(
    examples: Sequence[SquadExample],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> Iterator[SquadFeature]:
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    contexts: dict[str, ContextTokens] = {}
    with Progress(len(examples), "converting questions", "questions") as progress:
        for example_index, example in enumerate(examples):
            context = contexts.get(example.context)
            if context is None:
                context = contexts[example.context] = tokenize_context(example.doc_tokens, tokenizer)
            query = [cls, *tokenizer.encode(example.question)[:max_query_length], sep]
            answer = _answer_tokens(example, context, tokenizer) if is_training else None
            spans = window_spans(len(context.ids), max_seq_length - len(query) - 1, doc_stride)
            for index, ((start, length), is_max) in enumerate(zip(spans, max_context(spans), strict=True)):
                label = (0, 0)
                if answer is not None and start <= answer[0] and answer[1] < start + length:
                    label = answer[0] - start + len(query), answer[1] - start + len(query)
                ids = [*query, *context.ids[start : start + length], sep]
                segments = [0] * len(query) + [1] * (length + 1)
                feature = Feature(ids, segments, label)
                yield SquadFeature(example_index, index, feature, context, start, len(query), is_max)
            progress.update()


def tokenize_context(doc_tokens: Sequence[str], tokenizer: FullTokenizer) -> ContextTokens:
    """Words -> tokens that know their word."""
    pieces = [tokenizer.encode(word) for word in doc_tokens]
    counts = list(map(len, pieces))
    ids = [index for piece in pieces for index in piece]
    words = np.repeat(np.arange(len(pieces), dtype=np.int32), counts)
    return ContextTokens(ids, tokenizer.convert_ids_to_tokens(ids), words, [0, *accumulate(counts)])


def _answer_tokens(example: SquadExample, context: ContextTokens, tokenizer: FullTokenizer) -> tuple[int, int] | None:
    """First and last token of the answer in the context; None when there is no answer.

    The tokens of its words, or the first run among them that is exactly the answer: of "(1895-1943)." the answer
    1895 is one token.
    """
    if example.is_impossible:
        return None
    first, end = context.word_ends[example.start_word], context.word_ends[example.end_word + 1]
    wanted = tokenizer.encode(example.answer_text)
    for start in range(first, end - len(wanted) + 1):
        if context.ids[start : start + len(wanted)] == wanted:
            return start, start + len(wanted) - 1
    return first, end - 1


def window_spans(n_tokens: int, room: int, doc_stride: int) -> list[tuple[int, int]]:
    """(start, length) of the windows over n_tokens, of which each takes up to `room`."""
    spans, start = [], 0
    while start < n_tokens:
        length = min(n_tokens - start, room)
        spans.append((start, length))
        if start + length == n_tokens:
            break
        start += min(length, doc_stride)
    return spans


def max_context(spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each window [its length] bool: whether it is the best of those that hold the token.

    A window's score for a token is the lesser of the numbers of tokens to the left and right of it, plus a hundredth
    of the window's length; the first of equals is best.
    """
    n_tokens = max((start + length for start, length in spans), default=0)
    best, score = np.zeros(n_tokens, np.int64), np.full(n_tokens, -1.0)  # [tokens] window, and its score
    for index, (start, length) in enumerate(spans):
        place, tokens = np.arange(length), slice(start, start + length)
        own = np.minimum(place, length - 1 - place) + 0.01 * length
        better = own > score[tokens]
        best[tokens][better], score[tokens][better] = index, own[better]
    return [best[start : start + length] == index for index, (start, length) in enumerate(spans)]
