"""Tables for the console, for Markdown and as CSV."""

import csv
import io
import numbers
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from runkit.files import atomic_open

Rows = Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]


def text_table(rows: Rows, headers: Sequence[str] | None = None) -> str:
    """Columns aligned with blanks under their headers, numbers to the right.

    rows are dicts (headers: the keys to show, all by default; a missing one is shown as "-") or lists
    (headers are required). Raises ValueError when a list row has not as many cells as there are headers.
    """
    headers, cells, right = _cells(rows, headers)
    widths = [max(map(_width, column)) for column in zip(headers, *cells, strict=True)]
    lines = [headers, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(_pad(cell, width, r) for cell, width, r in zip(line, widths, right, strict=True)).rstrip()
        for line in lines
    )


def markdown_table(rows: Rows, headers: Sequence[str] | None = None) -> str:
    """The same table in GitHub's Markdown."""
    headers, cells, right = _cells(rows, headers)
    rule = ["---:" if r else "---" for r in right]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (headers, *cells)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (escaped[0], rule, *escaped[1:]))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same as CSV with all digits, the keys in the first line; a missing value is empty."""
    headers = list(dict.fromkeys(key for row in rows for key in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, headers, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def rounded(rows: Sequence[Mapping[str, Any]], digits: int = 4) -> list[dict[str, Any]]:
    """Figures as they are read: so many significant digits."""
    return [
        {key: float(f"{value:.{digits}g}") if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    ]


def write_report(path: str | os.PathLike, text: str) -> None:
    """Writes a table's file atomically, and says so on the console."""
    with atomic_open(path, "w") as stream:
        stream.write(text)
    print(f"written: {os.fspath(path)}")


def _cells(rows: Rows, headers: Sequence[str] | None) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headers, cells as text, and for each column whether it holds numbers only."""
    if headers is None:
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError("rows that are lists need headers")
        headers = list(dict.fromkeys(key for row in rows for key in row))
    values = [[row.get(key) for key in headers] if isinstance(row, Mapping) else list(row) for row in rows]
    for line in values:
        if len(line) != len(headers):
            raise ValueError(f"{len(line)} cells for {len(headers)} headers: {line}")
    columns = list(zip(*values, strict=True)) if values else [()] * len(headers)
    right = [all(value is None or isinstance(value, numbers.Real) for value in column) for column in columns]
    return list(headers), [[_text(value) for value in line] for line in values], right


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return f"{value:.6g}"
    return str(value)


def _width(text: str) -> int:
    """Columns on a terminal: East Asian wide letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _pad(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks
