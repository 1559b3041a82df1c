"""Scores SQuAD answers by the official rules of both versions (https://rajpurkar.github.io/SQuAD-explorer/).

    python -m bert_tf.squad_evaluate dev-v2.0.json predictions.json --na-prob-file null_odds.json

Prints what the official scripts print: percentages as JSON. Where those leave questions out or fail, this decides: a
question without a prediction scores 0 and counts, in 2.0 as in 1.1; a question whose entry says neither what its
answers are nor that there is none is not scored. Both are said on stderr. For complete files the figures are equal.
"""

import os
import sys

if not __package__:  # started as a file, such as by --eval_script: modules are looked up in the repository
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import argparse
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.squad import iter_questions, question_id
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, read_json

VERSIONS = ("1.1", "2.0")
OFFICIAL_NA_PROB_THRESH = 1.0

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


# ------------------------------------------------------------------------------------------ one answer, one gold
def normalize_answer(text: str) -> str:
    """Lower-cased, without ASCII punctuation, English articles and superfluous blanks, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(gold: str, prediction: str) -> float:
    """1.0 where both are equal once normalized, else 0.0; the same in both versions."""
    return float(normalize_answer(gold) == normalize_answer(prediction))


def f1_score(gold: str, prediction: str, version: str = "2.0") -> float:
    """F1 of the words that both share once normalized, each as often as it occurs.

    Two texts without words score 1.0 in version 2.0, where that is "no answer", and 0.0 in 1.1.
    """
    gold_words, words = normalize_answer(gold).split(), normalize_answer(prediction).split()
    if not gold_words or not words:
        return float(gold_words == words and version == "2.0")
    shared = sum((Counter(gold_words) & Counter(words)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


# ------------------------------------------------------------------------------------------------- a whole file
class Question(NamedTuple):
    """What a question is scored against."""

    qas_id: str
    golds: list[str]  # in 2.0 [""] where there is no answer
    has_answer: bool


def gold_questions(dataset: Sequence[Any], version: str, name: str = "the data set") -> list[Question]:
    """The questions with known answers of a file's "data", in order.

    Raises UserError naming the place of what is missing, or when there are none.
    """
    questions = []
    for _, qa, where in iter_questions({"data": dataset}, name):
        qas_id = question_id(qa, where)
        if "answers" not in qa and not qa.get("is_impossible"):
            continue
        try:
            golds = [answer["text"] for answer in qa.get("answers", ())]
            if version == "2.0":
                golds = [gold for gold in golds if normalize_answer(gold)]
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{where}.answers: should be a list of objects with a text each") from error
        questions.append(Question(qas_id, golds or [""], bool(qa.get("answers"))))
    if not questions:
        raise UserError(f"{name}: no questions with answers to score against")
    return questions


def evaluate(
    dataset: Sequence[Any],
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    version: str = "1.1",
    na_prob_thresh: float = math.inf,
) -> dict[str, float]:
    """Percentages for a file's "data": exact_match and f1 in 1.1; in 2.0 exact, f1 and total, the same for questions
    with (HasAns_*) and without (NoAns_*) answer, and with na_probs the best threshold (best_*).

    na_probs: how likely, or by how much, a question has no answer, by id; above na_prob_thresh it is taken to have
    none. Raises UserError when a question has no na_prob.
    """
    if version not in VERSIONS:
        raise UserError(f"no SQuAD version {version!r}; there are {' and '.join(VERSIONS)}")
    questions = gold_questions(dataset, version)
    exact = _scores(questions, predictions, exact_match)
    f1 = _scores(questions, predictions, lambda gold, prediction: f1_score(gold, prediction, version))
    if version == "1.1":
        return {"exact_match": _percent(exact.values()), "f1": _percent(f1.values())}

    scored_exact, scored_f1 = exact, f1
    if na_probs is not None:
        without = next((q.qas_id for q in questions if q.qas_id not in na_probs), None)
        if without is not None:
            raise UserError(f"no probability of no answer for the question {without}; every question needs one")
        abstained = {q.qas_id: float(not q.has_answer) for q in questions if na_probs[q.qas_id] > na_prob_thresh}
        scored_exact, scored_f1 = exact | abstained, f1 | abstained
    result: dict[str, float] = {}
    groups = {
        "": questions,
        "HasAns_": [q for q in questions if q.has_answer],
        "NoAns_": [q for q in questions if not q.has_answer],
    }
    for prefix, group in groups.items():
        if group:
            result[f"{prefix}exact"] = _percent([scored_exact[q.qas_id] for q in group])
            result[f"{prefix}f1"] = _percent([scored_f1[q.qas_id] for q in group])
            result[f"{prefix}total"] = len(group)
    if na_probs is not None:
        for name, scores in (("exact", exact), ("f1", f1)):
            best = best_threshold(questions, predictions, scores, na_probs)
            result[f"best_{name}"], result[f"best_{name}_thresh"] = best
    return result


def _scores(
    questions: Sequence[Question], predictions: Mapping[str, str], score: Callable[[str, str], float]
) -> dict[str, float]:
    """By id the best score over all golds; 0 where there is no prediction."""
    return {
        q.qas_id: max(score(gold, predictions[q.qas_id]) for gold in q.golds) if q.qas_id in predictions else 0.0
        for q in questions
    }


def _percent(scores) -> float:
    return 100.0 * sum(scores) / len(scores)


def best_threshold(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    na_probs: Mapping[str, float],
) -> tuple[float, float]:
    """(best percentage, threshold): where answering only the questions with na_prob <= threshold scores best.

    From no answer at all, questions are answered by rising na_prob, in the order of na_probs where equal; the first of
    equal scores is best. As in the official script one that has no answer costs a point only if its prediction is not
    "" already.
    """
    by_id = {q.qas_id: q for q in questions}
    score = best = sum(not q.has_answer for q in questions)
    threshold = 0.0
    for qas_id in sorted(na_probs, key=na_probs.__getitem__):
        if qas_id in by_id:
            score += scores[qas_id] if by_id[qas_id].has_answer else -bool(predictions.get(qas_id))
            if score > best:
                best, threshold = score, na_probs[qas_id]
    return 100.0 * best / len(questions), threshold


def version_of(dataset: Sequence[Any], name: str = "the data set") -> str:
    """ "2.0" when a question says whether it is_impossible, else "1.1"."""
    return "2.0" if any("is_impossible" in qa for _, qa, _ in iter_questions({"data": dataset}, name)) else "1.1"


# ------------------------------------------------------------------------------------------------- command line
def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="SQuAD JSON with the answers")
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="JSON object: id -> text")
    parser.add_argument("--na-prob-file", "-n", type=Path, help="JSON object: id -> probability of no answer (2.0)")
    parser.add_argument(
        "--na-prob-thresh",
        "-t",
        type=float,
        default=OFFICIAL_NA_PROB_THRESH,
        help="above this a question is taken to have no answer (default %(default)s)",
    )
    parser.add_argument("--out-file", "-o", type=Path, help="where to write instead of printing")
    parser.add_argument("--version", choices=VERSIONS, help="rules to apply (default: by the data set)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Scores one file of predictions; raises UserError for anything a user can fix."""
    arguments = parse_arguments(argv)
    dataset = read_dataset(arguments.dataset)
    version = arguments.version or version_of(dataset, str(arguments.dataset))
    predictions = _read_values(arguments.predictions, str, "text")
    na_probs = _read_values(arguments.na_prob_file, (int, float), "a number") if arguments.na_prob_file else None
    for warning in warnings_about(dataset, predictions, version, str(arguments.dataset)):
        print(f"warning: {warning}", file=sys.stderr)
    scores = evaluate(dataset, predictions, na_probs, version, arguments.na_prob_thresh)
    text = json.dumps(scores, indent=2 if version == "2.0" else None)
    if arguments.out_file:
        with atomic_open(arguments.out_file, "w") as stream:
            stream.write(text + "\n")
    else:
        print(text)


def read_dataset(path: Path) -> list[Any]:
    """The "data" of a SQuAD file. Raises UserError when it has none."""
    file = read_json(path)
    if not isinstance(file, dict) or not isinstance(file.get("data"), list):
        raise UserError(f"{path}: no list under the key 'data'; SQuAD's format has it")
    return file["data"]


def _read_values(path: Path, kind: type | tuple[type, ...], name: str) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: should be an object of question ids and {name} each")
    wrong = next((key for key, value in values.items() if not isinstance(value, kind)), None)
    if wrong is not None:
        raise UserError(f"{path}: the value of {wrong!r} should be {name}, is {values[wrong]!r}")
    return values


def warnings_about(dataset: Sequence[Any], predictions: Mapping[str, str], version: str, name: str) -> list[str]:
    """What a user should know about questions and predictions that do not match."""
    scored = [q.qas_id for q in gold_questions(dataset, version, name)]
    there_are = {question_id(qa, where) for _, qa, where in iter_questions({"data": dataset}, name)}
    kinds = {
        "questions have no prediction and score 0": [i for i in scored if i not in predictions],
        "questions have no known answer and are not scored": sorted(there_are.difference(scored)),
        "predictions are for other questions": [i for i in predictions if i not in there_are],
    }
    return [f"{len(ids)} {what}: {', '.join(ids[:3])}{', ...' * (len(ids) > 3)}" for what, ids in kinds.items() if ids]


if __name__ == "__main__":
    run_main(main)
