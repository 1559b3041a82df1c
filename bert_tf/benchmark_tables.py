"""The published benchmark tables of fine-tuning, from what the runs of a sweep left.

    python -m bert_tf.benchmark_tables machine RESULTS_DIR       notes the machine in RESULTS_DIR/machine.json
    python -m bert_tf.benchmark_tables train RESULTS_DIR         <task>_training_benchmark.md, .csv, .png
    python -m bert_tf.benchmark_tables inference RESULTS_DIR     <task>_inference_benchmark.md, .csv, _latency.png,
                                                                 _throughput.png

and for each model the log of the published scripts, which holds the same rows. A folder for each run lies in
RESULTS_DIR; its name says how the run was made, its summary.json what was measured. A run without one failed, and its
row says so. No TensorFlow here.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runkit import machine
from runkit.errors import UserError, run_main
from runkit.files import read_json, write_json
from runkit.plots import points_plot
from runkit.tables import csv_text, markdown_table, rounded, text_table, write_report

_SETTING = r"_sl_(?P<length>\d+)_prec_--(?P<precision>\w+)_bs_(?P<batch>\d+)"
TRAINING_RUN = re.compile(rf"bert_(?P<model>.+)_gpu_(?P<processes>\d+){_SETTING}")
INFERENCE_RUN = re.compile(rf"bert_(?P<model>.+)_inf{_SETTING}")
FAILED = "failed"
MACHINE = "machine.json"

# Published column: key of the summary.
THROUGHPUT = "Performance(sent/sec)"
INFERENCE_THROUGHPUT, MEAN_LATENCY = "Throughput-Average(sent/sec)", "Latency-Average(ms)"
INFERENCE_COLUMNS = {
    INFERENCE_THROUGHPUT: "sequences_per_second",
    MEAN_LATENCY: "latency_average_ms",
    **{f"Latency-{percent}%(ms)": f"latency_{percent}_ms" for percent in (50, 90, 95, 99, 100)},
}


class Run(NamedTuple):
    """A run's setting, and the figures that it left; none where it failed."""

    model: str
    processes: int
    length: int
    batch: int  # sequences on each process
    precision: str  # as asked for: amp, noamp, or by name
    figures: Mapping[str, Any]

    @property
    def precision_used(self) -> str:
        """What was computed in; of a failed run what was asked for."""
        return self.figures.get("precision", self.precision)


def read_runs(folder: Path, name: re.Pattern) -> list[Run]:
    """The runs whose folders have this name, by model, processes, length, batch and precision.

    Raises UserError where there is none.
    """
    runs = []
    for path in folder.glob("bert_*"):
        if path.is_dir() and (match := name.fullmatch(path.name)):
            setting = match.groupdict()
            runs.append(
                Run(
                    setting["model"],
                    int(setting.get("processes", 1)),
                    int(setting["length"]),
                    int(setting["batch"]),
                    setting["precision"],
                    read_figures(path, training=name is TRAINING_RUN),
                )
            )
    if not runs:
        kind = "a training" if name is TRAINING_RUN else "an inference"
        raise UserError(f"{folder}: there is no folder of {kind} run in it, such as bert_base_..._bs_1")
    return sorted(runs, key=lambda run: run[:5])


def read_figures(folder: Path, training: bool) -> dict[str, Any]:
    """The measured part of a run's summary.json; empty where the run did not get so far."""
    path = folder / "summary.json"
    summary = read_json(path) if path.is_file() else {}
    figures = summary if training else summary.get("inference") or summary.get("prediction") or {}
    return figures if "sequences_per_second" in figures else {}


def training_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The published columns, and before them model and processes."""
    return [
        {
            "Model": run.model,
            "Processes": run.processes,
            "Precision": run.precision_used,
            "Sequence Length": run.length,
            "Batch size": run.batch,
            THROUGHPUT: run.figures.get("sequences_per_second", FAILED),
        }
        for run in runs
    ]


def inference_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The published columns."""
    return [
        {
            "Model": run.model,
            "Sequence-Length": run.length,
            "Batch-size": run.batch,
            "Precision": run.precision_used,
            **{column: run.figures.get(key, FAILED) for column, key in INFERENCE_COLUMNS.items()},
        }
        for run in runs
    ]


def describe(folder: Path) -> str:
    """The machine of the sweep, for the head of a table."""
    path = folder / MACHINE
    found = read_json(path) if path.is_file() else {}
    gpus = found.get("gpus") or []
    hardware = f"{len(gpus)} x {gpus[0]}" if gpus else f"{found.get('cores', '?')} cores of {found.get('cpu', '?')}"
    packages = found.get("packages", {})
    tensorflow = packages.get("tensorflow") or packages.get("tensorflow-cpu")
    return f"{hardware}, TensorFlow {tensorflow}" if found else "machine unknown"


def write_tables(folder: Path, name: str, head: str, rows: list[dict[str, Any]]) -> None:
    """Shows the rows, and writes name.md and name.csv."""
    failed = sum(FAILED in row.values() for row in rows)
    head += f" {failed} of {len(rows)} runs failed." if failed else ""
    print(f"{head}\n\n{text_table(rounded(rows))}\n")
    write_report(folder / f"{name}.md", f"{head}\n\n{markdown_table(rounded(rows))}\n")
    write_report(folder / f"{name}.csv", csv_text(rows))


def write_published_log(path: Path, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """The log as the published script writes it: the names of the columns, then the values parted by blanks."""
    lines = [", ".join(header), *(" ".join(str(row[column]) for column in header) for row in rounded(rows))]
    write_report(path, "\n".join(lines) + "\n")


def plot(path: Path, runs: Sequence[Run], key: str, ylabel: str, title: str) -> None:
    """A figure over the batch size, a line for each model, precision and length; none where all runs failed."""
    several = len({run.processes for run in runs}) > 1
    points = [
        (
            f"{run.model}, {run.precision_used}, length {run.length}"
            + (f", {run.processes} processes" if several else ""),
            run.batch,
            run.figures[key],
        )
        for run in runs
        if run.figures
    ]
    if points:
        points_plot(path, points, "batch size (sequences)", ylabel, title)
        print(f"written: {path}")


def write_training(folder: Path, task: str) -> None:
    """All files of a training sweep."""
    runs = read_runs(folder, TRAINING_RUN)
    rows = training_rows(runs)
    name = f"{task}_training_benchmark"
    write_tables(folder, name, f"Fine-tuning throughput, {task}: {describe(folder)}.", rows)
    for model, processes in dict.fromkeys(run[:2] for run in runs):
        log = folder / f"{name}_bert_{model}_gpu_{processes}.log"
        own = [row for row in rows if (row["Model"], row["Processes"]) == (model, processes)]
        write_published_log(log, list(rows[0])[2:], own)
    title = f"Fine-tuning throughput, {task}"
    plot(folder / f"{name}.png", runs, "sequences_per_second", "sequences/s", title)


def write_inference(folder: Path, task: str) -> None:
    """All files of an inference sweep."""
    runs = read_runs(folder, INFERENCE_RUN)
    rows = inference_rows(runs)
    name = f"{task}_inference_benchmark"
    write_tables(folder, name, f"Inference, {task}, latency of a batch: {describe(folder)}.", rows)
    for model in dict.fromkeys(run.model for run in runs):
        own = [row for row in rows if row["Model"] == model]
        write_published_log(folder / f"{name}_bert_{model}.log", list(rows[0]), own)
    latency, throughput = folder / f"{name}_latency.png", folder / f"{name}_throughput.png"
    plot(latency, runs, "latency_average_ms", "mean latency (ms)", f"Inference latency of a batch, {task}")
    plot(throughput, runs, "sequences_per_second", "sequences/s", f"Inference throughput, {task}")


def write_machine(folder: Path, task: str) -> None:
    """Notes what a sweep that begins now is measured on; the task does not matter."""
    write_json(folder / MACHINE, machine.describe(["tensorflow", "tensorflow-cpu"]))


def main(argv: Sequence[str] | None = None) -> None:
    commands = {"machine": write_machine, "train": write_training, "inference": write_inference}
    parser = argparse.ArgumentParser(prog="benchmark_tables", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=commands)
    parser.add_argument("results_dir", type=Path, metavar="RESULTS_DIR")
    parser.add_argument("--task", default="squad", help="what was measured, the first part of the files' names")
    args = parser.parse_args(argv)
    commands[args.command](args.results_dir, args.task)


if __name__ == "__main__":
    run_main(main)
