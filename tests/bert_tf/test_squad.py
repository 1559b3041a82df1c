"""SQuAD files and windows against the published vectors, the cases from the field, and small texts by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_tf import create_squad_data
from bert_tf.features import SPAN, read_features
from bert_tf.squad import convert_examples, locate_answer, max_context, read_examples, window_spans
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer
from runkit.errors import UserError
from tests.bert_tf.mains import run_here

WORDS = "who what runs sells the shop rose ivy tea and coffee . , ( ) 18 ##95 - ##s".split()
TRUTH = (
    ("squad_v2_cs224n/dev-v2.0.json", "dev-v2.0_seq128_stride64_q64"),
    ("squad_xquad/xquad.en.json", "xquad.en_seq384_stride128_q64"),
    ("squad_xquad/xquad.en.json", "xquad.en_seq96_stride32_q16"),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n", encoding="utf-8")
    return FullTokenizer(path)


@pytest.fixture
def write(tmp_path):
    def write_file(*paragraphs, name="squad.json") -> Path:
        """paragraphs: (context, [qa, ...])"""
        data = [{"title": "t", "paragraphs": [{"context": c, "qas": qas} for c, qas in paragraphs]}]
        (tmp_path / name).write_text(json.dumps({"version": "v", "data": data}), encoding="utf-8")
        return tmp_path / name

    return write_file


def qa(qas_id, question, text=None, start=0, **more):
    answers = [] if text is None else [{"text": text, "answer_start": start}]
    return {"id": qas_id, "question": question, "answers": answers, **more}


def no_warning(message):
    raise AssertionError(message)


# ------------------------------------------------------------------------------------------------- shared vectors
@pytest.mark.parametrize(("source", "name"), TRUTH)
def test_windows_equal_the_published_ones(shared, tmp_path, source, name):
    truth = shared / "data" / "truth_squad_features"
    settings = json.loads((truth / f"{name}.predictions.json").read_text(encoding="utf-8"))
    file = json.loads((shared / "data" / source).read_text(encoding="utf-8"))
    part = tmp_path / "part.json"
    part.write_text(json.dumps({"data": [file["data"][i] for i in settings["articles"]]}), encoding="utf-8")
    tokenizer = FullTokenizer(shared / "data/vocab_bert/uncased_vocab.txt")
    sizes = [settings[key] for key in ("max_seq_length", "doc_stride", "max_query_length")]
    for is_training, kind in ((True, "train"), (False, "eval")):
        examples = read_examples(part, is_training, settings["version_2"], no_warning)
        windows = convert_examples(examples, tokenizer, *sizes, is_training)
        lines = (truth / f"{name}.{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        for window, expected in zip(windows, map(json.loads, lines), strict=True):
            example = examples[window.example_index]
            assert example.qas_id == expected["example"] and window.doc_span_index == expected["doc_span"]
            assert window.feature.input_ids == expected["input_ids"]
            assert window.feature.segment_ids == expected["segment_ids"]
            if is_training:
                assert window.feature.label == (expected["start"], expected["end"])
                assert example.is_impossible == expected["impossible"]
            else:
                best = np.flatnonzero(window.is_max_context) + window.context_position
                assert best.tolist() == expected["max_context"]


# --------------------------------------------------------------------------------------------- cases from the field
def test_s01_wrong_offsets_are_repaired_or_left_out(shared):
    warnings = []
    examples = read_examples(shared / "cases/S01/squad.json", True, False, warnings.append)
    found = {e.qas_id: " ".join(e.doc_tokens[e.start_word : e.end_word + 1]) for e in examples}
    assert found == {"q1": "Clear Lake", "q2": "in the valley", "q4": "forty years."}
    assert {e.qas_id: e.word_starts[e.start_word] for e in examples} == {"q1": 17, "q2": 42, "q4": 60}
    assert ["2 answers" in warnings[0], "q1, q2" in warnings[0]] == [True, True]
    assert ["1 questions are left out" in warnings[1], "q3" in warnings[1]] == [True, True]
    evaluated = read_examples(shared / "cases/S01/squad.json", False, False, no_warning)
    assert [e.answers for e in evaluated][2] == ["the nuns"] and len(evaluated) == 4


def test_s03_no_room_for_the_context_is_refused(shared, tokenizer):
    examples = read_examples(shared / "cases/S03/squad.json", True, False, no_warning)
    settings = json.loads((shared / "cases/S03/settings.json").read_text())
    assert len(settings) == 4
    for case in settings:
        sizes = {key: case[key] for key in ("max_seq_length", "max_query_length")}
        if case["expect"] == "refused":
            with pytest.raises(UserError, match=f"max_seq_length {sizes['max_seq_length']} must be above"):
                convert_examples(examples, tokenizer, **sizes, doc_stride=128, is_training=True)
        else:
            windows = list(convert_examples(examples, tokenizer, **sizes, doc_stride=128, is_training=True))
            assert all(w.context_position == 66 and len(w.feature.input_ids) <= case["max_seq_length"] for w in windows)
            assert sum(int(w.is_max_context.sum()) for w in windows) == 9  # each token of the context once


def test_s05_blank_texts_pass_with_a_warning(shared, tokenizer):
    for is_training in (False, True):
        warnings = []
        examples = read_examples(shared / "cases/S05/squad.json", is_training, True, warnings.append)
        assert [e.qas_id for e in examples] == ["q1", "q2", "q3", "q4"]
        assert len(warnings) == 1 and "3 questions are blank or have a blank context: q1, q2, q3" in warnings[0]
        windows = list(convert_examples(examples, tokenizer, 16, 8, 8, is_training))
        assert [w.example_index for w in windows] == [2, 3]
        assert tokenizer.convert_ids_to_tokens(windows[0].feature.input_ids)[:3] == ["[CLS]", "[SEP]", "rose"]


def test_s07_version_2_without_the_switch_is_named(shared):
    path = shared / "cases/S07/squad_v2.json"
    with pytest.raises(UserError, match=r"data\[0\]\.paragraphs\[0\]\.qas\[1\].* q2 .*--version_2_with_negative"):
        read_examples(path, True, False, no_warning)
    warnings = []
    assert [e.qas_id for e in read_examples(path, False, False, warnings.append)] == ["q1", "q2", "q3"]
    assert len(warnings) == 1 and "--version_2_with_negative" in warnings[0]
    with_switch = read_examples(path, False, True, no_warning)
    assert [e.is_impossible for e in with_switch] == [False, True, False]
    with pytest.raises(UserError, match=r"qas\[2\]: no key 'answers'"):
        read_examples(path, True, True, no_warning)


def test_s08_odd_spaces_do_not_shift_the_answer(shared):
    (example,) = read_examples(shared / "cases/S08/squad.json", True, False, no_warning)
    assert example.doc_tokens[example.start_word : example.end_word + 1] == ["centripetal", "force"]
    assert example.word_starts[example.start_word] == 31


# ------------------------------------------------------------------------------------------------------- reading
def test_words_are_cut_at_every_kind_of_blank(write):
    context = "  Rose\u00a0runs\u2009the\n\tshop\u202f.\x0b "
    (example,) = read_examples(write((context, [qa("a", "Who?", "runs", 7)])), True, False, no_warning)
    assert example.doc_tokens == ["Rose", "runs", "the", "shop", ".\x0b"] and example.start_word == 1
    assert all(context.startswith(w, s) for w, s in zip(example.doc_tokens, example.word_starts, strict=True))


def test_bom_crlf_and_letters_beyond_16_bits(tmp_path):
    data = [{"paragraphs": [{"context": "\U0001f600 Rose runs", "qas": [qa(7, "Who?", "Rose", 2)]}]}]
    text = json.dumps({"data": data}, indent=1, ensure_ascii=False).replace("\n", "\r\n")
    (tmp_path / "f.json").write_bytes(b"\xef\xbb\xbf" + text.encode("utf-8"))
    (example,) = read_examples(tmp_path / "f.json", True, False, no_warning)
    assert (example.qas_id, example.answer_text, example.start_word, example.end_word) == ("7", "Rose", 1, 1)


def test_the_first_of_several_answers_is_learnt_and_all_are_kept(write):
    entry = qa("a", "Who?", "Rose", 0)
    entry["answers"].append({"text": "Rose runs", "answer_start": 0})
    (example,) = read_examples(write(("Rose runs", [entry])), True, False, no_warning)
    assert example.answers == ["Rose", "Rose runs"] and example.answer_text == "Rose"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "a", "answers": []}, r"data\[0\]\.paragraphs\[0\]\.qas\[0\]: no key 'question'"),
        ({"question": "Who?"}, r"qas\[0\]: no key 'id'"),
        ({"id": "a", "question": 3}, r"qas\[0\]\.question: should be text, is a whole number"),
        ({"id": "a", "question": "Who?"}, r"qas\[0\]: no key 'answers'"),
        ({"id": "a", "question": "Who?", "answers": []}, r"qas\[0\]\.answers: is empty"),
        ({"id": "a", "question": "Who?", "answers": {}}, r"qas\[0\]\.answers: should be a list, is an object"),
        ({"id": "a", "question": "Who?", "answers": [{"answer_start": 1}]}, r"answers\[0\]: no key 'text'"),
        ({"id": "a", "question": "Who?", "answers": [{"text": "x"}]}, r"answers\[0\]: no key 'answer_start'"),
        ({"id": "a", "question": "Who?", "is_impossible": "no"}, r"is_impossible: should be true or false, is text"),
        ("Who?", r"qas\[0\]: should be an object, is text"),
    ],
)
def test_what_is_missing_is_named_with_its_place(write, entry, message):
    path = write(("Rose runs", [entry]))
    with pytest.raises(UserError, match=rf"squad\.json: .*{message}"):
        read_examples(path, True, True, no_warning)


def test_files_of_another_shape_are_refused(tmp_path, write):
    for content, message in (
        ("[]", "top level: should be an object, is a list"),
        ("{}", "top level: no key 'data'"),
        ('{"data": [{}]}', r"data\[0\]: no key 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"data\[0\]\.paragraphs\[0\]: no key 'context'"),
        ('{"data": []}', "no questions"),
        ('{"data": [', "not valid JSON"),
    ):
        (tmp_path / "f.json").write_text(content)
        with pytest.raises(UserError, match=message):
            read_examples(tmp_path / "f.json", False, False, no_warning)
    twice = write(("Rose", [qa("a", "Who?", "Rose"), qa("a", "What?", "Rose")]))
    with pytest.raises(UserError, match=r"qas\[1\]: the id 'a' stands already at data\[0\]\.paragraphs\[0\]\.qas\[0\]"):
        read_examples(twice, False, False, no_warning)
    lost = write(("Rose", [qa("a", "Who?", "Ivy")]))
    with pytest.raises(UserError, match="no questions with an answer to learn"):
        read_examples(lost, True, False, lambda message: None)


@pytest.mark.parametrize(
    ("context", "text", "offset", "expected"),
    [
        ("tea and tea", "tea", 8, (8, 11)),
        ("tea and tea", "tea", 7, (8, 11)),  # the nearest
        ("tea and tea", "tea", 4, None),  # both are as near
        ("tea " * 9 + "and tea", "tea", 100, None),  # too far from all to know
        ("tea and cake", "cake", 0, (8, 12)),  # the only one
        ("then he came", "he", 0, (5, 7)),  # of whole words
        ("teapot", "pot", 0, (3, 6)),
        ("tea  and\ncake", "and cake", 5, (5, 13)),  # other blanks
        ("the tea", " tea ", 3, (4, 7)),
        ("the tea", "tea", -3, (4, 7)),
        ("the tea", "coffee", 0, None),
        ("the tea", " ", 3, None),
        ("the\u200b tea", "\u200b", 3, None),  # becomes no token
    ],
)
def test_an_answer_is_found_where_it_is_certain(context, text, offset, expected):
    assert locate_answer(context, text, offset) == expected


# ------------------------------------------------------------------------------------------------------- windows
def test_windows_by_hand(write, tokenizer):
    context = "Rose sells tea, coffee (1895) and the shops."
    path = write((context, [qa("a", "Who sells what?", "1895", 24), qa("b", "What", "Ivy", is_impossible=True)]))
    examples = read_examples(path, True, True, no_warning)
    windows = list(convert_examples(examples, tokenizer, 12, 4, 3, True))
    shown = [" ".join(tokenizer.convert_ids_to_tokens(w.feature.input_ids)) for w in windows]
    assert shown == [
        "[CLS] who sells what [SEP] rose sells tea , coffee ( [SEP]",
        "[CLS] who sells what [SEP] coffee ( 18 ##95 ) and [SEP]",
        "[CLS] who sells what [SEP] ) and the shop ##s . [SEP]",
        "[CLS] what [SEP] rose sells tea , coffee ( 18 ##95 [SEP]",
        "[CLS] what [SEP] coffee ( 18 ##95 ) and the shop [SEP]",
        "[CLS] what [SEP] ) and the shop ##s . [SEP]",
    ]
    assert [w.feature.label for w in windows] == [(0, 0), (7, 8), (0, 0)] + 3 * [(0, 0)]
    assert windows[0].feature.segment_ids == [0] * 5 + [1] * 7
    assert [(w.example_index, w.doc_span_index) for w in windows] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    # Of two windows that hold a token the one that shows more on its poorer side: "(" has 0 and 1 neighbours.
    best = [w.is_max_context.astype(int).tolist() for w in windows[:3]]
    assert best == [[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]]
    assert windows[0].context is windows[5].context
    for window in windows:
        part = window.context.ids[window.context_start :][: len(window.is_max_context)]
        assert window.feature.input_ids[window.context_position : -1] == part
    predicted = list(convert_examples(examples, tokenizer, 12, 4, 3, False))
    assert [w.feature.label for w in predicted] == 6 * [(0, 0)]


def test_an_answer_that_no_tokens_equal_is_its_words(write, tokenizer):
    """Of the word "shops", tokens shop ##s, the answer "hop" has no tokens of its own."""
    path = write(("the shops", [qa("a", "What", "hop", 5)]))
    (window,) = convert_examples(read_examples(path, True, False, no_warning), tokenizer, 12, 4, 3, True)
    assert window.feature.label == (4, 5)


@pytest.mark.parametrize(("n_tokens", "room", "stride"), [(0, 5, 2), (5, 5, 2), (6, 5, 2), (23, 7, 3), (23, 4, 9)])
def test_best_contexts_against_a_plain_reading(n_tokens, room, stride):
    spans = window_spans(n_tokens, room, stride)
    covered = {t for start, length in spans for t in range(start, start + length)}
    assert covered == set(range(n_tokens)) and all(length <= room for _, length in spans)
    best = max_context(spans)
    for token in range(n_tokens):
        scores = [
            (min(token - start, start + length - 1 - token) + 0.01 * length, -i)
            for i, (start, length) in enumerate(spans)
            if start <= token < start + length
        ]
        holders = [i for i, (start, length) in enumerate(spans)
                   if start <= token < start + length and best[i][token - start]]  # fmt: skip
        assert holders == [-max(scores)[1]]


def test_settings_without_sense_are_refused(tokenizer):
    with pytest.raises(UserError, match="doc_stride 0 must be at least 1"):
        convert_examples([], tokenizer, 12, 0, 3, True)


def test_records_for_other_programs(write, tmp_path, tokenizer, capsys):
    path = write(("Rose sells tea.", [qa("a", "Who", "Rose", 0), qa("b", "What", "coffee", 0)]))
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.vocab) + "\n", encoding="utf-8")
    values = {"train_file": path, "predict_file": path, "squad_dir": tmp_path, "vocab_file": tmp_path / "vocab.txt"}
    sizes = {"max_seq_length": 12, "max_query_length": 3, "verbose_logging": True}
    run_here(create_squad_data, values | sizes)
    folder = tmp_path / "final_tfrecords_sharded"
    assert sorted(p.name for p in folder.iterdir()) == ["eval.tf_record", "train.tf_record"]
    train, evaluation = (read_features(folder / f"{n}.tf_record", SPAN, 12) for n in ("train", "eval"))
    assert len(train) == 1 and train[0].label.tolist() == [3, 3] and len(evaluation) == 2
    printed = capsys.readouterr().out
    assert "[CLS] who [SEP] rose sells tea . [SEP] (answer: rose)" in printed
    assert "warning: " in printed and "1 questions are left out" in printed and "2 records of 2 questions" in printed
