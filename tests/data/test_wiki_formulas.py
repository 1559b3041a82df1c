import random

import pytest

from data import wiki_formulas
from data.wiki_formulas import formula_text
from data.wiki_templates import reaction


@pytest.mark.parametrize(
    ("tex", "expected"),
    [
        # on one line in HTML: as it is shown there
        ("n", "n"),
        ("x=-1", "x = −1"),
        ("f(-x)=-f(x)", "f(−x) = −f(x)"),
        ("~B=1\\,", "B = 1"),
        ("1\\!:\\!2", "1:2"),
        ("10{,}000", "10,000"),
        ("\\{1,2\\}\\subset\\mathbb{N}", "{1, 2} ⊂ ℕ"),
        ("x_1,\\dotsc,x_n", "x1, ..., xn"),
        ("E=mc^2", "E = mc²"),
        ("10^{-7}\\ \\text{m}", "10⁻⁷ m"),
        ("{}^{14}\\mathrm{C}", "¹⁴C"),
        ("180^\\circ", "180°"),
        ("k^{th}", "kth"),
        ("x^{}_{}", "x"),
        ("f'(x) \\not= 0", "f′(x) ≠ 0"),
        ("\\alpha \\to \\beta", "α → β"),
        ("\\hat H|\\psi\\rangle", "H\u0302|ψ⟩"),
        ("\\bar x_1", "x\u03041"),
        ("O(n\\log n)", "O(n log n)"),
        ("\\sin^2 x + \\sin(x)", "sin² x + sin(x)"),
        ("a \\bmod b", "a mod b"),
        ("SS_\\text{Total}", "SS_Total"),
        # above and below a line, or at several heights
        ("\\frac{1}{2}x", "1/2 x"),
        ("\\frac12", "1/2"),
        ("{a+b \\over 2\\pi}", "(a + b)/(2π)"),
        ("\\frac{[A]}{[B]}", "[A]/[B]"),
        ("y_{i,j}", "y_(i,j)"),
        ("A^{n-1}", "A^(n−1)"),
        ("e^{i\\pi}+1=0", "e^(iπ) + 1 = 0"),
        ("\\sum_{i=1}^n a_i", "∑_(i=1)^n ai"),
        ("\\int_0^\\infty f(t)\\,dt", "∫_0^∞ f(t) dt"),
        ("\\sqrt{2} + \\sqrt[3]{x+1}", "√2 + ³√(x + 1)"),
        ("\\binom{n}{k}", "(n choose k)"),
        ("\\left( \\frac{1}{2} \\right)^2", "(1/2)²"),
        ("f = \\begin{cases} 1 & \\text{if } x>0 \\\\ 0 & \\text{otherwise} \\end{cases}",
         "f = {1, if x > 0; 0, otherwise}"),
        ("\\begin{align} a & = 2 \\\\ b & = 1 \\end{align}", "a = 2; b = 1"),
        # no text
        ("\\unknown{x}", None),
        ("{x", None),
        ("x}", None),
        ("\\frac{1}", None),
        ("\\begin{tikzpicture}x\\end{tikzpicture}", None),
        ("x+" * 1500, None),
        ("", None),
    ],
)  # fmt: skip
def test_formulas(tex, expected):
    assert formula_text(tex) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("2H2 + O2 -> 2H2O", "2H2 + O2 → 2H2O"),
        ("CO3^2- + 2H+ <=> H2O + CO2", "CO3²⁻ + 2H⁺ ⇌ H2O + CO2"),
        ("SO4(2-)", "SO4²⁻"),
        ("Fe^{3+}_{aq}", "Fe³⁺aq"),
        ("^{14}C", "¹⁴C"),
        ("A ->[\\Delta] B", None),
    ],
)
def test_reactions(source, expected):
    assert reaction(source) == expected


def test_broken_formulas_never_raise():
    rng = random.Random(0)
    names = [*wiki_formulas.SYMBOLS, *wiki_formulas.OPERATORS, *wiki_formulas.FUNCTIONS, *wiki_formulas.ACCENTS]
    names += ["frac", "sqrt", "over", "text", "begin", "end", "\\", "left", "right", "not", "binom", "mathbb", "pmod"]
    tokens = ["^{}", "_{}", "{}", *"{}^_&~[]() xy1+-=.,'", *(f"\\{name}" for name in names)]
    for _ in range(5000):
        text = formula_text("".join(rng.choice(tokens) for _ in range(rng.randint(1, 25))))
        assert text is None or (text == " ".join(text.split()) and text)


@pytest.mark.parametrize(
    "tex", ["\\hat" * 400, "{" * 1900, "{" * 900 + "}" * 900, "\\frac" * 300, "x^" * 900, "\\sqrt[" * 300,
            "\\begin{align}" * 100]
)  # fmt: skip
def test_deep_formulas_are_given_up(tex):
    assert formula_text(tex) is None
