"""WordPiece, exactly as Google's BERT defines it (Devlin et al. 2018, https://arxiv.org/abs/1810.04805; Wu et
al. 2016).

Text goes through four steps: clean, split off CJK ideographs, (lower-case and strip accents,) split off
punctuation; then each word is cut greedily into the longest pieces the vocabulary knows. Google's definition
works character by character. Every step but one looks at a single character or stays within one run of
non-blank characters, so the text can be cut at blanks first and each run's ids remembered: natural text
repeats its words.
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from itertools import chain

from runkit.errors import UserError
from runkit.files import read_lines

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
MAX_CHARS_PER_WORD = 200  # longer words become [UNK], as in Google's code

# The exception to cutting at blanks: Python's split() breaks at these control characters, which cleaning
# removes without leaving a space. They go first.
_DELETED_BREAKS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

_MAX_CACHED_WORDS = 1 << 17  # about 30 MB; then the cache starts anew
_MAX_CACHED_CHARS = 64  # a run of Chinese or Thai without blanks hardly returns

_CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def load_vocab(path: str | os.PathLike) -> dict[str, int]:
    """Reads a vocabulary, one token a line (UTF-8 whatever the locale; BOM, CR and blanks around a token
    dropped).

    Returns token -> id, the id being the line's number from 0. Raises UserError naming the file and the token
    when a token stands twice, a special token is missing, a line is empty, or the text was encoded twice.
    """
    tokens = [line.strip() for line in read_lines(path)]
    while tokens and not tokens[-1]:
        tokens.pop()
    vocab: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not token:
            raise UserError(f"{path}:{index + 1}: empty line in the vocabulary; every line is one token")
        first = vocab.setdefault(token, index)
        if first != index:
            raise UserError(f"{path}:{index + 1}: the token {token!r} already stands on line {first + 1}; remove one")
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(f"{path}: no token {', '.join(missing)}; a BERT vocabulary has {' '.join(SPECIAL_TOKENS)}")
    _refuse_double_encoding(path, vocab)
    return vocab


def _refuse_double_encoding(path: str | os.PathLike, vocab: dict[str, int]) -> None:
    """Raises UserError when most non-ASCII tokens are UTF-8 bytes once read as Windows-1252 ('Ã©' for 'é').

    Such a file has the right ids for English and silently never matches anything else. Intact tokens
    practically never survive the reverse conversion: 'é' is the byte E9 in Windows-1252, which is not valid
    UTF-8.
    """
    foreign = [token for token in vocab if not token.isascii()]
    repaired = [(token, plain) for token in foreign if (plain := _undo_double_encoding(token))]
    if len(repaired) * 2 > len(foreign):
        token, plain = repaired[0]
        raise UserError(
            f"{path}:{vocab[token] + 1}: {token!r} should read {plain!r} ({len(repaired)} such tokens): "
            "the file was encoded to UTF-8 twice; use an intact copy"
        )


def _undo_double_encoding(token: str) -> str | None:
    try:
        return token.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return None


def _is_cjk(code: int) -> bool:
    """Whether a code point is a CJK ideograph; kana and hangul are not, they are written in words."""
    return any(low <= code <= high for low, high in _CJK_RANGES)


def _is_punctuation(code: int) -> bool:
    """All ASCII signs, also those Unicode calls symbols (such as ^ $ `), and the Unicode categories P*."""
    if code < 128:
        return 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return unicodedata.category(chr(code)).startswith("P")


class _CharacterTable(dict):
    """A str.translate table filled as characters turn up; an entry is what replaces the character."""

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self.replacement(code)
        return replacement


class _Clean(_CharacterTable):
    """Drops NUL, U+FFFD and controls, turns blanks into spaces, puts spaces around CJK ideographs."""

    def replacement(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if char in " \t\n\r" or category == "Zs":
            return " "
        if code in (0, 0xFFFD) or category in ("Cc", "Cf"):
            return ""
        return f" {char} " if _is_cjk(code) else char


class _SplitPunctuation(_CharacterTable):
    """Puts spaces around punctuation."""

    def replacement(self, code: int) -> str:
        return f" {chr(code)} " if _is_punctuation(code) else chr(code)


class _StripAccentsSplitPunctuation(_SplitPunctuation):
    """For text in NFD: drops combining marks, puts spaces around punctuation."""

    def replacement(self, code: int) -> str:
        return "" if unicodedata.category(chr(code)) == "Mn" else super().replacement(code)


_CLEAN = _Clean()
_SPLIT_PUNCTUATION = _SplitPunctuation()
_STRIP_ACCENTS_SPLIT_PUNCTUATION = _StripAccentsSplitPunctuation()


def basic_tokenize(text: str, do_lower_case: bool = True) -> list[str]:
    """Splits text into words, punctuation signs and CJK ideographs; lower-casing also strips accents."""
    text = text.translate(_CLEAN)
    if not do_lower_case:
        return text.translate(_SPLIT_PUNCTUATION).split()
    return unicodedata.normalize("NFD", text.lower()).translate(_STRIP_ACCENTS_SPLIT_PUNCTUATION).split()


class _IdCache(dict):
    """word -> ids, computed on a miss; bounded, because a corpus has no end of rare words."""

    def __init__(self, compute):
        self.compute = compute

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self.compute(word)
        if len(word) <= _MAX_CACHED_CHARS:
            if len(self) >= _MAX_CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


class FullTokenizer:
    """Text -> WordPiece tokens or ids, equal to Google's FullTokenizer on any string.

    Special tokens in the text get no special treatment: "[CLS]" is split at its brackets. Raises UserError
    for a bad vocabulary (see load_vocab).
    """

    def __init__(self, vocab_file: str | os.PathLike, do_lower_case: bool = True):
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.do_lower_case = do_lower_case
        self._unknown = (self.vocab[UNK],)
        # Pieces by what stands in the text, so that no "##" has to be glued on for a look-up.
        self._first = self.vocab
        self._following = {t[2:]: i for t, i in self.vocab.items() if t.startswith(CONTINUATION)}
        self._longest_piece = max(map(len, self.vocab))
        self._word_ids = _IdCache(self._wordpiece)
        self._run_ids = _IdCache(self._encode_run)

    def encode(self, text: str) -> list[int]:
        """The WordPiece ids of text, without [CLS] and [SEP]."""
        if not text.isprintable():  # five times faster than searching; what is printable has no control characters
            text = _DELETED_BREAKS.sub("", text)
        return list(chain.from_iterable(map(self._run_ids.__getitem__, text.split())))

    def tokenize(self, text: str) -> list[str]:
        """The WordPiece tokens of text: "##" begins a piece inside a word, [UNK] is a word without a cut."""
        return self.convert_ids_to_tokens(self.encode(text))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Raises KeyError for a token that is not in the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Raises KeyError for an id outside the vocabulary."""
        return [self.inv_vocab[index] for index in ids]

    def _encode_run(self, run: str) -> tuple[int, ...]:
        """The ids of a run of non-blank characters."""
        words = basic_tokenize(run, self.do_lower_case)
        return tuple(chain.from_iterable(map(self._word_ids.__getitem__, words)))

    def _wordpiece(self, word: str) -> tuple[int, ...]:
        """Greedy longest match from the left; one unknown piece makes the whole word unknown."""
        if len(word) > MAX_CHARS_PER_WORD:
            return self._unknown
        ids: list[int] = []
        pieces, start = self._first, 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest_piece), start, -1):
                index = pieces.get(word[start:end])
                if index is not None:
                    break
            else:
                return self._unknown
            ids.append(index)
            pieces, start = self._following, end
        return tuple(ids)
