"""GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461) and XNLI: files <-> examples -> features, metrics,
submission files; no TensorFlow is loaded but for features.

A task is a row of TASKS: where the rows of each split are, which columns are text and label, what is measured and
what GLUE wants back. GLUE's files are separated by tabs alone; a quote is a letter like any other.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.records import Feature
from bert_tf.tokenization import CLS, SEP, FullTokenizer
from runkit.errors import UserError
from runkit.files import atomic_open, parse_json, read_lines
from runkit.progress import Progress, print_line

Column = str | int  # a name in the header (or a JSON key), or a position from 0


class Layout(NamedTuple):
    """The columns of a file."""

    text: tuple[Column, ...]  # one or two
    label: Column | None = None  # None: the file has no labels
    header: bool = True  # whether the first line names the columns
    where: tuple[Column, str] | None = None  # only rows with this value in this column
    flag: Column | None = None  # says "True" where `label` holds, and is itself the label elsewhere
    json: bool = False  # one JSON object a line instead of tab-separated columns


class Files(NamedTuple):
    """One way in which a split may be stored: it applies if all of its files are there."""

    names: tuple[str, ...]  # read one after the other
    layout: Layout
    pairs: str | None = None  # a file of pairs of ids; only the rows whose `pair_columns` stand in it
    except_pairs: str | None = None  # the reverse; need not exist
    note: str | None = None  # said when it is used


PAIR_COLUMNS = ("#1 ID", "#2 ID")  # of MRPC, the only task with `pairs`

ACCURACY, F1, MCC, PEARSON, SPEARMAN = "eval_accuracy", "eval_f1", "mcc", "pearson", "spearmanr"


@dataclass(frozen=True)
class Task:
    """A row of the table. labels are in the order of their indices; None is regression."""

    name: str
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]  # keys of METRICS
    splits: Mapping[str, tuple[Files, ...]]  # the first that applies is read
    submissions: Mapping[str, str] = field(default_factory=dict)  # test split -> file name of GLUE
    submit_names: bool = False  # label names in the submission, not indices
    aliases: Mapping[str, str] = field(default_factory=dict)  # other spellings of labels

    @property
    def num_labels(self) -> int:
        """Outputs of the model; 1 for regression."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def dev_splits(self) -> tuple[str, ...]:
        return tuple(split for split in self.splits if split.startswith("dev"))

    @property
    def test_splits(self) -> tuple[str, ...]:
        return tuple(split for split in self.splits if split.startswith("test"))


class PairExample(NamedTuple):
    """A text or a pair of texts. label is a name of Task.labels, a number as text for regression, None if unknown."""

    guid: str  # <split>-<number of the row from 0>
    text_a: str
    text_b: str | None
    label: str | None


# ------------------------------------------------------------------------------------------------ the table
def _glue_splits(labelled: Layout, test: Layout) -> dict[str, tuple[Files, ...]]:
    return {
        "train": (Files(("train.tsv",), labelled),),
        "dev": (Files(("dev.tsv",), labelled),),
        "test": (Files(("test.tsv",), test),),
    }


def _headed(*text: str, label: str = "label") -> dict[str, tuple[Files, ...]]:
    """Splits of a task whose three files have a header, the test file without the label."""
    return _glue_splits(Layout(text, label), Layout(text))


_COLA = Layout((3,), 1, header=False)
_MRPC = Layout(("#1 String", "#2 String"), "Quality")
_MRPC_TRAIN, _MRPC_TEST, _MRPC_DEV_IDS = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv"
_MNLI = Layout(("sentence1", "sentence2"), "gold_label")
_MNLI_TEST = Layout(("sentence1", "sentence2"))
_TEXTFOOLER = Layout((1, 2), 0, header=False)
_NLI_LABELS = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")

_ROWS = (
    Task(
        "CoLA",
        _BINARY,
        (MCC,),
        {  # GLUE's layout, then the corpus as distributed
            "train": (Files(("train.tsv",), _COLA), Files(("in_domain_train.tsv",), _COLA)),
            "dev": (Files(("dev.tsv",), _COLA), Files(("in_domain_dev.tsv", "out_of_domain_dev.tsv"), _COLA)),
            "test": (Files(("test.tsv",), Layout(("sentence",))),),
        },
        {"test": "CoLA.tsv"},
    ),
    Task(
        "MRPC",
        _BINARY,
        (ACCURACY, F1),
        {  # GLUE's layout, then the corpus as distributed: GLUE's dev set is the pairs of dev_ids.tsv
            "train": (Files(("train.tsv",), _MRPC), Files((_MRPC_TRAIN,), _MRPC, except_pairs=_MRPC_DEV_IDS)),
            "dev": (
                Files(("dev.tsv",), _MRPC),
                Files((_MRPC_TRAIN,), _MRPC, pairs=_MRPC_DEV_IDS),
                Files((_MRPC_TEST,), _MRPC, note=f"no {_MRPC_DEV_IDS}: {_MRPC_TEST} serves as MRPC's dev set"),
            ),
            "test": (Files(("test.tsv",), _MRPC._replace(label=None)), Files((_MRPC_TEST,), _MRPC)),
        },
        {"test": "MRPC.tsv"},
    ),
    Task(
        "MNLI",
        _NLI_LABELS,
        (ACCURACY,),
        {  # GLUE's layout, then the sample of TextFooler (https://github.com/jind11/TextFooler)
            "train": (Files(("train.tsv",), _MNLI),),
            "dev": (Files(("dev_matched.tsv",), _MNLI), Files(("mnli_matched.tsv",), _TEXTFOOLER)),
            "dev_mismatched": (Files(("dev_mismatched.tsv",), _MNLI), Files(("mnli_mismatched.tsv",), _TEXTFOOLER)),
            "test": (Files(("test_matched.tsv",), _MNLI_TEST),),
            "test_mismatched": (Files(("test_mismatched.tsv",), _MNLI_TEST),),
        },
        {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        submit_names=True,
    ),
    Task("SST-2", _BINARY, (ACCURACY,), _headed("sentence"), {"test": "SST-2.tsv"}),
    Task(
        "QQP",
        _BINARY,
        (ACCURACY, F1),
        _headed("question1", "question2", label="is_duplicate"),
        {"test": "QQP.tsv"},
    ),
    Task("QNLI", _ENTAILMENT, (ACCURACY,), _headed("question", "sentence"), {"test": "QNLI.tsv"}, submit_names=True),
    Task("RTE", _ENTAILMENT, (ACCURACY,), _headed("sentence1", "sentence2"), {"test": "RTE.tsv"}, submit_names=True),
    Task("STS-B", None, (PEARSON, SPEARMAN), _headed("sentence1", "sentence2", label="score"), {"test": "STS-B.tsv"}),
    Task("WNLI", _BINARY, (ACCURACY,), _headed("sentence1", "sentence2"), {"test": "WNLI.tsv"}),
    Task(
        "XNLI",  # Chinese, as Google's BERT has it: machine-translated MNLI for training; no test set
        _NLI_LABELS,
        (ACCURACY,),
        {
            "train": (Files(("multinli/multinli.train.zh.tsv",), Layout((0, 1), 2)),),
            "dev": (Files(("xnli.dev.tsv",), Layout((6, 7), 1, where=(0, "zh"))),),
        },
        aliases={"contradictory": "contradiction"},
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _ROWS}


def find_task(name: str, tasks: Mapping[str, Task] = TASKS) -> Task:
    """The task of that name, in any case, with or without hyphens. Raises UserError naming those there are."""

    def plain(text: str) -> str:
        return text.lower().replace("-", "")

    for task in tasks.values():
        if plain(task.name) == plain(name):
            return task
    raise UserError(f"no task {name!r}; there are {', '.join(tasks)}")


# --------------------------------------------------------------------------------------------- files -> examples
def read_examples(task: Task, data_dir: str | os.PathLike, split: str) -> list[PairExample]:
    """Reads a split ("train", "dev", "test", of MNLI also "dev_mismatched" and "test_mismatched").

    Raises UserError when the split or its files are missing, a row is short, a label is unknown, or there is no row;
    it names file, line and what was expected.
    """
    if split not in task.splits:
        raise UserError(f"{task.name} has no split {split!r}; it has {', '.join(task.splits)}")
    folder, files = Path(data_dir), find_files(task, data_dir, split)
    if files is None:
        ways = "; or ".join(" and ".join(_needed(way)) for way in task.splits[split])
        raise UserError(f"{folder}: no {split} set of {task.name}; expected {ways}")
    if files.note:
        print_line(f"note: {folder}: {files.note}")
    examples: list[PairExample] = []
    for name in files.names:
        examples += read_file(task, folder / name, files.layout, split, len(examples), _pair_filter(folder, files))
    return examples


def find_files(task: Task, data_dir: str | os.PathLike, split: str) -> Files | None:
    """The way in which a folder stores a split, None where it does not."""
    for files in task.splits[split]:
        if all(Path(data_dir, name).is_file() for name in _needed(files)):
            return files
    return None


def _needed(files: Files) -> tuple[str, ...]:
    return (*files.names, files.pairs) if files.pairs else files.names


def read_file(
    task: Task,
    path: str | os.PathLike,
    layout: Layout,
    split: str,
    first: int = 0,
    keep: Callable[[Callable[[Column], str]], bool] = lambda cell: True,
) -> list[PairExample]:
    """Reads the examples of one file, numbered from `first`; keep(cell) decides on a row, cell(column) being its text.

    Raises UserError like read_examples.
    """
    examples = []
    for number, cell in _rows(path, layout):
        if (layout.where is not None and cell(layout.where[0]) != layout.where[1]) or not keep(cell):
            continue
        text_a, text_b = [*map(cell, layout.text), None][:2]
        label = None
        if layout.label is not None:
            flagged = layout.flag is None or cell(layout.flag).lower() == "true"
            label = _known_label(task, cell(layout.label if flagged else layout.flag).strip(), f"{path}:{number}")
        examples.append(PairExample(f"{split}-{first + len(examples)}", text_a, text_b, label))
    if not examples:
        kind = f" with {layout.where[1]!r} in column {layout.where[0]!r}" if layout.where else ""
        raise UserError(f"{path}: no examples{kind}{' below the header' if layout.header and not layout.json else ''}")
    return examples


def _rows(path: str | os.PathLike, layout: Layout) -> Iterator[tuple[int, Callable[[Column], str]]]:
    """Line number and a look-up by column for each row that is not blank."""
    columns: dict[Column, int] = {}
    awaits_header = layout.header and not layout.json
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        if layout.json:
            yield number, _json_cells(line, f"{path}:{number}")
        elif awaits_header:
            awaits_header = False
            columns = {name.strip(): i for i, name in enumerate(line.split("\t"))}
            _check_header(layout, columns, f"{path}:{number}")
        else:
            yield number, _tab_cells(line.split("\t"), columns, f"{path}:{number}")


def _wanted(layout: Layout) -> list[Column]:
    where = layout.where[0] if layout.where else None
    return [column for column in (*layout.text, layout.label, layout.flag, where) if column is not None]


def _check_header(layout: Layout, columns: Mapping[Column, int], place: str) -> None:
    missing = [column for column in _wanted(layout) if isinstance(column, str) and column not in columns]
    if missing:
        raise UserError(
            f"{place}: no column {', '.join(map(repr, missing))}; the header should have it, separated by tabs, "
            f"but names {', '.join(map(repr, columns))}"
        )


def _tab_cells(cells: list[str], columns: Mapping[Column, int], place: str) -> Callable[[Column], str]:
    def cell(column: Column) -> str:
        index = columns[column] if isinstance(column, str) else column
        if index >= len(cells):
            expected = f"the columns {', '.join(map(repr, columns))}" if columns else f"at least {index + 1} columns"
            raise UserError(
                f"{place}: {len(cells)} columns separated by tabs, none of them {column!r}; expected {expected}"
            )
        return cells[index]

    return cell


def _json_cells(line: str, place: str) -> Callable[[Column], str]:
    try:
        entry = parse_json(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}:{error.colno}: not valid JSON: {error.msg}") from error
    if not isinstance(entry, dict):
        raise UserError(f"{place}: not a JSON object; every line is one example")

    def cell(key: Column) -> str:
        if not isinstance(entry.get(key), str):
            raise UserError(f"{place}: no text under the key {key!r}; there are {', '.join(map(repr, entry))}")
        return entry[key]

    return cell


def _known_label(task: Task, text: str, place: str) -> str:
    if task.labels is None:
        try:
            if abs(float(text)) <= np.finfo(np.float32).max:  # not so for NaN
                return text
        except ValueError:
            pass
        raise UserError(f"{place}: the label {text!r} of {task.name} is not a number")
    label = task.aliases.get(text, text)
    if label not in task.labels:
        known = ", ".join(map(repr, (*task.labels, *task.aliases)))
        raise UserError(f"{place}: {text!r} is no label of {task.name}; known labels: {known}")
    return label


def _pair_filter(folder: Path, files: Files) -> Callable[[Callable[[Column], str]], bool]:
    if files.pairs:
        pairs = _read_pairs(folder / files.pairs)
        return lambda cell: tuple(map(cell, PAIR_COLUMNS)) in pairs
    if files.except_pairs and (folder / files.except_pairs).is_file():
        pairs = _read_pairs(folder / files.except_pairs)
        return lambda cell: tuple(map(cell, PAIR_COLUMNS)) not in pairs
    return lambda cell: True


def _read_pairs(path: Path) -> set[tuple[str, ...]]:
    pairs = {tuple(line.strip().split("\t")) for line in read_lines(path) if line.strip()}
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise UserError(f"{path}: every line should be two ids separated by a tab")
    return pairs


# ------------------------------------------------------------------------------------------- examples -> features
def convert_examples(
    examples: Sequence[PairExample], task: Task, tokenizer: FullTokenizer, max_seq_length: int
) -> list[Feature]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP] with segment 1 for b [SEP], as Google's BERT encodes them.

    Too long a text is cut at its end; of a pair the longer text loses its last token until both fit (the second of
    two that are equally long). Labels become indices (regression: numbers), unknown ones 0. Raises UserError for a
    max_seq_length without room for text.
    """
    if max_seq_length < 5:
        raise UserError(f"--max_seq_length={max_seq_length}: must be at least 5, [CLS] a [SEP] b [SEP]")
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    indices = {label: index for index, label in enumerate(task.labels or ())}
    features = []
    with Progress(len(examples), f"converting {task.name}", "examples") as progress:
        for example in examples:
            a = tokenizer.encode(example.text_a)
            if example.text_b is None:
                ids = [cls, *a[: max_seq_length - 2], sep]
                segments = [0] * len(ids)
            else:
                b = tokenizer.encode(example.text_b)
                n_a, n_b = truncated_lengths(len(a), len(b), max_seq_length - 3)
                ids = [cls, *a[:n_a], sep, *b[:n_b], sep]
                segments = [0] * (n_a + 2) + [1] * (n_b + 1)
            if example.label is None:
                label = 0
            else:
                label = float(example.label) if task.labels is None else indices[example.label]
            features.append(Feature(ids, segments, label))
            progress.update()
    return features


def truncated_lengths(n_a: int, n_b: int, room: int) -> tuple[int, int]:
    """What is left of n_a and n_b tokens when the longer (of equals the second) loses one until both fit into room."""
    excess = max(0, n_a + n_b - room)
    longer_only = min(excess, abs(n_a - n_b))
    if n_a > n_b:
        n_a -= longer_only
    else:
        n_b -= longer_only
    rest = excess - longer_only  # from here on b and a in turn
    return n_a - rest // 2, n_b - (rest + 1) // 2


# --------------------------------------------------------------------------------------------------- metrics
def decide(task: Task, outputs: np.ndarray) -> np.ndarray:
    """The predicted class indices [F], or numbers for a regression, from outputs [F, N]."""
    return outputs[:, 0] if task.labels is None else outputs.argmax(-1)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal entries."""
    return float(np.mean(predictions == labels))


def f1_score(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1; 0 where it was neither found nor there to be found."""
    hits = np.sum((predictions == 1) & (labels == 1))
    total = np.sum(predictions == 1) + np.sum(labels == 1)
    return float(2 * hits / total) if total else 0.0


def matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' coefficient of two classes; 0 where one of them is never predicted or never there."""
    p, t = predictions == 1, labels == 1
    tp, tn, fp, fn = (int(np.sum(x)) for x in (p & t, ~p & ~t, p & ~t, ~p & t))
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(below) if below else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation; NaN where either side is constant, as it is not defined there."""
    x, y = (np.asarray(v, np.float64) - np.mean(v, dtype=np.float64) for v in (predictions, labels))
    below = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / below if below else math.nan


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values sharing their mean rank."""
    return pearson(_ranks(predictions), _ranks(labels))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    ACCURACY: accuracy,
    F1: f1_score,
    MCC: matthews_correlation,
    PEARSON: pearson,
    SPEARMAN: spearman,
}


def metrics(task: Task, predictions: Sequence, labels: Sequence) -> dict[str, float]:
    """The task's metrics under their published keys; predictions and labels [F] are indices, or numbers (STS-B).

    Raises ValueError when there are none, or not as many of the one as of the other.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or predictions.ndim != 1 or not len(labels):
        raise ValueError(f"{task.name}: predictions {predictions.shape} and labels {labels.shape} must be [F], F > 0")
    return {key: METRICS[key](predictions, labels) for key in task.metrics}


# ---------------------------------------------------------------------------------------------- output files
def softmax(logits: np.ndarray) -> np.ndarray:
    """Class probabilities from logits, over the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def write_test_results(path: str | os.PathLike, outputs: np.ndarray) -> None:
    """test_results.tsv: a line an example, its class probabilities separated by tabs. outputs is [F, N]."""
    with atomic_open(path, "w") as stream:
        for row in np.asarray(outputs):
            stream.write("\t".join(f"{value:.9g}" for value in row) + "\n")  # 9 digits are a float32 exactly


def read_test_results(path: str | os.PathLike) -> np.ndarray:
    """What write_test_results wrote, [F, N] float64. Raises UserError naming file and line."""
    rows: list[list[float]] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            rows.append([float(value) for value in line.split("\t")])
            if not all(map(math.isfinite, rows[-1])):
                raise ValueError("NaN or infinity among them")
        except ValueError as error:
            raise UserError(f"{path}:{number}: not probabilities separated by tabs: {error}") from error
        if len(rows[-1]) != len(rows[0]):
            raise UserError(f"{path}:{number}: {len(rows[-1])} columns, but {len(rows[0])} above")
    if not rows:
        raise UserError(f"{path}: no probabilities; every line is an example's, separated by tabs")
    return np.array(rows)


def write_submission(folder: str | os.PathLike, task: Task, split: str, predictions: Sequence) -> Path | None:
    """Writes GLUE's submission file for a test split and returns its path; None where GLUE takes none (XNLI).

    predictions are indices in the order of the file's rows, or numbers (STS-B, clipped to its range of 0 to 5).
    """
    if split not in task.submissions:
        return None
    path = Path(folder, task.submissions[split])
    with atomic_open(path, "w") as stream:
        stream.write("index\tprediction\n")
        for index, value in enumerate(predictions):
            if task.labels is None:
                text = f"{min(5.0, max(0.0, float(value))):.3f}"
            else:
                text = task.labels[value] if task.submit_names else str(int(value))
            stream.write(f"{index}\t{text}\n")
    return path
