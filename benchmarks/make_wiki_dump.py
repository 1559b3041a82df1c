"""Synthetic dumps of any size in the form of Wikipedia's pages-articles, for tests and measurements.

    python -m benchmarks.make_wiki_dump --output build/dump.xml --megabytes 2000
    python -m benchmarks.make_wiki_dump --output build/dump.xml.bz2 --megabytes 300 --multistream --source REAL_DUMP

Without --source, articles are made of a small vocabulary with the markup that real ones have: links, references,
boxes, tables, files, units. With it, the pages of a real dump are repeated, each time with another title, other digits
in the text and the paragraphs in another order. The same arguments give the same bytes; memory does not grow with the
size (a source is held whole).
"""

import argparse
import bz2
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from runkit.errors import UserError, run_main
from runkit.files import atomic_open
from runkit.progress import Progress

PAGES_PER_STREAM = 100  # as Wikimedia's multistream dumps have
HEADER = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">\n'
    "  <siteinfo>\n    <sitename>Wikipedia</sitename>\n    <dbname>testwiki</dbname>\n  </siteinfo>\n"
)
FOOTER = "</mediawiki>\n"
WORDS = (
    "the a of in to and was is river town bridge army king song theory island church music water station "
    "century people language company museum forest mountain village school player season album river battle "
    "empire treaty railway built found known called led moved wrote played won lost became began ended grew "
    "old new large small early late northern southern first second famous local national modern ancient "
    "several many most other same between during"
).split()


def page_xml(title: str, number: int, wikitext: str) -> str:
    """One page as MediaWiki writes it, in namespace 0."""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>0</ns>\n    <id>{number}</id>\n    <revision>\n"
        f"      <id>{number + 10**6}</id>\n      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text xml:space="preserve">{escape(wikitext)}</text>\n    </revision>\n  </page>\n'
    )


def sentence(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(8, 24))
    for _ in range(rng.randint(0, 3)):
        i = rng.randrange(len(words))
        words[i] = rng.choice((f"[[{words[i]}]]", f"[[{words[i].title()} (x)|{words[i]}]]", f"''{words[i]}''"))
    if rng.random() < 0.15:
        words.append(f"{{{{convert|{rng.randint(2, 9000)}|km|mi}}}}")
    text = " ".join(words)
    text = text[0].upper() + text[1:] + "."
    if rng.random() < 0.4:
        text += f"<ref>{{{{cite web|url=http://example.org/{rng.randrange(10**6)}|title={' '.join(words[:4])}}}}}</ref>"
    return text


def article(rng: random.Random) -> str:
    """Wikitext of about 1 to 20 KB."""
    box = "\n".join(f"| {rng.choice(WORDS)}{i} = {rng.choice(WORDS)}" for i in range(rng.randint(3, 20)))
    parts = [f"{{{{Infobox thing\n{box}\n}}}}\n'''Thing''' ({{{{IPAc-en|x}}}}; born 1900) {sentence(rng)}"]
    for i in range(rng.randint(1, 10)):
        parts.append(f"== Part {i} ==")
        parts += (" ".join(sentence(rng) for _ in range(rng.randint(2, 7))) for _ in range(rng.randint(1, 3)))
        if rng.random() < 0.3:
            rows = "\n|-\n".join(f"| {rng.randrange(100)} || [[{rng.choice(WORDS)}]]" for _ in range(8))
            parts.append(f'{{| class="wikitable"\n{rows}\n|}}')
        if rng.random() < 0.3:
            parts.append(f"[[File:Some {i}.jpg|thumb|A [[caption]] of {rng.choice(WORDS)}.]]")
    parts.append("== References ==\n{{reflist}}\n[[Category:Things]]")
    return "\n\n".join(parts)


def synthetic_pages(seed: int) -> Iterator[str]:
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        number += 1
        yield page_xml(f"Thing {number}", number, article(rng))


def repeated_pages(source: Path, seed: int) -> Iterator[str]:
    """The pages of a dump over and over, changed so that no two texts are the same."""
    opener = bz2.open if source.read_bytes()[:3] == b"BZh" else open
    with opener(source, "rt", encoding="utf-8") as stream:
        pages = re.findall(r"  <page>.*?</page>\n", stream.read(), re.DOTALL)
    if not pages:
        raise UserError(f"{source}: has no <page>")
    number = 0
    while True:
        for page in pages:
            number += 1
            rng = random.Random(f"{seed} {number}")
            page = page.replace("</title>", f" {number}</title>", 1)
            start, end = page.rfind("<text"), page.rfind("</text>")
            if start >= 0 and end > start:
                paragraphs = page[page.find(">", start) + 1 : end].split("\n\n")
                shift = rng.randrange(10)
                digits = str.maketrans("123456789", "".join(str(1 + (i + shift) % 9) for i in range(9)))
                middle = paragraphs[1:-1]
                rng.shuffle(middle)
                text = "\n\n".join([*paragraphs[:1], *middle, *paragraphs[1:][-1:]]).translate(digits)
                page = f'{page[:start]}<text xml:space="preserve">{text}{page[end:]}'
            yield page


def write_dump(
    path: Path, n_bytes: int, seed: int = 0, source: Path | None = None, multistream: bool = False
) -> tuple[int, int]:
    """Writes a dump of about n_bytes of XML; returns (pages, bytes of XML).

    bzip2 by the suffix .bz2; multistream: one bz2 stream for every PAGES_PER_STREAM pages. Nothing stays of a dump
    that was interrupted.
    """
    pages = repeated_pages(source, seed) if source else synthetic_pages(seed)
    n_pages = written = 0
    with atomic_open(path, "wb") as stream, Progress(n_bytes // 10**6, "writing", "MB") as progress:
        put, close = _writer(stream, path.suffix == ".bz2", multistream)
        put(HEADER.encode())
        group: list[str] = []
        while written < n_bytes:
            group.append(next(pages))
            n_pages += 1
            written += len(group[-1].encode())
            if len(group) == PAGES_PER_STREAM or written >= n_bytes:
                put("".join(group).encode())
                group = []
                progress.update(written // 10**6 - progress.done)
        put(FOOTER.encode())
        close()
    return n_pages, written + len(HEADER) + len(FOOTER)


def _writer(
    stream: IO[bytes], compressed: bool, multistream: bool
) -> tuple[Callable[[bytes], int], Callable[[], object]]:
    if not compressed:
        return lambda data: stream.write(data), lambda: None
    if multistream:
        return lambda data: stream.write(bz2.compress(data)), lambda: None
    compressor = bz2.BZ2Compressor()
    return lambda data: stream.write(compressor.compress(data)), lambda: stream.write(compressor.flush())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, required=True, help=".xml or .xml.bz2")
    parser.add_argument("--megabytes", type=float, required=True, help="of XML, before compression")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--source", type=Path, help="a real dump, whose pages are repeated")
    parser.add_argument("--multistream", action="store_true", help="many bz2 streams, as Wikimedia's multistream dumps")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    n_pages, n_bytes = write_dump(
        arguments.output, int(arguments.megabytes * 1e6), arguments.seed, arguments.source, arguments.multistream
    )
    print(f"{arguments.output}: {n_pages} pages, {n_bytes / 1e6:.1f} MB of XML")


if __name__ == "__main__":
    run_main(main)
