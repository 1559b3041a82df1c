"""Plans: all problems are told, not the first only, and the exit code tells of them."""

import warnings
from pathlib import Path

import pytest

from runkit import planning
from runkit.errors import UserError
from runkit.planning import Part, Plan, parse_request, size_text, total


def refuse(message: str) -> None:
    raise UserError(message)


@pytest.mark.parametrize(
    "text, value", [("", ""), ("false", ""), ("true", "true"), ("probe", "probe"), ("Probe", "probe"), ("12.5", 12.5)]
)
def test_what_plan_may_be_given(text, value):
    assert parse_request(text) == value


@pytest.mark.parametrize("text", ["fast", "-3", "nan", "inf"])
def test_what_it_may_not(text):
    with pytest.raises(ValueError, match="neither 'probe' nor a throughput"):
        parse_request(text)


def test_every_problem_is_listed(capsys):
    plan = Plan("a run")
    assert plan.attempt(refuse, "a.json: missing") is None
    assert plan.attempt(int, "7") == 7
    plan.attempt(refuse, "b.json: missing")
    with pytest.raises(UserError, match="2 problems"):
        plan.finish()
    shown = capsys.readouterr().out
    assert "problem: a.json: missing" in shown and "problem: b.json: missing" in shown


def test_warnings_become_notes():
    plan = Plan("a run")
    plan.attempt(warnings.warn, "2 files are not used")
    assert plan.notes == ["2 files are not used"] and not plan.problems


def test_only_user_errors_are_problems():
    with pytest.raises(ZeroDivisionError):
        Plan("a run").attempt(lambda: 1 / 0)


def test_the_table_shows_kinds_and_their_sum():
    plan = Plan("a run", memory=[Part("weights", 3e9, "float32"), Part("none", 0, ""), Part("moments", 6e9, "two")])
    assert total(plan.memory) == 9e9
    lines = plan.text().splitlines()
    assert any("weights" in line and "3.00 GB" in line for line in lines)
    assert any("together" in line and "9.00 GB" in line for line in lines)
    assert not any("none" in line for line in lines) and lines[-1] == "no problem found"


def test_a_file_in_the_way_of_the_output(tmp_path: Path):
    (tmp_path / "out").write_text("")
    plan = Plan("a run")
    plan.check_output(tmp_path / "out" / "run", 0)
    assert "is a file" in plan.problems[0]
    assert not (tmp_path / "new").exists()
    plan = Plan("a run")
    plan.check_output(tmp_path / "new" / "run", 1)
    assert not plan.problems and not (tmp_path / "new").exists()


def test_a_disk_that_is_too_small(tmp_path: Path):
    plan = Plan("a run")
    plan.check_output(tmp_path, 1e21)
    assert "are free" in plan.problems[0]


def test_a_machine_that_is_too_small(monkeypatch):
    monkeypatch.setattr(planning, "machine_memory", lambda: 10_000_000_000)
    plan = Plan("a run", memory=[Part("weights", 4e9, "")])
    plan.check_memory(2)
    assert not plan.problems
    assert not plan.notes
    plan.check_memory(3)
    assert not plan.problems and "2 of 3 processes" in plan.notes[0]
    plan.memory.append(Part("moments", 8e9, ""))
    plan.check_memory(1)
    assert "a process takes 12.00 GB" in plan.problems[0]


def test_time_is_examples_by_throughput():
    plan = Plan("a run")
    plan.tell_time(7200, 2.0, "as given", "sequences")
    assert plan.facts[0][1].startswith("1:00:00 at 2 sequences/s (as given)")


def test_sizes_in_powers_of_ten():
    assert size_text(1_500_000) == "1.5 MB" and size_text(2.5e9) == "2.50 GB"
