"""Docstrings to English sentences: what is not prose goes.

`paragraphs` leaves out code as far as its form shows it (doctests, literal blocks, fences, tables,
signatures); `sentences_of` takes the markup off, and keeps the sentences that read as English.
"""

import inspect
import re
from collections.abc import Iterator
from itertools import pairwise

# ------------------------------------------------------------------------------------ docstring -> paragraphs

DOCTEST = re.compile(r"\s*(>>>|\.\.\. |In \[\d)")
UNDERLINE = re.compile(r"\s*([=\-~^*#+\"'`.:_])\1{2,}\s*$")
TABLE = re.compile(r"\s*(\||\+[-=+]{2}|[=-]{2,}\s+[=-]{2,})")
BULLET = re.compile(r"\s*(?:[*+•-]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+(?=\S)")
DIRECTIVE = re.compile(r"\s*\.\. ?(?:\|[^|]*\| )?([\w-]+)::")
COMMENT = re.compile(r"\s*\.\.( |$)")
FIELD = re.compile(r"\s*[:@]\w+(?:\s+[^:]*)?:\s*")
# "name: Description", "name (type): Description", "**name** -- Description": only the description is prose.
NAMED_ITEM = re.compile(r"\s*[`*]{0,2}[\w.]+[`*]{0,2}(?:\s*\([^)]*\))?\s*(?::|--|–)\s+(?=[A-Z])")
# "name : type", "name (type):", "name: bool, optional", whose description follows, indented; and "Returns:".
SIGNATURE = re.compile(
    r"\s*[\w`*.]+(?:, [\w`*.]+)*\s*"
    r"(?: :(?: .*)?|(?:\([^)]*\))?:|: (?:str|int|bool|float|list|dict|tuple|array|callable|object)\b[^.]*)$"
)
CODE_SECTION = re.compile(
    r"\s*(?:(?:Code )?Examples?|(?:Example |Sample )?Usage|References?|See Also|Grammar|Authors?|Attributes"
    r"|Methods|Call arguments|Inherited \w+|Input shape|Output shape|Compatibility)\s*:*\s*$",
    re.IGNORECASE,
)
ITEMS = (BULLET, FIELD, NAMED_ITEM)
PROSE_DIRECTIVES = set("note warning tip hint important attention caution admonition seealso".split())


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def without_code(lines: list[str]) -> Iterator[str]:
    """Yields the lines of a docstring, a blank line in place of each doctest, literal block, fence, table,
    directive that is not a remark, section of examples or references, and heading."""
    in_fence = in_doctest = False
    skip_deeper: int | None = None  # a block to leave out lasts while lines are indented more than this
    for line, following in pairwise([*lines, ""]):
        stripped, indent = line.strip(), indentation(line)
        if stripped.startswith(("```", "~~~")):
            in_fence = not in_fence and not (len(stripped) > 3 and stripped.endswith("```"))
            yield ""
        elif in_fence:
            continue
        elif not stripped:
            in_doctest = False
            yield ""
        elif UNDERLINE.match(following) and not UNDERLINE.match(line):
            # The body of an underlined section stands at the indentation of its heading.
            skip_deeper = indent - 1 if CODE_SECTION.match(line) else None
            yield ""
        elif skip_deeper is not None and indent > skip_deeper:
            continue
        elif in_doctest or DOCTEST.match(line):
            in_doctest = True
        elif UNDERLINE.match(line) or TABLE.match(line):
            yield ""
        elif (directive := DIRECTIVE.match(line)) or COMMENT.match(line):
            skip_deeper = None if directive and directive[1] in PROSE_DIRECTIVES else indent
            yield ""
        elif CODE_SECTION.match(line):
            skip_deeper = indent
            yield ""
        else:
            skip_deeper = indent if stripped.endswith("::") else None
            yield line


def paragraphs(docstring: str) -> Iterator[str]:
    """Yields the paragraphs and list items of a docstring (reStructuredText, NumPy, Google or plain style),
    each on one line without its bullet or parameter name, in order."""
    block: list[str] = []
    first_indent = 0
    for line in [*without_code(inspect.cleandoc(docstring).expandtabs().splitlines()), ""]:
        item = next((match for pattern in ITEMS if (match := pattern.match(line))), None)
        signature = SIGNATURE.match(line)
        if block and (not line.strip() or item or signature or indentation(line) < first_indent):
            yield " ".join(block)
            block = []
        if signature or not line.strip():
            continue
        if not block:
            first_indent = indentation(line)
        block.append(line[item.end() :].strip() if item else line.strip())


# ------------------------------------------------------------------------------------ paragraphs -> sentences

MARKUP = [
    (re.compile(r'"([\w.]+\(\)|\w*_\w*)"'), r"\1"),  # "name()" in the language reference
    (re.compile(r":[a-zA-Z][\w:+-]*:`[~!]?([^`<]+?)\s*(?:<[^>]*>)?`"), r"\1"),  # :func:`name`
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}"), r"\1"),  # `text <url>`_
    (re.compile(r"\[([^\]]+)\]\((?:[^)\s]+)\)"), r"\1"),  # [text](url)
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"\s?\[(?:\d+|#\w*|[A-Z]\w*\d{2,4})\]_?"), ""),  # [1]_
    (re.compile(r"\|([A-Za-z]\w*)\|_?"), r"\1"),
    (re.compile(r"::(?=\s|$)"), ":"),
    (re.compile(r"\\([*_`|\\])"), r"\1"),
    (re.compile(r"\b[CLE]\{([^{}]*)\}"), r"\1"),  # Epydoc: C{code}
]
MARKED = re.compile(r"[`*\[|\\{\"]|::")
MIN_SENTENCE_CHARACTERS = 25
LICENCE = re.compile(
    r"copyright|all rights reserved|permission is hereby|licensed under|without warranty|redistribut"
    r"|\(c\) \d{4}",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[a-z]\.[a-z]\.)(?<!\b(?:cf|vs|al|eq)\.)(?<!\betc\.)\s+(?=[\"'(]?[A-Z])")
WELL_FORMED = re.compile(r"[\"'(]?[A-Z0-9].*[a-z0-9)\"'][.!?][\"')]*$")
CODE_MARK = re.compile(r"[\\{}|$^<>=~@#]|://|\w\(\w|__|\.\.\.|\]\[|-->?|\+\+|&&")
PLAIN_WORD = re.compile(r"[(\"']*[A-Za-z]+(?:['’/-][A-Za-z]+)*[)\"',.;:!?]*$")
FUNCTION_WORDS = frozenset(
    "a an the this that these those it its they them their we you your he his she her i is are was were "
    "be been has have had do does did will would can could should may might must not no of in on at to "
    "for from by with as into than then when while where which who what how if or and but so because "
    "between over under after before each all any some such only also there about other more most same "
    "both".split()
)


def sentences_of(paragraph: str) -> list[str]:
    """The sentences of a paragraph that are English prose, in order; none when most of the text is not."""
    if len(paragraph) < MIN_SENTENCE_CHARACTERS or not re.search("[.!?]", paragraph):
        return []  # most of the names, types and headings, at little cost
    for pattern, replacement in MARKUP if MARKED.search(paragraph) else ():
        paragraph = pattern.sub(replacement, paragraph)
    sentences = SENTENCE_END.split(" ".join(paragraph.split()))
    prose = [sentence for sentence in sentences if is_prose(sentence)]
    mostly_prose = 2 * sum(map(len, prose)) >= len(paragraph)
    return prose if mostly_prose and not LICENCE.search(paragraph) else []


def is_prose(sentence: str) -> bool:
    """Whether a sentence reads as English: begins and ends like one, four words in five are plain, a fifth of
    them are function words, and it has no signs of code."""
    words = sentence.split()
    if not 5 <= len(words) <= 100 or not WELL_FORMED.match(sentence) or CODE_MARK.search(sentence):
        return False
    plain = sum(1 for word in words if PLAIN_WORD.match(word))
    function = sum(1 for word in words if word.lower().strip("(\"',.;:!?)") in FUNCTION_WORDS)
    return 5 * plain >= 4 * len(words) and 5 * function >= len(words)
