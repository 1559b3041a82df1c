"""TeX formulas of Wikipedia as one line of text: <math>\\frac{1}{n}\\sum_{i=1}^n a_i</math> is "1/n ∑_(i=1)^n ai".

What HTML shows on one line stays as it is shown there: letters, signs, raised digits, one low sign behind its letter
(x1, CO2, as in the prose around it). Fractions, roots and longer scripts are written with "/", "√", "^" and "_", and
with brackets where they hold more than one thing. What cannot be read so (an unknown command, broken braces, a formula
longer than a sentence) is None.
"""

import re

from data.wiki_templates import superscript

MAX_TEX = 2000  # characters of a formula that is looked at
MAX_TEXT = 250  # characters of its text: more is no part of a sentence
MAX_DEPTH = 20  # of groups within groups

TOKEN = re.compile(r"\\(?:[A-Za-z]+\*?|.)|\s+|.", re.DOTALL)

SYMBOLS = {
    **dict(zip(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron pi varpi "
        "rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon "
        "Phi Psi Omega".split(),
        "αβγδεεζηθϑικλμνξοπϖρϱσςτυϕφχψωΓΔΘΛΞΠΣΥΦΨΩ", strict=True,
    )),
    "infty": "∞", "partial": "∂", "nabla": "∇", "hbar": "ℏ", "ell": "ℓ", "Re": "Re", "Im": "Im", "aleph": "ℵ",
    "emptyset": "∅", "varnothing": "∅", "forall": "∀", "exists": "∃", "nexists": "∄", "neg": "¬", "lnot": "¬",
    "angle": "∠", "triangle": "△", "square": "□", "Box": "□", "degree": "°", "prime": "′", "dagger": "†",
    "ldots": "...", "dots": "...", "dotsc": "...", "dotsb": "...", "cdots": "...", "vdots": "...", "ddots": "...",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩", "vert": "|", "mid": "|",
    "lvert": "|", "rvert": "|", "Vert": "‖", "lVert": "‖", "rVert": "‖", "|": "‖", "lbrace": "{", "rbrace": "}",
    "lbrack": "[", "rbrack": "]", "backslash": "\\", "colon": ":", "hslash": "ℏ", "wp": "℘", "imath": "i",
    "jmath": "j", "AA": "Å", "ang": "Å", "bull": "•", "bullet": "•", "star": "⋆", "ast": "∗", "circ": "∘",
    "{": "{", "}": "}", "%": "%", "$": "$", "&": "&", "#": "#", "_": "_", "S": "§", "euro": "€", "P": "¶",
}  # fmt: skip
# Signs with a blank on both sides.
OPERATORS = {
    "=": "=", "<": "<", ">": ">", "+": "+", "-": "−", "−": "−", "≤": "≤", "≥": "≥", "≠": "≠", "≈": "≈", "×": "×",
    "→": "→", "±": "±",
    "times": "×", "cdot": "·", "div": "÷", "pm": "±", "mp": "∓", "le": "≤", "leq": "≤", "leqslant": "≤", "ge": "≥",
    "geq": "≥", "geqslant": "≥", "ne": "≠", "neq": "≠", "approx": "≈", "sim": "~", "thicksim": "~", "simeq": "≃",
    "cong": "≅", "equiv": "≡", "propto": "∝", "ll": "≪", "gg": "≫", "in": "∈", "isin": "∈", "notin": "∉", "ni": "∋",
    "subset": "⊂", "subseteq": "⊆", "supset": "⊃", "supseteq": "⊇", "cup": "∪", "cap": "∩", "setminus": "∖",
    "wedge": "∧", "land": "∧", "and": "∧", "vee": "∨", "lor": "∨", "oplus": "⊕", "otimes": "⊗", "to": "→",
    "rightarrow": "→", "longrightarrow": "→", "leftarrow": "←", "gets": "←", "leftrightarrow": "↔", "mapsto": "↦",
    "longmapsto": "↦", "Rightarrow": "⇒", "Longrightarrow": "⇒", "implies": "⇒", "Leftarrow": "⇐",
    "Leftrightarrow": "⇔", "iff": "⇔", "rightleftharpoons": "⇌", "uparrow": "↑", "downarrow": "↓", "vdash": "⊢",
    "models": "⊨", "perp": "⊥", "bot": "⊥", "top": "⊤", "parallel": "∥", "doteq": "≐", "prec": "≺", "succ": "≻",
    "preceq": "⪯", "succeq": "⪰", "asymp": "≍", "hookrightarrow": "↪", "bmod": "mod", "triangleq": "≜",
}  # fmt: skip
# Names and large signs, with a blank before what they are applied to.
FUNCTIONS = {
    **{name: name for name in (
        "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp lim limsup liminf max min sup "
        "inf det dim ker deg gcd arg hom Pr mod argmax argmin rank"
    ).split()},
    "sum": "∑", "prod": "∏", "coprod": "∐", "int": "∫", "iint": "∬", "iiint": "∭", "oint": "∮", "bigcup": "⋃",
    "bigcap": "⋂", "bigoplus": "⨁", "bigotimes": "⨂", "bigwedge": "⋀", "bigvee": "⋁",
}  # fmt: skip
ACCENTS = {
    "bar": "\u0304", "overline": "\u0304", "hat": "\u0302", "widehat": "\u0302", "tilde": "\u0303",
    "widetilde": "\u0303", "vec": "\u20d7", "overrightarrow": "\u20d7", "dot": "\u0307", "ddot": "\u0308",
    "acute": "\u0301", "grave": "\u0300", "check": "\u030c", "breve": "\u0306", "mathring": "\u030a",
}  # fmt: skip
FRACTIONS = frozenset(("frac", "tfrac", "dfrac", "cfrac"))
FONTS = frozenset(
    ("mathrm", "mathbf", "mathit", "mathsf", "mathtt", "mathcal", "mathscr", "mathfrak", "boldsymbol", "bold", "bm",
     "operatorname", "operatorname*", "underline", "boxed", "underbrace", "overbrace")
)  # fmt: skip
TEXTS = frozenset(("text", "mbox", "textrm", "textbf", "textit", "textsf", "texttt", "hbox", "emph"))
DOUBLE_STRUCK = str.maketrans("CHNPQRZ", "ℂℍℕℙℚℝℤ")
BLANKS = frozenset((",", ":", ";", ">", " ", "quad", "qquad", "enspace", "thinspace", "~"))
IGNORED = frozenset(
    ("!", "/", "left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl",
     "biggr", "bigm", "displaystyle", "textstyle", "scriptstyle", "scriptscriptstyle", "limits", "nolimits", "nonumber",
     "rm", "it", "bf", "sf", "tt", "cal", "scriptsize", "small", "large", "Large", "hline", "strut", "allowbreak")
)  # fmt: skip
# environment -> what is before it, between its cells, behind it
ENVIRONMENTS = {
    **dict.fromkeys(("align", "align*", "aligned", "alignat", "split", "gather", "gathered", "eqnarray", "smallmatrix"),
                    ("", "", "")),
    "cases": ("{", ", ", "}"), "matrix": ("", ", ", ""), "pmatrix": ("(", ", ", ")"), "bmatrix": ("[", ", ", "]"),
    "vmatrix": ("|", ", ", "|"), "array": ("", ", ", ""), "Bmatrix": ("{", ", ", "}"),
}  # fmt: skip
ORDINALS = frozenset(("th", "st", "nd", "rd"))
# What needs no brackets behind "/" or "√": a number, a letter with one sign or accent, a word, what is in brackets.
ATOM = re.compile(
    r"\d+(?:\.\d+)?|[^\W\d_](?:\d+|[^\W_])?[′\u0300-\u036f\u20d7]*[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]*|[^\W\d_]{3,}|[^\W_]+_[^\W_]+"
    r"|\([^()]*\)|\[[^\[\]]*\]"
)
SIGNS_OF_ONE_SIDE = re.compile(r"(^|[(\[{,;=<>≤≥≈×·/^_→⇒|] ?) ?([−+±∓]) ")
UNTIDY = re.compile(r" ++(?=[,;)\]}]|\.(?!\.))|(?<=[(\[{]) ++")
DOUBLED = re.compile(r"([\[\]{}])(?=\1)")


class Unreadable(ValueError):
    """No text can be made of this formula."""


def formula_text(tex: str) -> str | None:
    """One line of text, or None when there is none that reads well."""
    if len(tex) > MAX_TEX:
        return None
    try:
        text = _Reader(TOKEN.findall(tex)).sequence(frozenset())
    except Unreadable:
        return None
    text = " ".join(text.split())
    text = SIGNS_OF_ONE_SIDE.sub(r"\1\2", text)
    text = UNTIDY.sub("", text).strip()
    text = DOUBLED.sub(r"\1 ", text)  # "[[" is for links
    return text if text and len(text) <= MAX_TEXT else None


class _Reader:
    """A formula's tokens and how far they have been read."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0

    def next(self) -> str:
        """The next token, blanks left out; "" at the end."""
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            if not token.isspace():
                return token
        return ""

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable

    def sequence(self, closings: frozenset[str], separator: str = "") -> str:
        """The text up to one of these tokens, which is read too; to the end, when there is none.

        separator: what stands for "&", between the cells of an environment.
        """
        self.deeper()
        text = ""
        apart = ""  # a name or fraction that a blank is due behind: "sin x", "1/2 x"
        over = None  # the numerator of {a \over b}
        while True:
            token = self.next()
            if token in closings:
                break
            if token == "" and not closings:
                break
            if token in ("", "}", "\\end"):
                raise Unreadable
            name = token[1:] if len(token) > 1 else token
            if token in ("^", "_"):
                script = self.argument()
                text += _raised(script) if token == "^" else _lowered(script, of=text[-1:])
                continue
            if token == "\\over":
                over, text, apart = text, "", ""
                continue
            if token == "&":
                text = f"{text.rstrip()}{separator}"
                continue
            if token in ("\\\\", "\\cr", "\\newline"):
                text = f"{text.rstrip()}; "
                continue
            if name in OPERATORS:
                text += f" {OPERATORS[name]} "
                apart = ""
                continue
            if token in (",", ";") or (token == ":" and not text[-1:].isdigit()):
                text += f"{token} "
                apart = ""
                continue
            if token[0] in "\\~" and name in BLANKS:
                text += " "
                continue
            if token[0] == "\\" and name in IGNORED:
                if name in ("left", "right") and self.peek() == ".":
                    self.next()
                continue
            piece = self.piece(token, name)
            is_function = token[0] == "\\" and (name in FUNCTIONS or name.startswith("operatorname"))
            is_fraction = token[0] == "\\" and (name in FRACTIONS or name == "sqrt")
            if apart:
                blank = piece[:1] not in (")]}|′.([{" if apart.isalnum() else ")]}|′.")
            else:
                blank = (is_function or is_fraction) and (text[-1:].isalnum() or text[-1:] in ("′", ")"))
            text += f" {piece}" if blank else piece
            apart = piece if is_function or is_fraction else ""
        self.depth -= 1
        return text if over is None else _fraction(over, text)

    def peek(self) -> str:
        position = self.position
        token = self.next()
        self.position = position
        return token

    def argument(self) -> str:
        """A group or a single token."""
        token = self.next()
        if token == "{":
            return self.sequence(frozenset("}")).strip()
        if token in ("", "}", "^", "_", "&"):
            raise Unreadable
        name = token[1:] if len(token) > 1 else token
        if name in OPERATORS:
            return OPERATORS[name]
        self.deeper()
        text = self.piece(token, name)
        self.depth -= 1
        return text

    def raw_argument(self) -> str:
        """A group as it is written, of words."""
        if self.next() != "{":
            raise Unreadable
        words = ""
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            if token == "}":
                return words
            if token == "{" or (token[0] == "\\" and token[1:] not in BLANKS):
                raise Unreadable
            words += " " if token[0] == "\\" or token == "~" else token
        raise Unreadable

    def piece(self, token: str, name: str) -> str:
        if token == "{":
            text = self.sequence(frozenset("}"))
            return "," if text == ", " else text  # 10{,}000
        if token == "'":
            return "′"
        if len(token) == 1:
            return token
        if name in SYMBOLS:
            return SYMBOLS[name]
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        if name in FRACTIONS:
            return _fraction(self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name in ACCENTS:
            text = self.argument()
            return text + ACCENTS[name] if len(text) == 1 else text
        if name == "mathbb":
            return self.argument().translate(DOUBLE_STRUCK)
        if name in FONTS:
            return self.argument()
        if name in TEXTS:
            return self.raw_argument()
        if name in ("binom", "tbinom", "dbinom"):
            return f"({self.argument()} choose {self.argument()})"
        if name == "pmod":
            return f" (mod {self.argument()})"
        if name == "not":
            return {"=": " ≠ ", "∈": " ∉ ", "⊂": " ⊄ "}.get(self.argument(), "") or self.fail()
        if name == "begin":
            return self.environment()
        return self.fail()

    def fail(self) -> str:
        raise Unreadable

    def root(self) -> str:
        degree = ""
        if self.peek() == "[":
            self.next()
            degree = _raised(self.sequence(frozenset("]")).strip()).removeprefix("^")
        radicand = self.argument()
        return f"{degree}√{radicand if ATOM.fullmatch(radicand) else f'({radicand})'}"

    def environment(self) -> str:
        name = self.raw_argument()
        if name not in ENVIRONMENTS:
            raise Unreadable
        before, separator, behind = ENVIRONMENTS[name]
        if name in ("array", "alignat"):
            self.argument()  # the columns
        rows = self.sequence(frozenset(("\\end",)), separator)
        self.raw_argument()
        return f"{before}{rows.strip().rstrip(';')}{behind}"


def _fraction(numerator: str, denominator: str) -> str:
    numerator, denominator = numerator.strip(), denominator.strip()
    over = numerator if ATOM.fullmatch(numerator) else f"({numerator})"
    return f"{over}/{denominator if ATOM.fullmatch(denominator) else f'({denominator})'}"


def _raised(script: str) -> str:
    script = "".join(script.split())
    if script in ("", "∘", "′", "″") or script in ORDINALS:
        return script.replace("∘", "°")
    if "n" not in script and (raised := superscript(script)) != script:
        return raised
    return f"^{script}" if len(script) == 1 or script.isdigit() or script[0] == "(" else f"^({script})"


def _lowered(script: str, of: str) -> str:
    script = "".join(script.split())
    if not script:
        return ""
    if (not of or of.isalpha() or of in ACCENTS.values()) and (
        len(script) == 1 or re.fullmatch(r"\d+|[^\W\d_]\d", script)
    ):
        return script
    return f"_{script}" if ATOM.fullmatch(script) else f"_({script})"
