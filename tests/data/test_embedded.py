import sysconfig
from pathlib import Path

import pytest

from data import embedded
from runkit.errors import UserError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_source_is_parsed_and_never_run(tmp_path):
    path = write(
        tmp_path / "a.py",
        '"""The module has a sentence about itself."""\nraise SystemExit("imported")\n'
        'class A:\n    """The class has a sentence about itself."""\n'
        '    def f(self):\n        """The method has a sentence about itself."""\n'
        'async def g():\n    """The function has a sentence about itself."""\n',
    )
    assert [s[0].split()[1] for s in embedded.sections_of(path)] == ["module", "class", "method", "function"]


def test_files_that_do_not_parse_give_nothing(tmp_path):
    assert embedded.sections_of(write(tmp_path / "a.py", '"""The text is fine."""\nprint "python 2"\n')) == []


def test_documents_stay_in_a_file_and_repeat_nothing(tmp_path):
    def module(subject):
        lines = [f"The {subject} has a property of the kind {w} in it." for w in "abcdefghij"]
        return '"""' + "\n\n".join([*lines, "This is the same in each of the files."]) + '"""\n'

    subjects = ("apple", "pear", "pear", "plum")
    files = [write(tmp_path / f"{i}.py", module(subject)) for i, subject in enumerate(subjects)]
    done = []
    documents = list(embedded.documents(files, 1, lambda: done.append(1)))
    assert len(done) == 4
    assert [document.split()[1] for document in documents] == ["apple", "pear", "plum"]
    assert " ".join(documents).count("the same in each") == 1


def test_the_language_reference_is_prose():
    path = Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data" / "topics.py"
    if not path.exists():
        pytest.skip("this Python has no pydoc_data")
    sections = embedded.sections_of(path)
    found = [sentence for section in sections for sentence in section]
    assert sum(map(len, found)) > 150_000
    assert any(sentence.startswith("The with statement") or "with statement" in sentence for sentence in found)
    assert not any("::=" in sentence or ">>>" in sentence for sentence in found)


def test_absent_libraries_are_left_out():
    assert embedded.library_folder("no_such_library_here") is None
    assert embedded.library_folder("numpy.no_such_part") is None
    alone = embedded.source_files(["no_such_library_here"])
    assert len(alone) > 200
    assert not {"tests", "site-packages"} & {part for path in alone for part in path.parts[-3:-1]}
    with_numpy = embedded.source_files(["numpy"])
    assert with_numpy[: len(alone)] == alone and len(with_numpy) > len(alone)


def test_the_stage_is_deterministic_and_skipped_when_done(tmp_path, monkeypatch, capsys):
    files = embedded.source_files([])[:40]
    monkeypatch.setattr(embedded, "source_files", lambda libraries: files)
    for name, n_processes in (("one", 1), ("two", 2)):
        embedded.write_embedded(tmp_path / f"{name}.txt", n_processes)
    text = (tmp_path / "one.txt").read_bytes()
    assert text == (tmp_path / "two.txt").read_bytes()
    lines = text.decode().split("\n")
    assert lines.pop() == "" and all(lines[::2]) and not any(lines[1::2])
    capsys.readouterr()
    embedded.write_embedded(tmp_path / "one.txt", 1)
    assert "up to date" in capsys.readouterr().out


def test_a_python_without_sources_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "source_files", lambda libraries: [])
    with pytest.raises(UserError, match="no docstrings found"):
        embedded.write_embedded(tmp_path / "x.txt", 1)
    assert not list(tmp_path.iterdir())
