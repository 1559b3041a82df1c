"""Transcripts to sequences of labels and back.

A label is one character, or a subword: a piece of a word, whose first character is a blank where a word begins with
it. A label's index is its place in the list, and the CTC blank comes after the last one. Nothing that the labels lack
is lost silently: each such character is counted.
"""

import functools
import itertools
import operator
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from runkit.errors import UserError
from runkit.files import atomic_open, read_lines

Labels = Sequence[str]
WORD_MARK = "\u2581"  # stands for a blank in files of labels, where one could not be seen; as SentencePiece has it

# ------------------------------------------------------------------------------------------ labels and their indices


def read_labels(path: str) -> tuple[str, ...]:
    """Reads labels, one a line; a blank, or WORD_MARK, stands for the blank.

    A line of several characters is a subword, each character of which must be a label too. Subwords come in the order
    in which they were learnt, see `encode`. Raises UserError naming the line.
    """
    labels: dict[str, int] = {}  # and their lines
    for number, line in enumerate(read_lines(path), 1):
        if label := line.replace(WORD_MARK, " "):
            if label in labels:
                raise UserError(f"{path}:{number}: {line!r} is there already, in line {labels[label]}")
            labels[label] = number
    if not labels:
        raise UserError(f"{path}: no labels in it")
    for label, number in labels.items():
        if lacking := sorted(set(label) - labels.keys()):
            raise UserError(f"{path}:{number}: {label!r} holds characters that are no labels of their own: {lacking}")
    return tuple(labels)


def write_labels(path: str, labels: Labels) -> None:
    """Writes what read_labels reads, blanks as WORD_MARK."""
    with atomic_open(path, "w") as stream:
        stream.writelines(f"{label.replace(' ', WORD_MARK)}\n" for label in labels)


def alphabet(labels: Labels) -> tuple[str, ...]:
    """The labels of one character."""
    return tuple(label for label in labels if len(label) == 1)


def are_subwords(labels: Labels) -> bool:
    """Whether some label has several characters."""
    return any(len(label) > 1 for label in labels)


@functools.lru_cache(maxsize=8)
def _indices(labels: tuple[str, ...]) -> dict[str, int]:
    return {label: index for index, label in enumerate(labels)}


def encode(text: str, labels: Labels, unknown: Counter[str] | None = None) -> list[int]:
    """The index of each character; those without a label are left out and counted in `unknown`.

    Where labels are subwords, the indices of the pieces of each word, of the blank before it too: byte-pair encoding
    (Sennrich et al. 2016, arXiv 1508.07909). Of all neighbours in a word that together are a label, those of the
    earliest label in the list are joined, the leftmost first, until there are none. This is what SentencePiece's BPE
    models do with their pieces in their order.
    """
    labels = tuple(labels)
    text = only_known(text, labels, unknown)
    indices = _indices(labels)
    if not are_subwords(labels):
        return [indices[character] for character in text]
    if " " not in indices:
        return list(_pieces(text, labels))
    words = text.split(" ") if text else []
    return [index for word in words for index in _pieces(f" {word}", labels)]


@functools.lru_cache(maxsize=1 << 16)
def _pieces(word: str, labels: tuple[str, ...]) -> tuple[int, ...]:
    indices = _indices(labels)
    none = len(labels)
    parts = list(word)
    while True:
        joined = [indices.get(left + right, none) for left, right in itertools.pairwise(parts)]
        first = min(joined, default=none)
        if first == none:
            return tuple(indices[part] for part in parts)
        place = joined.index(first)
        parts[place : place + 2] = [labels[first]]


def only_known(text: str, labels: Labels, unknown: Counter[str] | None = None) -> str:
    """`text` without the characters that have no label, which are counted in `unknown`."""
    known = _indices(tuple(labels))
    if unknown is not None:
        unknown.update(character for character in text if character not in known)
    return "".join(character for character in text if character in known)


def decode(indices: Iterable[int], labels: Labels) -> str:
    """The text of a sequence of label indices; of subwords without the blank before the first word.

    Raises IndexError for an index that is no label, such as the blank's.
    """
    text = "".join(labels[index] for index in indices)
    return text.removeprefix(" ") if are_subwords(labels) else text


def frames_needed(indices: Sequence[int]) -> int:
    """How many frames CTC needs at least: one a label, and a blank between equal neighbours (Graves et al. 2006)."""
    return len(indices) + sum(map(operator.eq, indices, indices[1:]))


# -------------------------------------------------------------------------------------------------- normalization


class Normalizer:
    """Makes transcripts out of raw text, for one set of labels.

    kind "english": spells out numbers and abbreviations, see `normalize`; for labels a-z.
    kind "none": any alphabet. Lower-case unless some label is upper-case, composed characters (NFC), runs of white
        space as one blank; punctuation without a label separates words, any other character without one goes.
    `unknown` counts what was in the text and is not in the labels. Raises UserError where the kind does not fit.
    """

    KINDS = ("english", "none")

    def __init__(self, kind: str, labels: Labels):
        if kind not in self.KINDS:
            raise UserError(f"normalization {kind!r} is not known; there are: {', '.join(self.KINDS)}")
        if kind == "english" and not set(string.ascii_lowercase).issubset(labels):
            raise UserError("english normalization is for labels a to z; for another alphabet take 'none'")
        self.kind, self.labels = kind, tuple(labels)
        self.unknown: Counter[str] = Counter()

    def __call__(self, text: str) -> str:
        if self.kind == "english":
            return normalize(text, self.labels, self.unknown)
        return normalize_any(text, self.labels, self.unknown)

    def report(self) -> str | None:
        """One line on the characters that were left out; None if there were none."""
        if not self.unknown:
            return None
        counts = ", ".join(f"{character!r} x {n}" for character, n in self.unknown.most_common(20))
        more = f" and {len(self.unknown) - 20} more" if len(self.unknown) > 20 else ""
        return f"{self.unknown.total()} characters are not among the labels and were left out: {counts}{more}"


def normalize_any(text: str, labels: Labels, unknown: Counter[str] | None = None) -> str:
    """Text in these labels, without knowledge of a language; see Normalizer. Labels with a dotless i are of a language
    (Turkish, Azerbaijani) in which I is its capital, and İ that of i."""
    text = unicodedata.normalize("NFC", text)
    known = _indices(tuple(labels))
    if not any(label != label.lower() for label in labels):
        text = lower_case(text, dotless_i="ı" in known)
    if "'" in known and "’" not in known:
        text = text.translate(APOSTROPHES)
    out = []
    for character in text:
        if character in known:
            out.append(character)
        elif character.isspace():
            out.append(" ")
        else:
            if unknown is not None:
                unknown[character] += 1
            separates = unicodedata.category(character)[0] == "P" and character not in "'’"
            out.append(" " if separates else "")
    # Words are set apart by blanks even where the labels have none (Chinese, for example): those go at the end.
    words = "".join(out).split()
    return (" " if " " in known else "").join(words)


APOSTROPHES = str.maketrans({"’": "'"})


def lower_case(text: str, dotless_i: bool = False) -> str:
    """Text in lower case, composed (NFC)."""
    if dotless_i:
        text = text.replace("I", "ı").replace("İ", "i")
    return unicodedata.normalize("NFC", text.lower())


def normalize(text: str, labels: Labels, unknown: Counter[str] | None = None) -> str:
    """English text as it is spoken, in these labels: "Dr. Lee paid $3" -> "doctor lee paid three dollars".

    The published "english_cleaners", in their order: letters without accents, lower case, numbers, abbreviations,
    punctuation to blanks, "&" and "+" to words. Characters that are still not among the labels are left out and
    counted.
    """
    text = transliterate(text, unknown).lower()
    if DIGIT.search(text):
        text = spell_numbers(text)
    text = ABBREVIATION.sub(lambda match: ABBREVIATIONS[match[1]], text)
    text = " ".join(text.translate(_spoken_punctuation(tuple(labels))).split())
    return only_known(text, labels, unknown)


@functools.lru_cache(maxsize=8)
def _spoken_punctuation(labels: tuple[str, ...]) -> dict[int, str]:
    return str.maketrans({mark: " " for mark in string.punctuation if mark not in labels} | SPOKEN_MARKS)


SPOKEN_MARKS = {"&": " and ", "+": " plus "}
DIGIT = re.compile("[0-9]")

# Letters that Unicode does not decompose, and marks with a plain twin. NFKD takes care of the others.
PLAIN_LETTERS = str.maketrans(
    {
        **dict(zip("ßæœøłđðþıĸŋħŧ", "ss ae oe o l d d th i k ng h t".split(), strict=True)),
        **dict(zip("ẞÆŒØŁĐÐÞŊĦŦ", "SS AE OE O L D D TH NG H T".split(), strict=True)),
        **dict.fromkeys("‘’‛ʼʻ′`´", "'"),
        **dict.fromkeys("“”„‟«»″", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        "×": "x",
        "÷": "/",
        "⁄": "/",  # between the digits of a decomposed "½"
    }
)


def transliterate(text: str, unknown: Counter[str] | None = None) -> str:
    """Text in ASCII: accents go, ligatures and curly quotes get their plain form, anything else is left out and
    counted."""
    if text.isascii():
        return text
    out = []
    for character in unicodedata.normalize("NFKD", text.translate(PLAIN_LETTERS)).translate(PLAIN_LETTERS):
        if character.isascii():
            out.append(character)
        elif character.isspace():
            out.append(" ")
        elif not unicodedata.combining(character) and unknown is not None:
            unknown[character] += 1
    return "".join(out)


ABBREVIATIONS = {
    "mrs": "misess",  # so spelled in the transcripts the published models were trained on
    "mr": "mister",
    "dr": "doctor",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "drs": "doctors",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}
ABBREVIATION = re.compile(rf"\b({'|'.join(ABBREVIATIONS)})\.")

# ------------------------------------------------------------------------------------------------ English numbers

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
THOUSANDS = ["", *"thousand million billion trillion quadrillion quintillion sextillion septillion octillion".split()]
MAX_DIGITS = 3 * len(THOUSANDS)  # of a number that has a name here
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def spell_numbers(text: str) -> str:
    """Digits in lower-case ASCII text as words, with the published rules in the published order.

    Two departures. Cents are what follows the point in exactly two digits: "$1.5" is one point five dollars, not one
    dollar five cents. And words stay apart: "mp3" is mp three, not mpthree.
    """
    text = re.sub(r"\d[\d,]+\d", lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"\$([\d.,]*\d)", _dollars, text)
    text = re.sub(r"(\d+)\.(\d+)", r"\1 point \2", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", lambda match: ordinal(match[1]), text)
    text = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", text)
    return re.sub(r"\d+", lambda match: number_as_read(match[0]), text)


def _dollars(match: re.Match[str]) -> str:
    amount = re.fullmatch(r"(\d*)(?:\.(\d\d))?", match[1])
    if not amount:
        return f"{match[1]} dollars "
    parts = [(amount[1].lstrip("0"), "dollar"), ((amount[2] or "").lstrip("0"), "cent")]
    said = [f"{n} {unit}{'' if n == '1' else 's'} " for n, unit in parts if n]
    return "".join(said) or "0 dollars "


def number_as_read(digits: str) -> str:
    """A whole number as it is read aloud: years in pairs, long or zero-led numbers digit by digit."""
    one_by_one = digits[0] == "0" or len(digits) > MAX_DIGITS
    if one_by_one or (int(digits) > 10**9 and int(digits) % 10_000):
        return " ".join(ONES[int(digit)] for digit in digits)
    n = int(digits)
    if 1000 < n < 3000 and not 2000 <= n < 2010:
        pair, rest = divmod(n, 100)
        if rest == 0:
            return f"{cardinal(pair)} hundred"
        return f"{cardinal(pair)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"
    return cardinal(n)


def cardinal(n: int) -> str:
    """n below 10^30 in words, without "and": 123 -> one hundred twenty three."""
    if n == 0:
        return ONES[0]
    words: list[str] = []
    for power in range(len(THOUSANDS) - 1, -1, -1):
        group = n // 1000**power % 1000
        if group:
            words += [*_below_thousand(group), THOUSANDS[power]]
    return " ".join(filter(None, words))


def _below_thousand(n: int) -> list[str]:
    hundreds, rest = divmod(n, 100)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10])
        rest %= 10
    return [*words, ONES[rest]] if rest else words


def ordinal(digits: str) -> str:
    """ "23" -> twenty third."""
    *first, last = (cardinal(int(digits)) if len(digits) <= MAX_DIGITS else number_as_read(digits)).split()
    if last in ORDINALS:
        last = ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return " ".join([*first, last])


def transcript_rules(rules: bool | str, labels: Labels) -> Callable[..., str]:
    """The function (text, labels, unknown=None) -> text that a configuration's `normalize_transcripts` asks for.

    Raises UserError where the English rules are asked for and the labels lack a letter of a to z.
    """
    letters = set(alphabet(labels)) - {" ", "'"}
    if rules == "english" and not letters.issuperset(string.ascii_lowercase):
        raise UserError("normalize_transcripts: english is for labels a to z; for another alphabet set it to true")
    if rules == "english" or (rules and letters == set(string.ascii_lowercase)):
        return normalize
    return normalize_any if rules else only_known
