"""Asking a model that the main trained: at the prompt, by arguments, JSON to JSON, and what is refused."""

import io
import json
import sys
from pathlib import Path

import pytest

from bert_tf import answer, demo, run_squad
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.errors import UserError
from runkit.web import Action
from tests.bert_tf.mains import run_here
from tests.browser import chromium, open_page
from tests.runkit.test_web import running, send

CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,  # a small model learns from it at once
}
CONTEXT = "\U0001f600 Anna has  two cats.\nThe red dog of Ben sleeps."  # a code point beyond 16 bits, odd blanks
ASKED = [
    ("who has cats?", "Anna", 2),
    ("how many cats?", "two cats", 12),
    ("what sleeps?", "The red dog", 22),
    ("who sings?", None, 0),
]
WORDS = "anna has two cats the red dog of ben sleeps who how many what sings . ?".split()


def squad() -> dict:
    qas = [
        {
            "id": f"q{number}",
            "question": question,
            "answers": [] if text is None else [{"text": text, "answer_start": start}],
            "is_impossible": text is None,
        }
        for number, (question, text, start) in enumerate(ASKED)
    ]
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A run of run_squad that knows its questions by heart."""
    folder = tmp_path_factory.mktemp("answer")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(SPECIAL_TOKENS) + len(WORDS)}))
    (folder / "train.json").write_text(json.dumps(squad()), encoding="utf-8")
    run_here(
        run_squad,
        {
            "vocab_file": folder / "vocab.txt",
            "bert_config_file": folder / "config.json",
            "output_dir": folder / "run",
            "do_train": True,
            "train_file": folder / "train.json",
            "version_2_with_negative": True,
            "max_seq_length": 40,
            "max_query_length": 10,
            "doc_stride": 16,
            "train_batch_size": 4,
            "learning_rate": 5e-3,
            "num_train_epochs": 150,
            "precision": "fp32",
        },
    )
    return folder / "run"


def test_the_run_s_settings_are_taken(model: Path):
    settings = answer.read_settings(str(model), {"n_best_size": 7})
    assert settings == answer.Settings(True, 40, 16, 10, True, 0.0, 7, 30)
    assert answer.read_settings("/nowhere", {}) == answer.Settings()


def test_json(model: Path, tmp_path: Path, capsys):
    """Both forms; offsets are code points of the context as it was given."""
    file = tmp_path / "questions.json"
    for content, ids in (
        (squad(), ["q0", "q1", "q2", "q3"]),
        ({"context": CONTEXT, "questions": [question for question, *_ in ASKED]}, ["0", "1", "2", "3"]),
    ):
        file.write_text(json.dumps(content), encoding="utf-8")
        answer.main([str(model), "--json", str(file)])
        out, err = capsys.readouterr()
        answers = json.loads(out)["answers"]
        assert [a["id"] for a in answers] == ids
        for found, (question, text, start) in zip(answers, ASKED, strict=True):
            assert found["question"] == question and 0.5 < found["probability"] <= 1
            place = (None, None) if text is None else (start, start + len(text))
            assert (found["answer"], found["start"], found["end"]) == (text or "", *place)
        assert "ready, loaded in" in err and "2 layers of 32, SQuAD 2.0, fp32" in err


def test_json_from_stdin(model: Path, capsys, monkeypatch):
    content = "\ufeff" + json.dumps({"context": CONTEXT, "questions": ["who has cats?"]})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    answer.main([str(model), "--json", "-"])
    assert [a["answer"] for a in json.loads(capsys.readouterr().out)["answers"]] == ["Anna"]


def test_one_shot(model: Path, tmp_path: Path, capsys):
    file = tmp_path / "context.txt"
    file.write_text(CONTEXT, encoding="utf-8")
    questions = ["--question", "how many cats?", "--question", "who sings?"]
    answer.main([str(model), "--context_file", str(file), *questions])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["? how many cats?", "two cats"]
    assert "characters 12-20: \U0001f600 Anna has [two cats]. The red dog" in lines[2]
    assert lines[3] == "? who sings?" and lines[4].startswith("no answer (probability ")


def test_a_threshold_and_1_1_always_answer(model: Path, capsys):
    for flags in (["--null_score_diff_threshold", "1e9"], ["--no-version_2_with_negative"]):
        answer.main([str(model), "--context", CONTEXT, "--question", "who sings?", *flags])
        assert "no answer" not in capsys.readouterr().out


def test_the_prompt(model: Path, tmp_path: Path, capsys, monkeypatch):
    """A pasted context, a missing file, a file, and the end of the input."""
    file = tmp_path / "context.txt"
    file.write_text(CONTEXT, encoding="utf-8")
    typed = iter(
        [*CONTEXT.split("\n"), "", "who has cats?", "what sleeps?", "", "@/nowhere.txt", f"@{file}", "how many cats?"]
    )

    def typing(_prompt=""):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typing)
    answer.main([str(model)])
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line in ("Anna", "The red dog", "two cats")] == [
        "Anna",
        "The red dog",
        "two cats",
    ]
    assert "error: cannot read /nowhere.txt" in out


def test_an_empty_context_has_no_answer(model: Path, capsys):
    for flags in ([], ["--no-version_2_with_negative"]):
        answer.main([str(model), "--context", " ", "--question", "who?", *flags])
        assert "no answer" in capsys.readouterr().out


def test_other_weights(model: Path, tmp_path: Path, capsys):
    """--init_checkpoint by its prefix, with the files beside it or named."""
    (index,) = model.glob("model.ckpt-*.index")
    prefix = str(index).removesuffix(".index")
    answer.main(["--init_checkpoint", prefix, "--context", CONTEXT, "--question", "who has cats?"])
    assert "\nAnna\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, message",
    [
        ({"context": 3, "questions": []}, "expected SQuAD's form"),
        ({"context": "a", "questions": "who?"}, "expected SQuAD's form"),
        ([], "expected SQuAD's form"),
        ({"data": [{}]}, r"mine.json: data\[0\]"),
    ],
)
def test_refused_questions(content, message: str):
    with pytest.raises(UserError, match=message):
        answer.to_examples(content, "mine.json")


def test_refusals(model: Path, tmp_path: Path, capsys):
    with pytest.raises(UserError, match="no folder /nowhere"):
        answer.main(["/nowhere", "--context", "a", "--question", "b"])
    with pytest.raises(UserError, match=r"there is no vocab\.txt beside"):
        answer.main([str(tmp_path), "--context", "a", "--question", "b"])
    for words, message in (
        ([], "MODEL_DIR is missing"),
        ([str(model), "--question", "b"], "needs --context"),
        ([str(model), "--json", "x", "--question", "b"], "brings its own"),
        ([str(model), "--context", "x", "--context_file", "y"], "not allowed with"),
    ):
        with pytest.raises(SystemExit):
            answer.main(words)
        assert message in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- the page of demo.py
@pytest.fixture(scope="module")
def page_address(model: Path):
    answering = demo.answering(answer.load(str(model)))
    with running(demo.PAGE, {"/answer": Action(answering, ["application/json"], demo.MAX_BYTES)}) as address:
        yield address


def test_the_page_answers_as_the_prompt_does(page_address: str, model: Path):
    questions = [question for question, _, _ in ASKED]
    body = json.dumps({"context": CONTEXT, "questions": questions}).encode()
    status, result = send(f"{page_address}/answer", body)
    assert status == 200
    expected = answer.ask(answer.load(str(model)), CONTEXT, questions)
    assert result["answers"] == [found._asdict() for found in expected]
    assert [found["answer"] for found in result["answers"]] == [text or "" for _, text, _ in ASKED]


@pytest.mark.parametrize(
    "request_, message",
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", 'must be {"context"'),
        (b'{"context": "a", "questions": "b"}', 'must be {"context"'),
        (b'{"context": "a", "questions": [1]}', 'must be {"context"'),
        (b'{"context": " ", "questions": ["b"]}', "the text is empty"),
        (b'{"context": "a", "questions": []}', "a question is missing or empty"),
        (b'{"context": "a", "questions": [" "]}', "a question is missing or empty"),
        (json.dumps({"context": "a", "questions": ["b"] * 21}).encode(), "21 questions; 20 at once are the most"),
        (json.dumps({"context": "a " * 100_000, "questions": ["b"]}).encode(), "100,000 words; 50,000 are the most"),
        (bytes(demo.MAX_BYTES + 1), "more than 2 MB"),
    ],
)
def test_malformed_requests_are_told_why(page_address: str, request_: bytes, message: str):
    status, result = send(f"{page_address}/answer", request_)
    assert status in (413, 422)
    assert message in result["error"]
    body = json.dumps({"context": CONTEXT, "questions": ["who has cats?"]}).encode()
    assert send(f"{page_address}/answer", body)[1]["answers"][0]["answer"] == "Anna"  # it is still there


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_in_a_browser(page_address: str, width: int):
    with chromium() as browser:
        page, problems = open_page(browser, width)
        page.goto(page_address)
        page.fill("#context", CONTEXT)
        for question, text, _ in ASKED:
            page.fill("#question", question)
            page.click("#ask")
            shown = page.locator(".answer").first
            shown.locator("span", has_text=question).wait_for()
            if text:
                assert shown.locator("b").inner_text() == text
                assert shown.locator("mark").inner_text() == text  # the right place, behind an emoji
            else:
                assert shown.locator("b").inner_text() == "The text does not say."
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.fill("#context", "   ")
        page.fill("#question", "who?")
        page.click("#ask")
        page.locator("#status.error", has_text="the text is empty").wait_for()
        # A browser reports the refused request on its console by itself.
        assert [problem for problem in problems if "422" not in problem] == []
