import random
import time

import pytest

from data.wiki_templates import Arguments, quantity
from data.wikitext import GONE, closed_spans, is_disambiguation, is_redirect, plain_text


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
        ("If <math>n = 2</math> then <math>\\frac{1}{2}</math>, so.", "If n = 2 then, so."),
        ("<gallery>\nFile:a.jpg|b\n</gallery>Text.<syntaxhighlight lang=c>int x;</syntaxhighlight>", "Text."),
        ("<table><tr><td>1<table><td>2</table></td></tr></table>Text.", "Text."),
        ("__NOTOC__Text with a_b__c.", "Text with a_b__c."),
        ("-{zh-hans:计算机;zh-hant:電腦}- and -{x}-.", "计算机 and x."),
        # sections and lists
        ("Lead.\n== History ==\nPast.\n== See also ==\n* [[x]]\n=== y ===\nno\n== More ==\nLast.",
         "Lead.\nPast.\nLast."),
        ("== ''External links'' ==\nno\n", ""),
        ("Text:\n* [[a]]\n* [[b]] – c\n* The first one is a sentence.\n# " + "word " * 10
         + "\n* A. 1999. Book. ISBN 1.",
         "The first one is a sentence.\n" + "word " * 9 + "word."),
        (": An indented answer is kept.\n; term", "An indented answer is kept."),
        # templates
        ("{{Infobox x\n| a = {{b|[[c]]}}\n}}\n'''Text''' here.", "Text here."),
        ("At {{convert|1300|m|ft}}, it.", "At 1,300 metres, it."),
        ("A {{convert|10|to|20|km|mi|abbr=on}} way, {{convert|5|mi|km|adj=on}} run, {{convert|6|ft|2|in|m}}.",
         "A 10 to 20 km way, 5-mile run, 6 feet 2 inches."),
        ("{{lang|fr|''mot''}} ({{lang-de|[[Wort]]}}; {{IPAc-en|x}}) or {{nowrap|{{frac|1|2}} day}}",
         "mot (German: Wort) or 1/2 day"),
        ("On {{start date|2001|4|17|df=y}}, {{as of|2010|5|lc=y}}.", "On 17 April 2001, as of May 2010."),
        ("He said:\n{{quote|To be.\n\nOr {{lang|en|not}}.|Hamlet}}\nThen.", "To be.\nOr not.\nThen."),
        ("{{cquote|text=Quoted prose.|author=x}}", "Quoted prose."),
        ("{{formatnum:1234567}} and 3{{e|-6}} or {{val|5|u=km}}", "1,234,567 and 3×10⁻⁶ or 5 km"),
        ("Say{{citation needed|date=May 2010}}, so {{clarify}}. End {{cn}}", "Say, so. End"),
        ("Ann ({{IPA-de|x}}, {{respell|y}}; 1900) ({{audio|z}}) (, 1) [{{x}}] is.", "Ann (1900) (1) is."),
        ("Landed ({{age|1969|7|20}} years ago) for $5 (${{inflation|US|5|1950}} in dollars) at "
         "{{coord|13|19|N|169|9|W}}.",
         "Landed for $5 at 13°19′N 169°9′W."),
        ("{{coord|28|N|2|E|display=title}}At {{coord|1.5|-2.25}}.", "At 1.5, -2.25."),
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
    "{{disambig {{a}} <ref/> {{convert|1| \x00"
).split(" ")


def seconds(text):
    start = time.process_time()
    assert GONE not in plain_text(text)
    is_redirect(text)
    is_disambiguation("", text)
    return time.process_time() - start


@pytest.mark.parametrize("mark", [*MARKS, " ", " ,", "\t", "\n", "( ", "{{a}} ,", "= "])
def test_time_is_bounded_on_hostile_text(mark):
    """What takes quadratic time takes minutes here."""
    assert seconds(mark * (100_000 // max(len(mark), 1))) < 2


def test_time_is_bounded_when_deeply_nested():
    for opening, closing in (("{{lang|de|", "}}"), ("[[File:a|", "]]"), ("\n{|\n|", "\n|}"), ("<table>", "</table>")):
        assert seconds(opening * 10_000 + "x" + closing * 10_000) < 4


def test_broken_markup_never_raises():
    rng = random.Random(0)
    for _ in range(1500):
        text = "".join(rng.choice([*MARKS, "word ", "Prose.", "|", "|a=b", "\n\n"]) for _ in range(rng.randint(1, 40)))
        assert GONE not in plain_text(text)
