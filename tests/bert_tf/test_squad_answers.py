"""Answers from logits against the published vectors, the cases from the field, and selection by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bert_tf.squad import convert_examples, read_examples
from bert_tf.squad_answers import NO_CANDIDATE, NO_CANDIDATE_ODDS, Answers, select_answers, write_answers
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer

WORDS = (
    "who what sells rose ivy tea and ! , # 한 cafe ##s the ##in centripetal force banana a where is mass acting".split()
)
TRUTH = (
    ("squad_v2_cs224n/dev-v2.0.json", "dev-v2.0_seq128_stride64_q64"),
    ("squad_xquad/xquad.en.json", "xquad.en_seq384_stride128_q64"),
    ("squad_xquad/xquad.en.json", "xquad.en_seq96_stride32_q16"),
)
SETTINGS = {
    "n_best_size": 20,
    "max_answer_length": 30,
    "do_lower_case": True,
    "version_2_with_negative": False,
    "null_score_diff_threshold": 0.0,
}
V2 = {"version_2_with_negative": True}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n", encoding="utf-8")
    return FullTokenizer(path)


@pytest.fixture
def prepare(tokenizer, tmp_path):
    def prepare_questions(*contexts: str, length: int = 32, stride: int = 16):
        """Examples "0", "1", ... that ask "who" about the contexts, and their windows."""
        data = [{"context": c, "qas": [{"id": str(i), "question": "who"}]} for i, c in enumerate(contexts)]
        path = tmp_path / "questions.json"
        path.write_text(json.dumps({"data": [{"paragraphs": data}]}), encoding="utf-8")
        examples = read_examples(path, False, True, lambda message: None)
        return examples, list(convert_examples(examples, tokenizer, length, stride, 3, False))

    return prepare_questions


def logits_for(windows, start=None, end=None, null=(0.0, 0.0)):
    """[window's tokens] each: 0, but start[position], end[position] and null at [CLS], the same in all windows."""
    result = []
    for name, cls in ((start, null[0]), (end, null[1])):
        arrays = [np.zeros(len(w.feature.input_ids), np.float32) for w in windows]
        for array in arrays:
            array[0] = cls
            for position, value in (name or {}).items():
                array[position] = value
        result.append(arrays)
    return result


def blanks(text: str) -> str:
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------- shared vectors
@pytest.mark.parametrize(("source", "name"), TRUTH)
def test_answers_equal_the_published_ones(shared, tmp_path, source, name):
    truth = shared / "data" / "truth_squad_features"
    expected = json.loads((truth / f"{name}.predictions.json").read_text(encoding="utf-8"))
    file = json.loads((shared / "data" / source).read_text(encoding="utf-8"))
    part = tmp_path / "part.json"
    part.write_text(json.dumps({"data": [file["data"][i] for i in expected["articles"]]}), encoding="utf-8")
    tokenizer = FullTokenizer(shared / "data/vocab_bert/uncased_vocab.txt")
    sizes = [expected[key] for key in ("max_seq_length", "doc_stride", "max_query_length")]
    examples = read_examples(part, False, expected["version_2"], lambda message: None)
    windows = list(convert_examples(examples, tokenizer, *sizes, False))
    # The vectors were made from logits of two decimals as Python numbers, whose ties float32 breaks.
    with np.load(truth / f"{name}.logits.npz") as file:
        starts, ends = (np.round(file[key].astype(np.float64), 2) for key in ("start", "end"))
    settings = {key: expected[key] for key in ("n_best_size", "max_answer_length")}
    answers = select_answers(
        examples, windows, starts, ends, **SETTINGS | settings | {"version_2_with_negative": expected["version_2"]}
    )
    # Published texts have single spaces where the context has something else; these here are the context's own.
    assert {i: blanks(t) for i, t in answers.predictions.items()} == {
        i: blanks(t) for i, t in expected["predictions"].items()
    }
    for qas_id, best in expected["nbest_top3"].items():
        for entry, wanted in zip(answers.nbest[qas_id][:3], best, strict=True):
            assert blanks(entry["text"]) == blanks(wanted["text"])
            for key in ("probability", "start_logit", "end_logit"):
                assert entry[key] == pytest.approx(wanted[key], abs=1e-9)
    assert (answers.null_odds or {}) == pytest.approx(expected["null_odds"], abs=1e-9)
    for example in examples:
        texts = {entry["text"] for entry in answers.nbest[example.qas_id]} - {NO_CANDIDATE}
        assert all(text in example.context for text in texts)


# --------------------------------------------------------------------------------------------- cases from the field
@pytest.mark.parametrize("version_2", [False, True])
def test_s05_blank_texts_get_an_empty_answer(shared, tokenizer, version_2):
    examples = read_examples(shared / "cases/S05/squad.json", False, version_2, lambda message: None)
    windows = list(convert_examples(examples, tokenizer, 16, 8, 8, False))
    answers = select_answers(
        examples, windows, *logits_for(windows, null=(-5, -5)), **SETTINGS | {"version_2_with_negative": version_2}
    )
    expected = json.loads((shared / "cases/S05/expected.json").read_text())
    assert list(answers.predictions) == list(answers.nbest) == expected["prediction_ids"]
    assert answers.predictions["q1"] == expected["q1"] and answers.predictions["q2"] == expected["q2"]
    assert answers.predictions["q3"] == "" and answers.predictions["q4"]  # q3 is a blank question
    assert answers.nbest["q1"] == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_s08_the_answer_is_a_slice_of_the_context(shared, tokenizer):
    examples = read_examples(shared / "cases/S08/squad.json", False, False, lambda message: None)
    expected = json.loads((shared / "cases/S08/expected.json").read_text())
    (window,) = windows = list(convert_examples(examples, tokenizer, 64, 32, 8, False))
    start = window.feature.input_ids.index(tokenizer.vocab["centripetal"])
    answers = select_answers(examples, windows, *logits_for(windows, {start: 9}, {start + 1: 9}), **SETTINGS)
    assert answers.predictions == {"q1": expected["text"]}
    at = expected["answer_start"]
    assert examples[0].context[at : at + len(expected["text"])] == expected["text"]


# ------------------------------------------------------------------------------------------------ text of tokens
@pytest.mark.parametrize(
    ("context", "start", "end", "expected"),
    [
        (
            "  Rose\u00a0 sells\u2009tea\n\t and  teas",
            3,
            6,
            "Rose\u00a0 sells\u2009tea\n\t and",
        ),  # [CLS] who [SEP] rose
        ("the\u00a0TEA!", 4, 4, "TEA"),
        ("the café, and", 4, 4, "café"),  # accents are dropped, letters are not
        ("cafés and", 3, 3, "café"),  # a part of a word
        ("Rose (Ivy) and", 5, 5, "Ivy"),
        ("banana a", 4, 4, "a"),
        ("한, tea", 3, 3, "한,"),  # NFD makes three letters of one: the whole word
        ("Rose, x\u200by and", 5, 5, "x\u200by"),  # an unknown word
        ("tea\u200b! and", 3, 3, "tea\u200b!"),  # a character that the tokenizer drops: the whole word
        ("# # and", 3, 4, "# #"),
    ],
)
def test_tokens_come_back_as_they_were_written(prepare, context, start, end, expected):
    examples, windows = prepare(context)
    logits = logits_for(windows, {start: 9}, {end: 9})
    assert select_answers(examples, windows, *logits, **SETTINGS).predictions["0"] == expected


def test_a_cased_model_keeps_its_text(tmp_path, prepare):
    """With lower-casing off "Rose" is itself in the tokenizer's first step, and compared as such."""
    vocab = tmp_path / "cased.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *WORDS, "Rose", "Ivy"]) + "\n", encoding="utf-8")
    cased = FullTokenizer(vocab, do_lower_case=False)
    examples, _ = prepare("Rose, Ivy!")
    windows = list(convert_examples(examples, cased, 32, 16, 3, False))
    answers = select_answers(
        examples, windows, *logits_for(windows, {5: 9}, {5: 9}), **SETTINGS | {"do_lower_case": False}
    )
    assert answers.predictions["0"] == "Ivy"


# ----------------------------------------------------------------------------------------------------- selection
def test_candidates_are_ranked_and_their_probabilities_are_a_softmax(prepare):
    examples, windows = prepare("rose sells tea")  # positions 3, 4, 5
    logits = logits_for(windows, {3: 3, 5: 2}, {3: 1, 5: 4})
    answers = select_answers(examples, windows, *logits, **SETTINGS | {"n_best_size": 2, "max_answer_length": 2})
    # Best starts 3, 5; best ends 5, 3. "rose sells tea" is too long, 5 to 3 runs backwards.
    entries = answers.nbest["0"]
    assert [(e["text"], e["start_logit"], e["end_logit"]) for e in entries] == [("tea", 2, 4), ("rose", 3, 1)]
    ratio = math.exp(6) / (math.exp(6) + math.exp(4))
    assert [e["probability"] for e in entries] == pytest.approx([ratio, 1 - ratio])
    assert answers.predictions == {"0": "tea"} and answers.null_odds is None


def test_only_the_best_context_of_a_start_counts_and_texts_are_distinct(prepare):
    examples, windows = prepare("rose sells tea and ivy sells tea", length=8, stride=2)
    assert len(windows) > 1
    logits = logits_for(windows, {3: 9, 4: 8}, {3: 9, 4: 8})
    texts = [e["text"] for e in select_answers(examples, windows, *logits, **SETTINGS).nbest["0"]]
    assert len(texts) == len(set(texts))
    for window, start, end in zip(windows, *logits, strict=True):  # a start where another window knows better
        if not window.is_max_context[0]:
            start[3] = end[3] = 99.0
    again = select_answers(examples, windows, *logits, **SETTINGS)
    assert all(e["start_logit"] < 99 for e in again.nbest["0"])


def test_padding_and_the_question_are_never_answers(prepare):
    examples, windows = prepare("rose sells tea")
    starts, ends = (np.zeros([1, 32], np.float32) for _ in range(2))
    starts[0, [1, 20, 4]], ends[0, [2, 30, 5]] = [9, 9, 1], [9, 9, 1]
    assert select_answers(examples, windows, starts, ends, **SETTINGS).predictions == {"0": "sells tea"}
    few = select_answers(examples, windows, starts, ends, **SETTINGS | {"n_best_size": 2})
    assert few.predictions == {"0": NO_CANDIDATE}  # the published answer when the best are all outside the context


def test_no_answer_is_decided_by_the_threshold(prepare):
    examples, windows = prepare("rose sells tea")
    for null, threshold, expected in ((5.0, 0.0, "tea"), (7.0, 0.0, ""), (7.0, 1.0, "tea"), (7.0, 0.9, "")):
        logits = logits_for(windows, {5: 2}, {5: 4}, null=(null, 0.0))
        answers = select_answers(examples, windows, *logits, **SETTINGS | V2 | {"null_score_diff_threshold": threshold})
        assert answers.predictions == {"0": expected} and answers.null_odds == {"0": null - 6.0}
        assert "" in [e["text"] for e in answers.nbest["0"]]


def test_no_answer_scores_as_in_the_window_that_says_it_least(prepare):
    examples, windows = prepare("rose sells tea and ivy sells tea", length=8, stride=2)
    starts, ends = logits_for(windows, null=(7.0, 0.0))
    starts[1][0] = 3.0
    answers = select_answers(examples, windows, starts, ends, **SETTINGS | V2)
    assert answers.null_odds == {"0": 3.0} and answers.predictions == {"0": ""}


def test_no_answer_is_added_behind_the_best(prepare):
    examples, windows = prepare("rose sells tea")
    logits = logits_for(windows, {5: 2}, {5: 4}, null=(-9.0, -9.0))
    answers = select_answers(examples, windows, *logits, **SETTINGS | V2 | {"n_best_size": 1})
    assert [(e["text"], e["start_logit"]) for e in answers.nbest["0"]] == [("tea", 2.0), ("", -9.0)]


def test_nothing_but_no_answer_is_no_crash(prepare):
    """The best positions are all outside the context: what published code for 2.0 fails on."""
    examples, windows = prepare("rose sells tea", "")
    logits = logits_for(windows, {0: 9, 1: 9}, {0: 9, 1: 9}, null=(9.0, 9.0))
    answers = select_answers(examples, windows, *logits, **SETTINGS | V2 | {"n_best_size": 2})
    assert answers.predictions == {"0": "", "1": ""}
    assert answers.null_odds == {"0": NO_CANDIDATE_ODDS, "1": NO_CANDIDATE_ODDS}
    assert answers.nbest["0"] == [{"text": "", "probability": 1.0, "start_logit": 9.0, "end_logit": 9.0}]


def test_logits_that_do_not_fit_are_refused(prepare):
    examples, windows = prepare("rose sells tea")
    with pytest.raises(ValueError, match="1 windows, 0 start logits"):
        select_answers(examples, windows, [], [], **SETTINGS)


# --------------------------------------------------------------------------------------------------------- files
def test_files(tmp_path: Path):
    entry = {"text": "café", "probability": 1.0, "start_logit": 0.5, "end_logit": 1.0}
    write_answers(tmp_path / "one", Answers({"a": "café"}, {"a": [entry]}, None))
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["nbest_predictions.json", "predictions.json"]
    text = (tmp_path / "one/predictions.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"a": "café"} and text.startswith('{\n    "a": ')
    assert json.loads((tmp_path / "one/nbest_predictions.json").read_text(encoding="utf-8")) == {"a": [entry]}
    write_answers(tmp_path / "two", Answers({"a": ""}, {"a": [entry]}, {"a": NO_CANDIDATE_ODDS}))
    assert json.loads((tmp_path / "two/null_odds.json").read_text()) == {"a": 1e6}
