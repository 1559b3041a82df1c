import re
import sys

import pytest

from data import text
from runkit.errors import UserError
from runkit.files import read_json


def formatted(path, tmp_path, **options):
    """Documents of the formatted file, whose shape is checked on the way."""
    output = text.format_text(path, "x", tmp_path / "out", **options)
    assert output.name == "x_one_article_per_line.txt"
    lines = output.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == "" and not any(lines[1::2]) and all(lines[::2])
    return lines[::2]


def write(tmp_path, content, name="a.txt"):
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TWO_BLOCKS = "One here.\nTwo here.\n\n\nThree here.\nFour here.\n"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("file", ["One here. Two here. Three here. Four here."]),
        ("line", ["One here.", "Two here.", "Three here.", "Four here."]),
        ("blank_line", ["One here. Two here.", "Three here. Four here."]),
        ("book", ["One here. Two here. Three here. Four here."]),
        ("auto", ["One here. Two here.", "Three here. Four here."]),
    ],
)
def test_documents_by_kind(tmp_path, document, expected):
    assert formatted(write(tmp_path, TWO_BLOCKS), tmp_path, document=document) == expected


def test_auto_sees_articles_sentences_and_books(tmp_path):
    article = "A sentence of an article. " * 30
    wrapped = "A paragraph that was wrapped at\nsome column by an editor, as\nmost old texts were.\n\n"
    assert text.detect([article, article]) == "line"
    assert text.detect([article, "", article]) == "line"
    assert text.detect(TWO_BLOCKS.splitlines()) == "blank_line"
    assert text.detect((wrapped * 5).splitlines()) == "book"
    assert text.detect(["Paragraph one is on a line.", "", "Paragraph two too.", "", "And three."]) == "book"
    assert text.detect(["", ""]) == "book"


def test_formatting_again_changes_nothing(tmp_path):
    article = "A sentence of an article. " * 30
    first = text.format_text(write(tmp_path, f"{article}\n\n{article}\n"), "x", tmp_path / "one")
    again = text.format_text(first, "x", tmp_path / "two")
    assert again.read_bytes() == first.read_bytes()


BOOK = """\
The Project Gutenberg EBook of Nothing

*** START OF THIS PROJECT GUTENBERG EBOOK NOTHING ***

Produced by nobody
and friends

NOTHING

By No One

CONTENTS

Chapter 1

It _was_ nothing, or
nearly so.

* * *

It was _all
of_ it.

CHAPTER II. A snake_case name

It ended here.

End of the Project Gutenberg EBook of Nothing

*** END OF THIS PROJECT GUTENBERG EBOOK NOTHING ***

Section 1.  General Terms of Use. It is a licence.
"""


def test_a_gutenberg_book_becomes_its_chapters(tmp_path):
    expected = ["It was nothing, or nearly so. It was all of it.", "It ended here."]
    assert formatted(write(tmp_path, BOOK), tmp_path) == expected


@pytest.mark.parametrize(
    "line",
    ["Chapter 1", "CHAPTER XLII", "Chapter 4. Of the whale", "BOOK THE FIRST", "Part 2: The sea", "IV.", "12",
     "# Title", "## A part", "Epilogue", "PREFACE."],
)  # fmt: skip
def test_headings(line):
    assert text.HEADING.fullmatch(line)


@pytest.mark.parametrize(
    "line",
    [
        "Part of him was sorry.",
        "“I.”",
        "Acting on this, he left.",
        "Books are fine",
        "#tag",
        "He came.",
        "1984 was it",
    ],
)
def test_sentences_are_no_headings(line):
    assert not text.HEADING.fullmatch(line)


def test_long_text_without_headings_is_cut_between_paragraphs(tmp_path):
    paragraphs = [f"This is paragraph {i} of a book\nwithout any chapters in it." for i in range(40)]
    documents = formatted(write(tmp_path, "\n\n".join(paragraphs)), tmp_path, max_document_characters=300)
    assert len(documents) > 5
    assert all(300 <= len(document) < 300 + 60 for document in documents[:-1])
    assert " ".join(documents) == " ".join(" ".join(paragraphs).split())


def test_one_endless_paragraph_is_cut_too(tmp_path):
    lines = [f"Line {i} goes on." for i in range(100)]
    documents = formatted(write(tmp_path, "\n".join(lines)), tmp_path, max_document_characters=300)
    assert len(documents) > 4 and " ".join(documents) == " ".join(lines)


def test_bom_crlf_and_odd_spaces_go(tmp_path):
    content = b"\xef\xbb\xbfOne\xc2\xa0a.\r\nTwo\x0cb.\r\n\r\nThree\xe2\x80\xa8c.\tFour\xc2\x85d.\r\n"
    documents = formatted(write(tmp_path, content), tmp_path, document="blank_line")
    assert documents == ["One a. Two b.", "Three c. Four d."]


def test_bad_utf8_names_file_and_byte(tmp_path):
    path = write(tmp_path, b"good line\nbad \xe9 line\n")
    with pytest.raises(UserError, match=re.escape(str(path)) + r".*byte 14\b"):
        formatted(path, tmp_path)
    assert not list((tmp_path / "out").glob("*.txt"))


def test_other_encodings(tmp_path):
    path = write(tmp_path, "Größe zählt.\r\n".encode("cp1252"))
    assert formatted(path, tmp_path, encoding="cp1252") == ["Größe zählt."]
    with pytest.raises(UserError, match=r"not ascii before byte"):
        formatted(path, tmp_path, encoding="ascii")


def test_a_folder_is_read_in_order_with_its_subfolders(tmp_path, capsys):
    for name in ("b.txt", "a/z.TXT", "a/y.md", ".git/x.txt", "c.pdf", "README"):
        write(tmp_path, f"This is {name.split('/')[-1][0]}.", name)
    assert formatted(tmp_path / "in", tmp_path) == ["This is R.", "This is y.", "This is z.", "This is b."]
    assert "left out 1 x .pdf" in capsys.readouterr().out
    record = read_json(tmp_path / "out" / "x_one_article_per_line.manifest.json")
    assert [entry["name"] for entry in record["inputs"]] == ["README", "a/y.md", "a/z.TXT", "b.txt"]


def test_unreadable_kinds_and_empty_sources_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"files of kind \.docx"):
        formatted(write(tmp_path, "{}", "a.docx"), tmp_path)
    with pytest.raises(UserError, match="no plain text in this folder"):
        formatted(tmp_path / "in", tmp_path)
    with pytest.raises(UserError, match="no such file"):
        formatted(tmp_path / "nowhere", tmp_path)
    with pytest.raises(UserError, match="nothing to train on"):
        formatted(write(tmp_path, "\n \n"), tmp_path)
    assert not list((tmp_path / "out").glob("*"))


def test_done_once_and_again_when_something_changed(tmp_path, capsys):
    path = write(tmp_path, "One here.")
    formatted(path, tmp_path)
    capsys.readouterr()
    formatted(path, tmp_path)
    assert "up to date" in capsys.readouterr().out
    path.write_text("Two here.", encoding="utf-8")  # of the same size
    assert formatted(path, tmp_path) == ["Two here."]
    assert formatted(path, tmp_path, document="line") == ["Two here."]
    assert "up to date" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "documents", "first"),
    [
        ("bert_sample_text.txt", 3, "This text is included"),
        ("lee_background.cor", 300, "Hundreds of people"),
        ("pride_and_prejudice_1342-0.txt", 61, "It is a truth universally acknowledged"),
    ],
)
def test_real_corpora(shared, tmp_path, name, documents, first):
    found = formatted(shared / "data" / "text_corpora" / name, tmp_path, max_document_characters=40_000)
    assert len(found) == documents
    assert found[0].startswith(first)
    assert not any("Gutenberg-tm" in document or "\ufeff" in document for document in found)


def test_json_lines(tmp_path):
    records = '{"text": "One here.\\n\\nTwo here.", "id": 1}\n\n"Three here."\n{"text": " "}\n'
    assert formatted(write(tmp_path, records, "a.jsonl"), tmp_path) == ["One here. Two here.", "Three here."]
    for bad, message in (('{"text": 1}\n', "a.jsonl:1: neither text"), ('"x"\n{\n', "a.jsonl:2: not valid JSON")):
        with pytest.raises(UserError, match=message):
            formatted(write(tmp_path, bad, "a.jsonl"), tmp_path)


def test_parquet_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"a\.parquet: Parquet needs pyarrow: .*setup.sh data.*\.jsonl"):
        formatted(write(tmp_path, b"PAR1", "a.parquet"), tmp_path)


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: bash scripts/setup.sh data")


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet(tmp_path, parquet, compression, kind):
    import pyarrow

    texts = pyarrow.array(["One\nhere.", None, "", "Zw\u00f6lf \U0001f600."] + [f"Row {i}." for i in range(3000)])
    column = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    table = pyarrow.table({"id": list(range(len(texts))), "text": column})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, compression=compression, row_group_size=700)
    expected = ["One here.", "Zw\u00f6lf \U0001f600.", *(f"Row {i}." for i in range(3000))]
    assert formatted(path, tmp_path) == expected


def test_what_is_wrong_with_parquet_is_named(tmp_path, parquet):
    import pyarrow

    path = write(tmp_path, b"PAR1 no", "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: cannot be read as Parquet"):
        formatted(path, tmp_path)
    parquet.write_table(pyarrow.table({"body": ["x"]}), path)
    with pytest.raises(UserError, match='no column "text"; it has body'):
        formatted(path, tmp_path)
    parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    with pytest.raises(UserError, match='column "text" holds int, not text'):
        formatted(path, tmp_path)
    parquet.write_table(pyarrow.table({"text": [f"Row {i}." for i in range(3000)]}), path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:1000] + bytes(1000) + whole[2000:]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="cannot be read as Parquet"):
            formatted(path, tmp_path)
