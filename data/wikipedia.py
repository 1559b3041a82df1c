"""Wikipedia dumps (pages-articles .xml, .xml.bz2) to one article a line, each line followed by an empty one.

    python -m data.wikipedia DUMP... --output data/formatted_one_article_per_line/wikicorpus_en_one_article_per_line.txt

Articles are the pages of namespace 0 that are no redirect, no disambiguation page and not empty; wikitext.py makes
prose of them, and titles and headings go. A page that cannot be read costs that page: it is counted, and named with the
reason in the manifest. A dump that is cut off or damaged is an error.

Nothing holds more than some MB of a dump at a time. Multistream dumps are decompressed in the worker processes, stream
by stream; where streams begin is seen in the file itself, so the index file is not needed. Other .bz2 files are
decompressed in this process. The output does not depend on the number of processes.
"""

import argparse
import bz2
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from data.download import byte_progress
from data.executors import Workers, absolute_path, add_flags, chosen_workers
from data.parallel import available_cores, ordered_map
from data.stage import fingerprint, make_file
from data.wikitext import is_disambiguation, is_redirect, plain_text
from runkit.errors import UserError, run_main
from runkit.progress import print_line

FORMAT = 2  # raised when the same dump gives other text
READ_BYTES = 1 << 20
PROBE_BYTES = 2 << 20  # has the first stream, the site's description, and a block (at most 900 kB) of the second
BLOCK_BYTES = 4 << 20  # of XML for a worker at a time: about half a second
STREAMS_BYTES = 1 << 20  # of compressed streams for a worker at a time: about BLOCK_BYTES of XML
MAX_PAGE_BYTES = 64 << 20  # MediaWiki allows 2 MB of text
MAX_RATIO, MAX_RATIO_FREE = 200, 64 << 20  # bytes of XML for each of bz2, and for any; a bomb has 10,000 and more
MAX_NAMED = 1000  # broken pages that the manifest names; all are counted
STREAM_START = re.compile(rb"BZh[1-9]1AY&SY")  # at a byte boundary: a stream; by chance once in 2^77 bytes
END_MARK = b"</mediawiki>"
KINDS = ("articles", "redirects", "other_namespaces", "disambiguation", "empty", "short", "broken")


class Block(NamedTuple):
    """Some pages of a dump: XML, or where it lies compressed."""

    path: Path
    position: int  # in the file, for messages
    n_bytes: int  # of the file, for the progress
    xml: bytes | None  # None: streams of bz2 that fill these bytes of the file
    min_characters: int


@dataclass
class Extracted:
    """What came out of a block."""

    text: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # "title: reason"


class BrokenPage(ValueError):
    """The XML of a page is not as MediaWiki writes it."""


# -------------------------------------------------------------------------------------------- dump -> blocks


def read_blocks(path: Path, min_characters: int) -> Iterator[Block]:
    """The blocks of a dump in order; no page is divided.

    Raises UserError naming the file and the position for a dump that is cut off, damaged or something else.
    """
    try:
        with open(path, "rb") as stream:
            start = stream.read(READ_BYTES)
            stream.seek(0)
            if start.startswith(b"BZh"):
                yield from _bz2_blocks(path, stream, min_characters)
            elif start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
                chunks = iter(lambda: stream.read(READ_BYTES), b"")
                yield from _xml_blocks(path, stream, chunks, min_characters)
            else:
                raise UserError(f"{path}: neither XML nor bzip2; a pages-articles.xml(.bz2) dump is wanted")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _bz2_blocks(path: Path, stream: IO[bytes], min_characters: int) -> Iterator[Block]:
    if _is_multistream(stream):
        yield from _stream_blocks(path, stream, min_characters)
    else:
        yield from _xml_blocks(path, stream, decompressed(path, stream), min_characters)


def _xml_blocks(path: Path, stream: IO[bytes], chunks: Iterator[bytes], min_characters: int) -> Iterator[Block]:
    """Cuts XML behind </page>."""
    position = size = 0
    parts: list[bytes] = []
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size < BLOCK_BYTES:
            continue
        rest = b"".join(parts)
        cut = rest.rfind(b"</page>") + len(b"</page>")
        if cut < len(b"</page>"):
            if len(rest) > MAX_PAGE_BYTES:
                raise UserError(f"{path}: no end of a page in {len(rest) >> 20} MB before byte {stream.tell()}")
            parts, size = [rest], len(rest)
            continue
        yield Block(path, position, stream.tell() - position, rest[:cut], min_characters)
        parts, position = [rest[cut:]], stream.tell()
        size = len(parts[0])
    tail = b"".join(parts)
    if not tail.rstrip().endswith(END_MARK):
        raise UserError(
            f"{path}: ends at byte {stream.tell()} without {END_MARK.decode()}: the dump is incomplete; fetch it again"
        )
    yield Block(path, position, stream.tell() - position, tail, min_characters)


def decompressed(path: Path, stream: IO[bytes], n_bytes: int | None = None) -> Iterator[bytes]:
    """The contents of bz2 streams, the next n_bytes of a file or all, in pieces of at most READ_BYTES.

    Raises UserError naming the file and the position when they are damaged or end early.
    """
    begin = stream.tell()
    end = None if n_bytes is None else begin + n_bytes
    decompressor = bz2.BZ2Decompressor()
    data = b""
    produced = 0
    fresh = True  # nothing of a stream has been fed to the decompressor
    while True:
        if decompressor.eof:
            data = decompressor.unused_data
            decompressor, fresh = bz2.BZ2Decompressor(), True
        if not data and (fresh or decompressor.needs_input):
            data = stream.read(READ_BYTES if end is None else min(READ_BYTES, end - stream.tell()))
            if not data and fresh and stream.tell() > begin:
                return
            if not data:
                raise UserError(
                    f"{path}: the bzip2 data end at byte {stream.tell()} in the middle of a stream: the dump is "
                    "incomplete; fetch it again"
                )
        try:
            piece = decompressor.decompress(data, READ_BYTES)
        except OSError as error:
            raise UserError(f"{path}: damaged bzip2 data before byte {stream.tell()}; fetch it again") from error
        data, fresh = b"", False
        produced += len(piece)
        if produced > max(MAX_RATIO * (stream.tell() - begin), MAX_RATIO_FREE):
            raise UserError(
                f"{path}: over {MAX_RATIO} times as many bytes as in the bzip2 data before byte {stream.tell()}; this "
                "is no dump, it is not read"
            )
        if piece:
            yield piece


def _is_multistream(stream: IO[bytes]) -> bool:
    """Whether the second bz2 stream begins with a page, as in the multistream dumps of Wikimedia. Rewinds."""
    start = stream.read(PROBE_BYTES)
    stream.seek(0)
    second = STREAM_START.search(start, 1)
    if second is None:
        return False
    try:
        xml = bz2.BZ2Decompressor().decompress(start[second.start() :], 1 << 10)
    except OSError:
        return False
    return xml.lstrip().startswith((b"<page>", END_MARK))


def _stream_blocks(path: Path, stream: IO[bytes], min_characters: int) -> Iterator[Block]:
    """Gathers the streams of a multistream dump; the file is only searched here, not decompressed."""
    first = 0
    last = first
    for start in _stream_starts(stream):
        if start - first >= STREAMS_BYTES:
            yield Block(path, first, start - first, None, min_characters)
            first = start
        last = start
    size = os.fstat(stream.fileno()).st_size
    stream.seek(last)
    ending = b""
    for piece in decompressed(path, stream):
        ending = (ending + piece)[-READ_BYTES:]
    if not ending.rstrip().endswith(END_MARK):
        raise UserError(
            f"{path}: ends at byte {size} without {END_MARK.decode()}: the dump is incomplete; fetch it again"
        )
    yield Block(path, first, size - first, None, min_characters)


def _stream_starts(stream: IO[bytes]) -> Iterator[int]:
    overlap, position = b"", 0
    length = 9  # of a match, less one
    while chunk := stream.read(READ_BYTES):
        data = overlap + chunk
        for match in STREAM_START.finditer(data):
            yield position + match.start()
        overlap = data[-length:]
        position += len(data) - len(overlap)


# ------------------------------------------------------------------------------------------- block -> articles


def extract_block(block: Block) -> Extracted:
    """The articles of a block, one a line with an empty line behind it; runs in a worker."""
    result = Extracted()
    texts: list[str] = []
    for page in _block_pages(block, result):
        result.counts["pages"] += 1
        try:
            kind, text = extract_page(page, block.min_characters)
        except Exception as error:  # whatever is wrong with one page of seven million must not end the run
            name = _page_name(page, block)
            reason = error if isinstance(error, BrokenPage) else f"{type(error).__name__}: {error}"
            result.broken.append(f"{name}: {reason}")
            kind, text = "broken", ""
        result.counts[kind] += 1
        if text:
            texts.append(text)
    result.text = "".join(f"{text}\n\n" for text in texts)
    return result


def _block_pages(block: Block, result: Extracted) -> Iterator[bytes]:
    """The XML of each page behind <page>; pages that never end are entered as broken."""
    if block.xml is not None:
        yield from _pages(iter([block.xml]), block, result)
        return
    with open(block.path, "rb") as stream:
        stream.seek(block.position)
        yield from _pages(decompressed(block.path, stream, block.n_bytes), block, result)


def _pages(chunks: Iterator[bytes], block: Block, result: Extracted) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        pieces = (rest + chunk).split(b"</page>")
        rest = pieces.pop()
        if len(rest) > MAX_PAGE_BYTES:
            raise UserError(f"{block.path}: no end of a page in {len(rest) >> 20} MB behind byte {block.position}")
        for piece in pieces:
            before, *begun = piece.split(b"<page>")
            if not begun:
                begun = [before]  # its beginning is lost
            for page in begun[:-1]:
                result.counts.update(("pages", "broken"))
                result.broken.append(f"{_page_name(page, block)}: has no </page>")
            yield begun[-1]
    if b"<page>" in rest:
        if block.xml is None and END_MARK not in rest:
            raise UserError(
                f"{block.path}: the bz2 stream that ends at byte {block.position + block.n_bytes} ends inside of a "
                "page; decompress the dump with bunzip2 and give the .xml"
            )
        for page in rest.split(b"<page>")[1:]:
            result.counts.update(("pages", "broken"))
            result.broken.append(f"{_page_name(page, block)}: has no </page>")


def _page_name(page: bytes, block: Block) -> str:
    title = _field(page, b"title")
    return title.decode("utf-8", "replace") if title else f"a page behind byte {block.position} of {block.path.name}"


def _field(page: bytes, name: bytes) -> bytes | None:
    start = page.find(b"<" + name + b">")
    if start < 0:
        return None
    start += len(name) + 2
    end = page.find(b"</" + name + b">", start)
    return None if end < 0 else page[start:end]


def extract_page(page: bytes, min_characters: int = 0) -> tuple[str, str]:
    """(one of KINDS, the article on one line or "") of a page's XML.

    Raises BrokenPage when it is not as MediaWiki writes it.
    """
    namespace = _field(page, b"ns")
    title = _field(page, b"title")
    if title is None or namespace is None:
        raise BrokenPage(f"has no <{'title' if title is None else 'ns'}>")
    if namespace.strip() != b"0":
        return "other_namespaces", ""
    start = page.rfind(b"<text")  # the last revision, where there are several
    head = page if start < 0 else page[:start]
    if b"<redirect" in head:
        return "redirects", ""
    if start < 0:
        raise BrokenPage("has no <text>")
    wikitext = xml_text(page, start)
    if is_redirect(wikitext):
        return "redirects", ""
    if is_disambiguation(unescape_xml(title.decode()), wikitext):
        return "disambiguation", ""
    # split() knows all kinds of white space: no U+2028 or form feed may divide the line.
    text = " ".join(plain_text(wikitext).split())
    if not text:
        return "empty", ""
    return ("articles", text) if len(text) >= min_characters else ("short", "")


def xml_text(page: bytes, start: int) -> str:
    """The contents of the <text> element that begins at start; "" of one that is closed in itself."""
    head_end = page.find(b">", start)
    if head_end < 0:
        raise BrokenPage("<text> is cut off")
    if page[head_end - 1 : head_end] == b"/":
        return ""
    end = page.find(b"</text>", head_end)
    if end < 0:
        raise BrokenPage("has no </text>")
    raw = page[head_end + 1 : end]
    if b"<" in raw:
        raise BrokenPage("has XML elements inside of <text>")
    try:
        return unescape_xml(raw.decode())
    except UnicodeDecodeError as error:
        raise BrokenPage(f"is not UTF-8 at byte {error.start} of its text") from error


CHARACTER_REFERENCE = re.compile(r"&#(?:x([0-9a-fA-F]{1,6})|([0-9]{1,7}));")


def unescape_xml(text: str) -> str:
    """XML's five entities and character references, once: &amp;nbsp; is &nbsp; of the wikitext."""
    if "&" not in text:
        return text
    if "&#" in text:
        text = CHARACTER_REFERENCE.sub(_character, text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&apos;", "'")
    return text.replace("&amp;", "&")


def _character(match: re.Match[str]) -> str:
    code = int(match[1], 16) if match[1] else int(match[2])
    if code == ord("&"):
        return "&amp;"  # comes last
    if code in (9, 10, 13) or 32 <= code < 0xD800 or 0xE000 <= code <= 0x10FFFF:
        return chr(code)
    raise BrokenPage(f"has {match[0]}, which is no character")


# -------------------------------------------------------------------------------------------------- the stage


def format_dumps(
    dumps: list[Path], output: Path, min_characters: int = 0, workers: int | Workers = 1
) -> dict[str, Any] | None:
    """Writes the articles of all dumps, unless that was done from the same files; returns the manifest if written.

    min_characters: shorter articles are left out (and counted). workers: processes of this machine, or opened
    workers; the file does not depend on them. Raises UserError for a dump that is not whole, and
    when there is no article at all.
    """
    for dump in dumps:
        if not dump.is_file():
            raise UserError(f"{dump}: no such file")
    inputs = fingerprint(dumps)
    settings = {"format": FORMAT, "min_characters": min_characters}

    def write(stream: IO[str]) -> dict[str, Any]:
        counts: Counter[str] = Counter(dict.fromkeys(("pages", *KINDS), 0))
        broken: list[str] = []
        sizes: list[int] = []  # of blocks on their way

        def blocks() -> Iterator[Block]:
            for dump in dumps:
                for block in read_blocks(dump, min_characters):
                    sizes.append(block.n_bytes)
                    yield block

        with byte_progress(sum(dump.stat().st_size for dump in dumps), "extracting") as advance:
            for extracted in ordered_map(extract_block, blocks(), workers):
                stream.write(extracted.text)
                counts += extracted.counts
                for name in extracted.broken:
                    print_line(f"broken page: {name}")
                broken += extracted.broken[: MAX_NAMED - len(broken)]
                advance(sizes.pop(0))
        if not counts["articles"]:
            raise UserError(f"{', '.join(map(str, dumps))}: no article in {counts['pages']} pages; {_report(counts)}")
        return {"counts": {kind: counts[kind] for kind in ("pages", *KINDS)}, "broken_pages": broken}

    record = make_file(output, inputs, settings, write)
    if record:
        print(f"{output}: {_report(record['counts'])}; {output.stat().st_size / 1e6:.2f} MB")
    return record


def _report(counts: dict[str, int]) -> str:
    parts = ", ".join(f"{counts[kind]} {kind.replace('_', ' ')}" for kind in KINDS)
    return f"{counts['pages']} pages: {parts}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("dumps", nargs="+", type=absolute_path, metavar="DUMP", help="pages-articles, .xml or .xml.bz2")
    parser.add_argument("--output", type=absolute_path, required=True)
    add_flags(parser, n_processes=available_cores())
    parser.add_argument("--min_characters", type=int, default=0, help="leave shorter articles out (default: 0)")
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    with chosen_workers(arguments) as workers:
        if workers is not None:
            format_dumps(**arguments, workers=workers)


if __name__ == "__main__":
    from data import wikipedia  # under its own name, so that workers find its functions by module

    run_main(wikipedia.main)
