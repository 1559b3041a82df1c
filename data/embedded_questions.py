"""Questions about library documentation, for machines without a question set: SQuAD 2.0 files with true offsets.

    python -m data.embedded_questions --output_dir data/embedded_questions [--train 6000] [--dev 300] [--seed 12345]

What signatures and docstrings say about functions in a fixed form (module, arguments with types and defaults, results,
exceptions) is put into sentences, three to six of one function to a paragraph. A question asks for what one of them
says; about a quarter ask for what the paragraph does not say. train-v2.0.json and dev-v2.0.json have no function and no
module in common.

Nothing is imported, only parsed. The files depend on the interpreter, the versions of LIBRARIES found beside it, the
sizes and the seed.
"""

import argparse
import ast
import inspect
import json
import random
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from data import embedded, prose
from data.embedded import FUNCTIONS, LIBRARIES, digest_of, source_files
from data.parallel import available_cores, ordered_map
from data.prose import indentation, sentences_of
from data.stage import RECORD, is_current
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, sha256_file, write_json
from runkit.progress import Progress

FILES = {"train": "train-v2.0.json", "dev": "dev-v2.0.json"}
DEV_SHARE = 8  # one module in so many is for dev
UNANSWERABLE = 0.25  # share of the questions
SENTENCES = (3, 6)  # of a paragraph, from and to
PARAGRAPH_CHARACTERS = 380  # at most, about 100 WordPiece tokens
QUESTIONS = 3  # of a paragraph, at most
PER_MODULE = 25  # functions at most, so that no module dominates
PASSES = 3  # over the functions, each with other facts

# ------------------------------------------------------------------------------------------------- sources -> facts


class Fact(NamedTuple):
    """A sentence, its question, and the answer, which stands in the sentence once."""

    kind: str  # a key of QUESTIONS_OF
    subject: str  # what the question names: a function, an argument, a condition
    sentence: str
    answer: str


class Function(NamedTuple):
    """What is known of one function."""

    module: str
    name: str
    facts: list[Fact]  # the first says where it is


QUESTIONS_OF = {
    "module": "Which module has the function {}?",
    "class": "Which class has the method {}?",
    "type": "What type has the argument {}?",
    "default": "What is the default of {}?",
    "meaning": "What does the argument {} mean?",
    "result": "What does {} return?",
    "exception": "Which exception is raised if {}?",
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{1,19}")
_DEFAULT = re.compile(r"-?\d{1,5}(?:\.\d{1,4})?|[A-Za-z][A-Za-z0-9_]{0,15}")
_EXCEPTION = re.compile(r"[A-Z][a-z]\w*(?:Error|Exception|Warning)")
_CONDITION = re.compile(r"(?:raised |raises )?(?:if|when|in case) ", re.IGNORECASE)
_ARGUMENTS, _RESULTS, _EXCEPTIONS = "arguments", "results", "exceptions"
_SECTIONS = {
    "args": _ARGUMENTS,
    "arguments": _ARGUMENTS,
    "parameters": _ARGUMENTS,
    "other parameters": _ARGUMENTS,
    "returns": _RESULTS,
    "raises": _EXCEPTIONS,
}


def functions_of(path: Path) -> list[Function]:
    """The public functions and methods of a Python file of which something is known."""
    source = path.read_bytes()
    try:
        with warnings.catch_warnings():  # invalid escapes in other people's strings
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # files for other Python versions, templates
        return []
    module = path.parent.name if path.stem == "__init__" else path.stem
    if module.startswith("_") or not _NAME.fullmatch(module):
        return []
    functions = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            functions += [_function(child, module, node.name) for child in node.body if isinstance(child, FUNCTIONS)]
        elif isinstance(node, FUNCTIONS):
            functions.append(_function(node, module, None))
    return [function for function in functions if function and len(function.facts) >= SENTENCES[0]]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str, owner: str | None) -> Function | None:
    name, text = node.name, ast.get_docstring(node) or ""
    if not _NAME.fullmatch(name) or len(name) < 4 or (owner and not _NAME.fullmatch(owner)):
        return None
    if owner:
        facts = [Fact("class", name, f"{name} is a method of the class {owner}.", owner)]
    else:
        facts = [Fact("module", name, f"{name} is a function of the module {module}.", module)]
    documented, defaults = read_docstring(text), default_values(node.args)
    signature = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    for argument in dict.fromkeys([*signature, *documented.types, *documented.meanings]):
        if not _NAME.fullmatch(argument) or argument in ("self", "cls"):
            continue
        if value := documented.types.get(argument):
            facts.append(Fact("type", argument, f"The argument {argument} has the type {value}.", value))
        if value := defaults.get(argument):
            facts.append(Fact("default", argument, f"The default of {argument} is {value}.", value))
        if value := documented.meanings.get(argument):
            facts.append(Fact("meaning", argument, f"The argument {argument} means {value}.", value))
    facts += [Fact("result", name, f"{name} returns {value}.", value) for value in documented.results[:1]]
    for value, condition in documented.conditions.items():
        facts.append(Fact("exception", condition, f"{value} is raised if {condition}.", value))
    facts = [fact for fact in facts if fact.sentence.count(fact.answer) == 1]
    return Function(module, name, facts) if facts[:1] and facts[0].subject == name else None


def default_values(arguments: ast.arguments) -> dict[str, str]:
    """Defaults that read as a word or a number, by argument; None, which most are, but once."""
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    found: dict[str, str] = {}
    for argument, value in pairs:
        text = str(value.value) if isinstance(value, ast.Constant) and value.value is not ... else ""
        if _DEFAULT.fullmatch(text) and not (text == "None" and text in found.values()):
            found[argument.arg] = text
    return found


class Documented(NamedTuple):
    """What a docstring says in a fixed form."""

    types: dict[str, str]  # by argument
    meanings: dict[str, str]  # by argument
    results: list[str]
    conditions: dict[str, str]  # by exception


def read_docstring(text: str) -> Documented:
    """Reads the sections of a docstring in Google's or NumPy's form."""
    found = Documented({}, {}, [], {})
    for section, name, kind, description in docstring_items(text):
        if section == _ARGUMENTS:
            if type_name := _type_name(kind):
                found.types.setdefault(name, type_name)
            if phrase := _noun_phrase(description):
                found.meanings.setdefault(name, phrase)
        elif section == _RESULTS and (phrase := _noun_phrase(description)):
            found.results.append(phrase)
        elif section == _EXCEPTIONS and _EXCEPTION.fullmatch(name) and _CONDITION.match(description):
            phrase = _phrase(description[0].upper() + description[1:], 14)
            if phrase:
                found.conditions.setdefault(name, _CONDITION.sub("", phrase, count=1))
    return found


def docstring_items(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (section, name, type, description) of what is documented in order; name and type may be empty."""
    lines = [line for line in inspect.cleandoc(text).expandtabs().splitlines() if line.strip()]
    section, numpy_style, base, body = "", False, 0, []
    for line, following in pairwise([*lines, ""]):
        stripped, indent = line.strip(), indentation(line)
        underlined = set(following.strip()) == {"-"}
        google = stripped.endswith(":") and stripped[:-1].lower() in _SECTIONS
        if underlined or google:
            yield from _items(section, numpy_style, body)
            section = _SECTIONS.get(stripped.rstrip(":").lower(), "")
            numpy_style, base, body = underlined, indent, []
        elif section and not numpy_style and indent <= base:  # Google's sections end with their indentation
            yield from _items(section, numpy_style, body)
            section, body = "", []
        elif section and set(stripped) != {"-"}:
            body.append(line)
    yield from _items(section, numpy_style, body)


def _items(section: str, numpy_style: bool, body: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """The entries of a section: each begins at the indentation of the first."""
    if section == _RESULTS and not numpy_style:
        yield section, "", "", " ".join(line.strip() for line in body)
        return
    entries: list[list[str]] = []
    for line in body:
        if not entries or indentation(line) <= indentation(body[0]):
            entries.append([])
        entries[-1].append(line.strip())
    for first, *rest in entries:
        name, _, remainder = first.partition(":")
        name, _, kind = name.partition("(")
        if numpy_style:
            yield section, name.strip(), remainder.strip(), " ".join(rest)
        else:
            yield section, name.strip("* "), kind.strip("() "), " ".join([remainder.strip(), *rest])


def _type_name(text: str) -> str | None:
    """The first of the types named, if it is a word or two."""
    text = re.split(r",| or |\bof\b", text.strip("`* {}"))[0].strip("`* ")
    return text if re.fullmatch(r"[A-Za-z][A-Za-z_.]{1,15}(?: [a-z]{1,10})?", text) else None


def _noun_phrase(text: str) -> str | None:
    """The first sentence of a description that says what something is, to follow "means" or "returns"."""
    phrase = _phrase(re.sub(r"\s*\(optional\)", "", text), 16)
    if phrase is None or not re.match(r"(?:The|A|An|Whether|Number|How|What|Which) ", phrase):
        return None
    return phrase[0].lower() + phrase[1:]


def _phrase(text: str, most_words: int) -> str | None:
    """The first sentence of a text without its period, if it is plain English of a few words."""
    sentences = sentences_of(text if re.search("[.!?]", text) else f"{text}.")
    words = sentences[0].rstrip(".").split() if sentences else []
    return " ".join(words) if 2 < len(words) <= most_words else None


# ----------------------------------------------------------------------------------------------- facts -> questions


class Paragraph(NamedTuple):
    """A context of some facts of a function; asked is in the order of the questions."""

    function: Function
    context: str
    asked: list[tuple[str, str | None, int]]  # question, answer (None: the context has none), where it begins


def compose(function: Function, others: dict[str, list[str]], rng: random.Random) -> Paragraph:
    """Chooses facts for a paragraph and asks for some of them, and for what it leaves out.

    others: subjects of each kind, of any function, to ask in vain for.
    """
    place, *rest = function.facts
    chosen = [place]
    for fact in rng.sample(rest, min(len(rest), rng.randint(*SENTENCES) - 1)):
        if sum(len(f.sentence) + 1 for f in [*chosen, fact]) <= PARAGRAPH_CHARACTERS:
            chosen.append(fact)
    chosen.sort(key=function.facts.index)
    context = " ".join(fact.sentence for fact in chosen)
    said = {(fact.kind, fact.subject) for fact in chosen}

    asked: list[tuple[str, str | None, int]] = []
    for fact in rng.sample(chosen, min(len(chosen), QUESTIONS)):
        if rng.random() < UNANSWERABLE:
            if question := _vain_question(function, said, others, rng):
                asked.append((question, None, 0))
        else:
            start = context.index(fact.sentence) + fact.sentence.index(fact.answer)
            asked.append((QUESTIONS_OF[fact.kind].format(fact.subject), fact.answer, start))
    return Paragraph(function, context, list(dict.fromkeys(asked)))


def _vain_question(
    function: Function, said: set[tuple[str, str]], others: dict[str, list[str]], rng: random.Random
) -> str | None:
    """Asks for what the paragraph leaves out of its function, or for something of another one."""
    left_out = [(fact.kind, fact.subject) for fact in function.facts if (fact.kind, fact.subject) not in said]
    if left_out and rng.random() < 0.5:
        kind, subject = rng.choice(left_out)
    else:
        kind = rng.choice(sorted(others))
        subject = rng.choice(others[kind])
    known = {(fact.kind, fact.subject) for fact in function.facts} - set(left_out)
    return None if (kind, subject) in known else QUESTIONS_OF[kind].format(subject)


def split_functions(functions: Iterable[Function]) -> dict[str, list[Function]]:
    """Functions for "train" and "dev", which share no module and no name, PER_MODULE of a module at most; what is said
    of two is left out the second time."""
    splits: dict[str, list[Function]] = {"train": [], "dev": []}
    seen = set()
    of_module = Counter[str]()
    for function in functions:
        key = tuple(fact.sentence for fact in function.facts[1:])
        if key not in seen and of_module[function.module] < PER_MODULE:
            seen.add(key)
            of_module[function.module] += 1
            is_dev = zlib.crc32(function.module.encode()) % DEV_SHARE == 0
            splits["dev" if is_dev else "train"].append(function)
    names = {function.name for function in splits["train"]}
    splits["dev"] = [function for function in splits["dev"] if function.name not in names]
    return splits


def compose_all(functions: Sequence[Function], n_questions: int, seed: int) -> list[Paragraph]:
    """Paragraphs with n_questions questions, or as many as all functions give in PASSES passes."""
    rng = random.Random(seed)
    others = {
        kind: sorted({fact.subject for function in functions for fact in function.facts if fact.kind == kind})
        for kind in QUESTIONS_OF
    }
    others = {kind: subjects for kind, subjects in others.items() if subjects}
    paragraphs: list[Paragraph] = []
    contexts = set()
    missing = n_questions
    for _ in range(PASSES):
        for function in rng.sample(functions, len(functions)):
            paragraph = compose(function, others, rng)
            if paragraph.asked and paragraph.context not in contexts:
                contexts.add(paragraph.context)
                paragraph = paragraph._replace(asked=paragraph.asked[:missing])
                paragraphs.append(paragraph)
                missing -= len(paragraph.asked)
                if not missing:
                    return paragraphs
    return paragraphs


def to_squad(paragraphs: Iterable[Paragraph], split: str) -> dict:
    """SQuAD 2.0's form: an article is a module."""
    articles: dict[str, list[dict]] = {}
    number = 0
    for paragraph in paragraphs:
        qas = []
        for question, answer, start in paragraph.asked:
            qas.append(
                {
                    "id": f"{split}-{number:05d}",
                    "question": question,
                    "answers": [] if answer is None else [{"text": answer, "answer_start": start}],
                    "is_impossible": answer is None,
                }
            )
            number += 1
        articles.setdefault(paragraph.function.module, []).append({"context": paragraph.context, "qas": qas})
    return {"version": "v2.0", "data": [{"title": title, "paragraphs": p} for title, p in articles.items()]}


# -------------------------------------------------------------------------------------------------------- the stage


def write_questions(output_dir: Path, sizes: dict[str, int], seed: int, n_processes: int) -> None:
    """Writes the files of FILES and prints how much is in them, unless they are made already.

    Raises UserError when the documentation found here is too little.
    """
    files = source_files(LIBRARIES)
    rules = [Path(__file__), Path(embedded.__file__), Path(prose.__file__)]
    inputs = [{"name": "sources", "files": len(files), "sha256": digest_of([*files, *rules])}]
    settings = {"seed": seed, **sizes}
    record = output_dir / RECORD
    if is_current(record, inputs, settings):
        print(f"{output_dir}: up to date")
        return
    functions: list[Function] = []
    with Progress(len(files), "reading sources", "files") as progress:
        for found in ordered_map(functions_of, files, n_processes):
            functions += found
            progress.update()
    written = {}
    for split, of_split in split_functions(functions).items():
        paragraphs = compose_all(of_split, sizes[split], seed)
        asked = [answer for paragraph in paragraphs for _, answer, _ in paragraph.asked]
        if len(asked) < sizes[split]:
            raise UserError(
                f"the documentation found here gives {len(asked)} {split} questions, not {sizes[split]}; "
                f"install more of {', '.join(LIBRARIES)}, or ask for fewer by --{split}"
            )
        path = output_dir / FILES[split]
        with atomic_open(path, "w") as stream:
            json.dump(to_squad(paragraphs, split), stream, indent=1)
        written[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        print(
            f"{path}: {len(asked)} questions on {len(paragraphs)} paragraphs about "
            f"{len({p.function.name for p in paragraphs})} functions, {asked.count(None)} of them unanswerable"
        )
    write_json(record, {"inputs": inputs, "settings": settings, "files": written})


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--train", type=int, default=6000, metavar="N", help="questions (default %(default)s)")
    parser.add_argument("--dev", type=int, default=300, metavar="N", help="questions (default %(default)s)")
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--n_processes", type=int, default=available_cores())
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    if min(arguments.train, arguments.dev) < 1:
        raise UserError("--train and --dev must be at least 1")
    sizes = {"train": arguments.train, "dev": arguments.dev}
    write_questions(arguments.output_dir, sizes, arguments.seed, arguments.n_processes)


if __name__ == "__main__":
    run_main(main)
