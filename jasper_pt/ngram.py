"""N-gram language models: ARPA text (also .gz) and KenLM binary files, and the scores of words.

    model = ngram.read("3gram.arpa.gz")
    model.scores(["the", "cat"])        # log10 of p(the | <s>), p(cat | <s> the), p(</s> | the cat)

Read by C++ (search/ngram.cpp), which maps KenLM binary files into memory as they are: those of the kinds probing and
trie (quantized or not, array-compressed or not). Where C++ cannot be compiled, ArpaReference reads ARPA.
"""

import ctypes
import functools
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from jasper_pt.search import native
from runkit.errors import UserError
from runkit.files import read_lines

KENLM_MAGIC = b"mmap lm http://kheafield.com/code"
GZIP_MAGIC = b"\x1f\x8b"


class Model(Protocol):
    """A model, however it is read."""

    path: str
    order: int
    kind: str  # what sort of file it was, for logs
    words: tuple[str, ...]  # all it knows, without <unk>, <s> and </s>; empty where the file does not tell

    def scores(self, words: Sequence[str], begin: bool = True, end: bool = True) -> list[float]:
        """log10 p of each word in its context, then, if `end`, of </s>; `begin`: the first follows <s>."""
        ...

    def knows(self, word: str) -> bool:
        """Whether it is a word of the model."""
        ...


def read(path: str | Path) -> Model:
    """Reads a model. Raises UserError naming the file (and line), what is wrong, and what to do."""
    return NativeModel(path) if native.library() is not None else ArpaReference(path)


def is_kenlm(path: str | Path) -> bool:
    """Whether a file begins as KenLM binary files do. Raises UserError where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(KENLM_MAGIC)) == KENLM_MAGIC
    except OSError as error:
        raise UserError(f"cannot read the language model {path}: {error.strerror}") from error


def text_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, compressed by gzip or not. Raises UserError where it cannot be read."""
    if not _is_gzip(path):
        yield from read_lines(path)
        return
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
            for line in stream:
                yield line.removesuffix("\n").rstrip("\r")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _is_gzip(path: str | Path) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(2) == GZIP_MAGIC
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _is_special(word: str) -> bool:
    return word in ("<unk>", "<UNK>", "<s>", "</s>")


class NativeModel:
    """A model in the memory of the C++ library. It can be pickled: the other process reads the file again."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._library = native.library()
        try:
            if is_kenlm(path):
                self.handle = native.call("ngram_open_kenlm", str(path).encode())
            else:
                self.handle = _read_arpa(path)
        except native.NativeError as error:
            raise UserError(f"language model {path}: {error}") from error
        self.order: int = self._library.ngram_order(self.handle)
        self.kind: str = self._library.ngram_description(self.handle).decode()

    def __reduce__(self):
        return type(self), (self.path,)

    def __del__(self):
        if getattr(self, "handle", None):
            self._library.ngram_free(self.handle)

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """See Model."""
        count = self._library.ngram_number_of_words(self.handle)
        found = (self._library.ngram_word(self.handle, i).decode(errors="replace") for i in range(count))
        return tuple(word for word in found if not _is_special(word))

    def scores(self, words: Sequence[str], begin: bool = True, end: bool = True) -> list[float]:
        """See Model."""
        data = native.texts(words)
        scores = (ctypes.c_double * (len(words) + end))()
        self._library.ngram_score(self.handle, data, len(data), begin, end, scores)
        return list(scores)

    def knows(self, word: str) -> bool:
        """See Model."""
        data = word.encode()
        return self._library.ngram_index(self.handle, data, len(data)) != 0


def _read_arpa(path: str | Path) -> int:
    failure: list[BaseException] = []
    with gzip.open(path) if _is_gzip(path) else open(path, "rb") as stream:

        def fill(address: int, size: int) -> int:
            try:
                return stream.readinto((ctypes.c_char * size).from_address(address))
            except BaseException as error:  # a callback cannot raise
                failure.append(error)
                return -1

        try:
            handle = native.call("ngram_read_arpa", native.READER(fill))
        except native.NativeError:
            if failure:
                _raise_unreadable(path, failure[0])
            raise
    if failure:
        _raise_unreadable(path, failure[0])
    return handle


def _raise_unreadable(path, error: BaseException):
    if isinstance(error, OSError | EOFError | zlib.error):
        raise UserError(f"cannot read the language model {path}: {error}") from error
    raise error


class ArpaReference:
    """ARPA text in dictionaries: the definition of a back-off model, word for word; slow, and for small models."""

    kind = "ARPA, in Python"

    def __init__(self, path: str | Path):
        self.path = str(path)
        if is_kenlm(path):
            raise UserError(f"language model {path}: reading KenLM binary files takes C++: install g++, or give ARPA")
        self.order = 0
        self.probabilities: dict[tuple[str, ...], float] = {("<unk>",): -100.0}
        self.backoffs: dict[tuple[str, ...], float] = {}
        self._read()

    def _read(self):
        begun, size = False, 0
        counts: dict[int, int] = {}
        line = ""
        for number, raw in enumerate(text_lines(self.path), 1):
            line = raw.strip()
            try:
                if not begun:
                    begun = line == "\\data\\"
                elif line.startswith("ngram "):
                    n, count = line.removeprefix("ngram ").split("=")
                    counts[int(n)] = int(count)
                elif line.startswith("\\") and line.endswith("-grams:"):
                    size = int(line[1:].removesuffix("-grams:"))
                elif line == "\\end\\":
                    break
                elif line and size:
                    probability, *words = line.split()
                    if len(words) > size:
                        *words, backoff = words
                        self.backoffs[_key(words)] = float(backoff)
                    if len(words) != size:
                        raise ValueError(f"{size} words are expected")
                    self.probabilities[_key(words)] = float(probability)
                    counts[size] -= 1
            except (ValueError, KeyError) as error:
                raise UserError(f"language model {self.path}: line {number}: {error}") from error
        if line != "\\end\\" or not counts or any(counts.values()):
            raise UserError(f"language model {self.path}: no whole ARPA file: {line!r} is its last line")
        self.order = max(counts)

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """See Model."""
        return tuple(key[0] for key in self.probabilities if len(key) == 1 and not _is_special(key[0]))

    def knows(self, word: str) -> bool:
        """See Model."""
        return (word,) in self.probabilities and word not in ("<unk>", "<UNK>")

    def scores(self, words: Sequence[str], begin: bool = True, end: bool = True) -> list[float]:
        """See Model."""
        text = [*(["<s>"] if begin else []), *words, *(["</s>"] if end else [])]
        text = [word if (word,) in self.probabilities else "<unk>" for word in text]
        return [self._score(tuple(text[max(0, i + 1 - self.order) : i + 1])) for i in range(int(begin), len(text))]

    def _score(self, words: tuple[str, ...]) -> float:
        found = self.probabilities.get(words)
        if found is not None:
            return found
        return self.backoffs.get(words[:-1], 0.0) + self._score(words[1:])


def _key(words: Sequence[str]) -> tuple[str, ...]:
    return tuple("<unk>" if word == "<UNK>" else word for word in words)


def perplexity(model: Model, sentences: Sequence[Sequence[str]]) -> float:
    """Of sentences with their ends, unknown words included as the model scores them."""
    scores = [score for words in sentences for score in model.scores(words)]
    return math.pow(10, -sum(scores) / max(len(scores), 1))
