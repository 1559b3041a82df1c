"""Abstracts of PubMed (the baseline's and the daily updates' .xml, .xml.gz) to one abstract a line, each line
followed by an empty one.

    python -m data.pubmed PATH... --output data/formatted_one_article_per_line/pubmed_baseline_one_article_per_line.txt

PATH is a file or a folder of them; of x.xml and x.xml.gz in one folder the first is taken. Parts of a structured
abstract are joined, each behind its label ("METHODS: ..."). Citations without an abstract, and abstracts shorter than
--min_characters, are left out. Files are read as streams, one a worker at a time; the output does not depend on the
number of workers. Other collections as .jsonl or .parquet: data/text.py.
"""

import argparse
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from data.archives import MAX_RATIO, MAX_RATIO_FREE
from data.download import byte_progress
from data.executors import Workers, absolute_path, add_flags, chosen_workers
from data.parallel import available_cores, ordered_map
from data.stage import fingerprint, make_file
from runkit.errors import UserError, run_main

READ_BYTES = 1 << 20
MIN_CHARACTERS = 30  # as published
MAX_DEPTH = 100  # of elements; PubMed's have 12
MAX_CITATION_BYTES = 64 << 20  # of XML; the longest have some 1 MB
ABSTRACT_PATH = ("PubmedArticle", "MedlineCitation", "Article", "Abstract", "AbstractText")
NO_LABEL = ("", "UNASSIGNED", "UNLABELLED")


def source_files(paths: Sequence[Path]) -> list[Path]:
    """The .xml and .xml.gz files that the paths stand for, those of a folder sorted. Raises UserError for none."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_file():
            files.append(path)
            continue
        found = sorted(file for file in path.rglob("*") if file.name.endswith((".xml", ".xml.gz")) and file.is_file())
        found = [file for file in found if not file.name.startswith(".")]
        plain = set(found)
        files += [file for file in found if file.suffix != ".gz" or file.with_suffix("") not in plain]
    if not files:
        raise UserError(f"{', '.join(map(str, paths))}: no .xml or .xml.gz file in this folder")
    return files


class AbstractReader:
    """Gathers abstracts while a file is parsed; holds no more than those that take() has not fetched yet.

    Citations are elements PubmedArticle; below Abstract only AbstractText counts (no copyright notes), and inside of
    that the text of all markup (<i>, <sub>).
    """

    def __init__(self, source: str):
        self.source = source
        self.n_citations = 0
        self._n_bytes = 0  # since the last citation ended
        self._done: list[str] = []
        self._path: list[str] = []
        self._parts: list[str] = []  # of this citation
        self._text: list[str] | None = None  # of this AbstractText
        self._label = ""
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._entity

    def feed(self, data: bytes, final: bool = False) -> None:
        """Raises UserError naming the file and the line for XML that is broken or declares entities."""
        self._n_bytes += len(data)
        if self._n_bytes > MAX_CITATION_BYTES:
            raise UserError(f"{self.source}: no end of a citation in {self._n_bytes >> 20} MB; it is not read")
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            raise UserError(f"{self.source}:{error.lineno}: broken XML ({error}); fetch the file again") from error

    def take(self) -> list[str]:
        done, self._done = self._done, []
        return done

    def _entity(self, name: str, *_) -> None:
        # PubMed declares none; one can stand for gigabytes ("billion laughs") or for another file.
        raise UserError(f"{self.source}: declares the XML entity {name!r}; this is no file of PubMed, it is not read")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > MAX_DEPTH:
            raise UserError(f"{self.source}: elements in more than {MAX_DEPTH} others; this is no file of PubMed")
        if name == "PubmedArticle":
            self.n_citations += 1
            self._parts = []
        elif name == "AbstractText" and tuple(self._path[-len(ABSTRACT_PATH) :]) == ABSTRACT_PATH:
            self._text = []
            self._label = attributes.get("Label", "").strip()

    def _characters(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def _end(self, name: str) -> None:
        self._path.pop()
        if name == "AbstractText" and self._text is not None:
            text = " ".join("".join(self._text).split())
            if text:
                self._parts.append(text if self._label.upper() in NO_LABEL else f"{self._label.rstrip(':')}: {text}")
            self._text = None
        elif name == "PubmedArticle":
            self._done.append(" ".join(self._parts))
            self._n_bytes = 0


def abstracts(path: Path) -> Iterator[str]:
    """The abstract of each citation of a file, "" where there is none.

    Raises UserError naming the file when it is broken, cut off or hostile.
    """
    reader = AbstractReader(str(path))
    n_bytes = 0
    try:
        with open(path, "rb") as raw, gzip.open(raw) if path.suffix == ".gz" else raw as stream:
            limit = max(MAX_RATIO * os.fstat(raw.fileno()).st_size, MAX_RATIO_FREE)
            while data := stream.read(READ_BYTES):
                n_bytes += len(data)
                if n_bytes > limit:
                    raise UserError(f"{path}: holds more than {MAX_RATIO} times its own size; it is not read")
                reader.feed(data)
                yield from reader.take()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: broken or incomplete gzip data ({error}); fetch the file again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    reader.feed(b"", final=True)
    yield from reader.take()


def extract_file(path: Path, min_characters: int) -> tuple[str, Counter[str]]:
    """(lines of abstracts, counts) of a file; runs in a worker."""
    counts: Counter[str] = Counter()
    lines = []
    for abstract in abstracts(path):
        kind = "abstracts" if len(abstract) >= max(min_characters, 1) else "short" if abstract else "without_abstract"
        counts[kind] += 1
        if kind == "abstracts":
            lines.append(f"{abstract}\n\n")
    return "".join(lines), counts


def format_pubmed(
    paths: Sequence[Path], output: Path, min_characters: int = MIN_CHARACTERS, workers: int | Workers = 1
) -> dict[str, Any] | None:
    """Writes the abstracts of files or folders, unless that was done from the same files; returns the manifest if
    written.

    Raises UserError for a file that is not whole, and when there is no abstract at all.
    """
    files = source_files(paths)
    inputs = fingerprint(files)

    def write(stream: IO[str]) -> dict[str, Any]:
        counts: Counter[str] = Counter(abstracts=0, short=0, without_abstract=0)
        with byte_progress(sum(file.stat().st_size for file in files), "extracting") as advance:
            found = ordered_map(partial(extract_file, min_characters=min_characters), files, workers)
            for file, (text, counted) in zip(files, found, strict=True):
                stream.write(text)
                counts.update(counted)
                advance(file.stat().st_size)
        if not counts["abstracts"]:
            raise UserError(f"{', '.join(map(str, paths))}: no abstract in {len(files)} file(s)")
        return {"counts": dict(counts)}

    record = make_file(output, inputs, {"min_characters": min_characters}, write)
    if record:
        report = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in record["counts"].items())
        print(f"{output}: {report}; {output.stat().st_size / 1e6:.2f} MB")
    return record


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "paths", nargs="+", type=absolute_path, metavar="PATH", help="a .xml or .xml.gz file, or a folder"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--min_characters", type=int, default=MIN_CHARACTERS, help="leave shorter ones out (30)")
    add_flags(parser, n_processes=available_cores())
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    with chosen_workers(arguments) as workers:
        if workers is not None:
            format_pubmed(**arguments, workers=workers)


if __name__ == "__main__":
    from data import pubmed  # under its own name, so that workers find its functions by module

    run_main(pubmed.main)
