import numpy as np
import pytest

from runkit.tables import csv_text, markdown_table, rounded, text_table, write_report

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


def test_csv_has_all_digits_and_quotes_what_needs_it():
    rows = [{"a": 1 / 3, "b": None}, {"a": 2, "c": 'x,"y"'}]
    assert csv_text(rows) == 'a,b,c\n0.3333333333333333,,\n2,,"x,""y"""\n'


def test_rounded():
    assert rounded([{"a": 1234.56, "b": 7, "c": "x", "d": None}]) == [{"a": 1235.0, "b": 7, "c": "x", "d": None}]
    assert rounded([{"a": 0.0012345}], digits=2) == [{"a": 0.0012}]


def test_write_report(tmp_path, capsys):
    write_report(tmp_path / "new" / "t.md", "\u00e9\n")
    assert (tmp_path / "new" / "t.md").read_text(encoding="utf-8") == "\u00e9\n"
    assert capsys.readouterr().out == f"written: {tmp_path}/new/t.md\n"


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
