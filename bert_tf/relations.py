"""Relations between entities (ChemProt) and clinical inference (MedNLI), as BioBERT and BLUE evaluate them; no
TensorFlow here.

ChemProt is the corpus of BioCreative VI (Krallinger et al. 2017): which of five groups of relations holds between the
chemical and the protein marked in a sentence, or none. What counts is micro F1 over the five groups: sentences without
a relation are predicted like the others, and a wrong relation there costs precision, but leaving them alone earns
nothing.

The command line scores finished predictions:

    python -m bert_tf.relations --task chemprot --output_path test_results.tsv --answer_path test.tsv
"""

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np

from bert_tf.glue import ACCURACY, Files, Layout, Task, accuracy, find_task, read_file, read_test_results
from runkit.errors import UserError, run_main
from runkit.files import read_lines
from runkit.progress import print_line

NO_RELATION = "False"

# The corpus' relations by group.
_CPR_GROUPS = {
    "CPR:3": ("UPREGULATOR", "ACTIVATOR", "INDIRECT-UPREGULATOR"),
    "CPR:4": ("DOWNREGULATOR", "INHIBITOR", "INDIRECT-DOWNREGULATOR"),
    "CPR:5": ("AGONIST", "AGONIST-ACTIVATOR", "AGONIST-INHIBITOR"),
    "CPR:6": ("ANTAGONIST",),
    "CPR:9": ("SUBSTRATE", "PRODUCT-OF", "SUBSTRATE_PRODUCT-OF"),
}

# The layouts of ChemProt: the published recipe's (no header; a flag says whether there is a relation), BioBERT's and
# BLUE's, SciBERT's (JSON lines; all of them have a relation).
_POSIT = Layout((1,), 3, header=False, flag=2)
_HEADED = Layout(("sentence",), "label")
_SCIBERT = Layout(("text",), "label", json=True)
_MEDNLI = Layout(("sentence1", "sentence2"), "gold_label", json=True)


def _chemprot(posit: str, plain: str) -> tuple[Files, ...]:
    return Files((posit,), _POSIT), Files((f"{plain}.tsv",), _HEADED), Files((f"{plain}.txt",), _SCIBERT)


def _mednli(split: str) -> tuple[Files, ...]:
    return Files((f"mli_{split}_v1.jsonl",), _MEDNLI), Files((f"{split}.jsonl",), _MEDNLI)


_ROWS = (
    Task(
        "ChemProt",
        (*_CPR_GROUPS, NO_RELATION),
        (),  # both have relation_metrics
        {
            "train": _chemprot("trainingPosit_chem", "train"),
            "dev": _chemprot("developPosit_chem", "dev"),
            "test": _chemprot("testPosit_chem", "test"),
        },
        aliases={NO_RELATION.lower(): NO_RELATION}
        | {relation: group for group, relations in _CPR_GROUPS.items() for relation in relations},
    ),
    Task(
        "MedNLI",
        ("contradiction", "entailment", "neutral"),
        (),
        {split: _mednli(split) for split in ("train", "dev", "test")},
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _ROWS}


def positive_labels(task: Task) -> tuple[str, ...]:
    """The labels that count: all but NO_RELATION."""
    return tuple(label for label in task.labels if label != NO_RELATION)


def relation_metrics(task: Task, predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float | str]:
    """Scores of label indices [F]: micro and macro precision, recall and F1 over positive_labels, eval_accuracy over
    all, and what the average is over.

    Micro sums the counts of the classes before dividing, macro is the mean of the classes' own scores, where a class
    that neither occurs nor is predicted scores 0. Raises ValueError when there are no examples, or not as many
    predictions as labels.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or predictions.ndim != 1 or not len(labels):
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must be [F], F > 0")
    counted = positive_labels(task)
    classes = np.array([task.labels.index(label) for label in counted])[:, None]  # [C, 1]
    hits = np.sum((predictions == classes) & (labels == classes), 1)  # [C]
    found, there = np.sum(predictions == classes, 1), np.sum(labels == classes, 1)
    micro = precision_recall_f1(hits.sum(), found.sum(), there.sum())
    macro = np.mean([precision_recall_f1(*counts) for counts in zip(hits, found, there, strict=True)], 0)
    return {
        **dict(zip(("micro_precision", "micro_recall", "micro_f1"), micro, strict=True)),
        **dict(zip(("macro_precision", "macro_recall", "macro_f1"), macro.tolist(), strict=True)),
        ACCURACY: accuracy(predictions, labels),
        "average_over": ", ".join(counted),
    }


def precision_recall_f1(hits: int, found: int, there: int) -> tuple[float, float, float]:
    """Of `hits` right ones among `found`, where there are `there`; 0 where there is nothing to divide by."""
    return (
        float(hits / found) if found else 0.0,
        float(hits / there) if there else 0.0,
        float(2 * hits / (found + there)) if found + there else 0.0,
    )


# ------------------------------------------------------------------------------------------------ command line
def read_answers(task: Task, path: str | os.PathLike) -> list[int]:
    """The label indices of a file in any layout of the task's test set, told apart by the first line.

    Raises UserError like glue.read_examples.
    """
    first = next((line for line in read_lines(path) if line.strip()), "")
    is_json, has_header = first.lstrip().startswith("{"), "label" in first.split("\t")
    layouts = [files.layout for files in task.splits["test"]]
    for layout in layouts:
        if layout.json == is_json and (is_json or layout.header == has_header):
            return [task.labels.index(example.label) for example in read_file(task, path, layout, "test")]
    raise UserError(f"{path}: not a file of {task.name}; expected JSON lines with the key {layouts[-1].label!r}")


def report(task: Task, scores: dict[str, float | str]) -> str:
    """The published lines with the kind of average, then macro F1 and accuracy."""
    without = f"; {NO_RELATION} is not counted" if NO_RELATION in task.labels else ""
    lines = [
        *(f"{name:11s} : {scores[key]:.2%}" for name, key in _PUBLISHED_NAMES.items()),
        f"micro average over {scores['average_over']}{without}",
        f"{'macro f1':11s} : {scores['macro_f1']:.2%}",
        f"{'accuracy':11s} : {scores[ACCURACY]:.2%}",
    ]
    return "\n".join(lines)


_PUBLISHED_NAMES = {"f1 score": "micro_f1", "recall": "micro_recall", "precision": "micro_precision"}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the scores of test_results.tsv against an answer file; raises UserError for what the user can fix."""
    parser = argparse.ArgumentParser(
        prog="relations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--task", default="chemprot", help=f"{', '.join(TASKS)}, in any case (default %(default)s)")
    parser.add_argument("--output_path", required=True, help="test_results.tsv: class probabilities, a line an example")
    parser.add_argument("--answer_path", required=True, help="the test file, with labels, in any layout of the task")
    args = parser.parse_args(argv)
    task = find_task(args.task, TASKS)
    probabilities, labels = read_test_results(args.output_path), read_answers(task, args.answer_path)
    if probabilities.shape != (len(labels), task.num_labels):
        raise UserError(
            f"{args.output_path}: {len(probabilities)} lines of {probabilities.shape[1]} probabilities, but "
            f"{args.answer_path} has {len(labels)} examples and {task.name} {task.num_labels} labels"
        )
    scores = relation_metrics(task, probabilities.argmax(1), labels)
    print_line(report(task, scores))
    return 0


if __name__ == "__main__":
    run_main(main, sys.argv[1:])
