"""Questions for a benchmark: as many as it needs of a SQuAD file, all answerable, so that both versions serve.

    python -m bert_tf.benchmark_questions SQUAD_FILE --questions 400 --output_dir DIR [--vocab]

writes DIR/questions.json and prints the number of its questions. --vocab adds DIR/vocab.txt with the letters of the
file, for random weights where there is no vocabulary: the speed of a batch does not depend on it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_tf.squad import iter_questions
from bert_tf.tokenization import CLS, MASK, PAD, SEP, UNK
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, read_json, write_json


def first_questions(dataset: Any, path: str, n: int) -> dict[str, Any]:
    """The first n questions with an answer, in SQuAD's form, each with its context. Raises UserError for none."""
    paragraphs: list[dict[str, Any]] = []
    found = 0
    for context, qa, _ in iter_questions(dataset, path):
        if found == n:
            break
        if qa.get("is_impossible") or not qa.get("answers"):
            continue
        if not paragraphs or paragraphs[-1]["context"] is not context:
            paragraphs.append({"context": context, "qas": []})
        paragraphs[-1]["qas"].append({key: qa[key] for key in ("id", "question", "answers")})
        found += 1
    if not found:
        raise UserError(f"{path}: no question has an answer")
    return {"version": "1.1", "data": [{"title": "benchmark", "paragraphs": paragraphs}]}


def letters(questions: dict[str, Any]) -> list[str]:
    """A vocabulary for these questions: every letter alone, and as the continuation of a word."""
    texts = {p["context"] for p in questions["data"][0]["paragraphs"]}
    texts |= {qa["question"] for p in questions["data"][0]["paragraphs"] for qa in p["qas"]}
    found = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    return [PAD, UNK, CLS, SEP, MASK, *found, *(f"##{letter}" for letter in found)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmark_questions", description=__doc__.partition("\n")[0])
    parser.add_argument("squad_file", metavar="SQUAD_FILE")
    parser.add_argument("--questions", type=int, required=True, metavar="N")
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--vocab", action="store_true")
    args = parser.parse_args(argv)
    questions = first_questions(read_json(args.squad_file), args.squad_file, args.questions)
    if args.vocab:
        with atomic_open(args.output_dir / "vocab.txt", "w") as stream:
            stream.writelines(f"{token}\n" for token in letters(questions))
    write_json(args.output_dir / "questions.json", questions)
    print(sum(len(paragraph["qas"]) for paragraph in questions["data"][0]["paragraphs"]))


if __name__ == "__main__":
    run_main(main)
