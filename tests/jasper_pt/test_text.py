"""jasper_pt/text.py: the published normalization to the letter, other alphabets, counts of what is left out."""

import json
import string
from collections import Counter
from pathlib import Path

import pytest

from jasper_pt.text import (
    Normalizer,
    cardinal,
    decode,
    encode,
    frames_needed,
    normalize,
    normalize_any,
    ordinal,
    read_labels,
    transliterate,
    write_labels,
)
from runkit.errors import UserError

LABELS = (" ", *string.ascii_lowercase, "'")

# What the published recipe makes of these (observed with inflect 5.3.0).
GOLDEN = {
    "call me at 8:00 pm!": "call me at eight zero zero pm",
    "It's 10:30 o'clock": "it's ten thirty o'clock",
    "Mr. Smith & Dr. Jones + co.": "mister smith and doctor jones plus company",
    "$3.50": "three dollars fifty cents",
    "$1,000,000": "one million dollars",
    "£20": "twenty",
    "1984": "nineteen eighty four",
    "2005": "two thousand five",
    "1900": "nineteen hundred",
    "1001": "ten oh one",
    "3000": "three thousand",
    "3.14": "three point fourteen",
    "the 1st, 2nd and 23rd": "the first second and twenty third",
    "007": "zero zero seven",
    "5551234567": "five five five one two three four five six seven",
    "10000000000": "ten billion",
    "café naïve Straße": "cafe naive strasse",
    "100% sure @home #1": "one hundred sure home one",
    "$1.2.3": "one point two three dollars",
    "12/25/2020": "twelve twenty five twenty twenty",
    "C++": "c plus plus",
    "e.g. Gen. Lee": "e g general lee",
}
FURTHER = {
    "": "",
    " \t\n ": "",
    "!?": "",
    "HELLO": "hello",
    "2000 2001 2009 2010 2099 2100 2999": "two thousand two thousand one two thousand nine twenty ten "
    "twenty ninety nine twenty one hundred twenty nine ninety nine",
    "1000 1100 1101 0 10 13 21": "one thousand eleven hundred eleven oh one zero ten thirteen twenty one",
    "123,456,789": "one hundred twenty three million four hundred fifty six thousand seven hundred eighty nine",
    "1,000,000,001": "one zero zero zero zero zero zero zero zero one",
    "5th 8th 9th 12th 20th 40th 101st 1000th": "fifth eighth ninth twelfth twentieth fortieth one hundred first "
    "one thousandth",
    "$1 $1.01 $0.05 $0 $20": "one dollar one dollar one cent five cents zero dollars twenty dollars",
    "$1.5 million": "one point five dollars million",
    "mp3 at 8pm in the 1980's": "mp three at eight pm in the nineteen eighty's",
    "Mrs. Lt. Col. Capt. Rev. St. Esq.": "misess lieutenant colonel captain reverend saint esquire",
    "co-operate, rev up": "co operate rev up",
    "“Don’t” — she’d say…": "don't she'd say",
    "Ærøskøbing Łódź Þór": "aeroskobing lodz thor",
    "ﬁne ½ №5 ２": "fine one two no five two",
}


@pytest.mark.parametrize("text", [*GOLDEN, *FURTHER])
def test_english(text: str):
    assert normalize(text, LABELS) == (GOLDEN | FURTHER)[text]


def test_long_numbers_are_spelled_digit_by_digit():
    for digits in ("7" * 30, "7" * 31, "7" * 5000):
        assert normalize(digits, LABELS) == " ".join(["seven"] * len(digits))
        assert normalize(digits + "th", LABELS).endswith("seventh")
    assert cardinal(10**30 - 1).startswith("nine hundred ninety nine octillion nine hundred")
    assert ordinal("1" + "0" * 27) == "one octillionth"


def test_what_is_not_among_the_labels_is_counted():
    unknown: Counter[str] = Counter()
    assert normalize("naïve 北京 £5 (ok)", LABELS, unknown) == "naive five ok"
    assert unknown == {"北": 1, "京": 1, "£": 1}
    unknown.clear()
    assert normalize("it's", LABELS[:-1], unknown) == "it s"  # without the apostrophe it is punctuation
    assert normalize("zebra", [" ", *"abcdefghijklmnopqrstuvwxy"], unknown) == "ebra"
    assert unknown == {"z": 1}


def test_transliteration_keeps_ascii():
    ascii_text = "".join(map(chr, range(128)))
    assert transliterate(ascii_text) == ascii_text
    assert transliterate("a\u00a0b\u2003c") == "a b c"


def test_the_normalizer_of_other_alphabets():
    russian = Normalizer("none", [" ", *"абвгдежзийклмнопрстуфхцчшщъыьэюя"])
    assert russian("Привет,\u00a0Мир!  5") == "привет мир"
    assert russian.unknown == {",": 1, "!": 1, "5": 1}
    assert "'5' x 1" in russian.report() and russian.report().startswith("3 characters")
    german = Normalizer("none", [" ", *string.ascii_lowercase, *"äöüß"])
    assert german("Gru\u0308ße aus Österreich") == "grüße aus österreich" and german.report() is None
    assert Normalizer("none", list("ABC "))("ab C") == "C"  # upper-case labels: the text keeps its case
    assert Normalizer("none", list("你好吗"))("你好 , 吗") == "你好吗"
    assert Normalizer("none", LABELS)("rock-n-roll don’t") == "rock n roll don't"
    assert Normalizer("none", LABELS[:-1])("don't") == "dont"
    assert Normalizer("none", LABELS)("  a \t b\n") == "a b"


def test_the_english_normalizer():
    english = Normalizer("english", LABELS)
    assert english("Dr. Lee, 5 £") == "doctor lee five" and english.unknown == {"£": 1}
    with pytest.raises(UserError, match="for labels a to z"):
        Normalizer("english", list("абв"))
    with pytest.raises(UserError, match="there are: english, none"):
        Normalizer("german", LABELS)


def test_a_long_report_is_cut():
    normalizer = Normalizer("none", ["a"])
    normalizer("".join(map(chr, range(0x4E00, 0x4E00 + 50))))
    assert normalizer.report().endswith(" and 30 more")


def test_encode_and_decode():
    unknown: Counter[str] = Counter()
    assert encode("a z'", LABELS) == [1, 0, 26, 27]
    assert encode("aéb", LABELS, unknown) == [1, 2] and unknown == {"é": 1}
    text = "it's a very old house"
    assert decode(encode(text, LABELS), LABELS) == text
    with pytest.raises(IndexError):
        decode([len(LABELS)], LABELS)  # the blank


@pytest.mark.parametrize("indices, frames", [([], 0), ([3], 1), ([3, 4], 2), ([3, 3], 3), ([3, 3, 3, 4, 4], 8)])
def test_frames_needed(indices: list[int], frames: int):
    assert frames_needed(indices) == frames


def test_label_files(tmp_path: Path):
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xef\xbb\xbf \r\na\r\n\xc3\xa9\r\n\r\n")
    assert read_labels(path) == (" ", "a", "é")
    for content, place in (
        ("a\nbc\n", "labels.txt:2: 'bc'.*'b', 'c'"),
        ("a\nb\na\n", "labels.txt:3: 'a'"),
        ("\n", "no l"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=place):
            read_labels(path)


def test_case_a07_labels(shared: Path):
    case = shared / "cases" / "A07"
    expected = json.loads((case / "expected.json").read_text())
    labels = read_labels(case / "labels_crlf.txt")
    assert len(labels) == expected["labels"] and labels[0] == expected["first_label"] and labels == LABELS


# ---------------------------------------------------------------------------------------------------------- subwords
PIECES = (" ", *"abcde", "ab", " c", "abc", " ab", "de", "dede")


def test_subwords_are_joined_in_the_order_of_the_labels():
    spell = [PIECES[index] for index in encode("abc ab dedede c", PIECES)]
    # "abc": a b -> ab first, then ab c -> abc (its label comes before " ab"); "dedede": the leftmost pair first.
    assert spell == [" ", "abc", " ab", " ", "dede", "de", " c"]
    assert encode("", PIECES) == [] and [PIECES[index] for index in encode(" a  b", PIECES)] == list("  a  b")


@pytest.mark.parametrize("text", ["", "a", "abc ab dedede c", " ab", "ab ", "ab  c"])
def test_subwords_spell_the_text(text):
    assert decode(encode(text, PIECES), PIECES) == text


def test_subwords_leave_out_unknown_characters_and_normalise_as_characters_do():
    unknown: Counter[str] = Counter()
    labels = (*LABELS, " the", "it", "'s")
    assert decode(encode("abxé", (" ", *"ab", "ab"), unknown), (" ", *"ab", "ab")) == "ab" and unknown == {
        "x": 1,
        "é": 1,
    }
    for text in ("It's 3 o'clock, THE end.", "Café & co."):
        assert normalize(text, labels) == normalize(text, LABELS)
        assert normalize_any(text, labels) == normalize_any(text, LABELS)


def test_subwords_without_a_blank_among_the_labels():
    labels = (*"abc", "bc")
    assert encode("abcb", labels) == [0, 3, 1] and decode([0, 3, 1], labels) == "abcb"


def test_files_of_subwords(tmp_path: Path):
    path = tmp_path / "labels.txt"
    write_labels(path, PIECES)
    assert read_labels(path) == PIECES
    assert path.read_text(encoding="utf-8").splitlines()[:2] == ["\u2581", "a"] and "\u2581ab\n" in path.read_text(
        "utf-8"
    )
    path.write_text(" \nt\nh\n th\n")  # blanks do as well
    assert read_labels(path) == (" ", "t", "h", " th")
