"""Wikitext to the prose that a reader sees.

`plain_text(wikitext)` gives paragraphs, one a line: no markup, tables, references, boxes, headings or captions;
sections of links and sources (DROPPED_SECTIONS) are left out, and so are lists of names that no sentence leads in to.
Templates inside sentences become their text (wiki_templates.py), and so do formulas (wiki_formulas.py); all others go,
with the brackets and blanks that they leave. A sentence goes with the formula, table or list that it would end without.

The text is passed over with regular expressions that cannot backtrack far (possessive quantifiers) and with one scan
for each kind of nested markup, so that time grows with the length of the text however broken it is. Where something is
opened and never closed, the mark goes and the text stays.
"""

import html
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html.entities import html5

from data.wiki_formulas import formula_text
from data.wiki_templates import RAISED, Arguments, is_kept, reaction, render, superscript

# Marks that stand in the text until paragraphs() has it; XML does not allow them there.
GONE = "\x00"  # something was taken out: punctuation around it is to be repaired
LOST = "\x01"  # a formula was taken out: the sentence that it was part of is not whole
OUT = "\x02"  # a table or code was taken out: a line that ends with ":" led in to it
BREAK = "\x03"  # a heading: no sentence goes on behind it

MAX_DEPTH = 12  # of templates within templates that are written out; each level is read once more

DROPPED_SECTIONS = frozenset(
    (
        "see also", "references", "reference", "external links", "external link", "notes", "note", "further reading",
        "bibliography", "footnotes", "sources", "citations", "notes and references", "references and notes",
        "notes and sources", "works cited", "literature cited", "general references", "references and sources",
        "cited sources", "gallery", "references and external links", "references and further reading",
        "sources and further reading", "links", "bibliography and further reading", "notes and citations",
        "footnotes and references", "other sources", "explanatory notes", "primary sources", "secondary sources",
        "image gallery", "further information", "selected bibliography", "cited references", "citations and notes",
        "inline citations", "additional reading",
    )
)  # fmt: skip

# Elements that go with all that is in them.
DROPPED_ELEMENTS = (
    "ref|references|math|chem|ce|gallery|source|syntaxhighlight|timeline|score|hiero|graph|imagemap|mapframe|maplink|pre"
    "|table|includeonly|templatestyles|inputbox|categorytree|style|script|indicator|del"
)

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
INLINE_CODE = re.compile(r"<(?:source|syntaxhighlight)\b[^<>]*?\binline\b", re.IGNORECASE)
FORMULA_TAG = re.compile(r"<(math|chem|ce)\b", re.IGNORECASE)
BLOCK_TAG = re.compile(r"<(?:source|syntaxhighlight|pre|table|gallery|timeline|graph|imagemap)\b", re.IGNORECASE)
ELEMENT_TAG = re.compile(rf"<(/?)({DROPPED_ELEMENTS})\b([^<>]*+)>", re.IGNORECASE)
SCRIPT_TAG = re.compile(rf"<sup(?:\s[^<>]*+)?>\s*({RAISED})\s*</sup\s*>", re.IGNORECASE)
BREAK_TAG = re.compile(r"</?(?:br|p|div|blockquote|li|ul|ol|dl|dd|dt|hr|center|poem)\b[^<>]*+>", re.IGNORECASE)
TAG = re.compile(r"</?[A-Za-z][^<>]*+>")
CUT_TAG = re.compile(
    r"</?(?:ref|references|math|nowiki|br|small|sup|sub|span|div)\b"
    r"(?:[ \t]*+[\w-]++[ \t]*+=[ \t]*+(?:\"[^\"<>\n]*+\"|[^\s<>]++))*+[ \t]*+/?",
    re.IGNORECASE,
)

HEADING = re.compile(r"^=[^\n]*+", re.MULTILINE)  # if it ends with "=" too
BRACES = re.compile(r"\{\{|\}\}")
PARAMETER = re.compile(r"\{\{\{[^{}|\n]*+(?:\|([^{}\n]*+))?\}\}\}")
UNCLOSED_TEMPLATE = re.compile(r"\{\{[^\n]*+")
ARGUMENT_MARKS = re.compile(r"\{\{|\}\}|\[\[|\]\]|\|")
NAMED_ARGUMENT = re.compile(r"\s*+([\w -]{1,40}?)\s*+=(.*)", re.DOTALL)
PREFORMATTED = re.compile(r"^ [^\n]*+(?:\n [^\n]*+)*+", re.MULTILINE)
TABLE_MARKS = re.compile(r"^[ \t:*#]*+\{\||^[ \t]*+\|\}(?!\})", re.MULTILINE)

# [[label]], [[target|label]]: the label stays. Targets with ":" may be files, categories, other languages.
SIMPLE_LINK = re.compile(r"\[\[(?:[^\[\]|:\n]*+\||(?![^\[\]|:\n]*+:))([^\[\]]*+)\]\]")
LINK = re.compile(r"\[\[((?:[^\[\]]|\[[^\[\]]*+\]|\[(?!\[)|\](?!\]))*+)\]\]")
LINK_MARKS = re.compile(r"\[\[|\]\]")
EXTERNAL_LINK = re.compile(
    r"\[(?:(?:https?|ftp|irc|ircs|news|gopher)://|//|mailto:)[^\s\[\]<>\"]*+(?:[ \t]++([^\[\]\n]*+))?\]", re.IGNORECASE
)
FILE_PREFIXES = frozenset(
    ("file", "image", "media", "category", "bild", "datei", "kategorie", "fichier", "catégorie", "archivo", "imagen",
     "categoría", "immagine", "categoria", "bestand", "categorie", "ficheiro", "imagem", "файл", "изображение",
     "категория", "文件", "图像", "分类", "画像", "ファイル", "カテゴリ", "plik", "kategoria")
)  # fmt: skip
LANGUAGE_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,8}){0,2}|simple|tokipona")
NOT_LANGUAGES = frozenset(("wp", "mw", "doi", "wmf", "rfc"))

QUOTE_AND_S = re.compile(r"(?<=[\w.!?)])'''(?=s\b)")
FOUR_QUOTES = re.compile(r"(?<!')'{4}(?!')")
QUOTES = re.compile(r"''++")
MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

NOWIKI = re.compile(r"<(/?)nowiki\s*+(/?)>", re.IGNORECASE)
FORMULAS = {"math": formula_text, "chem": reaction, "ce": reaction}
SPECIAL = {ord(letter): f"&#{ord(letter)};" for letter in "[]{}|'<>=*#:;_&!"}


def plain_text(wikitext: str) -> str:
    """The paragraphs of an article, one a line, in order; "" when there is no prose."""
    text = wikitext
    for mark in (GONE, LOST, OUT, BREAK):
        text = text.replace(mark, "")
    if "<!--" in text:
        text = COMMENT.sub("", text)
    if "nowiki" in text.lower():
        text = protect_nowiki(text)
    text = drop_sections(text)
    text = drop_elements(text)
    text = expand_templates(text)
    if "{|" in text:
        text = drop_tables(text)
    if "\n " in text:
        text = PREFORMATTED.sub(_preformatted, text)
    text = resolve_links(text)
    text = resolve_quotes(text)
    text = resolve_tags(text)
    if "__" in text:
        text = MAGIC_WORD.sub("", text)
    if "-{" in text:
        text = VARIANT.sub(_variant, text)
    if "{{" in text or "}}" in text:
        text = UNCLOSED_TEMPLATE.sub(GONE, text).replace("}}", GONE)
    if "&" in text:
        text = unescape(text)
    return "\n".join(paragraphs(repair(text)))


# --------------------------------------------------------------------------------------------- what is nested

Token = tuple[str, bool, int, int]  # kind, whether it opens, start, end


def closed_spans(tokens: Iterable[Token]) -> list[tuple[int, int]]:
    """(start, end) of all that is opened and closed and not inside of another such span, in order.

    A mark closes the last open one of its kind, and makes void what was opened after that and is still open. In time
    linear in the number of tokens.
    """
    spans: list[tuple[int, int]] = []
    stack: list[tuple[str, int]] = []
    n_open: Counter[str] = Counter()
    for kind, opens, start, end in tokens:
        if opens:
            stack.append((kind, start))
            n_open[kind] += 1
        elif n_open[kind]:
            while True:
                opened, begin = stack.pop()
                n_open[opened] -= 1
                if opened == kind:
                    break
            while spans and spans[-1][0] > begin:
                spans.pop()
            spans.append((begin, end))
    return spans


def _tokens(pattern: re.Pattern[str], text: str, opening: str) -> Iterator[Token]:
    for match in pattern.finditer(text):
        yield "", match[0].endswith(opening), match.start(), match.end()


# ------------------------------------------------------------------------------------------ the steps, in order


def protect_nowiki(text: str) -> str:
    """Between <nowiki> and </nowiki>, marks become entities, which nothing takes for markup and unescape() undoes."""
    parts = []
    position, opened = 0, None
    for match in NOWIKI.finditer(text):
        if match[2]:
            continue
        if match[1] and opened is not None:
            parts += (text[position : opened[0]], text[opened[1] : match.start()].translate(SPECIAL))
            position, opened = match.end(), None
        elif not match[1] and opened is None:
            opened = match.span()
    parts.append(text[position:])
    return "".join(parts)


def drop_sections(text: str) -> str:
    """Without DROPPED_SECTIONS, each to the next heading of its level or above, and without any heading."""
    parts = []
    position, dropping = 0, 0  # dropping: the level of the section that is being dropped
    for match in HEADING.finditer(text):
        line = match[0].rstrip()
        name = line.strip("=")
        level = min(len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("=")), 6)
        if not level or not name:
            continue
        if not dropping:
            parts.append(text[position : match.start()])
        if not dropping or level <= dropping:
            dropping = level if _is_dropped(_heading_name(name)) else 0
        position = match.end()
    if not dropping:
        parts.append(text[position:])
    return BREAK.join(parts)


def _is_dropped(name: str) -> bool:
    return name in DROPPED_SECTIONS or name.endswith(" bibliography")


def _heading_name(heading: str) -> str:
    return " ".join(TAG.sub("", heading).replace("'", "").replace("[", "").replace("]", "").lower().split()).rstrip(":")


def drop_elements(text: str) -> str:
    """Without DROPPED_ELEMENTS; formulas and code inside of sentences become text."""
    tags = list(ELEMENT_TAG.finditer(text))
    if not tags:
        return text
    tokens: list[Token] = []
    single: list[tuple[int, int]] = []  # tags that are closed in themselves
    for tag in tags:
        if not tag[1] and tag[3].rstrip().endswith("/"):
            single.append(tag.span())
        else:
            tokens.append((tag[2].lower(), not tag[1], tag.start(), tag.end()))
    spans = closed_spans(tokens)
    inside = iter([*spans, (len(text), len(text))])
    start, end = next(inside)
    for span in single:
        while span[0] >= end and end < len(text):
            start, end = next(inside)
        if span[0] < start:
            spans.append(span)
    spans.sort()
    parts = []
    position = 0
    for start, end in spans:
        parts += (text[position:start], _element_text(text, start, end))
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _element_text(text: str, start: int, end: int) -> str:
    if BLOCK_TAG.match(text, start):
        if not INLINE_CODE.match(text, start, end):
            return OUT
        return text[text.find(">", start) + 1 : text.rfind("<", start, end)].translate(SPECIAL)
    name = FORMULA_TAG.match(text, start)
    source = unescape(text[text.find(">", start) + 1 : text.rfind("<", start, end)])
    if name is None or not source.strip():
        return GONE
    formula = FORMULAS[name[1].lower()](source)
    return LOST if formula is None else formula.translate(SPECIAL)


def expand_templates(text: str, depth: int = 0) -> str:
    """Templates as render() gives them, GONE for the others."""
    if "{{" not in text:
        return text
    if "{{{" in text:
        text = PARAMETER.sub(lambda match: match[1] or "", text)
    parts = []
    position = 0
    for start, end in closed_spans(_tokens(BRACES, text, "{{")):
        parts += (text[position:start], _template_text(text[start + 2 : end - 2], depth))
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _template_text(content: str, depth: int) -> str:
    name, _, rest = content.partition("|")
    name = " ".join(name.replace("_", " ").lower().split())
    if ":" in name:  # {{formatnum:1234}}, {{lc:TEXT}}
        name = name.partition(":")[0]
        rest = content.partition(":")[2]
    if depth >= MAX_DEPTH or not is_kept(name):
        return GONE
    text = render(name, _arguments(rest, depth + 1))
    return GONE if text is None else text


def _arguments(text: str, depth: int) -> Arguments:
    """Divides at "|" outside of links and templates, then expands each part."""
    pieces = []
    level = position = 0
    for match in ARGUMENT_MARKS.finditer(text):
        mark = match[0]
        if mark == "|":
            if level <= 0:
                pieces.append(text[position : match.start()])
                position = match.end()
        else:
            level += 1 if mark in ("{{", "[[") else -1
    pieces.append(text[position:])
    positional: list[str] = []
    named: dict[str, str] = {}
    numbered: dict[int, str] = {}
    for piece in pieces:
        match = NAMED_ARGUMENT.fullmatch(piece)
        if match is None:
            positional.append(expand_templates(piece.strip(), depth))
        elif match[1].isdecimal() and len(match[1]) < 3:
            numbered[int(match[1])] = expand_templates(match[2].strip(), depth)
        else:
            named[match[1].strip().lower()] = expand_templates(match[2].strip(), depth)
    for number in sorted(numbered):
        positional += [""] * (number - len(positional))
        if number:
            positional[number - 1] = numbered[number]
    return Arguments(positional, named)


def drop_tables(text: str) -> str:
    """Without {| tables |}, nested ones included."""
    parts = []
    position = 0
    for start, end in closed_spans(_tokens(TABLE_MARKS, text, "{|")):
        parts += (text[position:start], OUT)
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _preformatted(match: re.Match[str]) -> str:
    """Lines that begin with a blank are code, unless they read like prose."""
    words = TAG.sub("", match[0]).replace(GONE, "").split()
    if len(words) >= MIN_LINE_WORDS * (match[0].count("\n") + 1) and SENTENCE_END.search(words[-1]):
        return match[0]
    return OUT if words and not words[0].startswith("[[") else ""


def resolve_links(text: str) -> str:
    """Links as their labels; files with their captions, categories and links to other languages go."""
    text = SIMPLE_LINK.sub(r"\1", text)
    text = EXTERNAL_LINK.sub(lambda match: match[1] or GONE, text)
    for _ in range(MAX_DEPTH):
        if "[[" not in text:
            break
        text, n_found = LINK.subn(_link_text, text)
        if not n_found:
            break
    if "[[" in text or "]]" in text:
        text = LINK_MARKS.sub("", text)
    return text


def _link_text(match: re.Match[str]) -> str:
    target, bar, label = match[1].partition("|")
    target = target.strip()
    visible = target.startswith(":")
    target = target.removeprefix(":").strip()
    prefix = target.partition(":")[0].strip() if ":" in target else ""
    if not visible and prefix:
        if prefix.lower() in FILE_PREFIXES:
            return GONE
        if LANGUAGE_PREFIX.fullmatch(prefix) and prefix not in NOT_LANGUAGES:
            return GONE
    return label if bar else target


def resolve_tags(text: str) -> str:
    """Without HTML tags, their contents kept; block tags become line ends, raised digits Unicode ones."""
    if "<" not in text:
        return text
    text = SCRIPT_TAG.sub(lambda match: superscript(match[1]), text)
    text = BREAK_TAG.sub("\n", text)
    text = TAG.sub("", text)
    return CUT_TAG.sub("", text) if "<" in text else text


def resolve_quotes(text: str) -> str:
    """Without the marks of bold and italic; ''Hamlet'''s keeps its apostrophe."""
    if "'''s" in text:
        text = "\n".join(
            QUOTE_AND_S.sub("'", line) if "'''s" in line and line.count("'''") % 2 else line
            for line in text.split("\n")
        )
    if "''''" in text:
        text = FOUR_QUOTES.sub("'", text)
    return QUOTES.sub("", text)


def _variant(match: re.Match[str]) -> str:
    """-{zh-hans:text;zh-hant:text}-: the first; -{text}-: the text; -{A|...}-: what is behind the flag."""
    content = match[1].rpartition("|")[2]
    return content.partition(";")[0].rpartition(":")[2] if ":" in content else content


def unescape(text: str) -> str:
    """HTML entities with ";" as their characters; unknown ones stay."""
    return ENTITY.sub(_entity, text.replace("&nbsp;", " ").replace("&ndash;", "–").replace("&mdash;", "—"))


def _entity(match: re.Match[str]) -> str:
    name = match[0][1:]
    return html.unescape(match[0]) if name[0] == "#" else html5.get(name, match[0])


# -------------------------------------------------------------------------------------- what was left around gaps

BLANKS = re.compile(r"  ++")
GAPS = re.compile(r"\x00(?:[ ,;:/–-]*+\x00)++")
# What a template computes, from today's date or from price indices: the bracket says nothing without it.
COMPUTED = re.compile(r"\( ?\x00 ?years ago\)|\([^()\n\x00]{0,40}[$£€] ?\x00[^()\n]{0,60}\)")
GAP_OPENING = re.compile(r"([(\[]) ?\x00[ ,;:/]*+")
GAP_CLOSING = re.compile(r"(?<![ \n,;:/])[ \n,;:/]*+\x00 ?([)\]])")
GAP_AT_START = re.compile(r"^ ?\x00 ?[,;:.]? ?", re.MULTILINE)
GAP_BEFORE_BRACKET = re.compile(r"\x00 ?[)\]]")
# A straight quotation mark behind a gap and a blank is one that opens.
GAP_BEFORE_MARK = re.compile(r"\x00(?: ?(?=[,.;:!?)\]’”])|(?=['\"]))")
UNTIDY_BRACKETS = re.compile(r"\([ ,;:]*+\)|\[[ ,;:]*+\]|\([ ,;]")
EMPTY_BRACKETS = re.compile(r" ?(?:\([ ,;:]*+\)|\[[ ,;:]*+\])")
BRACKET_START = re.compile(r"\([ ,;]++")
BRACKET_END = re.compile(r"(?<![ ,;])[ ,;]++\)")


def repair(text: str) -> str:
    """Without GONE, and without the blanks, brackets and commas that stand for nothing without what is gone.

    Punctuation that the author left is not touched, except next to brackets: "(; 384 BC)" is what remains of a
    pronunciation however it was removed. Runs of blanks come first, because several patterns begin with one; the looks
    ahead save passes of slow patterns.
    """
    text = BLANKS.sub(" ", text.replace("\t", " ").replace("\xa0", " "))
    if GONE in text:
        text = GAPS.sub(GONE, COMPUTED.sub(GONE, text))
        text = GAP_OPENING.sub(r"\1", text)
        if GAP_BEFORE_BRACKET.search(text):
            text = GAP_CLOSING.sub(r"\1", text)
        text = GAP_AT_START.sub("", text)
        text = GAP_BEFORE_MARK.sub(2 * GONE, text).replace(" " + 2 * GONE, "").replace(GONE, "")
    if UNTIDY_BRACKETS.search(text):
        text = BRACKET_START.sub("(", EMPTY_BRACKETS.sub("", text))
    return BRACKET_END.sub(")", text) if " )" in text or ",)" in text or ";)" in text else text


# ------------------------------------------------------------------------------------------------------- lines

SENTENCE_END = re.compile(r"[.!?…;:,][\"'”’»)\]]*+$")
FULL_STOP = re.compile(r"[.!?…][\"'”’»)\]]*+$")
# Between sentences. A short word before the stop may be an abbreviation.
SENTENCE_BREAK = re.compile(r"(?:\w\w\w|[\"'”’»)\]%\d])[.!?][\"'”’»)\]]*+ (?![a-z])")
SOURCE_MARK = re.compile(r"\bISBN\b|\bISSN\b|\bOCLC\b|\bdoi:|https?://", re.IGNORECASE)
MIN_LINE_WORDS = 6  # of preformatted prose, on average
MIN_ITEM_WORDS = 4  # of a list item that ends like a sentence
MIN_OPEN_ITEM_WORDS = 10  # of one that does not, which then gets a full stop: sentences are found by it later
MAX_NAMES = 30  # items that are no sentences, in a list that a sentence leads in to
LIST_MARKS = "*#:; \t"

# "prose" and its line; "list" and its items behind "*", "#" or ":"; "lost", "out", "break" for marks
Block = tuple[str, list[str]]


def paragraphs(text: str) -> Iterator[str]:
    """The lines that are prose: single blanks, no list marks, no remains of tables."""
    lead: str | None = None  # a line that may lead in to what follows
    missing = ""  # "lost" or "out": what it may have led in to is not there
    for (kind, lines), (next_kind, next_lines) in itertools.pairwise([*_blocks(text), ("break", []), ("break", [])]):
        found: list[str] = []
        if kind in ("lost", "out"):
            missing = kind if missing != "lost" else missing
            continue
        if kind == "list":
            found = _list(lines, lead, goes_on=next_kind == "prose" and next_lines[0][0].islower())
        if lead is not None:
            holds = bool(found) or (kind == "prose" and not missing)
            if not holds and (lead.endswith(":") or (missing == "lost" and not FULL_STOP.search(lead))):
                lead = _without_sentence(lead, -1)
            if lead:
                yield lead
        yield from found
        lead = None
        if kind == "prose":
            # "where m is the mass" goes with its formula.
            goes = missing == "lost" and lines[0][0].islower()
            lead = _without_sentence(lines[0], 0) if goes else lines[0]
        missing = "lost" if kind == "list" and not found and lines[0][0] == ":" else ""


def _blocks(text: str) -> Iterator[Block]:
    """Consecutive lines of one kind; each line of prose by itself."""
    items: list[str] = []
    term = ""  # of "; term", which ": definition" may follow; else it is a heading
    for line in text.replace(OUT, f"\n{OUT}\n").replace(BREAK, f"\n{BREAK}\n").split("\n"):
        first = line[:1]
        if not first or first == "|" or line.startswith(("{|", "!!")):
            continue
        content = " ".join((line.lstrip(LIST_MARKS) if first in "*#:;" else line).split())
        if LOST in content:
            content = _whole_sentences(content) or LOST
        if content == LOST:
            kind = "lost"
        elif content == OUT or (first == ":" and not content):
            kind = "out"
        elif content == BREAK:
            kind = "break"
        elif not any(map(str.isalnum, content)):
            continue
        else:
            kind = "list" if first in "*#:;" else "prose"
        if term and (kind, first) == ("list", ":"):
            content, term = f"{term}: {content}", ""
        if items and (term or kind != "list"):
            yield "list", items
            items = []
        if term:
            yield "break", []
            term = ""
        if kind != "list":
            yield kind, [content]
        elif first == ";" and ":" not in content:
            term = content
        else:
            items.append(f"{':' if first == ';' else first}{content}")
    if items:
        yield "list", items


def _list(items: list[str], lead: str | None, goes_on: bool) -> list[str]:
    """What is kept of a list, as lines: all of it, its sentences, or nothing.

    lead: the line before it. goes_on: whether the line behind it goes on with the sentence.
    """
    indented = items[0][0] == ":"
    texts = [item[1:] for item in items if not SOURCE_MARK.search(item)]
    sentences = [text for text in texts if _is_sentence(text)]
    n_names = len(texts) - len(sentences)
    led_in = lead is not None and (lead.endswith(":") or (indented and not FULL_STOP.search(lead)))
    if (led_in or (indented and goes_on)) and n_names <= MAX_NAMES:
        if texts and not sentences and not indented:
            return [_enumeration(texts)]
    elif indented:
        texts = sentences
    elif n_names > len(sentences):
        texts = [text for text in sentences if FULL_STOP.search(text) and text[-1] != ")"]
    else:
        texts = [text for text in texts if _n_words(text) >= MIN_ITEM_WORDS]
    lines = list(map(_stopped, texts))
    if lines and goes_on:
        lines[-1] = texts[-1]
    return lines


def _n_words(text: str) -> int:
    return text.count(" ") + 1


def _is_sentence(text: str) -> bool:
    n_words = _n_words(text)
    return n_words >= MIN_OPEN_ITEM_WORDS or (n_words >= MIN_ITEM_WORDS and SENTENCE_END.search(text) is not None)


def _stopped(item: str) -> str:
    """With a full stop: sentences are found by it later."""
    return item if SENTENCE_END.search(item) or item.endswith((" or", " and")) else f"{item}."


def _enumeration(names: list[str]) -> str:
    """Names as one line that ends the sentence before it: "Berber, Chadic, Omotic."."""
    names = [name.rstrip(" .,;") for name in names]
    return ("; " if any("," in name for name in names) else ", ").join(names) + "."


def _sentences(line: str) -> list[str]:
    ends = [match.end() for match in SENTENCE_BREAK.finditer(line)]
    return [line[start:end] for start, end in itertools.pairwise([0, *ends, len(line)])]


def _without_sentence(line: str, position: int) -> str:
    """Without its first (0) or last (-1) sentence."""
    sentences = _sentences(line)
    del sentences[position]
    return "".join(sentences).strip()


def _whole_sentences(line: str) -> str:
    """The sentences that have lost nothing."""
    return "".join(sentence for sentence in _sentences(line) if LOST not in sentence).strip()


# ----------------------------------------------------------------------------------------------- kinds of pages

# "#REDIRECT [[New name]]" in any language: no article begins with one word after "#" and a link.
REDIRECT = re.compile(r"\s*+#\s*+[^\W\d_][\w-]*+(?:\s\w++)?\s*+:?\s*+\[\[[^\[\]\n]++\]\]")
DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:(?:[^{}|\n]{1,40}?[ _])?disambig(?:uation)?(?:[ _](?:cleanup|page))?|disamb|dab|geodis|hndis"
    r"|hndis-cleanup|numberdis|mathdab|schooldis|hospitaldis|roaddis|shipindex|wp[ _]disambig|begriffsklärung|homonymie"
    r"|desambiguación|desambiguação|disambigua|dp|неоднозначность|曖昧さ回避|消歧义|消歧義|ujednoznacznienie)\s*+(?:\||\}\})",
    re.IGNORECASE,
)


def is_redirect(wikitext: str) -> bool:
    return REDIRECT.match(wikitext) is not None


def is_disambiguation(title: str, wikitext: str) -> bool:
    if title.endswith("(disambiguation)") or "__DISAMBIG__" in wikitext:
        return True
    return DISAMBIGUATION.search(wikitext) is not None
