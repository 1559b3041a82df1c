"""Hostile dumps, abstracts, books, JSON lines, and records of stages."""

import bz2
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import stage
from data.pubmed import extract_file
from data.sharding import documents_between
from data.text import file_documents, json_records, plain_lines, write_documents
from data.wikipedia import extract_block, read_blocks
from data.wikitext import plain_text
from tests.fuzz.mutations import answer, fuzz, hostile_json, joined, json_bytes, mutated, mutated_trees

# ----------------------------------------------------------------------------------------------------- Wikipedia
PAGE = (
    "<page><title>T{0}</title><ns>0</ns><id>{0}</id><revision><text>Some ''text'' of [[a|b]] &amp; {{{{c|d}}}} é.\n"
    "== See ==\n* x &lt;ref&gt;y&lt;/ref&gt;</text></revision></page>\n"
)
HEAD, PAGES, TAIL = "<mediawiki><siteinfo></siteinfo>\n", "".join(PAGE.format(i) for i in range(4)), "</mediawiki>\n"
XML = (HEAD + PAGES + TAIL).encode()
MULTISTREAM = b"".join(map(bz2.compress, (HEAD.encode(), PAGES.encode(), PAGES.encode(), TAIL.encode())))


def articles(path) -> tuple[int, int, str]:
    """(pages, of these broken, text) of a dump."""
    found = [extract_block(block) for block in read_blocks(path, 0)]
    counts = [(block.counts["pages"], block.counts["broken"]) for block in found]
    assert all(sum(block.counts.values()) == 2 * block.counts["pages"] for block in found)  # each page is of one kind
    return sum(n for n, _ in counts), sum(n for _, n in counts), "".join(block.text for block in found)


@fuzz
@given(data=mutated([XML]) | mutated([MULTISTREAM, bz2.compress(XML)]) | mutated([XML]).map(bz2.compress))
def test_wikipedia(place, data):
    path = place / "dump.xml.bz2"
    path.write_bytes(data)
    result = answer(lambda: articles(path), path)
    if result is not None:
        result[2].encode()


@fuzz
@given(
    text=joined(
        "{{",
        "}}",
        "[[",
        "]]",
        "|",
        "=",
        "'''",
        "''",
        "<ref>",
        "</ref>",
        "<ref name=a/>",
        "<!--",
        "-->",
        "<nowiki>",
        "</nowiki>",
        "{|",
        "|}",
        "|-",
        "\n",
        "== a ==",
        "* ",
        "# ",
        ": ",
        "&nbsp;",
        "&#x110000;",
        "&#9999999;",
        "<math>",
        "</math>",
        "<br/>",
        "http://x ",
        "File:",
        "#REDIRECT ",
        "convert",
        "1",
        "km",
        "lang",
        "é",
        "x y z. ",
        "-{",
        "}-",
        "\x7f",
        "\0",
        most=60,
    ).map(bytes.decode)
    | st.text(max_size=200)
)
def test_wikitext(text):
    assert isinstance(answer(lambda: plain_text(text), ""), str)


REPEATED = [
    "{{",
    "}}",
    "[[",
    "]]",
    "[[a|",
    "{{a|",
    "<ref>",
    "<ref ",
    "<!--",
    "<nowiki>",
    "{|",
    "|",
    "''",
    "'",
    "=",
    "\n=",
    "\n*",
    "&",
    "&#",
    "<",
    "<math>",
    "-{",
    "[http://",
    " ",
    "\n",
    "a",
    "{{convert|",
    "{{lang|a|",
    "1",
    ".",
    "(",
    "<br",
    "&nbsp;",
    "_",
    "\n:",
    "\n==a",
]


@pytest.mark.parametrize("token", REPEATED)
def test_time_grows_with_the_text(token):
    for text in (token * 20_000, token * 10_000 + "x" + token[::-1] * 10_000, ("x" + token) * 10_000 + "\n"):
        answer(lambda text=text: plain_text(text), "")


def test_bz2_bombs(place):
    """Some 100 MB of pages in a few kB, in several streams and in one."""
    page = PAGE.format("x" * 2000).replace("<ns>0", "<ns>1").encode()
    packed = bz2.compress(page * 40_000)
    path = place / "dump.xml.bz2"
    for data in (bz2.compress(HEAD.encode()) + packed + bz2.compress(TAIL.encode()), packed):
        path.write_bytes(data)
        assert answer(lambda: articles(path), path) is None


# -------------------------------------------------------------------------------------------------------- PubMed
ABSTRACTS = (
    '<?xml version="1.0"?><PubmedArticleSet>'
    + "".join(
        f'<PubmedArticle><MedlineCitation><Article><Abstract><AbstractText Label="AIM">A {i} of <i>é</i> &lt; 3 and '
        "so on for a while.</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>"
        for i in range(3)
    )
    + "</PubmedArticleSet>"
).encode()
LAUGHS = b'<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>' + ABSTRACTS


@fuzz
@given(data=mutated([ABSTRACTS, LAUGHS]), zipped=st.sampled_from(["no", "yes", "damaged"]), steps=st.data())
def test_pubmed(place, data, zipped, steps):
    path = place / ("x.xml" if zipped == "no" else "x.xml.gz")
    if zipped != "no":
        data = gzip.compress(data, 1)
    if zipped == "damaged":
        data = steps.draw(mutated([data]))
    path.write_bytes(data)
    result = answer(lambda: extract_file(path, 1), path)
    if result is not None:
        text, counts = result
        assert text.count("\n\n") == counts["abstracts"]


@pytest.mark.parametrize(
    ("start", "filling"),
    [
        (b"<PubmedArticleSet><PubmedArticle><MedlineCitation><Article><Abstract><AbstractText>", b"text "),
        (b"<PubmedArticleSet>", b"<a>"),
        (b"<PubmedArticleSet a='", b"x"),
        (b"", ABSTRACTS[58:-19]),
    ],
    ids=["one text", "depth", "attribute", "many"],
)
def test_gzip_bombs(place, start, filling):
    path = place / "x.xml.gz"
    packer = gzip.zlib.compressobj(9, wbits=31)
    block = filling * ((1 << 20) // len(filling))
    start = start or b"<PubmedArticleSet>"
    path.write_bytes(b"".join([packer.compress(start), *(packer.compress(block) for _ in range(300)), packer.flush()]))
    assert answer(lambda: extract_file(path, 1), path) is None


# -------------------------------------------------------------------------------------------------- plain text
BOOK = (
    b"*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\nCHAPTER I\n\nOnce _upon_ a time.\nIt was\n\nII.\n\nThe end.\n\n"
    b"*** END OF THE PROJECT GUTENBERG EBOOK X ***\n"
)


@fuzz
@given(
    data=mutated([BOOK, b"One.\nTwo.\n\nThree.\nFour.\n", ("x " * 300 + "\n").encode() * 3]) | st.binary(max_size=80),
    document=st.sampled_from(["auto", "file", "line", "blank_line", "book"]),
    encoding=st.sampled_from(["utf-8", "utf-8", "cp1252", "utf-16", "latin-1", "ascii"]),
)
def test_plain_text(place, data, document, encoding):
    path = place / "text.txt"
    path.write_bytes(data)

    def read():
        _, pieces = file_documents(plain_lines(path, encoding), document, 100)
        with open(place / "formatted.txt", "w", encoding="utf-8", newline="\n") as stream:
            return write_documents(pieces, stream)

    count = answer(read, path)
    if count is not None:
        formatted = place / "formatted.txt"
        documents = list(documents_between(formatted, 0, formatted.stat().st_size))
        assert len(documents) == count


@fuzz
@given(
    data=st.lists(mutated_trees([{"text": "a b", "id": 1}, ["x"]]), max_size=3).map(
        lambda trees: b"\n".join(map(json_bytes, trees))
    )
    | hostile_json({"text": "a"})
)
def test_json_lines(place, data):
    path = place / "x.jsonl"
    path.write_bytes(data)
    texts = answer(lambda: list(json_records(path, "utf-8")), path)
    if texts is not None:
        assert len(texts) == sum(1 for line in data.decode("utf-8-sig").split("\n") if line.strip())
        "".join(texts).encode()


@fuzz
@given(data=mutated(["a\n\nb é\n\n".encode()]), start=st.integers(0, 12))
def test_formatted_files(place, data, start):
    path = place / "formatted.txt"
    path.write_bytes(data)
    size = len(data)
    parts = answer(
        lambda: (
            list(documents_between(path, 0, min(start, size))) + list(documents_between(path, min(start, size), size))
        ),
        path,
    )
    if parts is not None:  # however the file is divided
        assert parts == list(documents_between(path, 0, size))


# ------------------------------------------------------------------------------------------------ records of stages
RECORD = {"inputs": [{"name": "a", "bytes": 3}], "settings": {"x": 1}, "files": {"b.txt": {"bytes": 2, "sha256": "0"}}}


@fuzz
@given(data=hostile_json(RECORD))
def test_stage_records(place, data):
    folder = place / "stage"
    folder.mkdir(exist_ok=True)
    (folder / "b.txt").write_text("ab")
    path = folder / stage.RECORD
    path.write_bytes(data)
    current = answer(lambda: stage.is_current(path, RECORD["inputs"], RECORD["settings"]), path)
    if current:
        assert json.loads(data)["files"]
    answer(lambda: stage.begin(folder, RECORD["inputs"], RECORD["settings"]), path)
