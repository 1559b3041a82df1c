"""The index of TensorFlow's checkpoints, checked before TensorFlow opens it; no TensorFlow operation here.

TensorFlow's reader ends the whole process at an entry it cannot parse, and allocates what a shape promises. An index
(tensorflow/core/util/tensor_bundle) is a table of LevelDB's form (https://github.com/google/leveldb,
doc/table_format.md): blocks of sorted entries, one block that lists these, a footer. The first entry, of the empty
key, is a BundleHeaderProto, the others are BundleEntryProtos by the names of tensors.
"""

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from bert_tf.records import masked_crc32c
from runkit.errors import UserError

_FOOTER_BYTES = 48
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_TRAILER = struct.Struct("<BI")  # behind each block: compression (0: none), masked CRC-32C of block and this byte


def check_index(prefix: str | os.PathLike) -> None:
    """Raises UserError naming the index of a checkpoint when it is damaged, or promises what its data do not hold."""
    path = Path(f"{os.fspath(prefix)}.index")
    try:
        _check_entries(path, prefix)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (IndexError, struct.error, DecodeError, ValueError) as error:
        raise UserError(f"cannot read the checkpoint {prefix}: {path} is damaged ({error})") from error


def _check_entries(path: Path, prefix: str | os.PathLike) -> None:
    entries = _entries(path.read_bytes())
    key, value = next(entries, (None, b""))
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(value)
    if key != b"" or not 0 < header.num_shards < 100_000:
        raise ValueError("it does not begin with a header")
    sizes: dict[int, int] = {}  # of data files that were asked for
    for key, value in entries:
        name = key.decode()
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
        if not 0 <= entry.shard_id < header.num_shards:
            raise ValueError(f"{name!r} is in file {entry.shard_id} of {header.num_shards}")
        if entry.slices:
            raise ValueError(f"{name!r} is stored in slices, as no BERT model is")
        if entry.shard_id not in sizes:
            data = f"{os.fspath(prefix)}.data-{entry.shard_id:05d}-of-{header.num_shards:05d}"
            sizes[entry.shard_id] = os.path.getsize(data)
        if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > sizes[entry.shard_id]:
            raise ValueError(f"{name!r} reaches beyond the end of its data file")
        _check_shape(name, entry)


def _check_shape(name: str, entry: tensor_bundle_pb2.BundleEntryProto) -> None:
    """Whether a shape takes as many bytes as its entry has; a text takes one at least."""
    sides = [side.size for side in entry.shape.dim]
    if entry.shape.unknown_rank or any(side < 0 for side in sides) or len(sides) > 254:
        raise ValueError(f"{name!r} has an impossible shape")
    try:
        kind = tf.dtypes.as_dtype(entry.dtype)
        width = kind.size
    except (TypeError, KeyError) as error:
        raise ValueError(f"{name!r} is of the unknown type {entry.dtype}") from error
    n = math.prod(sides)
    wrong = n > entry.size if kind == tf.string else n * (width or 0) != entry.size
    if wrong or kind in (tf.resource, tf.variant):
        raise ValueError(f"{name!r} of shape {sides} and type {kind.name} cannot be in {entry.size} bytes")


# --- tables -------------------------------------------------------------------------------------------------


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of all entries of a table. Raises ValueError and IndexError for a damaged one."""
    footer = table[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise ValueError("it is no table, or not whole")
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    last = None
    for _, value in _block(table, *index):
        place, _ = _handle(value, 0)
        for key, content in _block(table, *place):
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, content


def _block(table: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a block: the length of what the key shares with the one before, and of its rest and of the value,
    then these two. Places of keys in full, and their number, end it."""
    end = start + size
    compression, crc = _TRAILER.unpack_from(table, end)
    if masked_crc32c(table[start : end + 1]) != crc:
        raise ValueError(f"wrong checksum of the block at byte {start}")
    if compression:
        raise ValueError("it is compressed, as TensorFlow's are not")
    (n_restarts,) = struct.unpack_from("<I", table, end - 4)
    entries_end = end - 4 - 4 * n_restarts
    if not start <= entries_end or not n_restarts:
        raise ValueError(f"no end of the block at byte {start}")
    at, key = start, b""
    for place in struct.unpack_from(f"<{n_restarts}I", table, entries_end):
        if place > entries_end - start:
            raise ValueError(f"a key beyond the block at byte {start}")
    while at < entries_end:
        (shared, rest, length), at = _varints(table, at, 3)
        if shared > len(key) or at + rest + length > entries_end:
            raise ValueError(f"an entry beyond the block at byte {start}")
        key = key[:shared] + table[at : at + rest]
        yield key, table[at + rest : at + rest + length]
        at += rest + length


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """(start and size of a block, where the handle ends)."""
    (start, size), at = _varints(data, at, 2)
    return (start, size), at


def _varints(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """(numbers, where they end)."""
    numbers = []
    for _ in range(count):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
            if shift > 63:
                raise ValueError("a number of over 64 bits")
        numbers.append(value)
    return numbers, at
