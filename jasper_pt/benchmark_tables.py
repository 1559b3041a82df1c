"""The published benchmark tables, from the logs of the runs themselves.

    python -m jasper_pt.benchmark_tables train OUTPUT_DIR          perf-train_*.json -> perf-train.md, .csv, .png
    python -m jasper_pt.benchmark_tables inference OUTPUT_DIR      perf-infer_*.json -> perf-infer.md, .csv, .png

The logs are those that scripts/train_benchmark.sh and scripts/inference_benchmark.sh leave; their names say how a run
was made, their contents what was measured. Runs with and without AMP meet in one row. A cell whose run is not there
is "-", and a column of nothing else is left out.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runkit.errors import UserError, run_main
from runkit.log import read_log
from runkit.plots import points_plot
from runkit.tables import csv_text, markdown_table, rounded, text_table, write_report

Table = list[dict[str, Any]]  # rows by column; None where there is no figure

TRAIN_LOG = re.compile(
    r"perf-train_dali-(?P<dali>none|cpu|gpu)_amp-(?P<amp>true|false)"
    r"_(?:1x(?P<gpus>\d+)x(?P<batch>\d+)x(?P<accumulation>\d+)|ngpus(?P<jasper_gpus>\d+)_bs(?P<jasper_batch>\d+))\.json"
)
INFERENCE_LOG = re.compile(
    r"perf-infer_dali-(?P<dali>none|cpu|gpu)_amp-(?P<amp>true|false)_dur(?P<duration>[\d.eE+-]+)_bs(?P<batch>\d+)\.json"
)
SERIES = {"dnn": "the model", "data": "loading and features", "data+dnn": "both"}
# Column of the table: suffix of the log's key.
STATISTICS = {"50 %": "median", "90 %": "0_9", "95 %": "0_95", "99 %": "0_99", "mean": "mean"}


class Setting(NamedTuple):
    """What a run was told by its launcher, in the order of the tables' rows. batch: utterances of a forward pass."""

    dali: str
    batch: int
    accumulation: int
    processes: int


class TrainingRun(NamedTuple):
    """One run of train_benchmark.sh. throughput: utterances a second over all processes."""

    setting: Setting
    amp: bool
    throughput: float
    epochs: int  # that were measured
    parameters: dict[str, Any]  # of the log: flags, precision, machine


class InferenceRun(NamedTuple):
    """One run of inference_benchmark.sh. latencies: ms by SERIES and by STATISTICS."""

    dali: str
    duration: float  # s
    batch: int
    amp: bool
    latencies: dict[str, dict[str, float]]
    parameters: dict[str, Any]


# ------------------------------------------------------------------------------------------------------------ the logs
def read_results(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and final results (step []) of the last run in a log."""
    parameters: dict[str, Any] = {}
    results: dict[str, Any] = {}
    for record in read_log(path):
        if record.get("type") == "LOG" and record["step"] == "PARAMETER":
            parameters |= record["data"]
        elif record.get("type") == "LOG" and record["step"] == []:
            results |= record["data"]
    return parameters, results


def read_runs(folder: Path, name: re.Pattern, read: Callable[[Path, re.Match], Any]) -> list[Any]:
    """The finished runs whose logs in `folder` have this name; others are named on stderr.

    Raises UserError where there is none.
    """
    matches = [(path, match) for path in sorted(folder.glob("*.json")) if (match := name.fullmatch(path.name))]
    runs = []
    for path, match in matches:
        try:
            runs.append(read(path, match))
        except KeyError as error:
            print(f"warning: {path}: no {error.args[0]}: the run did not finish, and is left out", file=sys.stderr)
    if not runs:
        kind = name.pattern[: len("perf-train")]
        raise UserError(f"{folder}: there is no finished run among its {len(matches)} logs {kind}_*.json")
    return runs


def read_training_run(path: Path, match: re.Match) -> TrainingRun:
    """A log of train_benchmark.sh. Raises KeyError naming what an unfinished one lacks."""
    parameters, results = read_results(path)
    if match["gpus"]:
        processes, batch, accumulation = (int(match[key]) for key in ("gpus", "batch", "accumulation"))
    else:  # Jasper's name says the utterances of an update, which its passes share
        processes, accumulation = int(match["jasper_gpus"]), int(parameters["grad_accumulation"])
        batch = int(match["jasper_batch"]) // accumulation
    return TrainingRun(
        Setting(match["dali"], batch, accumulation, processes),
        match["amp"] == "true",
        float(results["train_avg_throughput"]),
        int(results["train_avg_benchmark_epochs_num"]),
        parameters,
    )


def read_inference_run(path: Path, match: re.Match) -> InferenceRun:
    """A log of inference_benchmark.sh. Raises KeyError naming what an unfinished one lacks."""
    parameters, results = read_results(path)
    latencies = {
        series: {column: float(results[f"{series}_latency_{key}"]) for column, key in STATISTICS.items()}
        for series in SERIES
    }
    return InferenceRun(
        match["dali"], float(match["duration"]), int(match["batch"]), match["amp"] == "true", latencies, parameters
    )


# ---------------------------------------------------------------------------------------------------------- the tables
def training_table(runs: Sequence[TrainingRun]) -> Table:
    """The published columns: throughput without and with AMP, speed-up, weak scaling of both.

    Weak scaling is throughput / throughput of one process with the same batch on each process (and with as many
    accumulation steps where there is such a run, else with the most).
    """
    throughput = {(run.setting, run.amp): run.throughput for run in runs}
    full, mixed = (precision_name(runs, amp) for amp in (False, True))
    rows = []
    for setting in sorted({run.setting for run in runs}):
        plain, fast = (throughput.get((setting, amp)) for amp in (False, True))
        rows.append(
            {
                "Batch size / process": setting.batch,
                "Grad accumulation": setting.accumulation,
                "Processes": setting.processes,
                "DALI": setting.dali,
                f"Throughput {full} (utts/s)": plain,
                f"Throughput {mixed} (utts/s)": fast,
                "Speed-up": ratio(fast, plain),
                f"Weak scaling {full}": ratio(plain, one_process(throughput, setting, False)),
                f"Weak scaling {mixed}": ratio(fast, one_process(throughput, setting, True)),
            }
        )
    return without_empty(rows)


def one_process(throughput: dict[tuple[Setting, bool], float], setting: Setting, amp: bool) -> float | None:
    """The throughput that weak scaling of `setting` is measured against."""
    alike = [
        other
        for other, other_amp in throughput
        if other_amp == amp and other.processes == 1 and (other.dali, other.batch) == (setting.dali, setting.batch)
    ]
    if not alike:
        return None
    best = max(alike, key=lambda other: (other.accumulation == setting.accumulation, other.accumulation))
    return throughput[best, amp]


def inference_table(runs: Sequence[InferenceRun], series: str) -> Table:
    """The published columns for one of SERIES: latencies with and without AMP in ms, and the speed-up of their means.

    Seconds of audio a second (of the padded batch) are added, from the mean.
    """
    latencies = {(run.dali, run.duration, run.batch, run.amp): run.latencies[series] for run in runs}
    rows = []
    for dali, duration, batch in sorted({(run.dali, run.duration, run.batch) for run in runs}):
        row: dict[str, Any] = {"Batch size": batch, "Duration (s)": duration, "DALI": dali}
        fast, plain = (latencies.get((dali, duration, batch, amp), {}) for amp in (True, False))
        for amp, found in ((True, fast), (False, plain)):
            name = precision_name(runs, amp)
            row |= {f"{name} {column} (ms)": found.get(column) for column in STATISTICS}
            row[f"{name} (s of audio / s)"] = ratio(1000 * batch * duration, found.get("mean"))
        row["Speed-up"] = ratio(plain.get("mean"), fast.get("mean"))
        rows.append(row)
    return without_empty(rows)


def without_empty(table: Table) -> Table:
    """The table without columns that hold no figure."""
    return [{key: value for key, value in row.items() if any(r[key] is not None for r in table)} for row in table]


def precision_name(runs: Iterable[TrainingRun | InferenceRun], amp: bool) -> str:
    """What AMP (or doing without) meant in these runs: fp16, bf16, tf32, fp32; else its name in the published table."""
    names = {run.parameters["precision"] for run in runs if run.amp == amp and run.parameters.get("precision")}
    return "/".join(sorted(names)) or ("mixed precision" if amp else "full precision")


def ratio(value: float | None, base: float | None) -> float | None:
    """value / base where both are known."""
    return None if value is None or not base else value / base


# ----------------------------------------------------------------------------------------------------------- the files
def describe(runs: Sequence[TrainingRun | InferenceRun]) -> str:
    """Model and machine of the runs, for the head of a table; several where logs of several were mixed."""

    def found(*keys: str) -> str:
        names = []
        for run in runs:
            value: Any = run.parameters
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            names += value if isinstance(value, list) else [value] if value else []
        return " and ".join(dict.fromkeys(map(str, names)))

    on_gpu = "cuda" in found("device")
    machine = found("machine", "gpus") if on_gpu else found("machine", "cpu")
    torch = found("machine", "packages", "torch")
    known = [found("config", "name"), machine, f"PyTorch {torch}" if torch else ""]
    return ", ".join(filter(None, known)) or "machine unknown"


def write_training(folder: Path) -> None:
    """perf-train.md, .csv and .png from the logs in `folder`."""
    runs = read_runs(folder, TRAIN_LOG, read_training_run)
    table = training_table(runs)
    epochs = "/".join(map(str, sorted({run.epochs for run in runs})))
    head = f"Training throughput: {describe(runs)}. Mean over the last {epochs} epochs."
    print(f"{head}\n\n{text_table(rounded(table))}\n")
    write_report(folder / "perf-train.md", f"{head}\n\n{markdown_table(rounded(table))}\n")
    write_report(folder / "perf-train.csv", csv_text(table))
    points = [
        (
            f"{run.parameters.get('precision', 'AMP' if run.amp else 'no AMP')}, batch {run.setting.batch}",
            run.setting.processes,
            run.throughput,
        )
        for run in runs
    ]
    plot = folder / "perf-train.png"
    points_plot(plot, points, "processes", "throughput (utterances/s)", "Training throughput")
    print(f"written: {plot}")


def write_inference(folder: Path) -> None:
    """perf-infer.md, .csv and .png from the logs in `folder`."""
    runs = read_runs(folder, INFERENCE_LOG, read_inference_run)
    tables = {series: inference_table(runs, series) for series in SERIES}
    head = f"Inference latency of a batch: {describe(runs)}."
    print(f"{head} Of the model:\n\n{text_table(rounded(tables['dnn']))}\n")
    sections = [
        f"## {series}: {meaning}\n\n{markdown_table(rounded(tables[series]))}\n" for series, meaning in SERIES.items()
    ]
    write_report(folder / "perf-infer.md", "\n".join([f"{head}\n", *sections]))
    rows = [{"Series": series} | row for series, table in tables.items() for row in table]
    write_report(folder / "perf-infer.csv", csv_text(rows))
    points = [
        (
            f"{run.parameters.get('precision', 'AMP' if run.amp else 'no AMP')}, {run.duration:g} s",
            run.batch,
            run.latencies["dnn"]["mean"],
        )
        for run in runs
    ]
    plot = folder / "perf-infer.png"
    points_plot(plot, points, "batch size (utterances)", "mean latency (ms)", "Inference latency of the model")
    print(f"written: {plot}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmark_tables", description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=("train", "inference"))
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR")
    args = parser.parse_args()
    {"train": write_training, "inference": write_inference}[args.kind](args.output_dir)


if __name__ == "__main__":
    run_main(main)
