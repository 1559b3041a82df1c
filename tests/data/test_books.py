import tarfile
import zipfile

import pytest

from data.books import format_books
from runkit.errors import UserError


def books(path, tmp_path):
    output = tmp_path / "out" / "bookscorpus_one_book_per_line.txt"
    record = format_books(path, output)
    lines = output.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == "" and not any(lines[1::2])
    return lines[::2], record


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "books"
    (path / "b").mkdir(parents=True)
    (path / "a.txt").write_bytes(b"\xef\xbb\xbfChapter 1\r\n\r\n  It began.\r\n\r\nIt\tended.\r\n")
    (path / "b" / "c.txt").write_text("Café.\n\n\n")
    (path / "latin.txt").write_bytes(b"Caf\xe9.\n")
    (path / "empty.txt").write_text("\n \n")
    return path


EXPECTED = ["Chapter 1 It began. It ended.", "Café."]


def test_folder(folder, tmp_path, capsys):
    found, record = books(folder, tmp_path)
    assert found == EXPECTED
    assert record["counts"] == {"books": 2, "left_out": 2}
    assert record["left_out"][0] == "empty.txt: no text" and "latin.txt:1: not UTF-8 at byte 3" in record["left_out"][1]
    assert books(folder, tmp_path) == (EXPECTED, None)
    assert "up to date" in capsys.readouterr().out


def test_archives(folder, tmp_path):
    with tarfile.open(tmp_path / "books.tar.gz", "w:gz") as archive:
        archive.add(folder, "books")
    with zipfile.ZipFile(tmp_path / "books.zip", "w") as archive:
        for file in sorted(folder.rglob("*.txt")):
            archive.write(file, file.relative_to(folder))
    for name in ("books.tar.gz", "books.zip"):
        assert books(tmp_path / name, tmp_path)[0] == EXPECTED
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "bookscorpus_one_book_per_line.manifest.json",
            "bookscorpus_one_book_per_line.txt",
        ]


def test_hostile_archive_and_nothing(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("../a.txt", "Text.")
    with pytest.raises(UserError, match="outside of its folder"):
        books(tmp_path / "x.zip", tmp_path)
    with pytest.raises(UserError, match="missing"):
        books(tmp_path / "missing", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("\n")
    with pytest.raises(UserError, match="no book with text"):
        books(tmp_path / "empty", tmp_path)
