"""One page about a run, or a comparison of several: a single HTML file with everything in it (plots are SVG).

    python -m runkit.report RUN... [--output FILE.html]

RUN is a folder that a launcher left; its own folders (phases, tests) become sections of the same page. Shown are the
figures of its summaries, every metric of its logs over the steps, sample predictions, the resolved configuration, the
machine, and hashes of data and checkpoints. Several runs are compared: runs whose configurations differ in the seed
only form a group with mean and standard deviation, and two groups are told apart by a permutation test. The page is
written to RUN/report.html, for several runs to report.html in the folder that holds them all.
"""

import argparse
import csv
import io
import itertools
import json
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runkit.errors import UserError, run_main
from runkit.files import atomic_open, read_json
from runkit.log import RunLog, goal, read_log
from runkit.store import MANIFEST

TEMPLATE = Path(__file__).with_name("report.html.j2")
POINTS = 600  # of a curve at most: more than the pixels of its plot would only make the file large
SAMPLES = 12
MAX_FIGURES = 80
ARRANGEMENTS = 20000  # of a permutation test: all of them where there are fewer, else a sample
# What tells one repetition from another: not part of what was tried.
REPETITION_KEYS = {
    "seed", "output_dir", "log_file", "dllog_path", "machine", "data_dir", "results_dir", "local_rank", "plan",
    "save_predictions", "save_logits",
}  # fmt: skip
# Title of a plot, and the metrics in it: the first pattern that fits a name.
PANELS = (
    ("Loss", r"loss(?!_scale)"),
    ("Error rate", r"(^|_)(wer|cer)($|_)"),
    ("Scores", r"accuracy|(^|_)(f1|exact_match|mcc|pearson|spearman|precision|recall)($|_)"),
    ("Learning rate", r"learning_rate|lrate|(^|_)lr$"),
    ("Throughput", r"throughput|per_second"),
    ("Gradient norm", r"norm$"),
    ("Time", r"took|seconds|latency"),
    ("Loss scale", r"scale"),
)
COLOURS = ("#2563eb", "#dc2626", "#059669", "#9333ea", "#d97706", "#0891b2", "#be185d", "#4b5563")


class Curve(NamedTuple):
    """A metric over the steps of a log; x counts updates (of a published [epoch, iteration]: of all epochs)."""

    name: str
    x: list[float]
    y: list[float]


class Part(NamedTuple):
    """One folder of a run that holds a log or a summary."""

    name: str  # relative to the run; "" for the run itself
    summary: dict[str, Any]
    config: dict[str, Any]
    curves: dict[str, Curve]
    units: dict[str, str]
    messages: list[str]  # warnings of the log
    samples: tuple[list[str], list[list[str]]]  # header and rows
    hashes: list[tuple[str, str, str]]  # what, its name, SHA-256
    seconds: float  # from the first line of the log to the last


class Run(NamedTuple):
    """A folder with its parts."""

    path: Path
    parts: list[Part]

    def figures(self) -> dict[str, float]:
        """Every number of the parts' summaries, as "part: key"."""
        figures = {}
        for part in self.parts:
            for key, value in _numbers(part.summary):
                figures[f"{part.name}: {key}" if part.name else key] = value
        return figures

    def config(self) -> dict[str, Any]:
        """The settings that decide what was tried, of all parts."""
        return {
            f"{part.name}: {key}" if part.name else key: value
            for part in self.parts
            for key, value in _flat(part.config)
            if key.split(".")[0] not in REPETITION_KEYS and not _is_place(value)
        }


# --------------------------------------------------------------------------------------------------- reading a run
def read_run(folder: str | os.PathLike) -> Run:
    """A run's folder. Raises UserError when it is none: no log and no summary in it or in the folders below."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name what a launcher left in results/")
    parts = []
    for path in [folder, *sorted(p for p in folder.rglob("*") if p.is_dir())]:
        logs = [file for file in sorted(path.glob("*.json")) if _is_log(file)]
        summaries = [path / name for name in ("summary.json", "summary_infer.json") if (path / name).is_file()]
        if logs or summaries:
            parts.append(_read_part(folder, path, logs, summaries))
    if not parts:
        raise UserError(f"{folder}: neither a log (JSON lines of DLLogger) nor a summary.json in it or below it")
    return Run(folder, parts)


def _is_log(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(5) == b"DLLL "


def _read_part(run: Path, folder: Path, logs: list[Path], summaries: list[Path]) -> Part:
    summary, config, curves, units, messages, seconds = {}, {}, {}, {}, [], 0.0
    for path in summaries:
        figures = read_json(path)
        if isinstance(figures, dict):
            summary |= figures
    for path in logs:
        records = read_log(path)
        units |= {r["metric"]: r["metadata"].get("unit") or "" for r in records if r.get("type") == "METADATA"}
        curves |= read_curves(records)
        times = [float(r["timestamp"]) for r in records if "timestamp" in r]
        seconds += max(times) - min(times) if times else 0.0
        for data in (r["data"] for r in records if r.get("step") == "PARAMETER"):
            if "warning" in data:
                messages.append(str(data["warning"]))
            elif "info" not in data:
                config |= data
    for path in sorted(folder.glob("*_config.json")):
        values = read_json(path)
        if path.name in ("run_config.json", "eval_config.json") and isinstance(values, dict):
            config |= values
    name = folder.relative_to(run).as_posix()
    return Part(
        "" if name == "." else name, summary, config, curves, units, messages, _samples(folder, config),
        _hashes(folder, config), seconds,
    )  # fmt: skip


def read_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """The metrics of a log that have a number at two steps or more. Later lines of a step (a resumed run) win."""
    values: dict[str, dict[float, float]] = {}
    for record in records:
        step = record.get("step")
        if record.get("type") != "LOG" or isinstance(step, str) or step in ((), []):
            continue
        x = _updates(step)
        for name, value in record["data"].items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values.setdefault(name, {})[x] = float(value)
    curves = {}
    for name, points in values.items():
        if len(points) > 1:
            x = sorted(points)
            curves[name] = Curve(name, x, [points[key] for key in x])
    return curves


def _updates(step: int | Sequence[int]) -> float:
    """Updates done. Speech logs [epoch, iteration, iterations an epoch]."""
    if isinstance(step, (int, float)):
        return step
    if len(step) == 3 and step[2]:
        return (step[0] - 1) * step[2] + step[1]
    return step[0]


def thinned(curve: Curve, points: int = POINTS) -> Curve:
    """The curve as means over `points` stretches of equal length, if it has more; not finite values are left out."""
    pairs = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    size = math.ceil(len(pairs) / points) if pairs else 1
    stretches = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    return Curve(
        curve.name,
        [statistics.fmean(x for x, _ in stretch) for stretch in stretches],
        [statistics.fmean(y for _, y in stretch) for stretch in stretches],
    )


def _samples(folder: Path, config: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Some of what the model put out: an even choice of the rows of utterances.tsv or predictions.json."""
    table = folder / "utterances.tsv"
    if table.is_file():
        rows = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8")), delimiter="\t", quoting=csv.QUOTE_NONE))
        return (rows[0], _spread(rows[1:])) if rows else ([], [])
    predictions = folder / "predictions.json"
    if predictions.is_file():
        answers = read_json(predictions)
        questions = _questions(config.get("predict_file"))
        rows = [[questions.get(key, ("", ""))[0] or key, text, questions.get(key, ("", ""))[1]]
                for key, text in answers.items()]  # fmt: skip
        return ["question", "answer", "expected"], _spread(rows)
    return [], []


def _questions(path: Any) -> dict[str, tuple[str, str]]:
    """id -> question and first right answer of a SQuAD file, as far as it is still there."""
    if not path or not Path(path).is_file():
        return {}
    found = {}
    for article in read_json(path).get("data", []):
        for paragraph in article.get("paragraphs", []):
            for qa in paragraph.get("qas", []):
                answers = [answer["text"] for answer in qa.get("answers", [])]
                found[qa["id"]] = (qa["question"], answers[0] if answers else "(none)")
    return found


def _spread(rows: list) -> list:
    step = max(1, len(rows) // SAMPLES)
    return rows[::step][:SAMPLES]


def _hashes(folder: Path, config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """SHA-256 of checkpoints and data, where a manifest says them."""
    hashes = []
    for path in sorted(folder.glob(f"*{MANIFEST}")):
        contents = read_json(path)
        for name, entry in contents.get("files", {}).items():
            hashes.append(("checkpoint", name, entry.get("sha256", "")))
    for key, value in _flat(config):
        if re.search(r"sha256$|_hash$", key) and isinstance(value, str):
            hashes.append(("data", key, value))
    return hashes


# ------------------------------------------------------------------------------------------------------- comparing
class Comparison(NamedTuple):
    """Groups of runs with one configuration each, and what sets them apart."""

    groups: list[list[Run]]
    differences: list[tuple[str, list[str]]]  # a setting and its value in each group
    rows: list[dict[str, Any]]  # a figure: name, values [(mean, deviation, n)] of each group, p, better


def compare(runs: Sequence[Run]) -> Comparison:
    """Groups runs by configuration and compares every figure that all of them have."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.config(), sort_keys=True, default=str), []).append(run)
    members = list(groups.values())
    configs = [group[0].config() for group in members]
    keys = sorted({key for config in configs for key in config})
    differences = [
        (key, [str(config.get(key, "-")) for config in configs])
        for key in keys
        if len({json.dumps(config.get(key), default=str) for config in configs}) > 1
    ]
    figures = [[run.figures() for run in group] for group in members]
    every = [figure for group in figures for figure in group]
    rows = []
    for name in every[0]:
        if not all(name in figure for figure in every):
            continue
        values = [[figure[name] for figure in group] for group in figures]
        if len({value for group in values for value in group}) == 1:
            continue
        described = [(statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else None, len(v)) for v in values]
        p = permutation_test(*values) if len(values) == 2 and min(map(len, values)) > 1 else None
        rows.append({"name": name, "groups": described, "p": p, "goal": goal(name.split(": ")[-1])})
    return Comparison(members, differences, rows)


def permutation_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of a difference of means at least as large as seen, were the labels a and b dealt out by chance
    (Fisher 1935; Pitman 1937). Exact up to ARRANGEMENTS arrangements, beyond that over an even sample of them."""
    together, seen = [*a, *b], abs(statistics.fmean(a) - statistics.fmean(b))
    total, count = sum(together), math.comb(len(together), len(a))
    stride = max(1, count // ARRANGEMENTS)
    extreme = tried = 0
    for chosen in itertools.islice(itertools.combinations(together, len(a)), 0, None, stride):
        inside = sum(chosen)
        difference = abs(inside / len(a) - (total - inside) / len(b))
        extreme += difference >= seen * (1 - 1e-12)
        tried += 1
    return extreme / tried


# ---------------------------------------------------------------------------------------------------------- drawing
def panels(curves: Mapping[str, Mapping[str, Curve]], units: Mapping[str, str]) -> list[tuple[str, str]]:
    """(title, SVG) of each plot. curves: of each run, by metric; the metrics of a panel share axes and unit."""
    chosen: dict[tuple[str, str], list[tuple[str, Curve]]] = {}
    for label, metrics in curves.items():
        for name, curve in metrics.items():
            title = next((title for title, pattern in PANELS if re.search(pattern, name)), name)
            chosen.setdefault((title, units.get(name, "")), []).append((f"{label} {name}".strip(), curve))
    order = [title for title, _ in PANELS]
    keys = sorted(chosen, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key))
    return [(title, svg_plot(chosen[title, unit], unit)) for title, unit in keys]


def svg_plot(series: Sequence[tuple[str, Curve]], unit: str) -> str:
    """The curves as an <svg> element that takes the width it is given."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text, and names within the file do not change from call to call.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(5.2, 3.1), layout="constrained")
        axes = figure.add_subplot()
        for (name, curve), colour in zip(series, itertools.cycle(COLOURS)):
            curve = thinned(curve)
            axes.plot(
                curve.x, curve.y, label=name, color=colour, linewidth=1.5, marker="o" if len(curve.x) < 15 else None,
                markersize=3.5,
            )  # fmt: skip
        axes.set_xlabel("updates")
        axes.set_ylabel(unit)
        axes.grid(color="0.9", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
        axes.legend(frameon=False, fontsize=8)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = stream.getvalue()
    element = svg[svg.index("<svg") :]
    tag, rest = element.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", tag) + ">" + rest  # its viewBox stays


def render(runs: Sequence[Run]) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"figure": figure_text, "value": _value_text, "duration": _duration_text}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    labels = _labels(runs)
    comparison = compare(runs) if len(runs) > 1 else None
    return template.render(
        title=labels[0] if len(runs) == 1 else f"{len(runs)} runs",
        name_of=lambda run: labels[next(i for i, other in enumerate(runs) if other is run)],
        runs=[
            (run, [(part, [] if comparison else panels({"": part.curves}, part.units)) for part in run.parts])
            for run in runs
        ],
        comparison=comparison,
        together=_overlaid(runs, labels) if comparison else [],
        numbers=lambda part: _numbers(part.summary)[:MAX_FIGURES],
        settings=lambda part: [(key, value) for key, value in _flat(part.config) if not key.startswith("machine.")],
        environment=lambda part: _flat(part.config.get("machine") or {}),
    )


def _overlaid(runs: Sequence[Run], labels: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The plots of each part (its name and panels) with the curves of all runs."""
    parts: dict[str, list[tuple[str, Part]]] = {}
    for run, label in zip(runs, labels, strict=True):
        for part in run.parts:
            parts.setdefault(part.name, []).append((label, part))
    overlaid = []
    for name, members in sorted(parts.items()):
        units = {metric: unit for _, part in members for metric, unit in part.units.items()}
        overlaid.append((name, panels({label: part.curves for label, part in members}, units)))
    return overlaid


def _labels(runs: Sequence[Run]) -> list[str]:
    """Names of the runs: their folders below what they have in common."""
    paths = [run.path.resolve() for run in runs]
    if len(paths) == 1:
        return [paths[0].name]
    base = Path(os.path.commonpath(paths))
    return [path.relative_to(base).as_posix() if path != base else path.name for path in paths]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings as "a.b" keys."""
    result = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            result += _flat(value, f"{prefix}{key}.")
        else:
            result.append((f"{prefix}{key}", value))
    return result


def _numbers(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(key, value) for key, value in _flat(summary)
            if isinstance(value, (int, float)) and not isinstance(value, bool)]  # fmt: skip


def _is_place(value: Any) -> bool:
    """Whether a setting only says where a file is: copies of the same data lie in different places."""
    return isinstance(value, str) and value.startswith("/")


def figure_text(value: float) -> str:
    """Four significant digits; whole numbers whole."""
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _duration_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


# -------------------------------------------------------------------------------------------------------------- main
def write_report(runs: Sequence[str | os.PathLike], output: str | os.PathLike | None = None) -> Path:
    """Writes the page of one or more runs, atomically, and returns where it is. Raises UserError for what is no run."""
    read = [read_run(path) for path in runs]
    if output is None:
        together = read[0].path if len(read) == 1 else Path(os.path.commonpath([run.path.resolve() for run in read]))
        output = together / "report.html"
    page = render(read)
    with atomic_open(output, "w") as stream:
        stream.write(page)
    return Path(output)


def try_report(run: str | os.PathLike, log: RunLog) -> None:
    """write_report for the end of a run, which no fault in the report may fail: it becomes a warning."""
    try:
        log.info(f"report: {write_report([run])}")
    except Exception as error:  # whatever it is, the run itself is done and saved
        log.warning(f"no report: {error}; 'bash scripts/report.sh {run}' shows it again")


def main() -> None:
    parser = argparse.ArgumentParser(prog="report", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders that launchers left, such as results/*")
    parser.add_argument("--output", metavar="FILE", help="default: report.html in the run's folder, or above the runs")
    options = parser.parse_args()
    print(f"written: {write_report(options.runs, options.output)}")


if __name__ == "__main__":
    run_main(main)
