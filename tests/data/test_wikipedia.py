import bz2
import json
import re

import pytest

from benchmarks import make_wiki_dump
from benchmarks.make_wiki_dump import FOOTER, HEADER, page_xml, write_dump
from data import wikipedia
from runkit.errors import UserError
from runkit.files import read_json

CASES = ("W01", "W02", "W04", "W06")


def extract(dumps, tmp_path, **options):
    """(documents, manifest) of dumps, the shape of the file checked on the way."""
    output = tmp_path / "out" / "x_one_article_per_line.txt"
    dumps = dumps if isinstance(dumps, list) else [dumps]
    record = wikipedia.format_dumps(dumps, output, **options)
    lines = output.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == "" and not any(lines[1::2]) and all(lines[::2])
    return lines[::2], record


def dump(tmp_path, *pages, name="dump.xml"):
    path = tmp_path / name
    path.write_text(HEADER + "".join(pages) + FOOTER, encoding="utf-8")
    return path


def page(title, text="Some prose is here.", number=1):
    return page_xml(title, number, text)


# --------------------------------------------------------------------------------------------------- the cases


@pytest.mark.parametrize("case", CASES)
def test_cases_from_the_field(shared, tmp_path, case):
    folder = shared / "cases" / case
    expected = json.loads((folder / "expected.json").read_text())
    found, _ = extract(folder / "dump.xml", tmp_path)
    text = "\n".join(found)
    wanted = expected.get("documents", 1)
    assert len(found) == (wanted if isinstance(wanted, int) else len(wanted))
    for document in [expected, *(wanted if isinstance(wanted, list) else [])]:
        assert all(part in text for part in document.get("contains", []))
    assert not [part for part in expected.get("must_not_contain", []) if part in text]


RESIDUE = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?ref|</|&[a-z]+;|''|\|\||==|\(\)|\( | \)|\x00|\|thumb|__")


@pytest.mark.parametrize(
    ("name", "articles", "pages"),
    [
        ("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2", 98, 206),
        ("enwiki-excerpt.xml", 7, 69),
        ("enwiki-table-markup.xml.bz2", 5, 5),
    ],
)
def test_real_dumps_become_clean_text(shared, tmp_path, name, articles, pages):
    """The counts are those of the XML: pages of namespace 0 without <redirect/> and {{disambiguation}}."""
    found, record = extract(shared / "data" / "wiki_dumps" / name, tmp_path)
    assert len(found) == articles == record["counts"]["articles"]
    assert record["counts"]["pages"] == pages and not record["broken_pages"]
    assert not [match[0] for document in found for match in RESIDUE.finditer(document)]


# -------------------------------------------------------------------------------------------------- pages


def test_which_pages_become_documents(tmp_path):
    pages = [
        page("Good", "Fish &amp; chips &nbsp;a < b &lt;i&gt;"),
        page("Redirect", "#redirect [[Good]]"),
        page("Element", "x").replace("<revision>", '<redirect title="Good" />\n<revision>'),
        page("Talk:Good").replace("<ns>0</ns>", "<ns>1</ns>"),
        page("Many", "{{disambig}}"),
        page("Hollow").replace('<text xml:space="preserve">Some prose is here.</text>', '<text bytes="0" />'),
        page("Blank", "{{infobox}}"),
        page("Short", "Hi."),
        page("Last"),
    ]
    found, record = extract(dump(tmp_path, *pages), tmp_path, min_characters=4)
    assert found == ["Fish & chips a < b <i>", "Some prose is here."]
    assert record["counts"] == {
        "pages": 9, "articles": 2, "redirects": 2, "other_namespaces": 1, "disambiguation": 1, "empty": 2, "short": 1,
        "broken": 0,
    }  # fmt: skip


def test_a_document_is_one_line(tmp_path):
    found, _ = extract(dump(tmp_path, page("A", "One.\n\nTwo\u2028three\x85four\u00a0five\tsix.")), tmp_path)
    assert found == ["One. Two three four five six."]


def test_broken_pages_cost_themselves(tmp_path, capsys):
    good = page("Good")
    pages = [
        good,
        page("Cut").split("</revision>")[0],
        good,
        page("Unclosed").replace("</text>", ""),
        page("Inside").replace("prose", "<b>prose</b>"),
        page("Nameless").replace("<title>Nameless</title>", ""),
        page("Spaceless").replace("<ns>0</ns>", ""),
        page("Control").replace("prose", "&#1;"),
        good,
    ]
    path = dump(tmp_path, *pages)
    path.write_bytes(path.read_bytes().replace(b"Good", b"Go\xffd", 1).replace(b"Some", b"S\xffme", 1))
    found, record = extract(path, tmp_path)
    assert len(found) == 2
    assert record["counts"]["broken"] == 7 == len(record["broken_pages"])
    text = "\n".join(record["broken_pages"])
    for reason in (
        "Cut: has no </page>", "Unclosed: has no </text>", "Inside: has XML elements", "dump.xml: has no <title>",
        "Spaceless: has no <ns>", "Control: has &#1;", "is not UTF-8 at byte 1",
    ):  # fmt: skip
        assert reason in text
    assert "broken page: Cut" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ files


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks from little text; in worker processes nothing changes by it."""
    monkeypatch.setattr(wikipedia, "BLOCK_BYTES", 5000)
    monkeypatch.setattr(wikipedia, "READ_BYTES", 1000)
    monkeypatch.setattr(wikipedia, "STREAMS_BYTES", 10_000)
    monkeypatch.setattr(make_wiki_dump, "PAGES_PER_STREAM", 3)


def compressed(path, *parts):
    """A .bz2 of these parts of a file's bytes, one stream each."""
    target = path.with_suffix(".xml.bz2")
    target.write_bytes(b"".join(map(bz2.compress, parts or [path.read_bytes()])))
    return target


def test_all_kinds_of_files_give_the_same(tmp_path, small_blocks):
    paths = [tmp_path / name for name in ("a.xml", "b.xml.bz2", "c.xml.bz2")]
    for path in paths:
        write_dump(path, 300_000, multistream=path.name.startswith("c"))
    data = paths[0].read_bytes()
    assert bz2.decompress(paths[1].read_bytes()) == data == bz2.decompress(paths[2].read_bytes())
    expected, record = extract(paths[0], tmp_path)
    assert len(expected) == record["counts"]["pages"] > 25
    unaligned = compressed(paths[0], data[:7777], data[7777:99999], data[99999:])
    for path in (paths[1], paths[2], unaligned):
        assert extract(path, tmp_path)[0] == expected
    assert any(block.xml is None for block in wikipedia.read_blocks(paths[2], 0))
    assert all(block.xml is not None for block in wikipedia.read_blocks(paths[1], 0))
    assert len(list(wikipedia.read_blocks(paths[0], 0))) > 10
    assert sum(block.n_bytes for block in wikipedia.read_blocks(paths[2], 0)) == paths[2].stat().st_size


def test_processes_make_no_difference(tmp_path):
    paths = [tmp_path / "a.xml.bz2", tmp_path / "b.xml"]
    write_dump(paths[0], 200_000, multistream=True)
    write_dump(paths[1], 200_000, seed=1)
    one, _ = extract(paths, tmp_path / "1", workers=1)
    two, _ = extract(paths, tmp_path / "2", workers=2)
    assert one == two and len(one) > 30


def test_up_to_date(tmp_path, capsys):
    path = dump(tmp_path, page("A"))
    first, record = extract(path, tmp_path)
    assert record and extract(path, tmp_path) == (first, None)
    assert "up to date" in capsys.readouterr().out
    assert read_json(tmp_path / "out" / "x_one_article_per_line.manifest.json")["counts"]["articles"] == 1
    dump(tmp_path, page("A", "Other prose."))
    assert extract(path, tmp_path)[0] == ["Other prose."]


def test_cut_off_dumps_are_errors(tmp_path, small_blocks):
    single, multi, plain = tmp_path / "a.xml.bz2", tmp_path / "b.xml.bz2", tmp_path / "c.xml"
    for path in (single, multi, plain):
        write_dump(path, 300_000, multistream=path == multi)
        data = path.read_bytes()
        for n in (0, 3, len(data) // 2, len(data) - 20):
            path.write_bytes(data[:n])
            with pytest.raises(UserError, match=f"{path.name}.*(at byte {n} |neither XML)"):
                extract(path, tmp_path)
        path.write_bytes(data)
    starts = [match.start() for match in wikipedia.STREAM_START.finditer(multi.read_bytes())]
    multi.write_bytes(multi.read_bytes()[: starts[-1]])  # between two streams
    with pytest.raises(UserError, match=f"ends at byte {starts[-1]} without </mediawiki>"):
        extract(multi, tmp_path)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_damaged_and_other_files_are_errors(tmp_path, small_blocks):
    path = tmp_path / "a.xml.bz2"
    for multistream in (False, True):
        write_dump(path, 300_000, multistream=multistream)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"a\.xml\.bz2: (damaged bzip2 data|the bzip2 data end)"):
            extract(path, tmp_path)
    path.write_bytes(b"7z\xbc\xaf")
    with pytest.raises(UserError, match="neither XML nor bzip2"):
        extract(path, tmp_path)
    with pytest.raises(UserError, match="no such file"):
        extract(tmp_path / "missing.xml", tmp_path)
    with pytest.raises(UserError, match="no article in 1 pages"):
        extract(dump(tmp_path, page("A", "#REDIRECT [[B]]")), tmp_path)


def test_a_page_without_end_does_not_fill_the_memory(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(wikipedia, "MAX_PAGE_BYTES", 50_000)
    path = dump(tmp_path, page("A", "x" * 200_000))
    with pytest.raises(UserError, match="no end of a page"):
        extract(path, tmp_path)
