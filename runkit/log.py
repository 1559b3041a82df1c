"""The run's log: DLLogger's JSON lines in a file, readable lines on the console.

The file has the format of NVIDIA DLLogger's JSONStreamBackend (https://github.com/NVIDIA/dllogger), so
parsers of those logs keep working:

    DLLL {"timestamp": "<unix s>", "datetime": "...", "elapsedtime": "<s>", "type": "LOG",
          "step": 5, "data": {"loss": 9.5}}
    DLLL {"timestamp": "<unix s>", "elapsedtime": "<s>", "datetime": "...", "type": "METADATA",
          "metric": "loss", "metadata": {"unit": "nat", "GOAL": "MINIMIZE"}}

Parameters and messages are LOG lines with the step "PARAMETER"; the final results have the step [].
"""

import datetime
import json
import numbers
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runkit.errors import UserError
from runkit.files import json_default, make_directory, naming_write_errors, parse_json
from runkit.progress import print_line

Step = int | str | Sequence[int]

_PREFIX = "DLLL "
_MAXIMIZE = {"accuracy", "acc", "f1", "precision", "recall", "mcc", "match", "pearson", "spearman", "throughput"}
_MINIMIZE = {"loss", "perplexity", "wer", "cer", "latency"}
_NEITHER = {"scale", "scaler"}  # loss_scale is a setting, not a loss


def goal(metric: str) -> str | None:
    """MAXIMIZE or MINIMIZE by the words in a metric's name (loss, f1, accuracy, ...), else None."""
    words = set(metric.lower().split("_"))
    if words & _NEITHER:
        return None
    if words & _MINIMIZE:
        return "MINIMIZE"
    return "MAXIMIZE" if words & _MAXIMIZE or metric.lower().endswith("_per_second") else None


class RunLog:
    """Writes one run's log. Every line is on its way to the disk before the call returns.

    json_path None logs to the console only. Ranks other than 0 write nothing at all. append=True continues
    the file of an interrupted run, behind a line end if that run died in mid-line; append=False starts a new
    file and moves an older one to `<json_path>.<n>`: no log is ever overwritten. Raises UserError when the
    file cannot be written.
    """

    def __init__(self, json_path: str | os.PathLike | None, rank: int = 0, append: bool = False):
        self._start = datetime.datetime.now()
        self._metadata: dict[str, dict[str, Any]] = {}
        self._rank = rank
        self.path = json_path
        self._file = None
        if json_path is not None and rank == 0:
            self._file = _open(Path(json_path), append)

    def metadata(self, metric: str, **fields: Any) -> None:
        """Declares a metric: unit="nat", format=":.4f", STAGE="TRAIN", ...; GOAL is added by its name.

        Raises ValueError for a GOAL that contradicts the name, such as an f1 to be minimized.
        """
        known = goal(metric)
        if known is not None and fields.setdefault("GOAL", known) != known:
            raise ValueError(f"{metric}: GOAL is {known}, not {fields['GOAL']}")
        self._metadata.setdefault(metric, {}).update(fields)
        timestamp, elapsed = self._now()
        self._write(
            {
                "timestamp": str(timestamp.timestamp()),
                "elapsedtime": elapsed,
                "datetime": str(timestamp),
                "type": "METADATA",
                "metric": metric,
                "metadata": fields,
            }
        )

    def parameters(self, parameters: Mapping[str, Any]) -> None:
        """Records settings of the run, one line for all; not shown on the console."""
        self.log("PARAMETER", parameters, echo=False)

    def log(self, step: Step, data: Mapping[str, Any], echo: bool = True) -> None:
        """Logs values at a step: the number of updates done, (epoch, iteration), or () for final results."""
        timestamp, elapsed = self._now()
        self._write(
            {
                "timestamp": str(timestamp.timestamp()),
                "datetime": str(timestamp),
                "elapsedtime": elapsed,
                "type": "LOG",
                "step": step,
                "data": dict(data),
            }
        )
        if echo:
            values = "  ".join(self._value_text(metric, value) for metric, value in data.items())
            self._print(_step_text(step) + values)

    def info(self, message: str) -> None:
        """A message for the reader: on the console, and in the file as a parameter named "info"."""
        self.log("PARAMETER", {"info": message}, echo=False)
        self._print(message)

    def warning(self, message: str) -> None:
        """A message to act on: on the console, and in the file as a parameter named "warning"."""
        self.log("PARAMETER", {"warning": message}, echo=False)
        self._print(f"warning: {message}")

    def console(self, message: str) -> None:
        """A line for the reader alone, whose figures are in the file already."""
        self._print(message)

    def close(self) -> None:
        """Closes the file; later calls reach only the console."""
        if self._file is not None:
            with naming_write_errors(self.path):
                self._file.close()
            self._file = None

    def _now(self) -> tuple[datetime.datetime, str]:
        timestamp = datetime.datetime.now()
        return timestamp, str((timestamp - self._start).total_seconds())

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            with naming_write_errors(self.path):
                self._file.write(f"{_PREFIX}{json.dumps(record, default=json_default)}\n".encode())
                self._file.flush()

    def _print(self, text: str) -> None:
        if self._rank == 0:
            print_line(text)

    def _value_text(self, metric: str, value: Any) -> str:
        metadata = self._metadata.get(metric, {})
        if metadata.get("format") and value is not None:
            value = f"{{{metadata['format']}}}".format(value)
        elif isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
            value = f"{value:.6g}"
        return f"{metric} : {value} {metadata.get('unit') or ''}".rstrip()


def read_log(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads a log back, one dict a line (see the top of this module); lines without "DLLL " are skipped.

    A run that was killed may leave half a line at the end, or before the lines of the run that continued it:
    such a line is left out, with a warning that names it. Raises UserError when the file cannot be read.
    """
    records = []
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(_PREFIX):
            try:
                records.append(parse_json(line.removeprefix(_PREFIX)))
            except json.JSONDecodeError:
                warnings.warn(f"{path}:{number}: torn line left out", stacklevel=2)
    return records


def _open(path: Path, append: bool):
    """Opens the file for appending whole lines."""
    make_directory(path.parent)
    if path.is_dir():
        raise UserError(f"the log {path} is a folder: name a file")
    try:
        if not append and path.exists() and path.stat().st_size:
            path.rename(path.with_name(f"{path.name}.{_first_free_number(path)}"))
        stream = open(path, "a+b")  # noqa: SIM115 (closed by RunLog.close)
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        return stream
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}") from error


def _first_free_number(path: Path) -> int:
    matches = [re.fullmatch(rf"{re.escape(path.name)}\.(\d+)", other.name) for other in path.parent.iterdir()]
    return 1 + max((int(match[1]) for match in matches if match), default=0)


def _step_text(step: Step) -> str:
    """The step as DLLogger's BERT recipes print it."""
    if isinstance(step, str):
        return f"{step} "
    counts = [step] if isinstance(step, numbers.Integral) else list(step)
    names = ["Epoch", "Iteration", "Validation Iteration"] if len(counts) > 1 else ["Iteration"]
    return "".join(f"{name}: {count}  " for name, count in zip(names, counts, strict=False))
