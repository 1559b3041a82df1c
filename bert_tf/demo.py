"""A local page that asks a text questions, with a model that run_squad trained.

    python -m bert_tf.demo MODEL_DIR [--port 8080] [--host 127.0.0.1] [--precision fp32]

POST /answer takes {"context": "...", "questions": ["...", ...]} and gives {"answers": [...], "seconds": ...} as
bert_tf.answer does.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert_tf.answer import Answerer, ask, load
from bert_tf.precision import PRECISIONS
from runkit.errors import UserError, run_main
from runkit.files import parse_json
from runkit.web import Action, serve

PAGE = Path(__file__).with_suffix(".html")
MAX_BYTES = 2_000_000
MAX_WORDS = 50_000  # of a text: half a minute on two cores
MAX_QUESTIONS = 20


def answering(answerer: Answerer) -> Callable[[bytes], dict[str, Any]]:
    """The function behind POST /answer. It raises UserError for a request that is none."""

    def answer(body: bytes) -> dict[str, Any]:
        context, questions = read_request(body)
        started = time.perf_counter()
        answers = ask(answerer, context, questions)
        return {"answers": [found._asdict() for found in answers], "seconds": time.perf_counter() - started}

    return answer


def read_request(body: bytes) -> tuple[str, list[str]]:
    """Context and questions of a request."""
    try:
        content = parse_json(body.decode())
    except ValueError as error:
        raise UserError(f"the request is not valid JSON: {error}") from error
    context, questions = (content.get(key) if isinstance(content, dict) else None for key in ("context", "questions"))
    if (
        not isinstance(context, str)
        or not isinstance(questions, list)
        or not all(isinstance(q, str) for q in questions)
    ):
        raise UserError('the request must be {"context": "...", "questions": ["...", ...]}')
    if not context.strip():
        raise UserError("the text is empty")
    if not questions or not all(question.strip() for question in questions):
        raise UserError("a question is missing or empty")
    if len(questions) > MAX_QUESTIONS:
        raise UserError(f"{len(questions)} questions; {MAX_QUESTIONS} at once are the most")
    if (words := len(context.split())) > MAX_WORDS:
        raise UserError(f"the text has {words:,} words; {MAX_WORDS:,} are the most")
    return context, questions


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.partition("\n")[0])
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="output_dir of run_squad, or a folder like it")
    parser.add_argument("--port", type=int, default=8080, help="0: any that is free")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: reachable from other machines")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    options = parser.parse_args(argv)
    print(f"loading {options.model_dir}", flush=True)
    answerer = load(options.model_dir, precision=options.precision)
    serve(PAGE, {"/answer": Action(answering(answerer), ["application/json"], MAX_BYTES)}, options.host, options.port)


if __name__ == "__main__":
    run_main(main)
