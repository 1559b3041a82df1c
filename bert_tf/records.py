"""Records: the schema of pre-training; tf.train.Example encoding, TFRecord files and their manifest; no
TensorFlow here.

S max_seq_length, P max_predictions_per_seq.

A TFRecord file is a run of frames: uint64 length, uint32 masked CRC-32C of the length, the record, uint32
masked CRC-32C of the record, all little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord). A
record is a serialized tf.train.Example (tensorflow/core/example/{example,feature}.proto).
"""

import functools
import hashlib
import mmap
import os
import struct
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from runkit.errors import UserError
from runkit.files import atomic_open, read_json

MANIFEST = "manifest.json"
UNFINISHED_MANIFEST = "manifest.partial.json"  # a run of create_pretraining_data that has not ended
MANIFEST_FORMAT = 1
SUFFIX = ".tfrecord"
FRAME_OVERHEAD = 16  # bytes around each record
SETTINGS = ("max_seq_length", "max_predictions_per_seq", "vocab_size", "masked_lm_prob")  # numbers in a manifest


class PretrainingExample(NamedTuple):
    """One record; fields are named as the features. In the file int64, masked_lm_weights float32."""

    input_ids: Sequence[int]  # [S] [CLS] A [SEP] B [SEP], then 0
    input_mask: Sequence[int]  # [S] 1 for a token, 0 for padding
    segment_ids: Sequence[int]  # [S] 0 for [CLS] A [SEP] and padding, 1 for B [SEP]
    masked_lm_positions: Sequence[int]  # [P] ascending, then 0
    masked_lm_ids: Sequence[int]  # [P] the original ids, then 0
    masked_lm_weights: Sequence[float]  # [P] 1.0 for a masked position, 0.0 for padding
    next_sentence_labels: Sequence[int]  # [1] 0: B follows A in the document, 1: B is from another document


class Feature(NamedTuple):
    """A fine-tuning example, or one window of one, before padding; features.py makes batches and records of it."""

    input_ids: Sequence[int]  # [CLS] ... [SEP], no padding
    segment_ids: Sequence[int]  # as long
    label: int | float | tuple[int, int] | Sequence[int]  # see features.LabelKind


FLOAT_FEATURES = frozenset({"masked_lm_weights", "label_values"})


def feature_shapes(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, int]:
    """Feature name -> number of values, in the order of PretrainingExample."""
    s, p = max_seq_length, max_predictions_per_seq
    return dict(zip(PretrainingExample._fields, (s, s, s, p, p, p, 1), strict=True))


# --- tf.train.Example ---------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    """Base-128, low groups first, the high bit set on all bytes but the last."""
    if value < 0:
        value += 1 << 64
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


class _VarintTable(dict):
    """int -> varint, filled as values turn up; there are as many as the vocabulary has tokens."""

    def __missing__(self, value: int) -> bytes:
        self[value] = encoded = _varint(value)
        return encoded


_VARINTS = _VarintTable()


def _packed_varints(values: list[int]) -> bytes:
    """The varints of values; masks and segments, being below 128, are their own varints."""
    try:
        packed = bytes(values)
    except ValueError:  # a value above 255
        packed = b""
    if packed and packed.isascii():
        return packed
    return b"".join(map(_VARINTS.__getitem__, values))


_TAGS = [bytes([tag << 3 | 2]) for tag in range(4)]


def _field(tag: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _TAGS[tag] + _VARINTS[len(payload)] + payload


_FLOAT_LIST, _INT64_LIST = 2, 3  # the fields of Feature's oneof


@functools.cache
def _encoding(schema: type) -> tuple[tuple[int, int, bytes], ...]:
    """(place in the tuple, kind, encoded key) of every feature.

    Sorted by name, so that equal examples are equal bytes (a protobuf map has no order of its own).
    """
    return tuple(
        (index, _FLOAT_LIST if name in FLOAT_FEATURES else _INT64_LIST, _field(1, name.encode()))
        for name, index in sorted((name, index) for index, name in enumerate(schema._fields))
    )


def encode_example(example: tuple) -> bytes:
    """The serialized tf.train.Example of a named tuple of lists; equal examples give equal bytes."""
    entries = []
    for index, kind, key in _encoding(type(example)):
        values = list(example[index])  # of an array, bytes() would give the memory
        if kind == _FLOAT_LIST:
            packed = struct.pack(f"<{len(values)}f", *values)
        else:
            packed = _packed_varints(values)
        entries.append(_field(1, key + _field(2, _field(kind, _field(1, packed)))))
    return _field(1, b"".join(entries))


class _FeatureStart(dict):
    """Length of the packed values -> the bytes of a map entry of Features that stand before them."""

    def __init__(self, name: str, kind: int):
        self._key, self._kind = _field(1, name.encode()), kind

    def __missing__(self, length: int) -> bytes:
        whole = _field(1, self._key + _field(2, _field(self._kind, _field(1, bytes(length)))))
        self[length] = start = whole[: len(whole) - length]
        return start


class PretrainingEncoder:
    """encode_example for pre-training examples of one shape, several times as fast: what repeats from example to
    example (masks, weights, labels, the bytes between the values) is encoded once."""

    def __init__(self, max_seq_length: int, max_predictions_per_seq: int):
        s, p = self._sizes = max_seq_length, max_predictions_per_seq
        start = {
            name: _FeatureStart(name, _FLOAT_LIST if name in FLOAT_FEATURES else _INT64_LIST)
            for name in PretrainingExample._fields
        }
        one, zero = struct.pack("<f", 1.0), struct.pack("<f", 0.0)
        self._ids, self._masked_ids = start["input_ids"], start["masked_lm_ids"]
        self._positions = start["masked_lm_positions"]
        self._masks = [start["input_mask"][s] + b"\1" * n + bytes(s - n) for n in range(s + 1)]
        self._weights = [start["masked_lm_weights"][4 * p] + one * k + zero * (p - k) for k in range(p + 1)]
        # The label, and the beginning of the segments that follow it.
        self._labels = [start["next_sentence_labels"][1] + bytes([i]) + start["segment_ids"][s] for i in (0, 1)]

    def encode(
        self,
        tokens: list[int],
        segment_a_length: int,
        masked_positions: list[int],
        masked_ids: list[int],
        next_sentence_label: int,
    ) -> bytes:
        """The record of n <= S tokens, the first segment_a_length of them of segment 0, and k <= P masked positions."""
        s, p = self._sizes
        n, k = len(tokens), len(masked_positions)
        varint = _VARINTS.__getitem__
        packed_ids = b"".join(map(varint, tokens)) + bytes(s - n)
        packed_masked_ids = b"".join(map(varint, masked_ids)) + bytes(p - k)
        packed_positions = _packed_varints(masked_positions) + bytes(p - k)
        example = b"".join(
            (  # in the order of the names
                self._ids[len(packed_ids)],
                packed_ids,
                self._masks[n],
                self._masked_ids[len(packed_masked_ids)],
                packed_masked_ids,
                self._positions[len(packed_positions)],
                packed_positions,
                self._weights[k],
                self._labels[next_sentence_label],
                bytes(segment_a_length) + b"\1" * (n - segment_a_length) + bytes(s - n),
            )
        )
        return _field(1, example)


# --- TFRecord files -----------------------------------------------------------------------------------------

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def masked_crc32c(data: bytes) -> int:
    """CRC-32C rotated right by 15 bits plus a constant: safe for data that holds CRCs itself."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class RecordFile(NamedTuple):
    """What a manifest knows of a file."""

    records: int
    bytes: int
    sha256: str


class TFRecordWriter:
    """A context manager that writes records to a file, which appears under its name, whole and synced to
    disk, when the block ends; when it raises, nothing is left. `summary()` counts and hashes what was
    written.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._hash = hashlib.sha256()
        self._records = self._bytes = 0

    def __enter__(self) -> "TFRecordWriter":
        self._file = atomic_open(self.path, "wb")
        self._stream = self._file.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._file.__exit__(*exception)

    def write(self, record: bytes) -> None:
        """Writes one record with its frame."""
        length = _LENGTH.pack(len(record))
        frame = b"".join((length, _CRC.pack(masked_crc32c(length)), record, _CRC.pack(masked_crc32c(record))))
        self._stream.write(frame)
        self._hash.update(frame)
        self._records += 1
        self._bytes += len(frame)

    def summary(self) -> RecordFile:
        """The file as written so far."""
        return RecordFile(self._records, self._bytes, self._hash.hexdigest())


def write_tfrecord(path: str | os.PathLike, records: Iterable[bytes]) -> RecordFile:
    """Writes all records, atomically."""
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return writer.summary()


def _damaged(path: str | os.PathLike, record: int, offset: int, cause: str) -> UserError:
    return UserError(
        f"{path}: {cause} in record {record} at byte {offset}; "
        "the file is damaged or was not written to the end: make it again, or move it out of the folder"
    )


def _record_length(path: str | os.PathLike, header: bytes, record: int, offset: int, size: int) -> int:
    """The length a frame header states, its checksum and the end of the file (of `size` bytes) checked."""
    if len(header) < _HEADER.size:
        raise _damaged(path, record, offset, f"cut short (only {len(header)} bytes left)")
    length, crc = _HEADER.unpack(header)
    if masked_crc32c(header[: _LENGTH.size]) != crc:
        raise _damaged(path, record, offset, "wrong checksum of the length")
    if offset + length + FRAME_OVERHEAD > size:
        cause = f"cut short (only {size - offset} of {length + FRAME_OVERHEAD} bytes left)"
        raise _damaged(path, record, offset, cause)
    return length


def _checked_record(path: str | os.PathLike, tail: bytes, length: int, record: int, offset: int) -> bytes:
    """The record at the start of a frame's tail (record and checksum)."""
    data = tail[:length]
    if len(tail) != length + _CRC.size:
        raise _damaged(path, record, offset, "cut short")
    if masked_crc32c(data) != _CRC.unpack_from(tail, length)[0]:
        raise _damaged(path, record, offset, "wrong checksum of the data")
    return data


def scan_tfrecord(path: str | os.PathLike) -> np.ndarray:
    """Where the frames of a TFRecord file begin, from the length fields alone (their checksums are verified).

    Returns int64 [records + 1], the last entry being the file's size, for read_record. Raises UserError
    naming file, record and byte when the file is cut or corrupt.
    """
    offsets = array("q", [0])
    lengths: dict[bytes, int] = {}  # by header, once checked: a file has few different lengths
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size:
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    offset = 0
                    while offset < size:
                        header = data[offset : offset + _HEADER.size]
                        length = lengths.get(header)
                        if length is None or offset + length + FRAME_OVERHEAD > size:
                            length = lengths[header] = _record_length(path, header, len(offsets) - 1, offset, size)
                        offset += length + FRAME_OVERHEAD
                        offsets.append(offset)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return np.frombuffer(offsets, np.int64)


def read_record(path: str | os.PathLike, descriptor: int, offsets: np.ndarray, index: int) -> bytes:
    """Record `index` of the file open at `descriptor`, its checksum verified; offsets come from
    scan_tfrecord.

    Raises UserError naming file, record and byte when the record is corrupt. Reads without mmap: a file that
    shrinks meanwhile is then an error and not a crash.
    """
    start, end = int(offsets[index]), int(offsets[index + 1])
    tail = os.pread(descriptor, end - start - _HEADER.size, start + _HEADER.size)
    return _checked_record(path, tail, end - start - FRAME_OVERHEAD, index, start)


def iter_tfrecord(path: str | os.PathLike) -> Iterator[bytes]:
    """All records of a file in order, everything verified. Raises UserError naming file, record and byte."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            offset = record = 0
            while offset < size:
                length = _record_length(path, stream.read(_HEADER.size), record, offset, size)
                yield _checked_record(path, stream.read(length + _CRC.size), length, record, offset)
                offset, record = offset + length + FRAME_OVERHEAD, record + 1
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


# --- folders ------------------------------------------------------------------------------------------------


def load_manifest(directory: str | os.PathLike) -> dict | None:
    """The manifest of a TFRecord folder, None where there is none; the files it lists are not looked at.

    Raises UserError naming the folder or file when there is no such folder, and for an unfinished or unreadable
    manifest.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder of TFRecords; has the data been created?")
    if (directory / UNFINISHED_MANIFEST).exists():
        raise UserError(
            f"{directory}: the creation of these records has not ended ({UNFINISHED_MANIFEST} is there); "
            "run create_pretraining_data again with the same flags, it goes on where it stopped"
        )
    path = directory / MANIFEST
    if not path.exists():
        return None
    manifest = read_json(path)
    if not (
        isinstance(manifest, dict)
        and manifest.get("format") == MANIFEST_FORMAT
        and isinstance(manifest.get("files"), dict)
        and all(name == os.path.basename(name) and _is_entry(entry) for name, entry in manifest["files"].items())
        and all(_is_number(manifest[key]) for key in SETTINGS if key in manifest)
        and isinstance(manifest.get("vocab_sha256", ""), str)
        and isinstance(manifest.get("do_lower_case", True), bool)
    ):
        raise UserError(f"{path}: not a manifest of format {MANIFEST_FORMAT}; create the records again")
    return manifest


def _is_entry(entry: Any) -> bool:
    """Whether a manifest's entry of a file says how large it is and how many records it has."""
    return isinstance(entry, dict) and all(
        type(entry.get(key)) is int and entry[key] >= 0 for key in ("bytes", "records")
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1 << 31


def read_manifest(directory: str | os.PathLike) -> dict | None:
    """The manifest of a TFRecord folder, None where there is none; all files listed have the stated size.

    Raises UserError as load_manifest does, and for a missing file and a wrong size. Warns of record files that the
    manifest does not list: they are not part of the data set.
    """
    directory = Path(directory)
    manifest = load_manifest(directory)
    if manifest is None:
        return None
    for name, entry in manifest["files"].items():
        file = directory / name
        if not os.path.isfile(file):
            raise UserError(f"{file}: missing, but listed in {MANIFEST}; create the records again")
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise UserError(
                f"{file}: {size} bytes, but {MANIFEST} says {entry['bytes']}; the copy is incomplete: "
                "copy it again or create the records again"
            )
    strays = [path.name for path in tfrecord_files(directory) if path.name not in manifest["files"]]
    if strays:
        shown = ", ".join(strays[:3]) + (", ..." if len(strays) > 3 else "")
        warnings.warn(f"{directory}: {len(strays)} files not listed in {MANIFEST} are not used: {shown}", stacklevel=2)
    return manifest


def tfrecord_files(directory: str | os.PathLike) -> list[Path]:
    """The *.tfrecord files of a folder by name; hidden, temporary and other files are not records."""
    return sorted(p for p in Path(directory).glob(f"*{SUFFIX}") if p.is_file() and not p.name.startswith("."))
