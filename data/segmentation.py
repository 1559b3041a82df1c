"""Sentence splitting with NLTK Punkt (Kiss & Strunk 2006, "Unsupervised Multilingual Sentence Boundary
Detection").

Trained English parameters are used where the `punkt_tab` package is on NLTK's search path; otherwise Punkt is
trained on the corpus itself, which is what the method was made for, and common English abbreviations are
added. Nothing is downloaded and nothing is unpickled.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import nltk
from nltk import redos
from nltk.tokenize.punkt import (
    PunktLanguageVars,
    PunktParameters,
    PunktSentenceTokenizer,
    PunktTrainer,
    load_punkt_params,
)

from runkit.errors import UserError

# Training runs at about 0.7 MB/s in one process, and more text finds few more abbreviations.
TRAINING_CHARACTERS = 2_000_000
TRAINING_WINDOWS = 32  # evenly spread over the corpus, whose beginning may be all of one kind

# What a small corpus does not show often enough. Lower case, without the last period, as Punkt has them.
ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof rev hon st jr sr gov sen rep pres gen col maj capt lt sgt cpl messrs mme mlle "
    "e.g i.e cf vs viz etc al ca approx resp incl esp fig figs eq eqs no nos vol vols ch chap sec p pp ed "
    "inc ltd co corp bros dept univ assn est ave blvd rd mt ft tel ext "
    "u.s u.k u.n e.u d.c a.m p.m b.c a.d ph.d m.d b.a m.a "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs fri".split()
)

# NLTK abandons a regular-expression match after five seconds of wall-clock time, against hostile patterns.
# These patterns are its own and linear, and a whole book, or a machine under load, may well take longer.
redos.DEFAULT_TIMEOUT = None


class EnglishVars(PunktLanguageVars):
    """Typographic opening quotes begin no word, as straight ones do not: else “Mr. Hyde” hides an
    abbreviation."""

    _re_word_start = r"[^\(\"\`{\[:;&\#\*@\)}\]\-,“‘«]"


class Segmenter:
    """Text to sentences. `origin` says where the parameters came from; it can be sent to worker processes."""

    def __init__(self, parameters: PunktParameters, origin: str):
        self.origin = origin
        self._tokenizer = PunktSentenceTokenizer(parameters, lang_vars=EnglishVars())

    def sentences(self, text: str) -> list[str]:
        return self._tokenizer.tokenize(text)


def trained_parameters() -> tuple[PunktParameters, str] | None:
    """(parameters, origin) of the installed punkt_tab English model, or None when there is none on
    nltk.data.path."""
    try:
        folder = nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError:
        return None
    try:
        return load_punkt_params(folder), "NLTK Punkt, trained English parameters (punkt_tab)"
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"{folder}: cannot be read ({error}); remove or reinstall NLTK's punkt_tab") from error


def corpus_parameters(files: Sequence[Path]) -> tuple[PunktParameters, str]:
    """(parameters, origin) of Punkt trained on a bounded, evenly spread sample of UTF-8 files.
    Deterministic."""
    trainer = PunktTrainer(lang_vars=EnglishVars())
    characters = 0
    for text in sample_text(files):
        trainer.train(text, finalize=False)
        characters += len(text)
    trainer.finalize_training()
    parameters = trainer.get_params()
    parameters.abbrev_types |= ABBREVIATIONS
    return (
        parameters,
        f"NLTK Punkt, trained on {characters} characters of this corpus, and common abbreviations",
    )


def sample_text(files: Sequence[Path], characters: int = TRAINING_CHARACTERS) -> Iterator[str]:
    """Yields the whole text when it is small, else TRAINING_WINDOWS pieces of whole lines at even distances.

    Only a window is held. Files are taken as one long text in their order; a window does not cross a file's
    end.
    """
    sizes = [path.stat().st_size for path in files]
    if sum(sizes) <= characters:
        windows = [(path, 0, size) for path, size in zip(files, sizes, strict=True)]
    else:
        windows = list(_spread_windows(files, sizes, characters // TRAINING_WINDOWS))
    for path, start, size in windows:
        with open(path, "rb") as stream:
            if start:
                stream.seek(start - 1)
                stream.readline(size)  # to the end of the line that is under way
            # The end of a window may cut a letter in two.
            text = stream.read(size).decode("utf-8" if start else "utf-8-sig", errors="ignore")
        yield text.replace("\r", "")


def _spread_windows(files: Iterable[Path], sizes: Sequence[int], window: int) -> Iterator[tuple[Path, int, int]]:
    """(file, first byte, bytes) of TRAINING_WINDOWS windows."""
    step = sum(sizes) / TRAINING_WINDOWS
    wanted = [int(number * step) for number in range(TRAINING_WINDOWS)]
    begin = 0
    for path, size in zip(files, sizes, strict=True):
        yield from ((path, start - begin, window) for start in wanted if begin <= start < begin + size)
        begin += size
