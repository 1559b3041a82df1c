"""CTC prefix beam search, with a word language model, a word list and hot words.

    decoder = BeamDecoder(labels, BeamOptions(width=100, alpha=0.6, beta=1.0), lm=ngram.read("3gram.arpa"))
    hypotheses = decoder.decode(log_probs, lengths, n_best=5)     # for each utterance, the best first
    tokens = decoder.tokens(log_probs, lengths)                   # as decode.greedy_tokens gives them

    state = decoder.start()                                       # the same piece by piece
    decoder.feed(state, log_probs[:, :50][0])
    decoder.best(state).text
    (hypothesis,) = decoder.finish(state)

The score of a text, the options and their effect: docs/decoding.md. The search runs in C++ (search/beam.cpp), several
utterances at once on threads without Python's lock; where C++ cannot be compiled, search/reference.py does the same.

B utterances, T output frames, V labels and blank (the blank is last)
"""

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from jasper_pt.ngram import Model, NativeModel
from jasper_pt.search import native
from jasper_pt.search.reference import Reference
from jasper_pt.text import decode
from jasper_pt.transcript import Tokens
from runkit.errors import UserError

if TYPE_CHECKING:  # a server of exported models has no PyTorch
    from torch import Tensor

# Of PyTorch, or of NumPy.
Array: TypeAlias = "Tensor | np.ndarray"


@dataclass(frozen=True)
class BeamOptions:
    """How is searched, and what weighs how much; scores are natural logarithms."""

    alpha: float = 0.5  # weight of the language model
    beta: float = 0.0  # score of each word
    unknown: float = -10.0  # score of each word that the language model does not know, beside that of its <unk>
    width: int = 100  # prefixes that are kept at each frame
    token_threshold: float = -8.0  # labels of a lower log-probability are not tried, the best one aside
    top_k: int | None = None  # labels that are tried at each frame at most; None: all
    beam_threshold: float = 20.0  # prefixes that score so much less than the best one are dropped
    sentence_ends: bool = True  # whether the language model scores the end of a text as the end of a sentence

    def __post_init__(self):
        for name in ("alpha", "beta", "unknown"):
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"{name} of the beam search is {getattr(self, name)}; it must be a finite number")
        for name in ("width", "top_k"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} of the beam search is {value}; it must be 1 or more")
        if math.isnan(self.token_threshold) or not self.beam_threshold >= 0:
            raise UserError("token_threshold of the beam search must be a number, beam_threshold 0 or more")


EXACT = {"token_threshold": -math.inf, "beam_threshold": math.inf}  # options that leave nothing out but by the width


class Hypothesis(NamedTuple):
    """One reading of an utterance, and what it scores: score = ctc + alpha ln(10) lm + beta words + unknown + hot."""

    text: str
    tokens: Tokens  # of its most probable alignment
    score: float
    ctc: float  # ln p(text | sound), the sum over all alignments
    lm: float  # log10 p of the words, and of the end of the sentence
    hot: float  # sum of the weights of hot words in it
    words: int
    unknown_words: int


class Problem(NamedTuple):
    """What is given beside the sound."""

    labels: tuple[str, ...]
    options: BeamOptions
    lm: Model | None
    words: dict[str, str] | None  # the model's word for each spelling that is a word; None: any may be one
    closed: bool  # whether no others are allowed
    hot_phrases: dict[str, float]
    characters: bool  # no label holds a blank, so that each is a word


class BeamDecoder:
    """The search for one set of labels, models and options; may be shared by threads, and pickled for processes.

    lm: of words; of single labels where no label holds a blank. A model in capitals serves labels in small letters, and
    the other way round.
    lexicon: the only words that are allowed, together with the hot words.
    hot_words: words, or phrases of several, and the score of each time they come.
    threads: for utterances of a batch; default: $OMP_NUM_THREADS, or the cores of this process.
    Raises UserError where the labels cannot spell what is given.
    """

    def __init__(
        self,
        labels: Sequence[str],
        options: BeamOptions = BeamOptions(),
        lm: Model | None = None,
        lexicon: Sequence[str] | None = None,
        hot_words: Mapping[str, float] | None = None,
        threads: int | None = None,
    ):
        self._arguments = (tuple(labels), options, lm, lexicon, hot_words, threads)
        self.threads = threads
        self.problem = _problem(tuple(labels), options, lm, lexicon, hot_words or {})
        self.labels = self.problem.labels
        self._native = None
        if native.library() is not None and (lm is None or isinstance(lm, NativeModel)):
            self._native = _new_decoder(self.problem)

    def __reduce__(self):
        return type(self), self._arguments

    def __del__(self):
        if getattr(self, "_native", None):
            native.library().beam_free(self._native)

    def decode(self, log_probs: Array, lengths: Array, n_best: int = 1) -> list[list[Hypothesis]]:
        """The best hypotheses, at most n_best, of each utterance of log_probs [B,T,V], of which the first lengths[b]
        frames are valid.

        The greedy transcript is always among what is compared, with its exact score: no result scores below it.
        """
        self._check(log_probs)
        rows = _rows(log_probs)
        valid = [min(int(length), rows.shape[1]) for length in lengths.tolist()]
        if self._native is None:
            return [self._finished(self._fed(row[:length]), n_best) for row, length in zip(rows, valid, strict=True)]
        batch, frames, _ = rows.shape
        results = _call(
            "beam_decode",
            *(self._native, rows.ctypes.data, batch, frames, (ctypes.c_int64 * batch)(*valid), n_best),
            self.threads or default_threads(),
        )
        return _read_results(results, self.labels)

    def tokens(self, log_probs: Array, lengths: Array) -> list[Tokens]:
        """The best hypothesis of each utterance, in the form of decode.greedy_tokens."""
        return [hypotheses[0].tokens for hypotheses in self.decode(log_probs, lengths)]

    # ------------------------------------------------------------------------------------------------ piece by piece
    def start(self) -> "BeamState":
        """The beginning of an utterance. The state holds its log-probabilities, 6 kB for each second of sound."""
        return BeamState(self)

    def feed(self, state: "BeamState", log_probs: Array) -> None:
        """The next frames of the utterance, log_probs [T,V]."""
        self._check(log_probs[None])
        rows = _rows(log_probs)
        if isinstance(state.search, Reference):
            state.search.feed(rows)
        else:
            _call("beam_feed", state.search, rows.ctypes.data, len(rows))

    def best(self, state: "BeamState") -> Hypothesis:
        """The best beginning so far; its last word may be unfinished, and any of it may change yet."""
        if isinstance(state.search, Reference):
            return _hypothesis(self.labels, *state.search.best())
        return _read_results(_call("beam_best", state.search), self.labels)[0][0]

    def finish(self, state: "BeamState", n_best: int = 1) -> list[Hypothesis]:
        """The best hypotheses, as the utterance ends here: those of `decode` for all that has been fed."""
        return self._finished(state.search, n_best)

    def _fed(self, rows: np.ndarray) -> Reference:
        search = Reference(self.problem)
        search.feed(rows)
        return search

    def _finished(self, search, n_best: int) -> list[Hypothesis]:
        if isinstance(search, Reference):
            return [_hypothesis(self.labels, *found) for found in search.finish(n_best)]
        return _read_results(_call("beam_finish", search, n_best), self.labels)[0]

    def _check(self, log_probs: Array) -> None:
        if log_probs.shape[2] != len(self.labels) + 1:
            raise ValueError(
                f"{len(self.labels)} labels and a blank do not fit log_probs with {log_probs.shape[2]} classes"
            )


class BeamState:
    """An utterance under way; see BeamDecoder.start. Not for several threads at once."""

    def __init__(self, decoder: BeamDecoder):
        self.decoder = decoder  # must live as long
        if decoder._native is None:
            self.search = Reference(decoder.problem)
        else:
            self.search = native.library().beam_start(decoder._native)

    def __del__(self):
        search = getattr(self, "search", None)
        if search and not isinstance(search, Reference):
            native.library().beam_stop(search)


# ------------------------------------------------------------------------------------------------------------ set-up
def _problem(labels, options, lm, lexicon, hot_words) -> Problem:
    characters = not any(" " in label for label in labels)
    cased = _letter_case(labels)
    alphabet = set("".join(labels)) - {" "}
    named: dict[str, str] = {}  # the model's word of each spelling
    if lm is not None:
        for word in sorted(lm.words, key=lambda word: word != cased(word)):  # those that need no change come first
            if alphabet.issuperset(cased(word)):
                named.setdefault(cased(word), word)
        if lm.words and not named:
            raise UserError(
                f"language model {lm.path}: none of its {len(lm.words)} words ({', '.join(lm.words[:3])} ...) can be "
                f"spelled with the labels {''.join(labels)!r}: it is of another language, or of parts of words"
            )
    hot_phrases: dict[str, float] = {}
    for phrase, weight in hot_words.items():
        spelled = cased(("" if characters else " ").join(phrase.split()))
        if not spelled or not alphabet.issuperset(spelled.replace(" ", "")):
            raise UserError(f"hot word {phrase!r} cannot be spelled with the labels {''.join(labels)!r}")
        if not math.isfinite(weight):
            raise UserError(f"hot word {phrase!r}: its weight is {weight}; it must be a finite number")
        hot_phrases[spelled] = float(weight)
    words: dict[str, str] | None = named or None
    if lexicon is not None:
        words = {}
        for word in lexicon:
            spelled = cased(word)
            if not spelled or not alphabet.issuperset(spelled):
                raise UserError(f"the word list has {word!r}, which the labels {''.join(labels)!r} cannot spell")
            words[spelled] = named.get(spelled, spelled if not named else "<unk>")
        if not words:
            raise UserError("the word list is empty")
    if words is not None:
        for phrase in hot_phrases:
            for word in phrase if characters else phrase.split():
                words.setdefault(word, named.get(word, word if not named else "<unk>"))
    return Problem(labels, options, lm, words, lexicon is not None, hot_phrases, characters)


def _letter_case(labels: Sequence[str]):
    """The change of letters that fits the labels: to small ones or to capitals where they have only those."""
    text = "".join(labels)
    if text == text.lower() != text.upper():
        return str.lower
    if text == text.upper() != text.lower():
        return str.upper
    return str


def _new_decoder(problem: Problem) -> int:
    options = problem.options
    given = native.Options(
        **{name: getattr(options, name) for name in ("alpha", "beta", "unknown", "token_threshold", "beam_threshold")},
        width=options.width,
        top_k=options.top_k or len(problem.labels) + 1,
        sentence_ends=options.sentence_ends,
        closed=problem.closed,
    )
    labels = native.texts(problem.labels)
    words = native.texts(text for pair in (problem.words or {}).items() for text in pair)
    phrases = native.texts(problem.hot_phrases)
    weights = (ctypes.c_double * len(problem.hot_phrases))(*problem.hot_phrases.values())
    return native.call(
        "beam_new",
        *(labels, len(labels), problem.lm.handle if problem.lm is not None else None, ctypes.byref(given)),
        *(words, len(words), phrases, len(phrases), weights),
    )


# ----------------------------------------------------------------------------------------------------------- results
def default_threads() -> int:
    """As many as PyTorch would take."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0))


def _rows(log_probs: Array) -> np.ndarray:
    """The same in memory as C++ reads it, float32."""
    array = log_probs if isinstance(log_probs, np.ndarray) else log_probs.detach().float().cpu().numpy()
    return np.ascontiguousarray(array, np.float32)


def _call(name: str, *arguments):
    try:
        return native.call(name, *arguments)
    except native.NativeError as error:
        raise ValueError(str(error)) from error


def _hypothesis(labels, tokens: Tokens, score, ctc, lm, hot, words, unknown) -> Hypothesis:
    return Hypothesis(decode(tokens.ids, labels), tokens, score, ctc, lm, hot, int(words), int(unknown))


def _read_results(results: int, labels: Sequence[str]) -> list[list[Hypothesis]]:
    library = native.library()
    try:
        sizes = (ctypes.c_int64 * 3)()
        library.results_sizes(results, sizes)
        utterances, hypotheses, tokens = sizes
        counts = library.results_hypotheses(results)[:utterances]
        lengths = library.results_tokens(results)[:hypotheses]
        scores = library.results_scores(results)[: 6 * hypotheses]
        ids = library.results_ids(results)[:tokens]
        frames = library.results_frames(results)[:tokens]
        confidences = library.results_confidences(results)[:tokens]
        ends = library.results_ends(results)[:tokens]
    finally:
        library.results_free(results)
    found, at, begin = [], 0, 0
    for count in counts:
        found.append([])
        for _ in range(count):
            part = slice(begin, begin + lengths[at])
            aligned = Tokens(ids[part], frames[part], confidences[part], ends[part])
            found[-1].append(_hypothesis(labels, aligned, *scores[6 * at : 6 * at + 6]))
            begin, at = part.stop, at + 1
    return found
