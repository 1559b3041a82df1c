"""Records -> batches: one deterministic, resumable stream, the same for any number of processes.

B batch size, S max_seq_length, P max_predictions_per_seq; of packed batches R rows of S tokens, M masked positions.

The records of an epoch stand in an order that depends on (seed, epoch) alone: files are permuted, neighbours
form groups of bounded size, the records of a group are permuted together. A position in the endless sequence
of epochs is all the state there is: a run resumes anywhere at once, and ranks are no more than a way to deal
out an update.
"""

import contextlib
import hashlib
import itertools
import os
import queue
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.ops import NOT_PACKED, Packing
from bert_tf.packing import Plan, Rows
from bert_tf.records import (
    FLOAT_FEATURES,
    MANIFEST,
    feature_shapes,
    iter_tfrecord,
    read_manifest,
    read_record,
    scan_tfrecord,
    tfrecord_files,
)
from runkit.errors import UserError
from runkit.guards import StallGuard

# Records permuted together: enough to mix many documents, few enough for their files to stay in the page
# cache.
GROUP_BYTES = 512 << 20
GROUP_FILES = 64
PREFETCH_BATCHES = 8
JOIN_SECONDS = 10.0
_INT32_END = 1 << 31  # ids are int32 in a batch
# What parse_example raises: the second where its message quotes bytes of the record.
PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)


class Batch(NamedTuple):
    """B masked sentence pairs; int32, but masked_lm_weights is float32. Each has a row of its own unless packed."""

    input_ids: tf.Tensor  # [B, S], packed [R, S]
    input_mask: tf.Tensor  # [B, S] 1 for a token, 0 for padding; packed [R, S]
    segment_ids: tf.Tensor  # [B, S], packed [R, S]
    masked_lm_positions: tf.Tensor  # [B, P] positions in the row; packed [M] indices into [R * S]
    masked_lm_ids: tf.Tensor  # [B, P], packed [M]
    masked_lm_weights: tf.Tensor  # [B, P] 1 for a masked position, 0 for padding; packed [M]
    next_sentence_labels: tf.Tensor  # [B] 0 true next, 1 random
    packing: Packing | tuple[()] = NOT_PACKED

    @property
    def examples(self) -> tf.Tensor:
        """B, int32 scalar."""
        return tf.shape(self.next_sentence_labels)[0]


def packed_spec() -> Batch:
    """Signature of packed batches of any B, R, S and M, so that one graph serves all."""
    tokens, numbers = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    weights, packing = tf.TensorSpec([None], tf.float32), Packing(tokens, tokens, numbers, numbers)
    return Batch(tokens, tokens, tokens, numbers, numbers, weights, numbers, packing)


class _File(NamedTuple):
    path: Path
    records: int
    bytes: int


class PretrainingRecords:
    """The records of one or more TFRecord folders.

    A folder with a manifest holds exactly the files it lists, one without (made by other tools) all its
    *.tfrecord files. What can be wrong is looked for here, before any training: raises UserError for a
    missing or empty folder, a missing or cut file, and records of other shapes than the settings, naming both
    numbers.

    Attributes: n_records; manifests, those of the folders that have one.
    """

    def __init__(
        self,
        directories: Sequence[str | os.PathLike],
        max_seq_length: int,
        max_predictions_per_seq: int,
        seed: int,
        vocab_size: int | None = None,
        type_vocab_size: int | None = None,
    ):
        """seed decides the order of training. With the sizes of a model's tables, records beyond them are errors."""
        self._seed = seed
        self._limits = {
            "input_ids": ("vocab_size", vocab_size or _INT32_END),
            "masked_lm_ids": ("vocab_size", vocab_size or _INT32_END),
            "segment_ids": ("type_vocab_size", type_vocab_size or _INT32_END),
            "masked_lm_positions": ("max_seq_length", max_seq_length),
            "next_sentence_labels": ("the number of classes,", 2),
            "input_mask": ("the number of its values,", 2),
            "masked_lm_weights": ("the end of their range", 2),
        }
        self._shapes = feature_shapes(max_seq_length, max_predictions_per_seq)
        self._features = {
            name: tf.io.FixedLenFeature([length], tf.float32 if name in FLOAT_FEATURES else tf.int64)
            for name, length in self._shapes.items()
        }
        self.manifests: list[dict] = []
        self._files = [file for directory in directories for file in self._open_folder(Path(directory))]
        self.n_records = sum(file.records for file in self._files)
        if not self.n_records:
            folders = ", ".join(map(str, directories)) or "an empty list of folders"
            raise UserError(f"no records in {folders}; has the data been created?")

    def _open_folder(self, directory: Path) -> list[_File]:
        """The files of a folder that are not empty, the shapes of their records checked."""
        manifest = read_manifest(directory)
        if manifest is None:
            paths = tfrecord_files(directory)
            if not paths:
                raise UserError(f"{directory}: neither {MANIFEST} nor *.tfrecord files; has the data been created?")
            files = [_File(path, len(scan_tfrecord(path)) - 1, path.stat().st_size) for path in paths]
            files = to_check = [file for file in files if file.records]
        else:
            self.manifests.append(manifest)
            entries = manifest["files"].items()
            files = [_File(directory / name, entry["records"], entry["bytes"]) for name, entry in entries]
            files = [file for file in files if file.records]
            to_check = files[:1]  # one run has made them all, with the same settings
        for file in to_check:
            self._check_shapes(file.path)
        return files

    def _check_shapes(self, path: Path) -> None:
        """Compares the first record of a file with the settings."""
        try:
            record = next(iter_tfrecord(path), None)
            if record is None:
                raise UserError(f"{path}: is empty, and {MANIFEST} says otherwise; create the records again")
            features = tf.train.Example.FromString(record).features.feature
        except DecodeError as error:
            raise UserError(f"{path}: not pre-training records: the first is not a tf.train.Example") from error
        missing = [name for name in self._shapes if name not in features]
        if missing:
            raise UserError(
                f"{path}: not pre-training records: no feature {', '.join(missing)} in the first "
                f"(it has {', '.join(sorted(features)) or 'none'})"
            )
        for name, flag in (
            ("input_ids", "max_seq_length"),
            ("masked_lm_positions", "max_predictions_per_seq"),
        ):
            found, wanted = len(features[name].int64_list.value), self._shapes[name]
            if found != wanted:
                raise UserError(
                    f"{path}: the records were made with {flag} {found}, but --{flag} is {wanted}; "
                    f"pass --{flag}={found} or create the records again"
                )

    def batches(
        self,
        start_record: int,
        batch_size: int,
        micro_batches: int,
        rank: int = 0,
        size: int = 1,
        stall: StallGuard | None = None,
        pack: Rows | None = None,
    ) -> Iterator[Batch]:
        """The endless training stream of a rank, from a position on that is counted in records of all ranks.

        Update u (from 0) takes the GBS = batch_size * micro_batches records from start_record + u * GBS on,
        whatever makes up GBS; of its micro-batches this rank gets number rank, rank + size, ... To resume, pass
        the number of records consumed so far. pack: packs the records of each micro-batch into such rows.
        """

        def stream() -> Generator[Batch, None, None]:
            with _Reader(self._files, self._seed) as reader:
                for update_start in itertools.count(start_record, batch_size * micro_batches):
                    for number in range(rank, micro_batches, size):
                        yield self._parse(reader.read(update_start + number * batch_size, batch_size), pack)

        return _prefetched(stream(), stall)

    def names(self, start_record: int, count: int) -> list[str]:
        """Where the records at positions of the training stream lie: "file:index", as a diagnosis names them."""
        with _Reader(self._files, self._seed) as reader:
            return [f"{record.path}:{record.index}" for record in reader.read(start_record, count)]

    def evaluation_batches(
        self, batch_size: int, max_batches: int | None = None, rank: int = 0, size: int = 1
    ) -> Iterator[Batch]:
        """Every record once, or those of the first max_batches, in an order that is random but always the
        same.

        Batch b goes to rank b % size, so what is evaluated does not depend on size. The last batch may be
        smaller, and a rank may get one batch less than another: add up first, reduce over ranks at the end.
        """

        def stream() -> Generator[Batch, None, None]:
            end = self.n_records if max_batches is None else min(self.n_records, max_batches * batch_size)
            with _Reader(self._files, "evaluation") as reader:
                for start in range(rank * batch_size, end, size * batch_size):
                    yield self._parse(reader.read(start, min(batch_size, end - start)))

        return _prefetched(stream())

    def _parse(self, records: Sequence["_Record"], pack: Rows | None = None) -> Batch:
        """Raises UserError naming the file when a record does not have the shapes of the schema."""
        with tf.device("/CPU:0"):
            try:
                features = tf.io.parse_example([record.data for record in records], self._features)
            except PARSE_ERRORS as error:
                raise self._misfit(records) from error
            arrays = {name: value.numpy() for name, value in features.items()}
            self._check_ranges(arrays, records)
            arrays = {k: v if k in FLOAT_FEATURES else v.astype(np.int32) for k, v in arrays.items()}
            arrays["next_sentence_labels"] = arrays["next_sentence_labels"][:, 0]
            self._check_tokens(arrays, records)
            if pack is None:
                return Batch(**{name: tf.constant(value) for name, value in arrays.items()})
            return packed(arrays, pack)

    def _check_ranges(self, arrays: dict[str, np.ndarray], records: Sequence["_Record"]) -> None:
        """Raises UserError naming the record with a value that no table of the model has a row for."""
        for name, (size_name, size) in self._limits.items():
            values = arrays[name]
            if not values.size or (values.min() >= 0 and values.max() < size):  # false for NaN
                continue
            wrong = ~((values >= 0) & (values < size))
            row = int(np.argmax(wrong.any(axis=1)))
            worst = values[row][wrong[row]][0]
            raise UserError(
                f"{records[row].path}: record {records[row].index} has {worst} in {name}, but {size_name} is {size}; "
                "the records were made for another vocabulary or model"
            )

    def _check_tokens(self, arrays: dict[str, np.ndarray], records: Sequence["_Record"]) -> None:
        """Raises UserError naming the record whose tokens do not come first, or with a masked position behind them."""
        mask = arrays["input_mask"]
        lengths = mask.sum(1)[:, None]
        good = ((mask == (np.arange(mask.shape[1]) < lengths)) & (lengths > 0)).all(1)
        good &= ((arrays["masked_lm_positions"] < lengths) | (arrays["masked_lm_weights"] == 0)).all(1)
        if not good.all():
            record = records[int(np.argmin(good))]
            raise UserError(
                f"{record.path}: record {record.index} is not tokens followed by padding (input_mask), or has a masked "
                "position in the padding; make the records again"
            )

    def _misfit(self, records: Sequence["_Record"]) -> UserError:
        """The error for the first record that does not parse."""
        for record in records:
            try:
                tf.io.parse_example([record.data], self._features)
            except PARSE_ERRORS as error:
                cause = getattr(error, "message", "it is damaged")
                return UserError(f"{record.path}: record {record.index} has not the shapes {self._shapes}: {cause}")
        raise AssertionError("the records parse one by one, but not together")


def packed(arrays: dict[str, np.ndarray], rows: Rows) -> Batch:
    """The fields of an unpacked Batch, in NumPy, as a packed one."""
    mask, real = arrays["input_mask"] != 0, arrays["masked_lm_weights"] != 0
    plan = Plan(np.count_nonzero(mask, axis=1), rows.capacity)
    places = plan.starts[:, None] + arrays["masked_lm_positions"]
    masked = [places[real], arrays["masked_lm_ids"][real], arrays["masked_lm_weights"][real]]
    if rows.fixed:
        masked = [np.pad(values, (0, real.size - len(values))) for values in masked]
    tokens = (plan.rows(values[mask]) for values in (arrays["input_ids"], mask.astype(np.int32), arrays["segment_ids"]))
    fields = (*tokens, *masked, arrays["next_sentence_labels"])
    return Batch(*map(tf.constant, fields), Packing(*map(tf.constant, plan.arrays())))


# --- order and reading --------------------------------------------------------------------------------------


class _Record(NamedTuple):
    path: Path
    index: int
    data: bytes


def permutation(n: int, *key: int | str) -> np.ndarray:
    """A random permutation of range(n), int64, of its own for each key.

    It sorts raw Philox output: NumPy promises that stream for ever, not that of its shuffle functions (NEP
    19), and a run resumed under another NumPy must see the same order.
    """
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    random_words = np.random.Philox(key=np.frombuffer(digest[:16], "<u8")).random_raw(n)
    return np.argsort(random_words, kind="stable")


def _grouped(files: Sequence[_File]) -> list[list[_File]]:
    """Cuts a sequence of files into groups within GROUP_BYTES and GROUP_FILES, at least one file each."""
    groups: list[list[_File]] = []
    size = 0
    for file in files:
        if not groups or len(groups[-1]) == GROUP_FILES or size + file.bytes > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups


class _Group:
    """Open files whose records are permuted together. Raises UserError when one is not what it was."""

    def __init__(self, files: Sequence[_File], *key: int | str):
        self._resources = contextlib.ExitStack()
        self._files = []  # (path, descriptor, offsets)
        with self._resources:
            for path, records, _ in files:
                offsets = scan_tfrecord(path)
                if len(offsets) - 1 != records:
                    raise UserError(
                        f"{path}: {len(offsets) - 1} records instead of {records}; create the records again"
                    )
                descriptor = os.open(path, os.O_RDONLY)
                self._resources.callback(os.close, descriptor)
                self._files.append((path, descriptor, offsets))
            self._starts = [0, *itertools.accumulate(file.records for file in files)]
            self._order = permutation(self._starts[-1], *key)
            self._resources = self._resources.pop_all()

    def read(self, start: int, stop: int) -> list[_Record]:
        """Records start to stop of the group's order, their checksums verified."""
        records = []
        for number in self._order[start:stop].tolist():
            file = bisect_right(self._starts, number) - 1
            path, descriptor, offsets = self._files[file]
            index = number - self._starts[file]
            records.append(_Record(path, index, read_record(path, descriptor, offsets, index)))
        return records

    def close(self) -> None:
        self._resources.close()


class _Reader:
    """Reads records by their position in the endless sequence of epochs; one group is open at a time."""

    def __init__(self, files: Sequence[_File], *key: int | str):
        self._files, self._key = files, key
        self._n_records = sum(file.records for file in files)
        self._epoch: int | None = None
        self._number: int | None = None  # of the open group in its epoch
        self._group: _Group | None = None

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_) -> None:
        if self._group is not None:
            self._group.close()

    def read(self, start: int, count: int) -> list[_Record]:
        """The records at positions start to start + count, which may lie in several groups and epochs."""
        records: list[_Record] = []
        while len(records) < count:
            epoch, position = divmod(start + len(records), self._n_records)
            group, group_start, group_stop = self._open(epoch, position)
            stop = min(group_stop, position + count - len(records))
            records += group.read(position - group_start, stop - group_start)
        return records

    def _open(self, epoch: int, position: int) -> tuple[_Group, int, int]:
        """The group that holds a position of an epoch, with the positions where it starts and stops."""
        if epoch != self._epoch:
            order = permutation(len(self._files), *self._key, "files", epoch)
            self._groups = _grouped([self._files[i] for i in order])
            self._starts = [0, *itertools.accumulate(sum(file.records for file in group) for group in self._groups)]
            self._epoch, self._number = epoch, None
        number = bisect_right(self._starts, position) - 1
        if number != self._number:
            if self._group is not None:
                self._group.close()
            self._group = _Group(self._groups[number], *self._key, "records", epoch, number)
            self._number = number
        return self._group, self._starts[number], self._starts[number + 1]


def _prefetched(batches: Generator[Batch, None, None], stall: StallGuard | None = None) -> Iterator[Batch]:
    """Runs a generator some batches ahead in a thread, whose exceptions are raised here; closing ends it.

    stall: how long to wait for a batch; without it for ever.
    """
    ahead: queue.Queue = queue.Queue(PREFETCH_BATCHES)
    stopped = threading.Event()
    end = object()

    def put(item) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ahead.put(item, timeout=0.1)
                return True
        return False

    def run() -> None:
        try:
            with contextlib.closing(batches):
                for batch in batches:
                    if not put(batch):
                        return
            put(end)
        except BaseException as error:
            put(error)

    def get(seconds: float):
        return ahead.get(timeout=seconds)

    thread = threading.Thread(target=run, name="input pipeline", daemon=True)
    thread.start()
    try:
        while (item := stall.wait(get, lambda: "the TFRecords") if stall else ahead.get()) is not end:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(JOIN_SECONDS)  # one that hangs in a read is a daemon, and ends with the process
