"""Records against TensorFlow and protobuf; damaged files and folders."""

import os
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from bert_tf.records import (
    PretrainingExample,
    TFRecordWriter,
    encode_example,
    feature_shapes,
    iter_tfrecord,
    masked_crc32c,
    read_manifest,
    read_record,
    scan_tfrecord,
    tfrecord_files,
    write_tfrecord,
)
from runkit.errors import UserError
from runkit.files import sha256_file, write_json

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
S, P = 16, 4
ROOT = Path(__file__).resolve().parents[2]


def example(seed: int) -> PretrainingExample:
    """Any numbers in the shapes of the schema, small and large."""
    rng = np.random.default_rng(seed)
    return PretrainingExample(
        input_ids=rng.choice([0, 1, 101, 127, 128, 255, 256, 16383, 16384, 30521, 2**21, 2**31 - 1], S).tolist(),
        input_mask=[1] * 9 + [0] * 7,
        segment_ids=[0] * 4 + [1] * 5 + [0] * 7,
        masked_lm_positions=[1, 3, 0, 0],
        masked_lm_ids=rng.integers(0, 400, P).tolist(),
        masked_lm_weights=[1.0, 1.0, 0.0, 0.0],
        next_sentence_labels=[int(rng.integers(2))],
    )


@pytest.mark.parametrize("seed", range(5))
def test_encoding_equals_protobuf(seed):
    tf = pytest.importorskip("tensorflow")
    wanted = tf.train.Example()
    for name, values in example(seed)._asdict().items():
        kind = "float_list" if name == "masked_lm_weights" else "int64_list"
        getattr(wanted.features.feature[name], kind).value.extend(values)
    encoded = encode_example(example(seed))
    assert encoded == wanted.SerializeToString(deterministic=True)  # map entries sorted by key
    assert tf.train.Example.FromString(encoded) == wanted


def test_encoding_parses_to_the_same_values():
    tf = pytest.importorskip("tensorflow")
    specification = {
        name: tf.io.FixedLenFeature([length], tf.float32 if name == "masked_lm_weights" else tf.int64)
        for name, length in feature_shapes(S, P).items()
    }
    parsed = tf.io.parse_single_example(encode_example(example(3)), specification)
    assert list(parsed) == sorted(PretrainingExample._fields)
    for name, values in example(3)._asdict().items():
        np.testing.assert_array_equal(parsed[name], values)


def test_arrays_and_lists_encode_alike():
    arrays = PretrainingExample(*(np.array(values) for values in example(1)))
    assert encode_example(arrays) == encode_example(example(1))


def test_negative_values_encode_as_protobuf_does():
    tf = pytest.importorskip("tensorflow")
    encoded = encode_example(example(0)._replace(masked_lm_ids=[-1, 5, -300, 0]))
    assert list(tf.train.Example.FromString(encoded).features.feature["masked_lm_ids"].int64_list.value) == [
        -1,
        5,
        -300,
        0,
    ]


def test_encoding_needs_no_tensorflow():
    program = "import sys, bert_tf.records, bert_tf.create_pretraining_data; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_masked_crc():
    # CRC-32C of "123456789" is E3069283 (RFC 3720's polynomial, the catalogue's check value).
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


# --- files --------------------------------------------------------------------------------------------------

RECORDS = [b"a" * n for n in (0, 1, 100, 7, 100, 5000)]


def test_tensorflow_reads_what_we_write(tmp_path):
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / "a.tfrecord"
    summary = write_tfrecord(path, iter(RECORDS))
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == RECORDS
    assert summary == (len(RECORDS), path.stat().st_size, sha256_file(path))


def test_we_read_what_tensorflow_writes(tmp_path):
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert list(iter_tfrecord(path)) == RECORDS
    offsets = scan_tfrecord(path)
    assert offsets.dtype == np.int64
    np.testing.assert_array_equal(np.diff(offsets), [len(record) + 16 for record in RECORDS])
    with open(path, "rb") as stream:
        assert [read_record(path, stream.fileno(), offsets, i) for i in (5, 0, 2)] == [RECORDS[i] for i in (5, 0, 2)]


def test_writer_leaves_nothing_when_it_fails(tmp_path):
    def broken():
        yield b"one"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_tfrecord(tmp_path / "a.tfrecord", broken())
    assert list(tmp_path.iterdir()) == []


def test_empty_file_has_no_records(tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        pass
    assert writer.summary().records == 0
    assert scan_tfrecord(path).tolist() == [0]
    assert list(iter_tfrecord(path)) == []


def damaged(tmp_path: Path, edit) -> Path:
    path = tmp_path / "bad.tfrecord"
    write_tfrecord(path, RECORDS)
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)
    return path


def cut(n: int):
    def edit(data: bytearray) -> None:
        del data[len(data) - n :]

    return edit


def flip(position: int):
    def edit(data: bytearray) -> None:
        data[position] ^= 1

    return edit


# Frames start at 0, 16, 33, 149, 172, 288; the last is 5016 bytes long.
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (cut(1), r"cut short \(only 5015 of 5016 bytes left\) in record 5 at byte 288"),
        (cut(5010), r"cut short \(only 6 bytes left\) in record 5 at byte 288"),
        (flip(33), r"wrong checksum of the length in record 2 at byte 33"),
        (flip(33 + 9), r"wrong checksum of the length in record 2 at byte 33"),
    ],
)
def test_damaged_frames_are_named(tmp_path, edit, message):
    path = damaged(tmp_path, edit)
    for read in (scan_tfrecord, lambda path: list(iter_tfrecord(path))):
        with pytest.raises(UserError, match=rf"bad.tfrecord: {message}; .*make it again"):
            read(path)


def test_length_seen_before_still_may_not_pass_the_end(tmp_path):
    path = tmp_path / "bad.tfrecord"
    write_tfrecord(path, [b"same length", b"same length"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"cut short .* in record 1 at byte 27"):
        scan_tfrecord(path)


@pytest.mark.parametrize("position", [149 + 12, 149 + 12 + 7 + 3])
def test_damaged_data_is_named(tmp_path, position):
    path = damaged(tmp_path, flip(position))
    offsets = scan_tfrecord(path)
    with (
        open(path, "rb") as stream,
        pytest.raises(UserError, match="checksum of the data in record 3 at byte 149"),
    ):
        read_record(path, stream.fileno(), offsets, 3)
    with pytest.raises(UserError, match="checksum of the data in record 3 at byte 149"):
        list(iter_tfrecord(path))


def test_file_that_shrinks_after_the_scan_is_an_error(tmp_path):
    path = damaged(tmp_path, lambda data: None)
    offsets = scan_tfrecord(path)
    os.truncate(path, 400)
    with open(path, "rb") as stream, pytest.raises(UserError, match="cut short in record 5"):
        read_record(path, stream.fileno(), offsets, 5)


def test_huge_length_is_not_believed(tmp_path):
    path = tmp_path / "bad.tfrecord"
    length = struct.pack("<Q", 2**62)
    path.write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"x" * 50)
    with pytest.raises(UserError, match="cut short"):
        scan_tfrecord(path)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"none.tfrecord"):
        scan_tfrecord(tmp_path / "none.tfrecord")


# --- folders ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    entry = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)._asdict()
    write_json(tmp_path / "manifest.json", {"format": 1, "files": {"a.tfrecord": entry}})
    return tmp_path


def test_manifest_is_read_quietly(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_manifest(folder)["files"]["a.tfrecord"]["records"] == len(RECORDS)


def test_strays_are_reported(folder):
    (folder / "b.tfrecord").write_bytes(b"half-written")
    (folder / "notes.txt").write_bytes(b"not a record file")
    with pytest.warns(UserWarning, match=r"1 files not listed in manifest.json are not used: b.tfrecord"):
        assert list(read_manifest(folder)["files"]) == ["a.tfrecord"]


def test_wrong_size_and_missing_file(folder):
    os.truncate(folder / "a.tfrecord", 400)
    with pytest.raises(UserError, match=r"a.tfrecord: 400 bytes, but manifest.json says 5304"):
        read_manifest(folder)
    (folder / "a.tfrecord").unlink()
    with pytest.raises(UserError, match=r"a.tfrecord: missing, but listed"):
        read_manifest(folder)


def test_unfinished_and_unknown_manifests(folder):
    write_json(folder / "manifest.json", {"format": 99, "files": {}})
    with pytest.raises(UserError, match="not a manifest of format 1"):
        read_manifest(folder)
    write_json(folder / "manifest.partial.json", {})
    with pytest.raises(UserError, match="has not ended"):
        read_manifest(folder)


def test_folder_without_manifest(tmp_path):
    for name in ("b.tfrecord", "a.tfrecord", ".a.tfrecord.1234.tmp", ".hidden.tfrecord", "notes.txt"):
        (tmp_path / name).touch()
    assert read_manifest(tmp_path) is None
    assert [path.name for path in tfrecord_files(tmp_path)] == ["a.tfrecord", "b.tfrecord"]
    with pytest.raises(UserError, match="no such folder"):
        read_manifest(tmp_path / "absent")
