"""Hostile checkpoints of speech models."""

import io
import pickle
import warnings
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from jasper_pt import checkpoint
from jasper_pt.checkpoint import Checkpoints, Position, Run
from jasper_pt.novograd import NovoGrad
from jasper_pt.precision import LossScale
from tests.fuzz.mutations import answer, fuzz, mutated, mutated_trees


def run() -> Run:
    model = nn.Linear(3, 2)
    optimizer = NovoGrad(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return Run(model, None, optimizer, LossScale(enabled=False))


CONTENTS = run().contents(Position(1, 2, 10, 4), 12, 50.0, 1, {"labels": ["a"], "name": "Net"})


def packed(contents, name="x.pt") -> bytes:
    buffer = io.BytesIO()
    torch.save(contents, buffer)
    return buffer.getvalue()


def resealed(change, method=zipfile.ZIP_STORED) -> bytes:
    """The checkpoint with its records changed by change(name, data), all checksums right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed(CONTENTS))) as source, zipfile.ZipFile(out, "w", method) as target:
        for info in source.infolist():
            target.writestr(info.filename, change(info.filename, source.read(info)))
    return out.getvalue()


PICKLE = zipfile.ZipFile(io.BytesIO(packed(CONTENTS))).read("archive/data.pkl")


def with_pickle(data: bytes) -> bytes:
    return resealed(lambda name, old: data if name.endswith("data.pkl") else old)


def restore(path) -> list[str]:
    return run().restore(checkpoint.read(path), path)


@fuzz
@given(
    data=mutated([packed(CONTENTS)])
    | mutated([PICKLE], most=2).map(with_pickle)
    | mutated_trees([CONTENTS], most=2).map(packed)
)
def test_checkpoints(place, data):
    path = place / "x.pt"
    path.write_bytes(data)
    notes = answer(lambda: restore(path), path, memory=1 << 30)
    assert notes is None or isinstance(notes, list)


@fuzz
@given(data=mutated([packed(CONTENTS)]), manifest=st.data())
def test_newest_valid(place, data, manifest):
    """The damaged one is named, and the one before it is taken."""
    import shutil

    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    checkpoints = Checkpoints(folder, "Net")
    checkpoints.save(CONTENTS | {"position": CONTENTS["position"] | {"epoch": 0}, "step": 2})
    newest = checkpoints.save(CONTENTS)
    beside = newest.with_suffix(".manifest.json")
    newest.write_bytes(data)
    beside.write_bytes(manifest.draw(st.just(beside.read_bytes()) | mutated([beside.read_bytes()])))
    warned = []
    found = answer(lambda: checkpoints.newest_valid(warned.append), folder)
    assert found is not None and (found[0] == newest or any(newest.stem in text for text in warned))


class Runs:
    def __reduce__(self):
        return print, ("code has run",)


def deep_pickle() -> bytes:
    return b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."


@pytest.mark.parametrize(
    "make",
    [
        lambda: resealed(
            lambda name, data: data + bytes(900 << 20) if name.endswith("/0") else data, zipfile.ZIP_DEFLATED
        ),
        lambda: with_pickle(pickle.dumps({"state_dict": Runs()}, 2)),
        lambda: with_pickle(deep_pickle()),
        lambda: with_pickle(b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85R."),
        lambda: packed({"state_dict": {"weight": 1, "bias": 2}}),
        lambda: packed({"state_dict": {1: torch.ones(2)}}),
        lambda: packed({"state_dict": {"weight": torch.ones(1).expand(1 << 40), "bias": torch.ones(2)}}),
        lambda: packed(CONTENTS | {"optimizer": {"state": [1], "param_groups": []}}),
        lambda: packed(CONTENTS | {"optimizer": None}),
        lambda: packed(CONTENTS | {"scaler": 3}),
    ],
    ids=range(10),
)
def test_hostile_checkpoints_are_refused(place, make, capsys):
    path = place / "x.pt"
    path.write_bytes(make())
    assert answer(lambda: restore(path), path) is None
    assert "code has run" not in capsys.readouterr().out


def test_the_sample_is_valid(place):
    path = place / "x.pt"
    path.write_bytes(packed(CONTENTS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert restore(path) == []
