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

from data.archives import unpacked
from data.executors import Workers, absolute_path, add_flags, chosen_workers
from data.parallel import available_cores, ordered_map
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


def one_line(path: Path) -> tuple[str, str]:
    """(a book on one line, with its line end and an empty line; "") or ("", why there is none); runs in a worker."""
    book = io.StringIO()
    try:
        _, pieces = file_documents(plain_lines(path, "utf-8"), "file", 0)
        write_documents(pieces, book)
    except UserError as error:
        return "", str(error)
    return book.getvalue(), "" if book.getvalue() else "no text"


def format_books(path: Path, output: Path, workers: int | Workers = 1) -> dict[str, Any] | None:
    """Writes the books below a folder or in an archive, unless that was done from the same files; returns the manifest
    if written.

    workers: processes of this machine, or opened workers; the file does not depend on them. A few books a worker are
    in memory at a time. Raises UserError when there is none, and for an archive that is broken or hostile.
    """
    inputs = fingerprint(source_files(path), base=path) if path.is_dir() else fingerprint([path])

    def write(stream: IO[str]) -> dict[str, Any]:
        n_books = 0
        left_out: list[str] = []
        with book_folder(path, output.parent) as folder:
            files = source_files(folder)
            with Progress(len(files), "formatting", "books") as progress:
                for file, (text, reason) in zip(files, ordered_map(one_line, files, workers), strict=True):
                    if reason:
                        name = file.relative_to(folder).as_posix()
                        left_out.append(f"{name}: {reason.replace(str(file), name)}")
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
    parser.add_argument("path", type=absolute_path, help="a folder of .txt files, or a tar or zip archive of one")
    parser.add_argument("--output", type=absolute_path, required=True)
    add_flags(parser, n_processes=available_cores())
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    with chosen_workers(arguments) as workers:
        if workers is not None:
            format_books(**arguments, workers=workers)


if __name__ == "__main__":
    from data import books  # under its own name, so that workers find its functions by module

    run_main(books.main)
