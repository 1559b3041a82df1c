"""Hostile JSON and text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runkit.files import read_json, read_lines
from tests.fuzz.mutations import answer, fuzz, hostile_json, mutated


@fuzz
@given(data=hostile_json({"a": [1, 2.5, "x", None], "b": {"c": True}}))
def test_json(place, data):
    path = place / "input.json"
    path.write_bytes(data)
    answer(lambda: read_json(path), path)


@fuzz
@given(data=st.one_of(mutated(["ä b\r\nc\n".encode(), b"\xef\xbb\xbfx\n\n"]), st.binary(max_size=60)))
def test_lines(place, data):
    path = place / "input.txt"
    path.write_bytes(data)
    lines = answer(lambda: list(read_lines(path)), path)
    if lines is not None:  # nothing is lost: as many lines as line ends, and the last
        assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


@pytest.mark.parametrize("data", [b"[" * 20_000, b"9" * 5000, b'{"a": "\\ud800"}', b'"\\udfff"'], ids=range(4))
def test_json_beyond_the_limits_of_python_is_refused(place, data):
    path = place / "input.json"
    path.write_bytes(data)
    assert answer(lambda: read_json(path), path) is None


def test_surrogate_pairs_are_characters(place):
    path = place / "input.json"
    path.write_bytes(b'["\\ud83d\\ude00", "\\\\ud800"]')
    assert read_json(path) == ["😀", "\\ud800"]
