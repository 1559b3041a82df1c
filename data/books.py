"""Books as plain text, one file a book, to one book a line, each line followed by an empty one.

    python -m data.books PATH --output data/formatted_one_article_per_line/bookscorpus_one_book_per_line.txt

PATH is a folder (searched with its subfolders) of .txt files, as BookCorpus has them, or an archive of one (tar, also
compressed, or zip), which is unpacked beside the output for the time being. Of Project Gutenberg files only the book
itself is taken. A book that is not UTF-8, or has no text, is left out and named in the manifest.
"""

import argparse
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from data.download import unpacked
from data.stage import fingerprint, make_file
from data.text import file_documents, plain_lines, source_files, write_documents
from runkit.errors import UserError, run_main
from runkit.progress import Progress, print_line

MAX_NAMED = 1000  # books left out that the manifest names; all are counted


@contextlib.contextmanager
def book_folder(path: Path, scratch: Path) -> Iterator[Path]:
    """Yields path if it is a folder, else a temporary one in scratch with what is in the archive at path."""
    if path.is_dir():
        yield path
        return
    with unpacked(path, scratch) as folder:
        yield folder


def one_line(path: Path) -> str:
    """A book on one line, with its line end and an empty line; "" when there is no text.

    Raises UserError naming the file when it is not UTF-8.
    """
    _, pieces = file_documents(plain_lines(path, "utf-8"), "file", 0)
    book = io.StringIO()
    write_documents(pieces, book)
    return book.getvalue()


def format_books(path: Path, output: Path) -> dict[str, Any] | None:
    """Writes the books below a folder or in an archive, unless that was done from the same files; returns the manifest
    if written.

    One book is in memory at a time. Raises UserError when there is none, and for an archive that is broken or hostile.
    """
    inputs = fingerprint(source_files(path), base=path) if path.is_dir() else fingerprint([path])

    def write(stream: IO[str]) -> dict[str, Any]:
        n_books = 0
        left_out: list[str] = []
        with book_folder(path, output.parent) as folder:
            files = source_files(folder)
            with Progress(len(files), "formatting", "books") as progress:
                for file in files:
                    name = file.relative_to(folder).as_posix()
                    try:
                        text = one_line(file)
                        reason = "" if text else "no text"
                    except UserError as error:
                        text, reason = "", str(error).replace(str(file), name)
                    if reason:
                        left_out.append(f"{name}: {reason}")
                        print_line(f"left out {left_out[-1]}")
                    else:
                        stream.write(text)
                        n_books += 1
                    progress.update(1)
        if not n_books:
            raise UserError(f"{path}: no book with text in {len(files)} file(s)")
        return {"counts": {"books": n_books, "left_out": len(left_out)}, "left_out": left_out[:MAX_NAMED]}

    record = make_file(output, inputs, {}, write)
    if record:
        counts = record["counts"]
        size = output.stat().st_size / 1e6
        print(f"{output}: {counts['books']} books, {counts['left_out']} left out, {size:.2f} MB")
    return record


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("path", type=Path, help="a folder of .txt files, or a tar or zip archive of one")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    format_books(**vars(parse_arguments()))


if __name__ == "__main__":
    run_main(main)
