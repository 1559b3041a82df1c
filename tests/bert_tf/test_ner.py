"""BIO files, windows, one label a word, and conlleval's counts against a plain walk through the tags."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from bert_tf import ner
from bert_tf.ner import TASKS, Place, Sentence, chunks, conlleval, conlleval_report, convert_sentences, find_task
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer
from runkit.errors import UserError

BC5CDR = TASKS["bc5cdr"]
B, I, O, X, CLS, SEP = range(1, 7)  # noqa: E741
PIECES = "nal ##ox ##one mice on / 9 7 β".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *PIECES]) + "\n", encoding="utf-8")
    return FullTokenizer(path, do_lower_case=False)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


# ------------------------------------------------------------------------------------------------- the table
def test_published_labels_and_ids():
    assert BC5CDR.labels == ("B", "I", "O", "X", "[CLS]", "[SEP]")
    assert BC5CDR.num_labels == 7
    assert len(TASKS["i2b2"].labels) == 16


def test_names():
    assert find_task("BC5CDR") is find_task("NER") is BC5CDR
    with pytest.raises(UserError, match="no task 'conll'; there are bc5cdr, clefe, i2b2"):
        find_task("conll")


# ----------------------------------------------------------------------------------------------------- files
def test_sentences_end_at_lines_of_blanks_and_at_the_end_of_the_file(tmp_path):
    path = write(
        tmp_path, "f.tsv", "\ufeff\n\nOn\tO\r\nnaloxone\tB-Chemical\r\n  \r\n\t\r\n-DOCSTART-\tO\n\nend\tI-Chemical"
    )
    assert ner.read_file(BC5CDR, path) == [
        Sentence(["On", "naloxone"], ["O", "B"]),
        Sentence(["-DOCSTART-"], ["O"]),
        Sentence(["end"], ["I"]),
    ]


def test_columns_by_tabs_or_blanks_and_odd_spaces_stay_in_words(tmp_path):
    text = "a\u00a0b\tO\nx\u2009y O\n\u200b\tO\n\ufeff\tO\n\u00a0\tO\nNew York\tB\nmice NN  I-NP  O\nc\tNN\tB\n"
    (sentence,) = ner.read_file(BC5CDR, write(tmp_path, "f.tsv", text))
    assert sentence.words == ["a\u00a0b", "x\u2009y", "\u200b", "\ufeff", "\u00a0", "New York", "mice", "c"]
    assert sentence.tags == ["O", "O", "O", "O", "O", "B", "O", "B"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tO\nb\n", r"f\.tsv:2: 'b' is not a word, a tab \(or blanks\) and its tag"),
        ("\tO\n", r"f\.tsv:1: "),
        ("a\tE\n", r"f\.tsv:1: 'E' is no tag of bc5cdr; known tags: B, I, O"),
        ("a\tX-Chemical\n", r"f\.tsv:1: 'X-Chemical' is no tag"),
        ("\n\n", r"f\.tsv: no words in 2 lines"),
        ("", r"f\.tsv: no words in 0 lines"),
    ],
)
def test_errors_name_file_and_line(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        ner.read_file(BC5CDR, write(tmp_path, "f.tsv", text))


def test_training_takes_the_development_set_too(tmp_path):
    write(tmp_path, "train.tsv", "a\tO\n")
    with pytest.raises(UserError, match=r"no devel\.tsv; the train set of bc5cdr is train\.tsv, devel\.tsv"):
        ner.read_sentences(BC5CDR, tmp_path, "train")
    write(tmp_path, "devel.tsv", "b\tB\n")
    assert [s.words for s in ner.read_sentences(BC5CDR, tmp_path, "train")] == [["a"], ["b"]]
    assert [s.words for s in ner.read_sentences(BC5CDR, tmp_path, "dev")] == [["b"]]


def test_i2b2_keeps_its_kinds_and_skips_document_lines(tmp_path):
    write(tmp_path, "Test.tsv", "###doc 1\nfever\tB-PROBLEM\nhigh\tI-PROBLEM\n")
    assert ner.read_sentences(TASKS["i2b2"], tmp_path, "test") == [
        Sentence(["fever", "high"], ["B-PROBLEM", "I-PROBLEM"])
    ]
    assert ner.read_sentences(TASKS["clefe"], tmp_path, "test")[0].tags == ["B", "I"]


def test_shared_bc5cdr_has_the_sentences_and_words_of_its_files(shared):
    folder = shared / "data" / "bio_bc5cdr_chem"
    rows = {
        name: (folder / f"{name}.tsv").read_text(encoding="utf-8").split("\n") for name in ("train", "devel", "test")
    }
    train, test = (ner.read_sentences(BC5CDR, folder, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (4560 + 4581, 4797)
    assert sum(len(s.words) for s in train) == sum(bool(row) for name in ("train", "devel") for row in rows[name])
    assert sum(tag == "B" for s in test for tag in s.tags) == sum(row.endswith("\tB-Chemical") for row in rows["test"])


# -------------------------------------------------------------------------------------------------- features
def test_first_piece_has_the_label(tokenizer):
    features, places = convert_sentences([Sentence(["on", "naloxone", "mice"], ["O", "B", "I"])], BC5CDR, tokenizer, 16)
    ((ids, segments, labels),) = features
    assert tokenizer.convert_ids_to_tokens(ids) == "[CLS] on nal ##ox ##one mice [SEP]".split()
    assert labels == [CLS, O, B, X, X, I, SEP]
    assert segments == [0] * 7
    assert places == [[Place(0, 1), Place(0, 2), Place(0, 5)]]


def test_windows_are_cut_between_words(tokenizer):
    words = ["on", "naloxone", "9/7", "mice", "\u200b", "naloxonenaloxonenaloxone"]
    sentence = Sentence(words, ["O", "B", "O", "I", "O", "B"])
    features, (places, _) = convert_sentences([sentence, Sentence(["mice"], ["O"])], BC5CDR, tokenizer, 6)
    tokens = [tokenizer.convert_ids_to_tokens(f.input_ids) for f in features]
    assert tokens[:2] == ["[CLS] on nal ##ox ##one [SEP]".split(), "[CLS] 9 / 7 mice [SEP]".split()]
    assert features[1].label == [CLS, O, X, X, I, SEP]
    assert places[:5] == [Place(0, 1), Place(0, 2), Place(1, 1), Place(1, 4), None]
    assert len(features) == 4 and tokens[3] == ["[CLS]", "mice", "[SEP]"]
    with pytest.raises(UserError, match="--max_seq_length=2: must be at least 3"):
        convert_sentences([sentence], BC5CDR, tokenizer, 2)


def certain(features, n: int = 7) -> list[np.ndarray]:
    """Logits whose best label is the feature's own, as long as the longest feature."""
    longest = max(len(f.label) for f in features)
    return [np.eye(n)[[*f.label, *[0] * (longest - len(f.label))]] for f in features]


def test_one_label_a_word_whatever_the_words(tokenizer):
    choose = random.Random(2)
    alphabet = ["on", "naloxone", "9/7/9", "\u200b", "β\u00a0β", "\u00a0", "zzz", "naloxone" * 9, "漢字"]
    sentences = []
    for _ in range(200):
        words = choose.choices(alphabet, k=choose.randrange(1, 40))
        tags = ["O" if not tokenizer.encode(word) else choose.choice("BIO") for word in words]
        sentences.append(Sentence(words, tags))
    for length in (3, 7, 16):
        features, places = convert_sentences(sentences, BC5CDR, tokenizer, length)
        assert all(len(f.input_ids) <= length and len(f.label) == len(f.input_ids) for f in features)
        assert ner.words_labels(BC5CDR, places, certain(features)) == [s.tags for s in sentences]


def test_only_tags_are_chosen_from(tokenizer):
    _, places = convert_sentences([Sentence(["on", "mice"], ["O", "O"])], BC5CDR, tokenizer, 16)
    logits = np.zeros([1, 4, 7])
    logits[0, 1] = [9, 0, 2, 1, 9, 9, 9]  # padding, X, [CLS], [SEP] are best; of the tags I
    logits[0, 2, B] = 1
    assert ner.words_labels(BC5CDR, places, logits) == [["I", "B"]]


def test_case_b01_as_many_labels_as_words(shared):
    folder = shared / "cases" / "B01"
    expected = json.loads((folder / "expected.json").read_text())
    tokenizer = FullTokenizer(shared / "data" / "vocab_bert" / "cased_vocab.txt", do_lower_case=False)
    sentences = ner.read_sentences(BC5CDR, folder, "test")
    words = [word for sentence in sentences for word in sentence.words]
    assert len(words) == expected["tokens_in"]
    assert len(sentences) == 5 and sentences[3].words == ["-DOCSTART-"]
    for length in (8, 128, 512):
        features, places = convert_sentences(sentences, BC5CDR, tokenizer, length)
        assert all(len(f.input_ids) <= length for f in features)
        labels = ner.words_labels(BC5CDR, places, certain(features))
        assert sum(map(len, labels)) == expected["labels_out"]
        assert labels == [sentence.tags for sentence in sentences]


# ---------------------------------------------------------------------------------------------------- scores
def test_chunks_of_all_beginnings():
    assert list(chunks("I I O B I B O I".split())) == [(0, 2, ""), (3, 5, ""), (5, 6, ""), (7, 8, "")]
    assert list(chunks("B-a I-b I-b B-b O".split())) == [(0, 1, "a"), (1, 3, "b"), (3, 4, "b")]
    assert list(chunks([])) == []


def counts_by_walking(gold: list[str], predicted: list[str]) -> tuple[int, int, int]:
    """Phrases there, found and correct, tag by tag, each side's phrase being open or not."""

    def split(tag: str) -> tuple[str, str]:
        return (tag[0], tag[2:])

    def begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
        return now[0] == "B" or (now[0] == "I" and (before[0] == "O" or before[1] != now[1]))

    def ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
        return before[0] != "O" and (now[0] in "BO" or before[1] != now[1])

    there = found = correct = 0
    agree = False  # both sides opened the same phrase at the same word and neither has closed it
    g_before = p_before = ("O", "")
    for g, p in zip(map(split, [*gold, "O"]), map(split, [*predicted, "O"]), strict=True):
        g_ends, p_ends = ends(g_before, g), ends(p_before, p)
        if agree and (g_ends or p_ends):
            correct += g_ends and p_ends
            agree = False
        g_begins, p_begins = begins(g_before, g), begins(p_before, p)
        there, found = there + g_begins, found + p_begins
        if g_begins and p_begins and g[1] == p[1]:
            agree = True
        g_before, p_before = g, p
    return there, found, correct


@pytest.mark.parametrize("tags", [["B", "I", "O"], ["B-a", "I-a", "B-b", "I-b", "O"]])
def test_conlleval_equals_a_walk_through_the_tags(tags):
    choose = random.Random(4)
    gold = [choose.choices(tags, k=choose.randrange(12)) for _ in range(500)]
    predicted = [[choose.choice([tag, tag, choose.choice(tags)]) for tag in sentence] for sentence in gold]
    walked = np.sum([counts_by_walking(g, p) for g, p in zip(gold, predicted, strict=True)], 0)
    scores = conlleval(gold, predicted)
    assert [scores["phrases"], scores["found"], scores["correct"]] == walked.tolist()
    for key in ("phrases", "found", "correct"):
        assert sum(part[key] for part in scores["types"].values()) == scores[key]


def test_scores_and_report_by_hand():
    gold = [["B-x", "I-x", "O", "B-y"], ["O", "B-x"]]
    predicted = [["B-x", "I-x", "O", "B-x"], ["B-x", "O"]]
    scores = conlleval(gold, predicted)
    assert (scores["precision"], scores["recall"], scores["f1"]) == tuple(map(pytest.approx, (1 / 3, 1 / 3, 1 / 3)))
    assert scores["accuracy"] == pytest.approx(3 / 6)
    assert conlleval_report(scores) == (
        "processed 6 tokens with 3 phrases; found: 3 phrases; correct: 1.\n"
        "accuracy:  50.00%; precision:  33.33%; recall:  33.33%; FB1:  33.33\n"
        "                x: precision:  33.33%; recall:  50.00%; FB1:  40.00  3\n"
        "                y: precision:   0.00%; recall:   0.00%; FB1:   0.00  0\n"
    )


def test_scores_without_phrases_and_unequal_lengths():
    assert conlleval([["O"]], [["O"]])["f1"] == 0.0
    with pytest.raises(ValueError):
        conlleval([["O", "O"]], [["O"]])


def test_macro_scores_of_single_words():
    gold, predicted = [["B", "I", "O", "O"]], [["B", "O", "I", "O"]]
    assert ner.macro_tag_scores(gold, predicted, BC5CDR.tags) == (0.5, 0.5, 0.5)  # B right, I never


# ---------------------------------------------------------------------------------------------- output files
def test_output_files(tokenizer, tmp_path):
    sentences = [Sentence(["naloxone", "\u200b"], ["B", "O"]), Sentence(["a\u00a0b", "mice"], ["O", "O"])]
    features, places = convert_sentences(sentences, BC5CDR, tokenizer, 16)
    logits = certain(features)
    logits[1][3] = np.eye(7)[X] + 0.5 * np.eye(7)[I]  # mice: best is X, best tag I
    scores = ner.write_predictions(tmp_path, BC5CDR, sentences, features, places, logits)
    ids = json.loads((tmp_path / "label2id.json").read_text())
    assert ids == {"B": 1, "I": 2, "O": 3, "X": 4, "[CLS]": 5, "[SEP]": 6}
    pieces = (tmp_path / "label_test.txt").read_text().split("\n")
    assert pieces == "[CLS] B X X [SEP]  [CLS] O X X [SEP]  ".split(" ")
    assert (tmp_path / "test_labels.txt").read_text(encoding="utf-8").split("\n") == [
        "naloxone B B",
        "\u200b O O",
        "",
        "a_b O O",
        "mice O I",
        "",
        "",
    ]
    assert (tmp_path / "test_labels_errs.txt").read_text(encoding="utf-8").split("\n") == [
        "1 2 \u200b [PAD] O",
        "2 2 mice X I",
        "",
    ]
    assert (tmp_path / "test_results_conlleval.txt").read_text() == conlleval_report(scores)
    assert (scores["phrases"], scores["found"], scores["correct"]) == (1, 2, 1)
