"""Hostile input made from small valid files, and what a reader may do with it.

A reader answers any input with a correct result, a UserError that names the file, or a counted, reported skip. Anything
else is a fault: another exception, memory without relation to the file, a hang. FUZZ_EXAMPLES in the environment
sets the number of examples of each property, for long runs.
"""

import contextlib
import copy
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from runkit.errors import UserError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
MEMORY = 512 << 20  # bytes of address space beyond what the process has; every file here is below 1 MB
CPU_SECONDS = 20

fuzz = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# ------------------------------------------------------------------------------------------------ what is allowed
class Hang(BaseException):
    """An input took longer than CPU_SECONDS; no Exception, so that no reader can swallow it."""


@contextlib.contextmanager
def bounded(memory: int = MEMORY) -> Iterator[None]:
    """Raises MemoryError inside the block where it asks for more memory, Hang where it computes for too long."""

    def stop(*_) -> None:
        raise Hang(f"over {CPU_SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    former = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, former)


def answer(read: Callable[[], Any], name: str | Path, memory: int = MEMORY) -> Any:
    """What a reader gives, None where it refuses with a UserError that names the file; all else is raised."""
    try:
        with bounded(memory):
            return read()
    except UserError as error:
        assert str(name) in str(error), f"the error does not name {name}: {error}"
        str(error).encode("utf-8", "surrogateescape")  # can be printed
        return None


# ------------------------------------------------------------------------------------------------------ bytes
_NUMBERS = (
    0,
    1,
    -1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    -(1 << 63),
)
_KINDS = ("bit", "byte", "cut", "delete", "repeat", "insert", "splice", "number", "digits")
_HEADER = 64  # bytes at the start, where half of the places are chosen


def _mutate(data: bytes, kind: str, place: int, value: int, samples: Sequence[bytes]) -> bytes:
    """One mutation; place and value are any numbers, the same ones give the same."""
    if not data:
        return bytes([value & 0xFF])
    span = min(len(data), _HEADER) if place & 1 else len(data)
    at, size = (place >> 1) % span, 1 + (value >> 8) % 64
    if kind == "bit":
        return data[:at] + bytes([data[at] ^ 1 << value % 8]) + data[at + 1 :]
    if kind == "byte":
        return data[:at] + bytes([value & 0xFF]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "delete":
        return data[:at] + data[at + size :]
    if kind == "repeat":
        return data[:at] + data[at : at + size] * (2 + value % 7) + data[at + size :]
    if kind == "insert":
        return data[:at] + struct.pack("<Q", value)[: size % 9] + data[at:]
    if kind == "splice":
        other = samples[value % len(samples)]
        begin = (value >> 16) % (len(other) + 1)
        return data[:at] + other[begin : begin + 8 * size] + data[at + (8 * size if value & 1 else 0) :]
    if kind == "digits":  # a number in text: the next digits become a huge one
        while at < len(data) and not data[at : at + 1].isdigit():
            at += 1
        end = at
        while end < len(data) and data[end : end + 1].isdigit():
            end += 1
        return data[:at] + str(_NUMBERS[value % len(_NUMBERS)] * 10 ** (value >> 8 & 15)).encode() + data[end:]
    width, order = (1, 2, 4, 8)[value >> 4 & 3], ("little", "big")[value >> 6 & 1]
    near = _NUMBERS[value % len(_NUMBERS)] if value >> 7 & 1 else len(data) + (value >> 16) % 9 - 4
    return data[:at] + (near % (1 << 8 * width)).to_bytes(width, order) + data[at + width :]


_STEP = st.tuples(st.sampled_from(_KINDS), st.integers(0, 2**24), st.integers(0, 2**32))


def mutated(samples: Sequence[bytes], most: int = 4) -> st.SearchStrategy[bytes]:
    """One of the samples after one to `most` mutations: flipped bits, cuts, repeats, splices, numbers in headers."""

    def build(sample: bytes, steps: list[tuple[str, int, int]]) -> bytes:
        for step in steps:
            sample = _mutate(sample, *step, samples)
        return sample

    return st.builds(build, st.sampled_from(samples), st.lists(_STEP, min_size=1, max_size=most))


# ------------------------------------------------------------------------------------------------------ JSON
_ODD_TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udcff",
    "😀",
    "..",
    "/",
    "/dev/null",
    "nan",
    "1e999",
    "\u2028",
    "x" * 5000,
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1 << 31, 1 << 63, 10**400, -(10**400), 1e308, 5e-324, float("nan"), float("inf")]),
    st.sampled_from(_ODD_TEXTS),
    st.text(max_size=20),
)
TREES = st.recursive(
    SCALARS,
    lambda t: st.one_of(st.lists(t, max_size=4), st.dictionaries(st.text(max_size=8), t, max_size=4)),
    max_leaves=8,
)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in a tree."""
    found, left = [], [tree]
    while left:
        node = left.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            found.append((node, key))
            left.append(node[key])
    return found


def mutated_trees(samples: Sequence[Any], most: int = 3) -> st.SearchStrategy[Any]:
    """One of the samples, of which one to `most` values are replaced, removed, doubled or renamed."""

    def build(sample: Any, steps: list[tuple[str, int, Any]]) -> Any:
        tree = [copy.deepcopy(sample)]
        for kind, place, value in steps:
            places = _places(tree)
            node, key = places[place % len(places)]
            if kind == "remove" and node is not tree:
                del node[key]
            elif kind == "rename" and isinstance(node, dict):
                node[str(value)[:20]] = node.pop(key)
            elif kind == "double" and isinstance(node, list):
                node.insert(key, copy.deepcopy(node[key]))
            else:
                node[key] = value
            if not tree:
                return None
        return tree[0]

    step = st.tuples(
        st.sampled_from(("replace", "replace", "remove", "rename", "double")), st.integers(0, 2**16), TREES
    )
    return st.builds(build, st.sampled_from(samples), st.lists(step, min_size=1, max_size=most))


def json_bytes(tree: Any) -> bytes:
    """A tree as Python's json writes it, ASCII: surrogates as escapes, NaN and infinity by name."""
    former = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(tree).encode()
    finally:
        sys.set_int_max_str_digits(former)


# JSON that Python's parser refuses otherwise than by JSONDecodeError, and neighbours.
HOSTILE_JSON = (
    b"[" * 20_000,
    b'{"a":' * 5_000,
    b"[" * 950 + b"]" * 950,
    b"[" * 450 + b"]" * 450,
    b"9" * 5000,
    b'{"data": ' + b"9" * 5000 + b"}",
    b"-Infinity",
    b'"\\ud800"',
    b'{"\\udfff": 1}',
    b"\xef\xbb\xbf",
    b"",
    b"\xff\xfe[\x00]\x00",
    b"null",
)


def hostile_json(*samples: Any) -> st.SearchStrategy[bytes]:
    """Files of JSON: trees with values of wrong kinds, mutated text, and what parsers break at."""
    encoded = [json_bytes(sample) for sample in samples]
    return st.one_of(
        mutated_trees(samples).map(json_bytes), mutated(encoded), st.sampled_from(HOSTILE_JSON), TREES.map(json_bytes)
    )


def joined(*tokens: str, most: int = 30) -> st.SearchStrategy[bytes]:
    """Text of these tokens in any order: grammar without a grammar."""
    return st.lists(st.sampled_from(tokens), max_size=most).map(lambda chosen: "".join(chosen).encode())
