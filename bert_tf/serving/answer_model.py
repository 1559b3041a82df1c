"""Triton's model from question and text to the answer: tokenizer, windows, the model of logits, choice of the answer.

The windows of all requests that wait together go through the model of logits in batches. Runs inside the server.
"""

import contextlib
import io
import json
from typing import Any, NamedTuple

import numpy as np

from bert_tf.answering import Answer, to_examples
from bert_tf.exported import ExportedAnswerer
from bert_tf.squad import SquadExample
from runkit.errors import UserError
from runkit.serving.model import Arguments, call, respond, strings


class Candidates(NamedTuple):
    """What was compared for a question."""

    prediction: str
    nbest: list[dict[str, Any]]
    null_odds: float


class TritonPythonModel:
    """Triton's name for it."""

    def initialize(self, args: dict[str, str]) -> None:
        arguments = Arguments(args)
        self.logits_model = arguments.parameters["logits_model"]
        self.max_words = int(arguments.parameters["max_words"])
        self.answerer = ExportedAnswerer(arguments.folder, self.logits, int(arguments.parameters["rows"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond(requests, self.read, self.answer)

    # ------------------------------------------------------------------------------------------------ what it does
    def read(self, request: Any) -> list[SquadExample]:
        """The questions of a request. Raises UserError for what is none, or too much."""
        questions, contexts = strings(request, "QUESTION"), strings(request, "CONTEXT")
        return [self.read_question(*pair) for pair in zip(questions, contexts, strict=True)]

    def read_question(self, question: str, context: str) -> SquadExample:
        if not question.strip():
            raise UserError("QUESTION is empty")
        if not context.strip():
            raise UserError("CONTEXT is empty")
        (example,) = to_examples({"context": context, "questions": [question]}, "request")
        if (words := len(example.doc_tokens)) > self.max_words:
            raise UserError(f"CONTEXT has {words:,} words; {self.max_words:,} are the most")
        return example

    def logits(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
        start, end = call(self.logits_model, inputs, ("start_logits", "end_logits"))
        return start, end

    def answer(self, asked: list[list[SquadExample]]) -> list[dict[str, np.ndarray]]:
        examples = [
            example._replace(qas_id=str(number))
            for number, example in enumerate(example for examples in asked for example in examples)
        ]
        with contextlib.redirect_stderr(io.StringIO()):  # progress is for people who wait
            answers, chosen = self.answerer.answer(examples)
        odds = chosen.null_odds or {}
        rows = iter(
            (one, Candidates(chosen.predictions[one.id], chosen.nbest[one.id], odds.get(one.id, 0.0)))
            for one in answers
        )
        return [outputs([next(rows) for _ in examples]) for examples in asked]


def outputs(rows: list[tuple[Answer, Candidates]]) -> dict[str, np.ndarray]:
    """The outputs [B, 1] of a request."""

    def column(values: list, dtype: Any = object) -> np.ndarray:
        return np.array(values, dtype).reshape(-1, 1)

    answers, candidates = zip(*rows, strict=True)
    return {
        "ANSWER": column([answer.answer.encode() for answer in answers]),
        "PROBABILITY": column([answer.probability for answer in answers], np.float32),
        "START": column([-1 if answer.start is None else answer.start for answer in answers], np.int32),
        "END": column([-1 if answer.end is None else answer.end for answer in answers], np.int32),
        "PREDICTION": column([one.prediction.encode() for one in candidates]),
        "NBEST": column([json.dumps(one.nbest, ensure_ascii=False).encode() for one in candidates]),
        "NULL_ODDS": column([one.null_odds for one in candidates], np.float64),
    }
