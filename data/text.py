"""Plain text, one file or a folder of it, to one document a line (each line followed by an empty one).

    python -m data.text PATH --name NAME --output_dir data/formatted_one_article_per_line

What a document is (--document):
    file        each file
    line        each line that is not empty
    blank_line  each block between blank lines; its lines are joined
    book        paragraphs between blank lines, gathered from one chapter heading to the next; longer
                chapters, and text without headings, are cut between paragraphs into runs of about
                --max_document_characters
    auto        looks at the beginning of each file: long lines (articles) -> line; several sentences a block,
                each on its own line -> blank_line; all else -> book, so that a short file is one document

Of .jsonl and .parquet files each record is a document: its field "text".

From Project Gutenberg files only the book itself is taken, without the _marks_ of italics. Inside a document,
white space of any kind (line ends, tabs, form feeds, no-break spaces) becomes one space.
"""

import argparse
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

from data.executors import Workers, absolute_path, add_flags, chosen_workers
from data.layout import dataset_name, formatted_file
from data.parallel import available_cores, ordered_map
from data.stage import fingerprint, make_file
from runkit.errors import UserError, run_main
from runkit.files import parse_json, read_lines, temporary_directory
from runkit.progress import Progress

SAMPLE_CHARACTERS = 1 << 20  # how much of a file `auto` looks at
ARTICLE_CHARACTERS = 500  # lines this long (median) are whole articles
MAX_DOCUMENT_CHARACTERS = 20_000
COPIED_CHARACTERS = 1 << 20  # at a time

# --------------------------------------------------------------------------------------------- kinds of files


def plain_lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a text file. Raises UserError naming the file and where it is not in this encoding."""
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig"):
        yield from read_lines(path)
        return
    with open(path, encoding=encoding, newline="\n") as stream:
        try:
            for line in stream:
                yield line.rstrip("\r\n")
        except UnicodeError as error:
            raise UserError(f"{path}: not {encoding} before byte {stream.buffer.tell()}: {error}") from error


def json_records(path: Path, encoding: str) -> Iterator[str]:
    """The text of each record of a JSON Lines file, on one line. Raises UserError naming file and line."""
    for number, line in enumerate(plain_lines(path, encoding), 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error.msg}") from error
        text = record.get(TEXT_FIELD) if isinstance(record, dict) else record
        if not isinstance(text, str):
            raise UserError(f'{path}:{number}: neither text nor an object with a text "{TEXT_FIELD}"')
        yield " ".join(text.split())


def parquet_records(path: Path, encoding: str) -> Iterator[str]:
    """The text of each row of a Parquet file, on one line; a batch of rows is held at a time."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(
            f"{path}: Parquet needs pyarrow: install it with 'bash scripts/setup.sh data', or give .jsonl"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            if TEXT_FIELD not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise UserError(f'{path}: has no column "{TEXT_FIELD}"; it has {columns}')
            for batch in file.iter_batches(batch_size=1024, columns=[TEXT_FIELD]):
                for text in batch.column(0).to_pylist():
                    if text is None:
                        continue
                    if not isinstance(text, str):
                        raise UserError(f'{path}: its column "{TEXT_FIELD}" holds {type(text).__name__}, not text')
                    yield " ".join(text.split())
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from error


TEXT_FIELD = "text"  # of records
RECORD_READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".jsonl": json_records,
    ".ndjson": json_records,
    ".parquet": parquet_records,
}
# Suffix -> reader. A new kind of file is a new row.
READERS: dict[str, Callable[[Path, str], Iterator[str]]] = (
    dict.fromkeys(("", ".txt", ".text", ".md", ".cor"), plain_lines) | RECORD_READERS
)


def source_files(path: Path) -> list[Path]:
    """The files of text that a path stands for: itself, or what is below it, sorted; hidden files are left out.

    Raises UserError when there is none, or the path is a file of a kind without a reader.
    """
    kinds = ", ".join(suffix for suffix in READERS if suffix)
    if path.is_file():
        if path.suffix.lower() not in READERS:
            raise UserError(f"{path}: files of kind {path.suffix} cannot be read; text ({kinds}) can")
        return [path]
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder")
    visible = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    files = [file for file in visible if file.suffix.lower() in READERS]
    others = Counter(file.suffix for file in visible if file.suffix.lower() not in READERS)
    if others:
        print(f"{path}: left out " + ", ".join(f"{n} x {suffix}" for suffix, n in sorted(others.items())))
    if not files:
        raise UserError(f"{path}: no plain text in this folder ({kinds})")
    return files


# ----------------------------------------------------------------------------------------- lines -> documents

SENTENCE_END = re.compile(r"[.!?…:;][\"'”’»)\]]*$")
_DIVISION = r"(?:chapter|part|book|volume|section|letter|canto|act|scene|stave)"
HEADING = re.compile(
    r"#{1,6}\s+\S.*"  # Markdown
    rf"|{_DIVISION}\b.{{0,60}}(?<![.,;:?!])"  # CHAPTER IV, Book the First, Part 2 - The Sea
    rf"|{_DIVISION}\s+(?:\d+|[ivxlc]+)[.:].{{0,60}}"  # Chapter 4. Of the whale
    r"|(?:prologue|epilogue|preface|foreword|introduction|conclusion|appendix|afterword)\.?"
    r"|(?:\d{1,3}|[ivxlc]{1,8})\.?",
    re.IGNORECASE,
)
GUTENBERG_START = re.compile(
    r"\*\*\*\s?START OF (?:THE|THIS) PROJECT GUTENBERG|\*END\*?\s?THE SMALL PRINT", re.IGNORECASE
)
GUTENBERG_END = re.compile(
    r"\*\*\*\s?END OF (?:THE|THIS) PROJECT GUTENBERG|End of (?:the )?Project Gutenberg", re.IGNORECASE
)
GUTENBERG_NOTE = re.compile(r"(?:Produced by|E-text prepared by|Transcriber.?s note|\[Illustration)\b", re.IGNORECASE)
ITALICS_MARK = re.compile(r"(?<!\w)_(?=\S)|(?<=\S)_(?!\w)")


def documents(lines: Iterable[str], document: str, max_characters: int) -> Iterator[str | None]:
    """Yields the pieces of each document, and None behind its last one. See the head of this module for
    `document`.

    Only a piece is ever held, or a chapter of at most about max_characters.
    """
    if document == "file":
        yield from lines
        yield None
    elif document == "line":
        for line in lines:
            yield line
            yield None
    elif document == "blank_line":
        for line in lines:
            yield line if line.strip() else None
        yield None
    else:
        for chapter in chapters(paragraphs(lines, max_characters), max_characters):
            yield from chapter
            yield None


def paragraphs(lines: Iterable[str], max_characters: int) -> Iterator[tuple[str, int]]:
    """Yields blocks between blank lines as (text, number of lines); one that is too long ends at the next
    line end."""
    block: list[str] = []
    for line in chain(lines, [""]):
        if line.strip():
            block.append(line.strip())
        if block and (not line.strip() or sum(map(len, block)) >= max_characters):
            yield " ".join(block), len(block)
            block = []


def chapters(blocks: Iterable[tuple[str, int]], max_characters: int) -> Iterator[list[str]]:
    """Gathers paragraphs from heading to heading, at most about max_characters long.

    Headings and ornaments (no letter or digit) go, and so does a chapter without a single sentence: a title
    page, a table of contents.
    """
    chapter: list[str] = []
    for text, n_lines in chain(blocks, [("# end", 1)]):
        heading = n_lines == 1 and HEADING.fullmatch(text)
        if heading or sum(map(len, chapter)) >= max_characters:
            if any(map(SENTENCE_END.search, chapter)):
                yield chapter
            chapter = []
        if not heading and any(map(str.isalnum, text)):
            chapter.append(text)


def gutenberg_book(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a Project Gutenberg file between its licence texts."""
    inside = False
    in_note = False
    for line in lines:
        if not inside:
            inside = bool(GUTENBERG_START.search(line))
        elif GUTENBERG_END.match(line.strip()):
            return
        elif GUTENBERG_NOTE.match(line.strip()) or (in_note and line.strip()):
            in_note = True
        else:
            in_note = False
            yield ITALICS_MARK.sub("", line)


def detect(sample: list[str]) -> str:
    """What `auto` takes for a file that begins with these lines: line, blank_line or book."""
    filled = [line.strip() for line in sample if line.strip()]
    if not filled:
        return "book"
    if median(map(len, filled)) >= ARTICLE_CHARACTERS:
        return "line"
    blocks = sum(1 for before, line in zip(["", *sample], sample, strict=False) if line.strip() and not before.strip())
    sentences = sum(1 for line in filled if SENTENCE_END.search(line))
    one_sentence_a_line = blocks > 1 and len(filled) >= 2 * blocks and sentences >= 0.8 * len(filled)
    return "blank_line" if one_sentence_a_line else "book"


def file_documents(lines: Iterator[str], document: str, max_characters: int) -> tuple[str, Iterator[str | None]]:
    """(what a document of this file is, the pieces of its documents as `documents` yields them)."""
    sample: list[str] = []
    size = 0
    for line in lines:
        sample.append(line)
        size += len(line)
        if size >= SAMPLE_CHARACTERS:
            break
    lines = chain(sample, lines)
    if any(map(GUTENBERG_START.search, sample)):
        lines = gutenberg_book(lines)
        sample = list(gutenberg_book(sample))
    if document == "auto":
        document = detect(sample)
    return document, documents(lines, document, max_characters)


# -------------------------------------------------------------------------------------------------- the stage


def write_documents(pieces: Iterable[str | None], stream: IO[str]) -> int:
    """Writes each document on a line of its own and an empty line behind it; returns how many were not
    empty."""
    count, begun = 0, False
    for piece in pieces:
        if piece is None:
            stream.write("\n\n" if begun else "")
            count += begun
            begun = False
        elif words := piece.split():
            stream.write((" " if begun else "") + " ".join(words))
            begun = True
    return count


class Part(NamedTuple):
    """A file, and where its documents go for the time being: one file can be larger than memory."""

    source: Path
    text: Path


def format_file(part: Part, document: str, encoding: str, max_document_characters: int) -> tuple[str, int]:
    """Writes the documents of a file; returns (what a document of it is, how many there are). Runs in a worker."""
    suffix = part.source.suffix.lower()
    lines = READERS[suffix](part.source, encoding)
    kind, pieces = file_documents(lines, "line" if suffix in RECORD_READERS else document, max_document_characters)
    with open(part.text, "w", encoding="utf-8", newline="\n") as stream:
        return kind, write_documents(pieces, stream)


def format_text(
    path: Path,
    name: str,
    output_dir: Path,
    document: str = "auto",
    encoding: str = "utf-8",
    max_document_characters: int = MAX_DOCUMENT_CHARACTERS,
    workers: int | Workers = 1,
) -> Path:
    """Writes <output_dir>/<name>_one_article_per_line.txt unless it was made from the same text; returns its
    path.

    workers: processes of this machine, or opened workers, a file each at a time; what is written does not depend on
    them. Raises UserError for text in another encoding and when no document comes out.
    """
    output = output_dir / formatted_file(Path(), name).name
    files = source_files(path)
    inputs = fingerprint(files, base=path if path.is_dir() else None)
    settings = {
        "document": document,
        "encoding": encoding,
        "max_document_characters": max_document_characters,
    }

    def write(stream: IO[str]) -> dict[str, dict[str, int]]:
        counts: Counter[str] = Counter()
        with temporary_directory(output) as folder, Progress(len(files), "formatting", "files") as progress:
            parts = [Part(file, folder / f"{i}.txt") for i, file in enumerate(files)]
            made = ordered_map(partial(format_file, **settings), parts, workers)
            for part, (kind, n_documents) in zip(parts, made, strict=True):
                with open(part.text, encoding="utf-8", newline="\n") as text:
                    shutil.copyfileobj(text, stream, COPIED_CHARACTERS)
                part.text.unlink()
                counts[kind] += n_documents
                progress.update(1)
        if not counts.total():
            raise UserError(f"{path}: no text in {len(files)} file(s); nothing to train on")
        return {"documents": dict(counts)}

    record = make_file(output, inputs, settings, write)
    if record:
        by_kind = ", ".join(f"{n} by {kind}" for kind, n in record["documents"].items())
        total = sum(record["documents"].values())
        print(f"{output}: {total} documents ({by_kind}), {output.stat().st_size / 1e6:.2f} MB")
    return output


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("path", type=absolute_path, help="a text file, or a folder (searched with its subfolders)")
    parser.add_argument("--name", type=dataset_name, required=True, help="of the data set; part of file names")
    parser.add_argument("--output_dir", type=absolute_path, required=True)
    parser.add_argument("--document", default="auto", choices=("auto", "file", "line", "blank_line", "book"))
    parser.add_argument("--encoding", default="utf-8", help="of the files, for example cp1252 (default: utf-8)")
    parser.add_argument("--max_document_characters", type=int, default=MAX_DOCUMENT_CHARACTERS)
    add_flags(parser, n_processes=available_cores())
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    with chosen_workers(arguments) as workers:
        if workers is not None:
            format_text(**arguments, workers=workers)


if __name__ == "__main__":
    from data import text  # under its own name, so that workers find its functions by module

    run_main(text.main)
