"""Plots as PNG files."""

import os
from collections.abc import Iterable, Mapping, Sequence

from runkit.files import atomic_open


def line_plot(
    path: str | os.PathLike,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    title: str,
) -> None:
    """Draws each series (name: x values, y values) as a line, 1280 x 800 pixels, written atomically.

    NaN leaves a gap. A legend names the series when there are several. Raises ValueError when x and y differ
    in length.
    """
    from matplotlib.figure import Figure  # no pyplot: no display, no global state

    figure = Figure(figsize=(8, 5), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    for name, (x, y) in series.items():
        few = len(x) <= 30
        axes.plot(x, y, label=name, linewidth=1.6, marker="o" if few else None, markersize=4)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
    if len(series) > 1:
        axes.legend(frameon=False)
    with atomic_open(path) as stream:
        figure.savefig(stream, format="png")


def points_plot(
    path: str | os.PathLike, points: Iterable[tuple[str, float, float]], xlabel: str, ylabel: str, title: str
) -> None:
    """line_plot of (series, x, y) in any order."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in points:
        series.setdefault(name, []).append((x, y))
    lines = {name: tuple(zip(*sorted(pairs), strict=True)) for name, pairs in series.items()}
    line_plot(path, lines, xlabel, ylabel, title)
