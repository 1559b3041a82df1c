import struct

import pytest

from runkit.plots import line_plot, points_plot


def size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:])


@pytest.mark.parametrize(
    "series",
    [
        {"train": ([1, 2, 3], [3.0, float("nan"), 1.0]), "eval": ([2], [2.5])},
        {"train": (list(range(1000)), list(range(1000)))},
        {"nothing yet": ([], [])},
        {},
    ],
)
def test_png(tmp_path, series):
    line_plot(tmp_path / "new" / "loss.png", series, "update", "loss (nat)", "Phase 1")
    assert size(tmp_path / "new" / "loss.png") == (1280, 800)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["loss.png"]


def test_lengths_must_agree(tmp_path):
    with pytest.raises(ValueError, match="same first dimension"):
        line_plot(tmp_path / "loss.png", {"a": ([1, 2], [1])}, "x", "y", "t")
    assert list(tmp_path.iterdir()) == []


def test_points_make_lines_by_x(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("runkit.plots.line_plot", lambda path, lines, *labels: drawn.update(lines))
    points_plot(tmp_path / "x.png", [("a", 4, 40.0), ("b", 1, 1.0), ("a", 2, 20.0)], "x", "y", "t")
    assert drawn == {"a": ((2, 4), (20.0, 40.0)), "b": ((1,), (1.0,))}
