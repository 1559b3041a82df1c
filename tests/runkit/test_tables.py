import numpy as np
import pytest

from runkit.tables import markdown_table, text_table

ROWS = [
    {"phase": "phase 1", "steps": 7038, "loss": np.float32(1.5)},
    {"phase": "2", "steps": 1564, "loss": None, "note": "a|b"},
]


def test_text_table():
    assert text_table(ROWS).splitlines() == [
        "phase    steps  loss  note",
        "-------  -----  ----  ----",
        "phase 1   7038   1.5  -",
        "2         1564     -  a|b",
    ]


def test_markdown_table():
    assert markdown_table(ROWS, ["phase", "loss", "note"]).splitlines() == [
        "| phase | loss | note |",
        "| --- | ---: | --- |",
        "| phase 1 | 1.5 | - |",
        "| 2 | - | a\\|b |",
    ]


def test_lists_need_headers_and_as_many_cells():
    assert text_table([[1, "x"]], ["n", "name"]).splitlines() == ["n  name", "-  ----", "1  x"]
    with pytest.raises(ValueError, match="need headers"):
        text_table([[1]])
    with pytest.raises(ValueError, match="1 cells for 2 headers"):
        text_table([[1]], ["a", "b"])


def test_no_rows():
    assert text_table([], ["a", "bc"]) == "a  bc\n-  --"
    assert text_table([]) == "\n"


def test_wide_letters_take_two_columns():
    assert text_table([["中文", 1], ["ab", 2]], ["w", "n"]).splitlines()[2:] == ["中文  1", "ab    2"]
