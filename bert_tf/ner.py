"""Named entities in BIO tags (BioBERT: Lee et al. 2019, https://arxiv.org/abs/1901.08746): files -> sentences ->
features -> one label a word, scored by phrase as conlleval does; no TensorFlow is loaded but for features.

The model tags word pieces: the first piece of a word has the word's label, the others X, [CLS] and [SEP] their own
names. Ids count from 1 in that order, 0 is padding. A word's label is read at its first piece, and only tags are
chosen from, so there is exactly one label for each word of the input, in order.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.records import Feature
from bert_tf.relations import precision_recall_f1
from bert_tf.tokenization import CLS, SEP, FullTokenizer
from runkit.errors import UserError
from runkit.files import atomic_open, read_lines, write_json
from runkit.progress import Progress

OUTSIDE, CONTINUED = "O", "X"
NO_TAG = "[PAD]"  # how id 0 is called in label_test.txt

LABEL2ID_FILE = "label2id.json"
PIECES_FILE = "label_test.txt"
WORDS_FILE = "test_labels.txt"
ERRORS_FILE = "test_labels_errs.txt"
REPORT_FILE = "test_results_conlleval.txt"


class NerTask(NamedTuple):
    """A row of TASKS."""

    name: str
    tags: tuple[str, ...]
    train: tuple[str, ...]  # files, read one after the other
    dev: tuple[str, ...]
    test: tuple[str, ...]
    comment: str | None = None  # lines that begin so are not words

    @property
    def labels(self) -> tuple[str, ...]:
        """Tags, then the names that the model needs beside them; the id of labels[i] is i + 1."""
        return (*self.tags, CONTINUED, CLS, SEP)

    @property
    def num_labels(self) -> int:
        """Outputs of the model a token: labels and id 0."""
        return len(self.labels) + 1


_I2B2_KINDS = ("CLINICAL_DEPT", "EVIDENTIAL", "OCCURRENCE", "PROBLEM", "TEST", "TREATMENT")
_SHARED_TASK = {
    "train": ("Training.tsv", "Development.tsv"),
    "dev": ("Development.tsv",),
    "test": ("Test.tsv",),
    "comment": "###",
}

# All train on training and development set together, as published: figures on "dev" are of data seen in training.
# ShARe/CLEF and i2b2 2012 come under other names, with lines of document names; i2b2 tells six kinds of phrases apart.
_ROWS = (
    NerTask("bc5cdr", ("B", "I", OUTSIDE), ("train.tsv", "devel.tsv"), ("devel.tsv",), ("test.tsv",)),
    NerTask("clefe", ("B", "I", OUTSIDE), **_SHARED_TASK),
    NerTask("i2b2", (*(f"{bi}-{kind}" for bi in "BI" for kind in _I2B2_KINDS), OUTSIDE), **_SHARED_TASK),
)
TASKS: dict[str, NerTask] = {task.name: task for task in _ROWS}
_PUBLISHED_DEFAULT = "ner"  # the published flag's default, which its own table lacked


def find_task(name: str) -> NerTask:
    """The task of that name in any case; "NER" is bc5cdr. Raises UserError naming those there are."""
    key = name.lower()
    key = "bc5cdr" if key == _PUBLISHED_DEFAULT else key
    if key not in TASKS:
        raise UserError(f"no task {name!r}; there are {', '.join(TASKS)}")
    return TASKS[key]


class Sentence(NamedTuple):
    """Words and their tags, as many of the one as of the other, at least one."""

    words: list[str]
    tags: list[str]


class Place(NamedTuple):
    """Where a word's first piece is."""

    feature: int
    token: int


Bookkeeping = list[list[Place | None]]  # sentences, words; None: the tokenizer left nothing of the word


# --------------------------------------------------------------------------------------------- files -> sentences
def read_sentences(task: NerTask, data_dir: str | os.PathLike, split: str) -> list[Sentence]:
    """Reads "train", "dev" or "test". Raises UserError like read_file, also for a missing file."""
    if split not in ("train", "dev", "test"):
        raise ValueError(f"split must be train, dev or test, not {split!r}")
    names = getattr(task, split)
    missing = [name for name in names if not Path(data_dir, name).is_file()]
    if missing:
        raise UserError(f"{data_dir}: no {', no '.join(missing)}; the {split} set of {task.name} is {', '.join(names)}")
    return [sentence for name in names for sentence in read_file(task, Path(data_dir, name))]


def read_file(task: NerTask, path: str | os.PathLike) -> list[Sentence]:
    """Reads word<TAB>tag lines (or word, blanks, tag; columns between are ignored); lines of blanks end a sentence.

    Tags that the task lacks lose what stands behind their hyphen: B-Chemical is B. Raises UserError naming file, line
    and what was expected for a line without two columns, an unknown tag, and a file without words.
    """
    sentences, words, tags = [], [], []
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            if words:
                sentences.append(Sentence(words, tags))
            words, tags = [], []
        elif not (task.comment and line.startswith(task.comment)):
            word, tag = _columns(line, f"{path}:{number}")
            words.append(word)
            tags.append(_known_tag(task, tag, f"{path}:{number}"))
    if words:
        sentences.append(Sentence(words, tags))
    if not sentences:
        raise UserError(f"{path}: no words in {number} lines; expected a word, a tab and its tag on each line")
    return sentences


def _columns(line: str, place: str) -> tuple[str, str]:
    # Only tabs, else only blanks proper: a no-break space or a thin space is part of a word.
    line = line.strip(" \t")
    cells = line.split("\t") if "\t" in line else re.split(" +", line)
    word, tag = cells[0].strip(" "), cells[-1].strip()
    if len(cells) < 2 or not word or not tag:
        raise UserError(f"{place}: {line!r} is not a word, a tab (or blanks) and its tag")
    return word, tag


def _known_tag(task: NerTask, tag: str, place: str) -> str:
    if tag in task.tags:
        return tag
    plain = tag.split("-", 1)[0]
    if plain not in task.tags:
        raise UserError(f"{place}: {tag!r} is no tag of {task.name}; known tags: {', '.join(task.tags)}")
    return plain


# ------------------------------------------------------------------------------------------ sentences -> features
def convert_sentences(
    sentences: Sequence[Sentence], task: NerTask, tokenizer: FullTokenizer, max_seq_length: int
) -> tuple[list[Feature], Bookkeeping]:
    """[CLS] pieces [SEP] with a label id for each; and where each word's first piece went.

    A sentence that does not fit is cut between words into as many windows as it takes; only a single word longer than
    a whole window loses its last pieces. Raises UserError for a max_seq_length without room for a word.
    """
    room = max_seq_length - 2
    if room < 1:
        raise UserError(f"--max_seq_length={max_seq_length}: must be at least 3, [CLS] word [SEP]")
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    ids = {label: i for i, label in enumerate(task.labels, 1)}
    features: list[Feature] = []
    bookkeeping: Bookkeeping = []

    def add_feature() -> None:
        tokens = [cls, *pieces, sep]
        features.append(Feature(tokens, [0] * len(tokens), [ids[CLS], *labels, ids[SEP]]))

    with Progress(len(sentences), f"converting {task.name}", "sentences") as progress:
        for sentence in sentences:
            pieces: list[int] = []  # of the present window
            labels: list[int] = []
            places: list[Place | None] = []
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                word_pieces = tokenizer.encode(word)[:room]
                if not word_pieces:
                    places.append(None)
                    continue
                if len(pieces) + len(word_pieces) > room:
                    add_feature()
                    pieces, labels = [], []
                places.append(Place(len(features), len(pieces) + 1))
                pieces += word_pieces
                labels += [ids[tag]] + [ids[CONTINUED]] * (len(word_pieces) - 1)
            if pieces:
                add_feature()
            bookkeeping.append(places)
            progress.update()
    return features, bookkeeping


def words_labels(task: NerTask, bookkeeping: Bookkeeping, logits: Sequence[np.ndarray]) -> list[list[str]]:
    """The best tag of each word of each sentence. logits[f] is [tokens of feature f or more, num_labels].

    Words of which the tokenizer left nothing are outside any phrase.
    """
    tag_ids = slice(1, 1 + len(task.tags))
    return [
        [
            OUTSIDE if place is None else task.tags[int(np.argmax(logits[place.feature][place.token, tag_ids]))]
            for place in places
        ]
        for places in bookkeeping
    ]


# ------------------------------------------------------------------------------------------------------ scores
def chunks(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """The phrases of a sentence as (first word, word behind the last, type), by conlleval's rules.

    B begins a phrase, and so does I behind O or behind another type; O, B or another type ends it. The type is what
    stands behind the hyphen, "" where there is none.
    """
    start, kind = None, ""
    for i, tag in enumerate([*tags, OUTSIDE]):
        head, _, this = tag.partition("-")
        if start is not None and (head != "I" or this != kind):
            yield start, i, kind
            start = None
        if head != OUTSIDE and start is None:
            start, kind = i, this


def conlleval(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict:
    """Phrase-level scores of BIO tags as the evaluation script of CoNLL-2000 counts them, as shares from 0 to 1.

    Returns words, phrases (in gold), found (in predicted), correct, accuracy (of tags), precision, recall, f1, and
    types: {type: {phrases, found, correct, precision, recall, f1}}. Raises ValueError when a sentence has not as many
    predicted tags as gold ones.
    """
    n_words, n_equal = 0, 0
    there, found, correct = Counter(), Counter(), Counter()
    for ours, theirs in zip(predicted, gold, strict=True):
        n_words += len(theirs)
        n_equal += sum(a == b for a, b in zip(ours, theirs, strict=True))
        found_here, there_here = set(chunks(ours)), set(chunks(theirs))
        for counter, phrases in ((found, found_here), (there, there_here), (correct, found_here & there_here)):
            counter.update(kind for _, _, kind in phrases)
    return {
        "words": n_words,
        "accuracy": n_equal / n_words if n_words else 0.0,
        **_phrase_scores(correct.total(), found.total(), there.total()),
        "types": {kind: _phrase_scores(correct[kind], found[kind], there[kind]) for kind in sorted(there | found)},
    }


def _phrase_scores(correct: int, found: int, there: int) -> dict:
    precision, recall, f1 = precision_recall_f1(correct, found, there)
    counts = {"phrases": there, "found": found, "correct": correct}
    return counts | {"precision": precision, "recall": recall, "f1": f1}


def conlleval_report(scores: Mapping) -> str:
    """The lines that conlleval prints, in percent."""

    def percent(part: Mapping) -> str:
        p, r, f = (100 * part[key] for key in ("precision", "recall", "f1"))
        return f"precision: {p:6.2f}%; recall: {r:6.2f}%; FB1: {f:6.2f}"

    lines = [
        f"processed {scores['words']} tokens with {scores['phrases']} phrases; "
        f"found: {scores['found']} phrases; correct: {scores['correct']}.",
        f"accuracy: {100 * scores['accuracy']:6.2f}%; {percent(scores)}",
        *(f"{kind:>17}: {percent(part)}  {part['found']}" for kind, part in scores["types"].items()),
    ]
    return "\n".join(lines) + "\n"


def macro_tag_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], tags: Sequence[str]
) -> tuple[float, float, float]:
    """Means over the tags (but O) of precision, recall and F1 of single words: the published figures of evaluation."""
    ours, theirs = (np.array([tag for sentence in side for tag in sentence]) for side in (predicted, gold))
    scores = [
        precision_recall_f1(np.sum((ours == tag) & (theirs == tag)), np.sum(ours == tag), np.sum(theirs == tag))
        for tag in tags
        if tag != OUTSIDE
    ]
    return tuple(np.mean(scores, 0).tolist())


# ---------------------------------------------------------------------------------------------- output files
def write_predictions(
    output_dir: str | os.PathLike,
    task: NerTask,
    sentences: Sequence[Sentence],
    features: Sequence[Feature],
    bookkeeping: Bookkeeping,
    logits: Sequence[np.ndarray],
) -> dict:
    """Writes the published files of a prediction and returns the scores of conlleval.

    label2id.json; label_test.txt (the best label of every token, a blank line behind each window); test_labels.txt
    (word, gold, predicted; a blank line behind each sentence); test_labels_errs.txt (words whose tag was not simply
    the best label: sentence and word from 1, the word, best label, tag taken); test_results_conlleval.txt.
    """
    folder = Path(output_dir)
    predicted = words_labels(task, bookkeeping, logits)
    names = (NO_TAG, *task.labels)
    best = [[names[i] for i in rows[: len(f.input_ids)].argmax(-1)] for f, rows in zip(features, logits, strict=True)]
    write_json(folder / LABEL2ID_FILE, {label: i for i, label in enumerate(task.labels, 1)})
    _write_blocks(folder / PIECES_FILE, best)
    _write_blocks(
        folder / WORDS_FILE,
        (
            map(" ".join, zip(map(_one_word, sentence.words), sentence.tags, ours, strict=True))
            for sentence, ours in zip(sentences, predicted, strict=True)
        ),
    )
    with atomic_open(folder / ERRORS_FILE, "w") as stream:
        for number, (sentence, places, ours) in enumerate(zip(sentences, bookkeeping, predicted, strict=True), 1):
            for position, (word, place, tag) in enumerate(zip(sentence.words, places, ours, strict=True), 1):
                label = NO_TAG if place is None else best[place.feature][place.token]
                if label != tag:
                    stream.write(f"{number} {position} {_one_word(word)} {label} {tag}\n")
    scores = conlleval([sentence.tags for sentence in sentences], predicted)
    with atomic_open(folder / REPORT_FILE, "w") as stream:
        stream.write(conlleval_report(scores))
    return scores


def _one_word(word: str) -> str:
    """The word without blanks, so that lines of words and tags keep their number of columns."""
    return "_".join(word.split()) or "_"


def _write_blocks(path: Path, blocks: Iterable[Iterable[str]]) -> None:
    with atomic_open(path, "w") as stream:
        for lines in blocks:
            stream.writelines(f"{line}\n" for line in lines)
            stream.write("\n")
