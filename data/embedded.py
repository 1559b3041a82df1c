"""English prose that is on every machine with Python: the language reference, and docstrings.

`pydoc_data.topics` (the reference behind `help()`) ships with every interpreter, and the standard library,
TensorFlow, NumPy, Matplotlib, NLTK ... carry some megabytes of docstrings. Source files are parsed, never
imported. What is not prose goes (data/prose.py), and every sentence that was there before.

    python -m data.embedded --output data/formatted_one_article_per_line/embedded_one_article_per_line.txt

The result depends on nothing but the interpreter and the versions of LIBRARIES found beside it.
"""

import argparse
import ast
import hashlib
import importlib.util
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from data import prose
from data.executors import Workers, add_flags, chosen_workers
from data.parallel import available_cores, ordered_map
from data.prose import paragraphs, sentences_of
from data.stage import make_file
from runkit.errors import UserError, run_main
from runkit.progress import Progress

# Beside the standard library, where installed. All but SciPy come with this tree's own environment.
LIBRARIES = (
    "tensorflow.python.data",
    "tensorflow.python.framework",
    "tensorflow.python.ops",
    "keras",
    "numpy",
    "scipy",
    "matplotlib",
    "mpl_toolkits",
    "nltk",
    "tensorboard",
    "huggingface_hub",
    "absl",
    "click",
    "werkzeug",
)
# Generated wrappers repeat the documentation of what they wrap.
SKIPPED_FILES = re.compile(r"gen_\w+\.py")
SKIPPED_FOLDERS = set("site-packages dist-packages __pycache__ tests test testing _vendor _api".split())

# A document is what one file says, but ends at the next class, function or paragraph of the reference after
# this many characters (about 2000 WordPiece tokens, some sequences of 512), and is not worth keeping below
# the minimum.
DOCUMENT_CHARACTERS = 8000
MIN_DOCUMENT_CHARACTERS = 300


# --------------------------------------------------------------------------------------- sources -> documents


def sections_of_source(path: Path) -> list[list[str]]:
    """The prose of a Python file: one list of sentences for each docstring, in the order of the file."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return []
    try:
        with warnings.catch_warnings():  # invalid escapes in other people's strings
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # files for other Python versions, templates
        return []
    sections = ([s for p in paragraphs(text) for s in sentences_of(p)] for text in docstrings(tree))
    return [section for section in sections if section]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """The docstrings of a module or class, and of its classes, methods and functions, in order."""
    if own := ast.get_docstring(node, clean=False):
        yield own
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from docstrings(child)
        elif isinstance(child, FUNCTIONS) and (text := ast.get_docstring(child, clean=False)):
            yield text


def sections_of_topics(path: Path) -> list[list[str]]:
    """The prose of pydoc_data/topics.py, which says `topics = {name: text}`: a list for each paragraph."""
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign):
            texts = ast.literal_eval(statement.value).values()
            return [s for text in texts for p in paragraphs(text) if (s := sentences_of(p))]
    return []


def sections_of(path: Path) -> list[list[str]]:
    topics = path.parts[-2:] == ("pydoc_data", "topics.py")
    return sections_of_topics(path) if topics else sections_of_source(path)


def source_files(libraries: Iterable[str]) -> list[Path]:
    """Every Python file of the standard library, then of those libraries that are installed, each sorted by
    name: an order that does not depend on the machine."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    roots = [(standard, standard)]
    for library in libraries:
        folder = library_folder(library)
        if folder is not None:
            roots.append((folder, folder.parent))
    files = []
    for root, base in roots:
        names = sorted(path.relative_to(base).as_posix() for path in root.rglob("*.py"))
        for name in names:
            *folders, file = name.split("/")
            if not SKIPPED_FOLDERS.intersection(folders) and not SKIPPED_FILES.fullmatch(file):
                files.append(base / name)
    return files


def library_folder(name: str) -> Path | None:
    """Where an installed package lies, without importing it; None when it is not installed."""
    parent, _, child = name.rpartition(".")
    if parent:
        folder = library_folder(parent)
        return folder / child if folder and (folder / child / "__init__.py").exists() else None
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def documents(files: Iterable[Path], workers: int | Workers, file_done: Callable[[], None]) -> Iterator[str]:
    """Yields documents, one line each, without the sentences that came before.

    A document stays within a file; file_done is called after each file.
    """
    seen: set[str] = set()
    for sections in ordered_map(sections_of, files, workers):
        document: list[str] = []
        for section in sections:
            for sentence in section:
                key = re.sub(r"[^a-z]", "", sentence.lower())
                if key not in seen:
                    seen.add(key)
                    document.append(sentence)
            if sum(map(len, document)) >= DOCUMENT_CHARACTERS:
                yield " ".join(document)
                document = []
        if sum(map(len, document)) >= MIN_DOCUMENT_CHARACTERS:
            yield " ".join(document)
        file_done()


# -------------------------------------------------------------------------------------------------- the stage


def write_embedded(output: Path, workers: int | Workers = 1) -> None:
    """Writes the documents to output, one a line and an empty line behind each, unless that is done already.

    workers: processes of this machine, or opened workers; the file does not depend on them. Raises UserError when there
    is no source to read.
    """
    files = source_files(LIBRARIES)
    inputs = [{"name": "sources", "files": len(files), "sha256": digest_of(files)}]
    rules = digest_of([Path(__file__), Path(prose.__file__)])

    def write(stream: IO[str]) -> dict[str, int]:
        n_documents = n_characters = 0
        with Progress(len(files), "reading sources", "files") as progress:
            for document in documents(files, workers, progress.update):
                stream.write(document + "\n\n")
                n_documents += 1
                n_characters += len(document)
        if not n_documents:
            raise UserError("no docstrings found: this Python comes without sources of its standard library")
        return {"documents": n_documents, "characters": n_characters}

    record = make_file(output, inputs, {"rules": rules}, write)
    if record:
        found = [f"Python {platform.python_version()}", *filter(library_folder, LIBRARIES)]
        print(
            f"{output}: {record['documents']} documents, {record['characters'] / 1e6:.2f} million characters "
            f"from the docstrings of {len(files)} files ({', '.join(found)})"
        )


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 over the contents of all files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, required=True)
    add_flags(parser, n_processes=available_cores())
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    with chosen_workers(arguments) as workers:
        if workers is not None:
            write_embedded(**arguments, workers=workers)


if __name__ == "__main__":
    from data import embedded  # under its own name, so that workers find its functions by module

    run_main(embedded.main)
