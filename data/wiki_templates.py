"""What a reader sees of a Wikipedia template, for those that are part of a sentence.

`render(name, arguments)` gives the text of `{{convert|5|km}}`, `{{lang|de|Haus}}`, `{{quote|...}}` and their like, or
None for all others: boxes, notes, citations, maintenance marks. A new template is a new row of one of the tables.
"""

import calendar
import re
from collections.abc import Callable
from typing import NamedTuple


class Arguments(NamedTuple):
    """Of one template, expanded: positional ones (numbered ones such as "2=x" among them), and named ones."""

    positional: list[str]
    named: dict[str, str]

    def get(self, position: int, *names: str) -> str:
        """The argument at a position (from 1), or the first of these names that is given; else ""."""
        if position <= len(self.positional) and self.positional[position - 1]:
            return self.positional[position - 1]
        return next((self.named[name] for name in names if self.named.get(name)), "")


# ------------------------------------------------------------------------------------------------------ units

# code -> (symbol, singular, plural); a code that is not here is its own symbol, which is mostly right (kW, GHz).
_METRES = {"m": "met", "km": "kilomet", "cm": "centimet", "mm": "millimet"}
_LITRES = {"l": "lit", "L": "lit", "ml": "millilit", "mL": "millilit"}
UNITS: dict[str, tuple[str, str, str]] = {
    **{code: (code, f"{stem}re", f"{stem}res") for code, stem in (_METRES | _LITRES).items()},
    **{f"{code}2": (f"{code}²", f"square {stem}re", f"square {stem}res") for code, stem in _METRES.items()},
    **{f"{code}3": (f"{code}³", f"cubic {stem}re", f"cubic {stem}res") for code, stem in _METRES.items()},
    "sqkm": ("km²", "square kilometre", "square kilometres"),
    "sqm": ("m²", "square metre", "square metres"),
    "m/s": ("m/s", "metre per second", "metres per second"),
    "km/h": ("km/h", "kilometre per hour", "kilometres per hour"),
    "kph": ("km/h", "kilometre per hour", "kilometres per hour"),
    "mph": ("mph", "mile per hour", "miles per hour"),
    "kn": ("kn", "knot", "knots"),
    "in": ("in", "inch", "inches"),
    "inch": ("in", "inch", "inches"),
    "ft": ("ft", "foot", "feet"),
    "foot": ("ft", "foot", "feet"),
    "yd": ("yd", "yard", "yards"),
    "mi": ("mi", "mile", "miles"),
    "mile": ("mi", "mile", "miles"),
    "nmi": ("nmi", "nautical mile", "nautical miles"),
    "sqmi": ("sq mi", "square mile", "square miles"),
    "mi2": ("sq mi", "square mile", "square miles"),
    "sqft": ("sq ft", "square foot", "square feet"),
    "ft2": ("sq ft", "square foot", "square feet"),
    "sqin": ("sq in", "square inch", "square inches"),
    "cuft": ("cu ft", "cubic foot", "cubic feet"),
    "ft3": ("cu ft", "cubic foot", "cubic feet"),
    "cuin": ("cu in", "cubic inch", "cubic inches"),
    "cumi": ("cu mi", "cubic mile", "cubic miles"),
    "acre": ("acre", "acre", "acres"),
    "ha": ("ha", "hectare", "hectares"),
    "g": ("g", "gram", "grams"),
    "kg": ("kg", "kilogram", "kilograms"),
    "mg": ("mg", "milligram", "milligrams"),
    "t": ("t", "tonne", "tonnes"),
    "tonne": ("t", "tonne", "tonnes"),
    "MT": ("t", "metric ton", "metric tons"),
    "LT": ("long tons", "long ton", "long tons"),
    "ST": ("short tons", "short ton", "short tons"),
    "lb": ("lb", "pound", "pounds"),
    "lbs": ("lb", "pound", "pounds"),
    "oz": ("oz", "ounce", "ounces"),
    "st": ("st", "stone", "stone"),
    "usgal": ("US gal", "US gallon", "US gallons"),
    "USgal": ("US gal", "US gallon", "US gallons"),
    "impgal": ("imp gal", "imperial gallon", "imperial gallons"),
    "impbbl": ("imp bbl", "imperial barrel", "imperial barrels"),
    "oilbbl": ("bbl", "barrel", "barrels"),
    "C": ("°C", "°C", "°C"),
    "F": ("°F", "°F", "°F"),
    "K": ("K", "K", "K"),
    "C-change": ("°C", "°C", "°C"),
    "F-change": ("°F", "°F", "°F"),
    "hp": ("hp", "horsepower", "horsepower"),
    "kW": ("kW", "kilowatt", "kilowatts"),
    "MW": ("MW", "megawatt", "megawatts"),
    "W": ("W", "watt", "watts"),
    "J": ("J", "joule", "joules"),
    "kJ": ("kJ", "kilojoule", "kilojoules"),
    "kPa": ("kPa", "kilopascal", "kilopascals"),
    "MPa": ("MPa", "megapascal", "megapascals"),
    "psi": ("psi", "pound per square inch", "pounds per square inch"),
    "atm": ("atm", "atmosphere", "atmospheres"),
    "bar": ("bar", "bar", "bars"),
    "ly": ("ly", "light-year", "light-years"),
    "AU": ("AU", "astronomical unit", "astronomical units"),
    "pc": ("pc", "parsec", "parsecs"),
    "/km2": ("/km²", "per square kilometre", "per square kilometres"),
    "/sqkm": ("/km²", "inhabitant per square kilometre", "inhabitants per square kilometre"),
    "PD/km2": ("/km²", "inhabitant per square kilometre", "inhabitants per square kilometre"),
    "/sqmi": ("/sq mi", "per square mile", "per square miles"),
    "PD/sqmi": ("/sq mi", "inhabitant per square mile", "inhabitants per square mile"),
}
SEPARATORS = {
    "-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × ",
    "×": " × ", "xx": " × ", "*": " × ", "+/-": " ± ", "±": " ± ", "&": " and ", "to about": " to about ",
    "and(-)": " and ", "+": " + ", ",": ", ", "/": "/",
}  # fmt: skip
NUMBER = re.compile(r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?:\+?\d*/+\d+)?", re.IGNORECASE)


def grouped(number: str) -> str:
    """1300 as 1,300; 1+1/2 as 1 1/2; anything but plain digits as it is."""
    number = number.replace("//", "/")
    whole, plus, fraction = number.partition("+") if not number.startswith("+") else (number, "", "")
    if plus:
        return f"{grouped(whole)} {fraction}"
    match = re.fullmatch(r"([-+−]?)(\d{4,30})(\.\d+)?", number)
    return f"{match[1]}{int(match[2]):,}{match[3] or ''}" if match else number


MOST_ARGUMENTS = 64  # of a conversion; a page with more is broken, and would take long


def quantity(arguments: Arguments, abbreviated: bool = False) -> str | None:
    """{{convert}}: the value or range and its unit as given, without the converted value that follows in brackets."""
    parts: list[str] = []
    rest = [argument.strip() for argument in arguments.positional[:MOST_ARGUMENTS]]
    abbreviated = abbreviated or arguments.named.get("abbr", "") in ("on", "in", "values", "comma")
    hyphen = arguments.named.get("adj", "").startswith(("on", "mid"))
    american = arguments.named.get("sp", "") == "us"
    while rest and NUMBER.fullmatch(rest[0]):
        text, value = grouped(rest[0]), rest.pop(0)
        while len(rest) > 1 and rest[0] in SEPARATORS and NUMBER.fullmatch(rest[1]):
            text, value = text + SEPARATORS[rest[0]] + grouped(rest[1]), rest[1]
            del rest[:2]
        code = rest.pop(0) if rest else ""
        symbol, one, many = UNITS.get(code, (code, code, code))
        unit = symbol if abbreviated else one if hyphen or value.strip("-+−") == "1" else many
        if american:
            unit = re.sub(r"(met|lit)re", r"\1er", unit)
        joint = "" if unit.startswith(("/", "°")) and unit[0] == "/" else "-" if hyphen and not abbreviated else " "
        parts.append(f"{text}{joint}{unit.replace(' ', joint) if joint == '-' else unit}".strip())
    return " ".join(parts) or None


def value(arguments: Arguments) -> str | None:
    """{{val}}: a number with its uncertainty, power of ten and unit."""
    number = grouped(arguments.get(1))
    if arguments.get(2):
        number += f" ± {arguments.get(2)}"
    if power := arguments.named.get("e"):
        number += f" × 10{superscript(power)}"
    unit = arguments.named.get("u", "") or arguments.named.get("ul", "")
    return f"{arguments.named.get('p', '')}{number} {unit}".strip() or None


def height(arguments: Arguments) -> str | None:
    units = (("m", "m"), ("cm", "cm"), ("ft", "ft"), ("in", "in"))
    return " ".join(f"{arguments.named[name]} {unit}" for name, unit in units if arguments.named.get(name)) or None


# ----------------------------------------------------------------------------------------------- dates, numbers

SUPERSCRIPTS = str.maketrans("0123456789+-−n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ")
RAISED = r"[-−+]?\d++[-−+]?|[-−+]++|[-−+]?\d*+n(?:[-−+]\d++)?"  # exponents and charges


def superscript(text: str) -> str:
    """10 to the 6th must not read 106: digits, signs and n as Unicode has them raised; other text as it is."""
    return text.translate(SUPERSCRIPTS) if re.fullmatch(RAISED, text) else text


ARROWS = (("<=>", " ⇌ "), ("<->", " ↔ "), ("->", " → "), ("<-", " ← "))
CHARGE = re.compile(r"\^\{?([0-9+−-]{1,4})\}?|\((\d*[+−-])\)|(?<=[\w\])])([+−-])(?=\s|\Z)")


def reaction(source: str) -> str | None:
    """<chem>CO3^2- + 2H+ -> H2O + CO2</chem>, {{chem2|...}}: "CO3²⁻ + 2H⁺ → H2O + CO2"; None for other commands."""
    for arrow, sign in ARROWS:
        source = source.replace(arrow, sign)
    source = CHARGE.sub(lambda match: superscript(match[1] or match[2] or match[3]), source)
    text = " ".join(re.sub(r"_\{?(\w{1,9})\}?", r"\1", source).split())
    return None if re.search(r"[\\{}$^_]", text) else text


def ion(arguments: Arguments) -> str:
    """{{chem|SO|4|2-}}: "SO4²⁻"; a last part with a sign is the charge."""
    *parts, last = arguments.positional or [""]
    return "".join(parts) + (superscript(last) if last[-1:] in ("+", "-", "−") else last)


def authors(arguments: Arguments) -> str | None:
    """{{harvtxt|Smith|Jones|2001}}: "Smith & Jones (2001)"."""
    *names, year = arguments.positional or [""]
    if not names:
        return None
    if len(names) > 3:
        return f"{names[0]} et al. ({year})"
    return " & ".join(part for part in (", ".join(names[:-1]), names[-1]) if part) + f" ({year})"


def date(arguments: Arguments) -> str | None:
    """{{start date|2001|4|17}} and its like: "April 17, 2001", or with df=yes "17 April 2001"."""
    parts = [argument.strip() for argument in arguments.positional[:3]]
    if not parts or not all(part.isdecimal() for part in parts):
        return parts[0] if len(parts) == 1 else None
    numbers = [int(part) for part in parts]
    if len(numbers) == 1 or not 1 <= numbers[1] <= 12:
        return parts[0]
    month = calendar.month_name[numbers[1]]
    if len(numbers) == 2:
        return f"{month} {parts[0]}"
    if arguments.named.get("df", "").lower() in ("y", "yes", "1", "true"):
        return f"{numbers[2]} {month} {parts[0]}"
    return f"{month} {numbers[2]}, {parts[0]}"


def as_of(arguments: Arguments) -> str | None:
    if alternative := arguments.named.get("alt"):
        return alternative
    words = "Since" if arguments.named.get("since") else "As of"
    words = words.lower() if arguments.named.get("lc") else words
    when = date(arguments)
    return f"{words} {when}" if when else None


def fraction(arguments: Arguments) -> str | None:
    parts = arguments.positional
    if len(parts) == 1:
        return f"1/{parts[0]}"
    if len(parts) == 2:
        return "/".join(parts)
    return f"{parts[0]} {parts[1]}/{parts[2]}" if len(parts) == 3 else None


def coordinates(arguments: Arguments) -> str | None:
    """{{coord|13|19|N|169|9|W}}: "13°19′N 169°9′W"; None where they are shown at the head of the page only."""
    if arguments.named.get("display", "inline") in ("title", "t"):
        return None
    text, numbers = "", []
    for part in arguments.positional:
        if NUMBER.fullmatch(part):
            numbers.append(part)
        elif part in ("N", "S", "E", "W") and 1 <= len(numbers) <= 3:
            text += "".join(map("".join, zip(numbers, "°′″", strict=False))) + part + " "
            numbers = []
        else:
            break
    return text.strip() or ", ".join(numbers[:2]) or None


# -------------------------------------------------------------------------------------------------- languages

LANGUAGES = {
    "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "arc": "Aramaic", "az": "Azerbaijani", "be": "Belarusian",
    "ber": "Berber", "bg": "Bulgarian", "bn": "Bengali", "bo": "Tibetan", "br": "Breton", "bs": "Bosnian",
    "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish",
    "fr": "French", "fy": "West Frisian", "ga": "Irish", "gd": "Scottish Gaelic", "gl": "Galician",
    "grc": "Ancient Greek", "gu": "Gujarati", "haw": "Hawaiian", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian",
    "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
    "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "kn": "Kannada", "ko": "Korean", "ku": "Kurdish", "la": "Latin",
    "lb": "Luxembourgish", "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam",
    "mn": "Mongolian", "mr": "Marathi", "ms": "Malay", "mt": "Maltese", "nah": "Nahuatl", "ne": "Nepali",
    "nl": "Dutch", "no": "Norwegian", "ang": "Old English", "oc": "Occitan", "pa": "Punjabi", "pl": "Polish",
    "ps": "Pashto", "pt": "Portuguese", "qu": "Quechua", "ro": "Romanian", "ru": "Russian", "rus": "Russian",
    "sa": "Sanskrit", "sco": "Scots", "si": "Sinhala", "sk": "Slovak", "sl": "Slovene", "sq": "Albanian",
    "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog",
    "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "yi": "Yiddish",
    "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip


def language(code: str, arguments: Arguments) -> str | None:
    """{{lang-de|Haus}}: "German: Haus"; of an unknown language the word alone."""
    text = arguments.get(1, "text")
    if not text:
        return None
    base = code.partition("-")[0]
    return f"{LANGUAGES[base]}: {text}" if base in LANGUAGES else text


def nihongo(arguments: Arguments) -> str | None:
    native = ", ".join(part for part in arguments.positional[1:3] if part)
    return f"{arguments.get(1)} ({native})".strip() if native else arguments.get(1)


def chinese(arguments: Arguments) -> str | None:
    labels = (("c", "Chinese"), ("s", "simplified Chinese"), ("t", "traditional Chinese"), ("p", "pinyin"))
    return "; ".join(f"{label}: {arguments.named[key]}" for key, label in labels if arguments.named.get(key)) or None


def items(arguments: Arguments) -> str | None:
    return "".join(f"\n* {item}" for item in arguments.positional if item) + "\n"


# ----------------------------------------------------------------------------------------------------- tables

# Always the same text.
CONSTANTS = {
    "!": "|", "=": "=", "pipe": "|", "'": "&#39;", "'s": "&#39;s", "' \"": "&#39;\"", "\" '": "\"&#39;",
    "-'": "&#39;", '-"': '"',
    "nbsp": " ", "space": " ", "spaces": " ", "thinsp": " ", "thin space": " ", "hair space": " ", "nnbsp": " ",
    "0": "", "shy": "", "wbr": "", "zwj": "", "zwnj": "", "ndash": "–", "en dash": "–", "mdash": "—", "em dash": "—",
    "mdashb": "—", "snd": " – ", "spnd": " – ", "snds": " – ", "spaced ndash": " – ", "spaced en dash": " – ",
    "spaced mdash": " — ", "·": " · ", "•": " • ", "middot": " · ", "bull": " • ", "dot": " · ", "okina": "ʻ",
    "carbon": "C", "hydrogen": "H", "nitrogen": "N", "oxygen": "O", "hamza": "ʼ", "ayin": "ʿ", "pi": "π", "eqm": "⇌",
    "gamma": "γ", "degree": "°", "deg": "°", "±": "±", "ampersand": "&",
    "euro": "€", "gbp": "£", "usd": "US$", "aud": "A$", "cad": "C$", "inr": "₹", "jpy": "¥", "yen": "¥",
    "x10": "×10", "ell": "ℓ", "crlf": " ", "break": " ", "br": " ", "clr": "", "vol.": "vol.", "p.": "p.",
}  # fmt: skip

# The text is the argument at this position (or of one of these names).
ONE_ARGUMENT: dict[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "nowrap", "nobr", "nobreak", "small", "smaller", "big", "bigger", "sc", "small caps", "smallcaps",
            "nobold", "noitalic", "abbr", "tooltip", "vanchor", "visible anchor", "center", "unicode", "keypress",
            "key press", "key", "kbd", "strong", "em", "bold", "italic", "mvar", "math", "var", "tmath", "overline",
            "sic", "not a typo", "typo", "proper name", "iast", "transliteration", "pie", "linktext", "ill",
            "interlanguage link", "illm", "interlanguage link multi", "link-interwiki", "citation needed span",
            "cn-span", "flag", "flagcountry", "flagu", "mono", "tt", "code", "samp", "uc", "lc", "ucfirst",
            "formatnum", "nts", "number", "nastaliq", "polytonic", "hebrew", "script/hebrew", "script/arabic",
            "script/greek", "cuneiform", "my", "title", "no italics", "normal", "noitalics", "anchored", "visanc",
            "ipa", "ipalink", "ipablink", "phon", "highlight", "dfn", "insert", "ins", "gloss", "notatypo",
            "as written", "bracket", "resize-text", "wt", "wikt", "no wrap", "text", "avoid wrap", "sigfig",
            "increase text", "longitem", "zh-tw", "railgauge", "track gauge", "thinspace", "smallsup", "ulink",
            "fontcolor", "larger", "large", "midsize", "allow wrap", "n-", "j", "hyphenated",
        ),
        (1, ()),
    ),
    **dict.fromkeys(
        ("lang", "resize", "script", "color", "colour", "wikt-lang", "font color", "rtl-lang", "ltr-lang"),
        (2, ("text",)),
    ),
    **dict.fromkeys(
        (
            "quote", "cquote", "bquote", "blockquote", "quotation", "quote frame", "centered pull quote", "pull quote",
            "poemquote", "poem quote", "quote box", "quotebox", "rquote", "verse translation", "block indent",
            "blockindent", "long quote", "bq", "block quotation", "align block quote", "imagequote",
        ),
        (1, ("text", "quote", "1")),
    ),
}  # fmt: skip
ONE_ARGUMENT["rquote"] = (2, ("text", "quote"))  # the first one is the side

Function = Callable[[Arguments], str | None]
FUNCTIONS: dict[str, Function] = {
    "convert": quantity,
    "cvt": lambda arguments: quantity(arguments, abbreviated=True),
    "val": value,
    "coord": coordinates,
    "height": height,
    "frac": fraction,
    "fraction": fraction,
    "sfrac": fraction,
    "as of": as_of,
    "asof": as_of,
    "nihongo": nihongo,
    "nihongo2": lambda arguments: arguments.get(1),
    "zh": chinese,
    "lang-zh": chinese,
    "transl": lambda arguments: arguments.positional[-1] if arguments.positional else None,
    "circa": lambda arguments: " – ".join(f"c. {year}" for year in arguments.positional[:2]) or "c.",
    "c.": lambda arguments: f"c. {arguments.get(1)}".strip(),
    "ca.": lambda arguments: f"c. {arguments.get(1)}".strip(),
    "harvtxt": authors,
    "floruit": lambda arguments: f"fl. {arguments.get(1)}".strip(),
    "fl.": lambda arguments: f"fl. {arguments.get(1)}".strip(),
    "reign": lambda arguments: "r. " + "–".join(arguments.positional[:2]),
    "angbr": lambda arguments: f"⟨{arguments.get(1)}⟩",
    "vr": lambda arguments: f"⟨{arguments.get(1)}⟩",
    "angle bracket": lambda arguments: f"⟨{arguments.get(1)}⟩",
    "sup": lambda arguments: superscript(arguments.get(1)),
    "pow": lambda arguments: arguments.get(1) + superscript(arguments.get(2)),
    "sub": lambda arguments: arguments.get(1),
    "e": lambda arguments: f"×10{superscript(arguments.get(1))}",
    "chem": ion,
    "chem2": lambda arguments: reaction(arguments.get(1)),
    "simplenuclide": lambda arguments: "-".join(arguments.positional[:2]),
    "simplenuclide2": lambda arguments: "-".join(arguments.positional[:2]),
    "nuclide2": lambda arguments: "-".join(arguments.positional[:2]),
    "nuclide": lambda arguments: "-".join(arguments.positional[:2]),
    "us$": lambda arguments: f"US${arguments.get(1)}",
    "usd$": lambda arguments: f"US${arguments.get(1)}",
    "a$": lambda arguments: f"A${arguments.get(1)}",
    "£": lambda arguments: f"£{arguments.get(1)}",
    "gbp£": lambda arguments: f"£{arguments.get(1)}",
    "€": lambda arguments: f"€{arguments.get(1)}",
    "¥": lambda arguments: f"¥{arguments.get(1)}",
    "gaps": lambda arguments: " ".join(arguments.positional),
    "gapnum": lambda arguments: arguments.get(1),
    "uss": lambda arguments: f"USS {arguments.get(1)}",
    "hms": lambda arguments: f"HMS {arguments.get(1)}",
    "ss": lambda arguments: f"SS {arguments.get(1)}",
    "rms": lambda arguments: f"RMS {arguments.get(1)}",
    "hmas": lambda arguments: f"HMAS {arguments.get(1)}",
    "ship": lambda arguments: " ".join(arguments.positional[:2]),
    "sclass": lambda arguments: f"{arguments.get(1)}-class {arguments.get(2)}",
    "sclass2": lambda arguments: f"{arguments.get(1)}-class {arguments.get(2)}",
    "oldstyledate": lambda arguments: f"{arguments.get(1)} [O.S. {arguments.get(3)}] {arguments.get(2)}",
    "bibleref": lambda arguments: " ".join(arguments.positional[:2]),
    "bibleverse": lambda arguments: " ".join(part for part in arguments.positional[:3] if part),
    "ipaslink": lambda arguments: f"/{arguments.get(1)}/",
    "mv": lambda arguments: f"MV {arguments.get(1)}",
    "music": lambda arguments: {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}.get(arguments.get(1)),
    **dict.fromkeys(("ordered list", "unordered list", "bulleted list"), items),
    "dts": lambda arguments: date(arguments) or arguments.get(1),
    **dict.fromkeys(
        ("start date", "start date and age", "end date", "birth date", "birth date and age", "death date", "date",
         "film date"),
        date,
    ),
}  # fmt: skip


def is_kept(name: str) -> bool:
    """Whether render() can give a text for this template; name in lower case, single blanks."""
    return name in CONSTANTS or name in ONE_ARGUMENT or name in FUNCTIONS or name.startswith("lang-")


def render(name: str, arguments: Arguments) -> str | None:
    """The text of a template, in which wikitext may stand; None when there is none.

    name: lower case, single blanks instead of underscores.
    """
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in ONE_ARGUMENT:
        position, names = ONE_ARGUMENT[name]
        text = arguments.get(position, *names)
        return grouped(text) if name == "formatnum" else text or None
    if name in FUNCTIONS:
        return FUNCTIONS[name](arguments) or None
    return language(name.removeprefix("lang-"), arguments)
