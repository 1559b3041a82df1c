"""Questions about a text to answers, given a model's logits. Needs no TensorFlow.

examples = to_examples({"context": "...", "questions": ["..."]}, "questions")
answers, candidates = answer_questions(examples, tokenizer, Settings(), logits)
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.records import Feature
from bert_tf.squad import SquadExample, SquadFeature, convert_examples, examples_of
from bert_tf.squad_answers import Answers, find_candidates, select_answers
from bert_tf.tokenization import FullTokenizer
from runkit.errors import UserError

# Features to the logits [tokens, 2] of each: start, end.
Logits = Callable[[Sequence[Feature]], list[np.ndarray]]


class Settings(NamedTuple):
    """How questions are read and answers chosen; run_squad's flags, and its defaults."""

    do_lower_case: bool = True
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    n_best_size: int = 20
    max_answer_length: int = 30


class Answer(NamedTuple):
    """The answer to a question: context[start:end], or "" and no place. probability is among the n best."""

    id: str
    question: str
    answer: str
    probability: float
    start: int | None
    end: int | None


# ------------------------------------------------------------------------------------------------- the questions
def to_squad(content: Any, name: str) -> dict[str, Any]:
    """SQuAD's form of a parsed file: that form, or a context with questions. Raises UserError for anything else."""
    if isinstance(content, dict) and "data" in content:
        return content
    context, questions = (content.get(key) if isinstance(content, dict) else None for key in ("context", "questions"))
    if (
        not isinstance(context, str)
        or not isinstance(questions, list)
        or not all(isinstance(q, str) for q in questions)
    ):
        raise UserError(f'{name}: expected SQuAD\'s form, or {{"context": "...", "questions": ["...", ...]}}')
    qas = [{"id": str(number), "question": question} for number, question in enumerate(questions)]
    return {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}


def to_examples(content: Any, name: str, version_2_with_negative: bool = True) -> list[SquadExample]:
    """The questions of a parsed file (see to_squad) called `name`; flaws are told on stderr."""
    return examples_of(
        to_squad(content, name), name, False, version_2_with_negative, lambda text: print(text, file=sys.stderr)
    )


# --------------------------------------------------------------------------------------------------- the answers
def to_windows(
    examples: Sequence[SquadExample], tokenizer: FullTokenizer, settings: Settings, is_training: bool = False
) -> list[SquadFeature]:
    """What the model is to read."""
    s = settings
    return list(convert_examples(examples, tokenizer, s.max_seq_length, s.doc_stride, s.max_query_length, is_training))


def choose_answers(
    examples: Sequence[SquadExample],
    windows: Sequence[SquadFeature],
    logits: Sequence[np.ndarray],
    settings: Settings,
) -> Answers:
    """What run_squad writes. logits [tokens, 2] of each window."""
    s = settings
    return select_answers(
        examples,
        windows,
        [values[:, 0] for values in logits],
        [values[:, 1] for values in logits],
        n_best_size=s.n_best_size,
        max_answer_length=s.max_answer_length,
        do_lower_case=s.do_lower_case,
        version_2_with_negative=s.version_2_with_negative,
        null_score_diff_threshold=s.null_score_diff_threshold,
    )


def answer_questions(
    examples: Sequence[SquadExample], tokenizer: FullTokenizer, settings: Settings, logits: Logits
) -> tuple[list[Answer], Answers]:
    """The answers in the order of the questions, with their places, and all that was compared."""
    windows = to_windows(examples, tokenizer, settings)
    values = logits([window.feature for window in windows])
    chosen = choose_answers(examples, windows, values, settings)
    windows_of: list[list[int]] = [[] for _ in examples]
    for index, window in enumerate(windows):
        windows_of[window.example_index].append(index)
    answers = []
    for example, indices in zip(examples, windows_of, strict=True):
        text = chosen.predictions[example.qas_id]
        first = text and first_word([windows[i] for i in indices], [values[i] for i in indices], settings)
        start = example.context.find(text, example.word_starts[first]) if isinstance(first, int) else -1
        text = text if start >= 0 else ""  # 1.1 has a word for "no span is possible", which is no answer
        probability = next((e["probability"] for e in chosen.nbest[example.qas_id] if e["text"] == text), 0.0)
        place = (start, start + len(text)) if text else (None, None)
        answers.append(Answer(example.qas_id, example.question, text, probability, *place))
    return answers, chosen


def first_word(windows: list[SquadFeature], logits: list[np.ndarray], settings: Settings) -> int | None:
    """The word in which the best answer begins; None where there is no candidate."""
    starts, ends = ([np.asarray(values[:, side], np.float64) for values in logits] for side in (0, 1))
    candidates = find_candidates(windows, starts, ends, settings.n_best_size, settings.max_answer_length, False)
    if not len(candidates.starts):
        return None
    window = windows[int(candidates.windows[0])]
    return int(window.context.words[candidates.starts[0] + window.context_start - window.context_position])
