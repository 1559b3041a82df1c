"""Hostile checkpoints of TensorFlow's and of Hugging Face's form, and manifests of the store."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from bert_tf import checkpoint, huggingface
from bert_tf.records import masked_crc32c
from runkit.store import CheckpointStore, _sealed
from tests.fuzz.mutations import answer, fuzz, hostile_json, json_bytes, mutated, mutated_trees

TENSORS = {
    "bert/embeddings/word_embeddings": np.arange(12, dtype=np.float32).reshape(4, 3),
    "bert/pooler/dense/bias": np.ones(3, np.float32),
    "global_step": np.array(7, np.int64),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(index, data) of a valid checkpoint."""
    prefix = tmp_path_factory.mktemp("checkpoint") / "model.ckpt-7"
    checkpoint.write_tensors(prefix, {name: tf.constant(value) for name, value in TENSORS.items()})
    return tuple((prefix.parent / f"{prefix.name}.{end}").read_bytes() for end in ("index", "data-00000-of-00001"))


def blocks(index: bytes) -> list[tuple[int, int]]:
    """(start, size) of the index's blocks. A table ends with a footer of 48 bytes: two block handles, a magic number;
    behind each block stand a byte and the block's masked CRC-32C."""

    def varint(data: bytes, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value, at

    found, at = [], len(index) - 48
    for _ in range(2):
        start, at = varint(index, at)
        size, at = varint(index, at)
        found.append((start, size))
    return [(0, min(start for start, _ in found) - 5), *found]


def resealed(index: bytes, places: list[tuple[int, int]]) -> bytes:
    data = bytearray(index)
    for start, size in places:
        crc = masked_crc32c(bytes(data[start : start + size + 1]))
        data[start + size + 1 : start + size + 5] = struct.pack("<I", crc)
    return bytes(data)


@fuzz
@given(kind=st.sampled_from(["index", "data", "sealed"]), steps=st.data())
def test_tensorflow_checkpoints(place, written, kind, steps):
    index, data = written
    if kind == "index":
        index = steps.draw(mutated([index]))
    elif kind == "data":
        data = steps.draw(mutated([data]))
    else:  # inside of the blocks, of the same length and with right checksums
        places = blocks(index)
        for place_, value in steps.draw(
            st.lists(st.tuples(st.integers(0, len(index) - 1), st.integers(0, 255)), min_size=1, max_size=4)
        ):
            index = index[:place_] + bytes([value]) + index[place_ + 1 :]
        index = resealed(index, places)
    prefix = place / "model.ckpt-7"
    (place / "model.ckpt-7.index").write_bytes(index)
    (place / "model.ckpt-7.data-00000-of-00001").write_bytes(data)
    tensors = answer(lambda: checkpoint.read_tensors(prefix), prefix, memory=4 << 30)
    if tensors is not None and kind != "sealed":
        assert {name: value.tolist() for name, value in tensors.items()} == {n: v.tolist() for n, v in TENSORS.items()}


THEIRS = {
    "bert.embeddings.word_embeddings.weight": TENSORS["bert/embeddings/word_embeddings"],
    "bert.pooler.dense.weight": np.ones((3, 3), np.float32),
}
SAFETENSORS = save(THEIRS, metadata={"format": "pt"})
N_HEADER = struct.unpack("<Q", SAFETENSORS[:8])[0]
HEADER, VALUES = json.loads(SAFETENSORS[8 : 8 + N_HEADER]), SAFETENSORS[8 + N_HEADER :]


def with_header(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + VALUES


@fuzz
@given(
    data=mutated([SAFETENSORS])
    | mutated_trees([HEADER]).map(json_bytes).map(with_header)
    | hostile_json(HEADER).map(with_header)
    | st.integers(0, 2**64 - 1).map(lambda n: struct.pack("<Q", n) + SAFETENSORS[8:])
)
def test_safetensors(place, data):
    path = place / "model.safetensors"
    path.write_bytes(data)
    tensors = answer(lambda: checkpoint.read_tensors(path), path)
    assert tensors is None or all(isinstance(value, np.ndarray) for value in tensors.values())


@fuzz
@given(data=hostile_json({"metadata": {}, "weight_map": dict.fromkeys(THEIRS, "model-1.safetensors")}))
def test_safetensors_index(place, data):
    folder = place / "sharded"
    folder.mkdir(exist_ok=True)
    (folder / "model-1.safetensors").write_bytes(SAFETENSORS)
    (folder / huggingface.INDEX).write_bytes(data)
    answer(lambda: checkpoint.read_tensors(folder), folder)


def write_fifty(prefix: str) -> None:
    Path(f"{prefix}.data").write_bytes(b"x" * 50)


@fuzz
@given(steps=st.data())
def test_store(place, steps):
    """A damaged newest checkpoint is named, and the one before it is taken; a resealed manifest cannot do harm."""
    folder = place / "store"
    shutil.rmtree(folder, ignore_errors=True)
    store = CheckpointStore(folder, keep=2)
    for step in (1, 2):
        store.save(step, write_fifty, {"seed": step})
    manifest = folder / "model.ckpt-2.manifest.json"
    content = json.loads(manifest.read_bytes())
    kind = steps.draw(st.sampled_from(["file", "text", "sealed"]))
    if kind == "file":
        (folder / "model.ckpt-2.data").write_bytes(steps.draw(mutated([b"x" * 50])))
    elif kind == "text":
        manifest.write_bytes(steps.draw(hostile_json(content)))
    else:
        sealed = steps.draw(mutated_trees([content]))
        if isinstance(sealed, dict):
            parts = [sealed.get(key) for key in ("step", "prefix", "files", "state")]
            sealed = _sealed(*parts)
        manifest.write_bytes(json_bytes(sealed))
    warned = []
    found = answer(lambda: store.newest_valid(warned.append), folder)
    assert found is not None
    assert found.step == 2 or warned or kind == "sealed"
    state = answer(lambda: checkpoint.saved_state(folder / "model.ckpt-1"), folder)
    assert state is None


@fuzz
@given(data=hostile_json({"step": 7, "state": {"seed": 1}}))
def test_saved_state(place, written, data):
    prefix = place / "model.ckpt-7"
    for end, content in zip(("index", "data-00000-of-00001"), written, strict=True):
        (place / f"model.ckpt-7.{end}").write_bytes(content)
    manifest = place / "model.ckpt-7.manifest.json"
    manifest.write_bytes(data)
    state = answer(lambda: checkpoint.saved_state(prefix), manifest)
    manifest.unlink()
    assert state is None or isinstance(state, dict)


# ------------------------------------------------------------------------------------- minimal inputs of faults found
def test_an_entry_that_ends_tensorflows_process(place, written):
    """A byte of the first tensor's entry changed, all checksums right: TensorFlow's reader aborts there."""
    index, data = written
    at = index.index(b"bert/embeddings/word_embeddings") + len(b"bert/embeddings/word_embeddings")
    index = resealed(index[: at + 3] + b"\x01" + index[at + 4 :], blocks(index))
    (place / "model.ckpt-7.index").write_bytes(index)
    (place / "model.ckpt-7.data-00000-of-00001").write_bytes(data)
    assert answer(lambda: checkpoint.read_tensors(place / "model.ckpt-7"), place / "model.ckpt-7.index") is None


@pytest.mark.parametrize("content", [b"[]", b'{"state": 3}'])
def test_what_is_no_saved_state(place, written, content):
    prefix = place / "model.ckpt-7"
    for end, part in zip(("index", "data-00000-of-00001"), written, strict=True):
        (place / f"model.ckpt-7.{end}").write_bytes(part)
    manifest = place / "model.ckpt-7.manifest.json"
    manifest.write_bytes(content)
    assert answer(lambda: checkpoint.saved_state(prefix), manifest) is None
    manifest.unlink()


@pytest.mark.parametrize("files", [{"x": None}, {"x": {}}, {"x": {"bytes": 1}}])
def test_manifests_of_the_store_that_describe_no_files(tmp_path, files):
    (tmp_path / "model.ckpt-2.manifest.json").write_bytes(json_bytes(_sealed(2, "model.ckpt-2", files, {})))
    assert answer(lambda: CheckpointStore(tmp_path).newest_valid(lambda text: None), tmp_path) is None
