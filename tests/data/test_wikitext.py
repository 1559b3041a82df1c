import random
import time

import pytest

from data.wiki_templates import Arguments, quantity
from data.wikitext import BREAK, GONE, LOST, OUT, closed_spans, is_disambiguation, is_redirect, plain_text


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        # links, files, categories, other languages
        ("A [[river]] in [[France (country)|France]]s.", "A river in Frances."),
        ("[[File:a.jpg|thumb|A [[cat]] and [[dog|dogs]], [http://x.org here], 2 [sic]]]Text.", "Text."),
        ("Text.\n[[Category:Rivers]]\n[[de:Fluss]]\n[[zh-min-nan:Hô]]", "Text."),
        ("See [[:Category:Rivers]] and [[:de:Fluss|Fluss]], [[Star Trek: Picard]].",
         "See Category:Rivers and Fluss, Star Trek: Picard."),
        ("The [http://x.org/a?b=c paper] and [https://y.org].", "The paper and."),
        # bold and italic
        ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
        ("''Hamlet'''s ghost, '''Bob''''s hat, the '''king'''s.", "Hamlet's ghost, Bob's hat, the king's."),
        # references, comments, tags
        ("One.<ref>A {{cite|x}}</ref> Two<ref name=\"a\" />, three<!-- no -->.", "One. Two, three."),
        ("A<ref name=x>B <ref>C</ref> D</ref> prose.", "A prose."),
        ("Old <ref name=\"x\"> prose stays. <ref>y</ref> End.", "Old prose stays. End."),
        ("x<br/>y<br>z <span style=\"a\">in</span> 10<sup>-6</sup> H<sub>2</sub>O 4<sup>th</sup>",
         "x\ny\nz in 10⁻⁶ H2O 4th"),
        ("Use <nowiki>[[x]] and {{y}}</nowiki> so.", "Use [[x]] and {{y}} so."),
        ("a&nbsp;b &amp; c &ndash; d &#233; &hearts; AT&T; &unknown;", "a b & c – d é ♥ AT&T; &unknown;"),
        # formulas: TeX as a line; a sentence goes with one that cannot be read
        ("If <math>n = 2</math> then <math>\\frac{1}{n}</math>, so.", "If n = 2 then 1/n, so."),
        ("The mean of {{mvar|x}} is\n:<math>\\bar x = \\tfrac12(a+b),</math>\nwhere {{mvar|a}} is one.",
         "The mean of x is\nx̄ = 1/2 (a + b),\nwhere a is one."),
        ("One is kept. It is\n:<math>\\unknown{x}</math>\nwhere <math>x</math> is that. This is kept.",
         "One is kept.\nThis is kept."),
        ("One is kept. The <math>\\unknown{x}</math> goes. This is kept.", "One is kept. This is kept."),
        ("A set <math>[[a],\\{b\\}] < c</math> and <math>f''|e</math>.", "A set [ [a], {b}] < c and f′′|e."),
        ("<chem>CO3^2- + 2H+ -> H2O + CO2</chem> and {{chem|SO|4|2-}}, {{chem|H|2|O}}, {{chem2|NH4+}}",
         "CO3²⁻ + 2H⁺ → H2O + CO2 and SO4²⁻, H2O, NH4⁺"),
        ("H<sup>+</sup>, Ca<sup>2+</sup>, 2<sup>n</sup>, {{sup|+}}, n<sup>th</sup> ''θ''<sub>''i''</sub>",
         "H⁺, Ca²⁺, 2ⁿ, ⁺, nth θi"),
        ("<gallery>\nFile:a.jpg|b\n</gallery>Text.<syntaxhighlight lang=c>int x;</syntaxhighlight>", "Text."),
        ("Call <syntaxhighlight lang=c inline>f(x[0], '{{a}}')</syntaxhighlight> first.",
         "Call f(x[0], '{{a}}') first."),
        ("Code:\n x = 1\n if x:\n   y = 2\nProse that follows.\n This line is prose, whatever it begins with.",
         "Prose that follows.\nThis line is prose, whatever it begins with."),
        ("<table><tr><td>1<table><td>2</table></td></tr></table>Text.", "Text."),
        ("__NOTOC__Text with a_b__c.", "Text with a_b__c."),
        ("-{zh-hans:计算机;zh-hant:電腦}- and -{x}-.", "计算机 and x."),
        # sections and lists
        ("Lead.\n== History ==\nPast.\n== See also ==\n* [[x]]\n=== y ===\nno\n== More ==\nLast.",
         "Lead.\nPast.\nLast."),
        ("== ''External links'' ==\nno\n", ""),
        ("== Further bibliography ==\n* Smith, A. 1999. A book with a title of some words.\n== More ==\nLast.",
         "Last."),
        # a list belongs to the line that ends with ":"; its short items become the end of that sentence
        ("Text:\n* [[a]]\n* [[b]] – c\n* The first one is a sentence.\n# " + "word " * 10
         + "\n* A. 1999. Book. ISBN 1.",
         "Text:\na.\nb – c.\nThe first one is a sentence.\n" + "word " * 9 + "word."),
        ("They are:\n\n* [[Luanda]];\n* [[Lobito]]\n** [[Namibe]].\nThen.",
         "They are:\nLuanda, Lobito, Namibe.\nThen."),
        ("They are:\n* Luanda, north\n* Lobito", "They are:\nLuanda, north; Lobito."),
        ("Either:\n* the one thing is; or\n* the other thing is.",
         "Either:\nthe one thing is; or\nthe other thing is."),
        # no list behind it: the sentence goes
        ("One is kept. They are:\n{|\n| a\n|}\nNext.", "One is kept.\nNext."),
        ("One is kept. They are:\n== Next ==\n* a\n* b", "One is kept."),
        ("One, e.g. Two, is kept. They are:\n* " + "\n* ".join("abcdefghijklmnopqrstuvwxyzäöüßé"),
         "One, e.g. Two, is kept."),
        ("He added:\n<blockquote>Words.</blockquote>\nNote:\n[[File:a.jpg|thumb]]\n* one\n* two",
         "He added:\nWords.\nNote:\none, two."),
        # no line before it: names go, sentences stay
        ("Films made.\n* Heidi (1937)\n* Suez\n* Zaza\n* A film with as many words in it as this one (1938)\n"
         "* It was a film.",
         "Films made.\nIt was a film."),
        ("* It was a film.\n* It was a long film\n* Heidi\n* This was another one.",
         "It was a film.\nIt was a long film.\nThis was another one."),
        ("The reaction is\n:C + O<sub>2</sub> → CO<sub>2</sub>\nHere.", "The reaction is\nC + O2 → CO2.\nHere."),
        # "; term" and ": definition"
        (": An indented answer is kept.\n; term", "An indented answer is kept."),
        ("; Divide\n: It divides the problem.\n; Animals\nThey are kept.\n; Blocking: It is done so.",
         "Divide: It divides the problem.\nThey are kept.\nBlocking: It is done so."),
        # templates
        ("{{Infobox x\n| a = {{b|[[c]]}}\n}}\n'''Text''' here.", "Text here."),
        ("At {{convert|1300|m|ft}}, it.", "At 1,300 metres, it."),
        ("A {{convert|10|to|20|km|mi|abbr=on}} way, {{convert|5|mi|km|adj=on}} run, {{convert|6|ft|2|in|m}}.",
         "A 10 to 20 km way, 5-mile run, 6 feet 2 inches."),
        ("{{lang|fr|''mot''}} ({{lang-de|[[Wort]]}}; {{IPAc-en|x}}) or {{nowrap|{{frac|1|2}} day}}",
         "mot (German: Wort) or 1/2 day"),
        ("On {{start date|2001|4|17|df=y}}, {{as of|2010|5|lc=y}}.", "On 17 April 2001, as of May 2010."),
        ("He said:\n{{quote|To be.\n\nOr {{lang|en|not}}.|Hamlet}}\nThen.", "He said:\nTo be.\nOr not.\nThen."),
        ("{{cquote|text=Quoted prose.|author=x}}", "Quoted prose."),
        ("{{formatnum:1234567}} and 3{{e|-6}} or {{val|5|u=km}}", "1,234,567 and 3×10⁻⁶ or 5 km"),
        ("Say{{citation needed|date=May 2010}}, so {{clarify}}. End {{cn}}", "Say, so. End"),
        ("Ann ({{IPA-de|x}}, {{respell|y}}; 1900) ({{audio|z}}) (, 1) [{{x}}] is.", "Ann (1900) (1) is."),
        ("Landed ({{age|1969|7|20}} years ago) for $5 (${{inflation|US|5|1950}} in dollars) at "
         "{{coord|13|19|N|169|9|W}}.",
         "Landed for $5 at 13°19′N 169°9′W."),
        ("{{coord|28|N|2|E|display=title}}At {{coord|1.5|-2.25}}.", "At 1.5, -2.25."),
        ("The house.{{efn|x}} \"We are\", he said.<ref>y</ref> 'Words {{cn}}' and \"more<ref>z</ref>\".",
         "The house. \"We are\", he said. 'Words' and \"more\"."),
        ("The ''Eagle''{{'s}} descent and the ''Eagle''{{'}}s ascent.", "The Eagle's descent and the Eagle's ascent."),
        ("{{Harvtxt|Boolos|Jeffrey|1974}} and {{harvtxt|Knuth|1973}} say.{{harv|Knuth|1973}}",
         "Boolos & Jeffrey (1974) and Knuth (1973) say."),
        ("{{Carbon}}<sub>n</sub>{{Hydrogen}}<sub>2n</sub>", "CnH2n"),
        ("Of A{{snd}}B and Hawai{{okina}}i", "Of A – B and Hawaiʻi"),
        # tables
        ("Before.\n{| class=x\n! a !! b\n|-\n| 1 || {|\n| 2\n|}\n|}\nAfter.", "Before.\nAfter."),
        ("Before.\n{|\n| 1\n{|\n| 2\n|}\n| 3\n|}\nAfter.", "Before.\nAfter."),
        ("{{{1|x}}} {{unclosed|a\n| b\nProse stays.", "x\nProse stays."),
        ("Prose. }} and ]] and [[ and </ref> end.", "Prose. and and and end."),
        ("A : b ! \"x\" ... 5 , kept as written", "A : b ! \"x\" ... 5 , kept as written"),
    ],
)  # fmt: skip
def test_plain_text(wikitext, expected):
    assert plain_text(wikitext) == expected


def test_units():
    def text(*positional, **named):
        return quantity(Arguments(list(positional), named))

    assert text("1", "km") == "1 kilometre"
    assert text("93", "t", abbr="off") == "93 tonnes"
    assert text("2", "m", sp="us") == "2 meters"
    assert text("1+1/2", "in") == "1 1/2 inches"
    assert text("20", "C", "F") == "20 °C"
    assert text("3", "by", "4", "furlong") == "3 by 4 furlong"
    assert text("many", "km") is None


def test_spans_are_the_outermost_closed_ones():
    def spans(text):
        return closed_spans((c.lower(), c.isupper(), i, i + 1) for i, c in enumerate(text))

    assert spans("AaBb") == [(0, 2), (2, 4)]
    assert spans("ABba") == [(0, 4)]
    assert spans("AAa") == [(1, 3)]
    assert spans("ABa") == [(0, 3)]
    assert spans("ABab") == [(0, 3)]
    assert spans("aAa") == [(1, 3)]


@pytest.mark.parametrize(
    "text",
    ["#REDIRECT [[A]]", "#redirect[[A]]", " # Redirect : [[A#b|c]] {{R}}", "#WEITERLEITUNG [[A]]", "#重定向 [[A]]",
     "#ПЕРЕНАПРАВЛЕНИЕ [[A]]", "#REDIRECCIÓN [[A]]"],
)  # fmt: skip
def test_redirects(text):
    assert is_redirect(text)


def test_no_redirects():
    assert not is_redirect("# one\n# [[two]]") and not is_redirect("Text #REDIRECT [[A]]") and not is_redirect("")


def test_disambiguation():
    for text in (
        "{{disambiguation}}",
        "x {{Disambig|geo}}",
        "{{hndis|A, B}}",
        "{{airport_disambiguation}}",
        "__DISAMBIG__",
    ):
        assert is_disambiguation("A", text), text
    assert is_disambiguation("A (disambiguation)", "")
    for text in ("{{other uses (disambiguation)}}", "{{redirect|A|b|C (disambiguation)}}", "{{disambiguation needed}}"):
        assert not is_disambiguation("A", text), text


MARKS = (
    "{{ }} [[ ]] {| |} \n{| \n|} <ref> </ref> <!-- --> <nowiki> <math> <table> [[a| [[a:b| {{lang|de| {{quote| {{{ }}} "
    "[http://a ]] < <a & &# = == \n==a==\n '' ''' '''s ( ) , ; -{ }- __A # * : "
    "{{disambig {{a}} <ref/> {{convert|1| \x00 \x01 \x02 </math> <math>{</math> <math>\\frac<chem>^</chem> is: ;a End."
).split(" ")

TEXT_MARKS = (GONE, LOST, OUT, BREAK)


def seconds(text):
    start = time.process_time()
    assert not set(TEXT_MARKS) & set(plain_text(text))
    is_redirect(text)
    is_disambiguation("", text)
    return time.process_time() - start


@pytest.mark.parametrize(
    "mark",
    [*MARKS, " ", " ,", "\t", "\n", "( ", "{{a}} ,", "= ", "\n x", "a:\n", "\n;a", "\n* a", "Goes on. ", "Is\n:<math>"],
)
def test_time_is_bounded_on_hostile_text(mark):
    """What takes quadratic time takes minutes here."""
    assert seconds(mark * (100_000 // max(len(mark), 1))) < 2


def test_time_is_bounded_when_deeply_nested():
    for opening, closing in (("{{lang|de|", "}}"), ("[[File:a|", "]]"), ("\n{|\n|", "\n|}"), ("<table>", "</table>")):
        assert seconds(opening * 10_000 + "x" + closing * 10_000) < 4


def test_time_is_bounded_on_many_arguments():
    """At 1 MB a quadratic walk through the arguments took 26 s."""
    for name in ("convert", "val", "lang", "unknown", "list", "height"):
        assert seconds("{{" + name + "|1" * 500_000 + "}}") < 8


def test_broken_markup_never_raises():
    rng = random.Random(0)
    for _ in range(1500):
        text = "".join(rng.choice([*MARKS, "word ", "Prose.", "|", "|a=b", "\n\n"]) for _ in range(rng.randint(1, 40)))
        assert not set(TEXT_MARKS) & set(plain_text(text))
