"""The questions that a benchmark takes of a SQuAD file."""

import json
from pathlib import Path

import pytest

from bert_tf import benchmark_questions
from bert_tf.squad import read_examples
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer
from runkit.errors import UserError


def dataset(*paragraphs: list[bool]) -> dict:
    """A paragraph for each list, a question for each bool: whether it has an answer."""
    result = []
    for number, answered in enumerate(paragraphs):
        context = f"Word{number} is here."
        answer = {"text": f"Word{number}", "answer_start": 0}
        qas = [
            {"id": f"{number}-{i}", "question": "What?", "answers": [answer] if a else [], "is_impossible": not a}
            for i, a in enumerate(answered)
        ]
        result.append({"context": context, "qas": qas})
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": result}]}


def ids(questions: dict) -> list[str]:
    return [qa["id"] for p in questions["data"][0]["paragraphs"] for qa in p["qas"]]


def test_the_first_answerable_questions():
    data = dataset([True, False, True], [False], [True, True])
    assert ids(benchmark_questions.first_questions(data, "f", 3)) == ["0-0", "0-2", "2-0"]
    assert ids(benchmark_questions.first_questions(data, "f", 99)) == ["0-0", "0-2", "2-0", "2-1"]
    with pytest.raises(UserError, match="f: no question has an answer"):
        benchmark_questions.first_questions(dataset([False]), "f", 3)


def test_the_files_serve_training(tmp_path: Path, capsys):
    """They are data of SQuAD 1.1, and no letter is unknown to the vocabulary."""
    file = tmp_path / "dev.json"
    file.write_text(json.dumps(dataset([True, False], [True])), encoding="utf-8")
    benchmark_questions.main([str(file), "--questions", "5", "--output_dir", str(tmp_path / "b"), "--vocab"])
    assert capsys.readouterr().out.strip() == "2"
    examples = read_examples(tmp_path / "b" / "questions.json", True, False, pytest.fail)
    tokenizer = FullTokenizer(tmp_path / "b" / "vocab.txt", True)
    unknown = SPECIAL_TOKENS.index("[UNK]")
    assert len(examples) == 2
    for example in examples:
        assert unknown not in tokenizer.encode(f"{example.context} {example.question}")
