"""The embedded question set: what is read from docstrings, offsets, splits, the files."""

import ast
import json

import pytest

from bert_tf.squad import read_examples
from data import embedded_questions
from data.embedded_questions import (
    QUESTIONS_OF,
    compose_all,
    default_values,
    docstring_items,
    functions_of,
    main,
    read_docstring,
    split_functions,
)
from runkit.errors import UserError

GOOGLE = """Clips the values.

    Args:
      low: The lowest value that is left as it is. More text.
      high (int, optional): The highest value that
        is left as it is.

    Returns:
      The values between both of the limits.

    Raises:
      ValueError: If the lower limit is above the upper limit.
      KeyError: for no reason.
    Other text: that is not part of it.
    """
NUMPY = """Clips the values.

    Parameters
    ----------
    low : array_like or None
        The lowest value that is left as it is.

    Returns
    -------
    clipped : ndarray
        The values between both of the limits.

    Raises
    ------
    ValueError
        If the lower limit is above the upper limit.

    Examples
    --------
    low : int
        The example is not a documented argument here.
    """
SOURCE = f'''
def clip(values, low=0.5, high=None, mode="wrap", other=None, path="a/b"):
    """{GOOGLE}"""
    raise SystemExit("run")
class Tensor:
    def squeeze(self, axis=3, keep=True):
        pass
def _hidden(axis=3, keep=True): pass
def tiny(): pass
'''


@pytest.fixture(scope="module")
def clip_and_squeeze(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "numeric.py"
    path.write_text(SOURCE)
    return functions_of(path)


@pytest.mark.parametrize("text", [GOOGLE, NUMPY])
def test_both_forms_of_docstrings_are_read(text):
    found = read_docstring(text.replace("\n    ", "\n"))
    assert found.meanings["low"] == "the lowest value that is left as it is"
    assert found.results == ["the values between both of the limits"]
    assert found.conditions == {"ValueError": "the lower limit is above the upper limit"}
    assert found.types == ({"high": "int"} if text == GOOGLE else {"low": "array_like"})


def test_sections_end():
    assert [item[:2] for item in docstring_items(GOOGLE)] == [
        ("arguments", "low"),
        ("arguments", "high"),
        ("results", ""),
        ("exceptions", "ValueError"),
        ("exceptions", "KeyError"),
    ]
    assert len(list(docstring_items(NUMPY))) == 3
    assert list(docstring_items("No section: here.")) == list(docstring_items("")) == []


def test_facts_of_a_file(clip_and_squeeze):
    clip, squeeze = clip_and_squeeze
    assert [fact.sentence for fact in clip.facts] == [
        "clip is a function of the module numeric.",
        "The default of low is 0.5.",
        "The argument low means the lowest value that is left as it is.",
        "The argument high has the type int.",
        "The default of high is None.",
        "The argument high means the highest value that is left as it is.",
        "The default of mode is wrap.",
        "clip returns the values between both of the limits.",
        "ValueError is raised if the lower limit is above the upper limit.",
    ]
    assert [fact.sentence for fact in squeeze.facts] == [
        "squeeze is a method of the class Tensor.",
        "The default of axis is 3.",
        "The default of keep is True.",
    ]


def test_defaults_belong_to_their_arguments():
    arguments = ast.parse("def f(a, b=1, /, c=-2, *, d, e='x', g=None, h=None, i=...): pass").body[0].args
    assert default_values(arguments) == {"b": "1", "e": "x", "g": "None"}


def test_questions_are_true(clip_and_squeeze):
    paragraphs = compose_all(clip_and_squeeze, 10_000, seed=1)
    assert len(paragraphs) > 3
    facts = {QUESTIONS_OF[fact.kind].format(fact.subject): fact for f in clip_and_squeeze for fact in f.facts}
    for paragraph in paragraphs:
        for question, answer, start in paragraph.asked:
            fact = facts[question]
            if answer is None:
                assert fact.sentence not in paragraph.context
            else:
                assert answer == fact.answer and fact.sentence in paragraph.context
                assert paragraph.context[start : start + len(answer)] == answer
                sentence_start = paragraph.context.index(fact.sentence)
                assert sentence_start <= start < sentence_start + len(fact.sentence)


def test_splits_share_no_module_and_no_name():
    fact = embedded_questions.Fact
    functions = [
        embedded_questions.Function(
            f"module{i % 40}", f"name{i % 590}", [fact("module", "a", "a", "a"), fact("type", "x", f"x {i // 2}", "x")]
        )
        for i in range(600)
    ]
    splits = split_functions(functions)
    assert all(splits.values())
    modules, names = (
        {split: {getattr(f, field) for f in fs} for split, fs in splits.items()} for field in ("module", "name")
    )
    assert not modules["train"] & modules["dev"] and not names["train"] & names["dev"]
    assert sum(map(len, splits.values())) <= 300  # the same was said of two each
    one_module = [f._replace(module="m", name=str(i)) for i, f in enumerate(functions)]
    assert sum(map(len, split_functions(one_module).values())) == embedded_questions.PER_MODULE


@pytest.fixture
def few_sources(tmp_path, monkeypatch):
    """Enough small modules for both splits."""
    files = []
    for i in range(40):
        path = tmp_path / "sources" / f"numeric{chr(97 + i // 26)}{chr(97 + i % 26)}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE.replace("clip", f"clip_{i}").replace("squeeze", f"squeeze_{i}").replace("0.5", f"{i}"))
        files.append(path)
    monkeypatch.setattr(embedded_questions, "source_files", lambda libraries: files)


def test_files_are_squad_2_with_true_offsets_and_repeatable(few_sources, tmp_path, capsys):
    for name, n_processes in (("one", "1"), ("two", "2")):
        main(["--output_dir", str(tmp_path / name), "--train", "90", "--dev", "12", "--n_processes", n_processes])
    printed = capsys.readouterr().out
    assert "90 questions on" in printed and "12 questions on" in printed and "unanswerable" in printed
    for file, count in (("train-v2.0.json", 90), ("dev-v2.0.json", 12)):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()

        def fail(message):
            raise AssertionError(message)

        examples = read_examples(tmp_path / "one" / file, True, True, fail)
        assert len(examples) == count
        assert 0 < sum(e.is_impossible for e in examples) < count / 2
        paragraphs = json.loads((tmp_path / "one" / file).read_text())["data"][0]["paragraphs"]
        for qa in (qa for paragraph in paragraphs for qa in paragraph["qas"]):
            assert qa["is_impossible"] == (not qa["answers"])
    main(["--output_dir", str(tmp_path / "one"), "--train", "90", "--dev", "12"])
    assert "up to date" in capsys.readouterr().out
    main(["--output_dir", str(tmp_path / "one"), "--train", "90", "--dev", "12", "--seed", "2"])
    assert (tmp_path / "one/dev-v2.0.json").read_bytes() != (tmp_path / "two/dev-v2.0.json").read_bytes()


def test_too_little_documentation_is_named(few_sources, tmp_path):
    with pytest.raises(UserError, match=r"train questions, not 100000; .*--train"):
        main(["--output_dir", str(tmp_path / "out"), "--train", "100000"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="at least 1"):
        main(["--output_dir", str(tmp_path / "out"), "--dev", "0"])
