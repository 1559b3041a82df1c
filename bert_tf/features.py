"""Fine-tuning examples as token ids: kept without padding, batched with little of it, stored once.

F features, B batch size, S sequence length of a batch (max_seq_length at most).

A feature is as long as its text. A batch is padded to one of a few lengths (buckets), chosen to fit the lengths that
occur, so that XLA compiles few programs and little padding is computed. The order of training is a pure function of
(seed, number of the update); a run resumes anywhere at once, and ranks are a way to deal out an update.
"""

import functools
import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.input_pipeline import PARSE_ERRORS, permutation
from bert_tf.ops import NOT_PACKED, Packing
from bert_tf.packing import Plan, Rows
from bert_tf.records import Feature, TFRecordWriter, encode_example, iter_tfrecord
from runkit.errors import UserError
from runkit.files import read_json, sha256_file, write_json

MAX_BUCKETS = 6
BUCKET_STEP = 16  # bucket lengths are multiples of this
WINDOW_UPDATES = 32  # updates whose examples are sorted by length together
READ_RECORDS = 1000  # parsed together


# ------------------------------------------------------------------------------------------------------ types
class LabelKind(NamedTuple):
    """What a task's labels look like."""

    name: str
    shape: tuple[int | None, ...]  # of a batch's labels; None is B or S
    dtype: tf.DType


CLASS = LabelKind("class", (None,), tf.int32)  # an index
VALUE = LabelKind("value", (None,), tf.float32)  # a number
SPAN = LabelKind("span", (None, 2), tf.int32)  # first and last token of the answer; 0, 0: none in this window
TAGS = LabelKind("tags", (None, None), tf.int32)  # one id a token; 0 is not counted


class TaskBatch(NamedTuple):
    """B features, the only thing between fine-tuning data and models; int32, weights and numbers as labels float32.

    Each feature has a row of its own unless packed into R rows.
    """

    input_ids: tf.Tensor  # [B, S], packed [R, S]
    input_mask: tf.Tensor  # [B, S] 1 for a token, 0 for padding; packed [R, S]
    segment_ids: tf.Tensor  # [B, S], packed [R, S]
    labels: tf.Tensor  # of a LabelKind's shape; those of tokens packed like the tokens
    weights: tf.Tensor  # [B] 1 for a feature, 0 for a row that only fills the batch
    packing: Packing | tuple[()] = NOT_PACKED

    @property
    def examples(self) -> tf.Tensor:
        """B, int32 scalar."""
        return tf.shape(self.weights)[0]


def batch_spec(kind: LabelKind, packed: bool = False) -> TaskBatch:
    """Signature of batches of any B, R and S, so that one graph serves all."""
    tokens, numbers = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    labels, weights = tf.TensorSpec(kind.shape, kind.dtype), tf.TensorSpec([None], tf.float32)
    packing = Packing(tokens, tokens, numbers, numbers) if packed else NOT_PACKED
    return TaskBatch(tokens, tokens, tokens, labels, weights, packing)


# ---------------------------------------------------------------------------------------------- the features
class FeatureSet:
    """Features in memory, in the order given, their tokens end to end.

    Attributes: kind; lengths [F] int64, tokens of each.
    """

    def __init__(self, features: Iterable[Feature], kind: LabelKind):
        """Raises ValueError for a feature whose parts differ in length."""
        ids, segments, lengths, labels = array("i"), array("B"), array("q"), array("i" if kind != VALUE else "d")
        for feature in features:
            ids.extend(feature.input_ids)
            segments.extend(feature.segment_ids)
            lengths.append(len(feature.input_ids))
            if kind in (SPAN, TAGS):
                labels.extend(feature.label)
            else:
                labels.append(feature.label)
        self.kind = kind
        self.lengths = np.array(lengths, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._ids, self._segments = np.array(ids, np.int32), np.array(segments, np.int32)
        self._labels = np.array(labels, kind.dtype.as_numpy_dtype)
        if kind == SPAN:
            self._labels = self._labels.reshape(-1, 2)
        expected = self._starts[-1] if kind == TAGS else len(self.lengths)
        if len(self._segments) != len(self._ids) or len(self._labels) != expected:
            raise ValueError("a feature's input_ids, segment_ids and label do not fit each other")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Feature:
        part = slice(self._starts[index], self._starts[index + 1])
        label = self._labels[part] if self.kind == TAGS else self._labels[index]
        return Feature(self._ids[part], self._segments[part], label)

    def batch(self, indices: Sequence[int], length: int, rows: int | None = None) -> TaskBatch:
        """The features at `indices` padded to `length`, and filled up to `rows` rows that count for nothing."""
        rows = len(indices) if rows is None else rows
        ids, mask, segments = (np.zeros([rows, length], np.int32) for _ in range(3))
        shape = [rows, *([length] if self.kind == TAGS else self.kind.shape[1:])]
        labels, weights = np.zeros(shape, self.kind.dtype.as_numpy_dtype), np.zeros(rows, np.float32)
        for row, index in enumerate(indices):
            feature = self[index]
            n = len(feature.input_ids)
            ids[row, :n], mask[row, :n], segments[row, :n] = feature.input_ids, 1, feature.segment_ids
            if self.kind == TAGS:
                labels[row, :n] = feature.label
            else:
                labels[row] = feature.label
            weights[row] = 1.0
        return TaskBatch(*map(tf.constant, (ids, mask, segments, labels, weights)))

    def packed(self, indices: Sequence[int], rows: Rows) -> TaskBatch:
        """The features at `indices` packed."""
        plan = Plan(self.lengths[indices], rows.capacity)
        places = np.concatenate([np.arange(self._starts[i], self._starts[i + 1]) for i in indices])
        ids, segments = plan.rows(self._ids[places]), plan.rows(self._segments[places])
        mask = plan.rows(np.ones(len(places), np.int32))
        labels = plan.rows(self._labels[places]) if self.kind == TAGS else self._labels[indices]
        arrays = ids, mask, segments, labels, np.ones(len(indices), np.float32)
        return TaskBatch(*map(tf.constant, arrays), Packing(*map(tf.constant, plan.arrays())))

    def digest(self) -> str:
        """SHA-256 of all features, 16 hex digits: whether they are the same as those of an earlier run."""
        result = hashlib.sha256()
        for values in (self.lengths, self._ids, self._segments, self._labels):
            result.update(np.ascontiguousarray(values))
        return result.hexdigest()[:16]

    def check_ranges(self, vocab_size: int, type_vocab_size: int, source: str) -> None:
        """Raises UserError when an id has no row in the model's tables."""
        for name, values, size in (
            ("input_ids", self._ids, vocab_size),
            ("segment_ids", self._segments, type_vocab_size),
        ):
            if len(values) and values.max() >= size:
                raise UserError(
                    f"{source}: {int(values.max())} in {name}, but the model's table has {size} rows; "
                    "vocabulary and model configuration do not belong together"
                )


# ---------------------------------------------------------------------------------------------------- buckets
def choose_buckets(
    lengths: Sequence[int], max_seq_length: int, max_buckets: int = MAX_BUCKETS, step: int = BUCKET_STEP
) -> list[int]:
    """At most max_buckets lengths, multiples of step, that pad these lengths with the fewest tokens; ascending.

    Exact, by dynamic programming over the candidate lengths: cost[k][j] is the least number of padded tokens of all
    features not longer than candidate j in k buckets of which j is the last. max_seq_length is the longest candidate.
    """
    if len(lengths) == 0:
        return [max_seq_length]
    candidates = sorted({min(max_seq_length, -(-int(n) // step) * step) for n in np.unique(lengths)})
    count = np.array([np.searchsorted(np.sort(lengths), c, side="right") for c in candidates])  # not longer than c
    n, size = len(candidates), np.array(candidates)
    cost = size * count.astype(np.float64)  # one bucket
    choices: list[np.ndarray] = []
    for _ in range(min(max_buckets, n) - 1):
        # with[i, j]: buckets end at i, then one more at j > i; staying with fewer buckets is cost itself
        extra = cost[:, None] + size[None, :] * (count[None, :] - count[:, None])
        extra[np.tril_indices(n)] = np.inf
        best = np.argmin(extra, 0)
        better = extra[best, np.arange(n)] < cost
        choices.append(np.where(better, best, -1))
        cost = np.where(better, extra[best, np.arange(n)], cost)
    last, buckets = n - 1, [candidates[-1]]
    for choice in reversed(choices):
        if choice[last] >= 0:
            last = int(choice[last])
            buckets.append(candidates[last])
    return buckets[::-1]


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The shortest bucket that holds `length` tokens."""
    return next(bucket for bucket in buckets if bucket >= length)


# ----------------------------------------------------------------------------------------------------- orders
class TrainingOrder:
    """Which features make up each update: a pure function of (seed, update).

    The features of all epochs, each permuted as a whole, stand in one endless sequence, and `updates` times
    `global_batch` of them are what the run will see. Without buckets update u takes the u-th run of global_batch. With
    buckets those of WINDOW_UPDATES updates are sorted by length, cut into updates, and these permuted: another grouping
    of exactly the same features.
    """

    def __init__(self, lengths: np.ndarray, seed: int, global_batch: int, updates: int, by_length: bool):
        self.lengths, self.seed, self.global_batch, self.updates = lengths, seed, global_batch, updates
        self.by_length = by_length
        self._epoch = functools.lru_cache(2)(lambda epoch: permutation(len(lengths), seed, "features", epoch))
        self._window = functools.lru_cache(2)(self._sorted_window)

    def indices(self, update: int) -> np.ndarray:
        """The features of one update, [global_batch] int64; with buckets the longest first."""
        if not self.by_length:
            return self._positions(update * self.global_batch, self.global_batch)
        # A window never reaches across the planned end; updates beyond it replace updates that were skipped.
        origin, end = (0, self.updates) if update < self.updates else (self.updates, 1 << 62)
        start = origin + (update - origin) // WINDOW_UPDATES * WINDOW_UPDATES
        return self._window(start, min(WINDOW_UPDATES, end - start))[update - start]

    def _sorted_window(self, start: int, count: int) -> np.ndarray:
        indices = self._positions(start * self.global_batch, count * self.global_batch)
        by_length = indices[np.argsort(-self.lengths[indices], kind="stable")].reshape(count, self.global_batch)
        return by_length[permutation(count, self.seed, "window", start)]

    def _positions(self, start: int, count: int) -> np.ndarray:
        """The features at positions of the endless sequence."""
        parts, n = [], len(self.lengths)
        while count > 0:
            epoch, position = divmod(start, n)
            part = self._epoch(epoch)[position : position + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts)


def training_batches(
    features: FeatureSet,
    order: TrainingOrder,
    buckets: Sequence[int],
    start: int,
    batch_size: int,
    rank: int = 0,
    size: int = 1,
    pack: Rows | None = None,
) -> Iterator[list[TaskBatch]]:
    """This rank's micro-batches of each update from number `start` on, without end.

    An update's features are cut into micro-batches of batch_size; this rank gets number rank, rank + size, ... pack:
    packs them into such rows, instead of padding them to one of the buckets.
    """

    def micro_batch(part: np.ndarray) -> TaskBatch:
        if pack is not None:
            return features.packed(part, pack)
        return features.batch(part, bucket_of(int(features.lengths[part].max()), buckets))

    update = start
    while True:
        yield [micro_batch(part) for part in order.indices(update).reshape(-1, batch_size)[rank::size]]
        update += 1


class PredictionBatch(NamedTuple):
    """A batch with the features that its first rows are."""

    indices: np.ndarray
    batch: TaskBatch


def prediction_batches(
    features: FeatureSet,
    buckets: Sequence[int],
    batch_size: int,
    max_seq_length: int,
    rank: int = 0,
    size: int = 1,
    fill_up: bool = True,
) -> Iterator[PredictionBatch]:
    """Every feature once, the longest first, so that a machine too small fails at once. Batch b goes to rank b % size.

    A batch has as many tokens as batch_size sequences of max_seq_length, so those of short texts have more rows: small
    products keep no processor busy. Each bucket has one number of rows; the last batch is filled up with empty ones,
    unless a new shape costs nothing (fill_up False).
    """
    order = np.argsort(-features.lengths, kind="stable") if len(buckets) > 1 else np.arange(len(features))
    start = number = 0
    while start < len(order):
        length = bucket_of(int(features.lengths[order[start]]), buckets)
        rows = max(batch_size, batch_size * max_seq_length // length)
        if number % size == rank:
            indices = order[start : start + rows]
            yield PredictionBatch(indices, features.batch(indices, length, rows if fill_up else None))
        start, number = start + rows, number + 1


# ------------------------------------------------------------------------------------------- files of features
class SquadRecord(NamedTuple):
    """The published record of a question's window."""

    unique_ids: Sequence[int]  # [1]
    input_ids: Sequence[int]  # [max_seq_length], like the next two
    input_mask: Sequence[int]
    segment_ids: Sequence[int]
    start_positions: Sequence[int]  # [1]
    end_positions: Sequence[int]  # [1]
    is_impossible: Sequence[int]  # [1] 1 where this window holds no answer


class ClassificationRecord(NamedTuple):
    """The published record of a text or pair; label_ids is [1], of tagging [max_seq_length]."""

    input_ids: Sequence[int]
    input_mask: Sequence[int]
    segment_ids: Sequence[int]
    label_ids: Sequence[int]
    is_real_example: Sequence[int]  # [1]


class RegressionRecord(NamedTuple):
    """As ClassificationRecord, with a number for a label."""

    input_ids: Sequence[int]
    input_mask: Sequence[int]
    segment_ids: Sequence[int]
    label_values: Sequence[float]  # [1]
    is_real_example: Sequence[int]


FIRST_UNIQUE_ID = 1_000_000_000


def _record(feature: Feature, number: int, kind: LabelKind, length: int) -> tuple:
    def padded(values: Sequence[int]) -> list[int]:
        return [*map(int, values), *[0] * (length - len(values))]

    tokens = padded(feature.input_ids), padded([1] * len(feature.input_ids)), padded(feature.segment_ids)
    if kind == SPAN:
        start, end = map(int, feature.label)
        return SquadRecord([FIRST_UNIQUE_ID + number], *tokens, [start], [end], [int((start, end) == (0, 0))])
    if kind == VALUE:
        return RegressionRecord(*tokens, [float(feature.label)], [1])
    return ClassificationRecord(*tokens, padded(feature.label) if kind == TAGS else [int(feature.label)], [1])


def write_features(path: str | os.PathLike, features: Iterable[Feature], kind: LabelKind, max_seq_length: int) -> int:
    """Writes TFRecords of the published schema, whole or not at all; returns their number."""
    with TFRecordWriter(Path(path)) as writer:
        number = -1
        for number, feature in enumerate(features):
            writer.write(encode_example(_record(feature, number, kind, max_seq_length)))
    return number + 1


def read_features(path: str | os.PathLike, kind: LabelKind, max_seq_length: int) -> FeatureSet:
    """Reads what write_features wrote. Raises UserError naming the file when it is damaged or of another schema."""
    fields = {"input_ids": max_seq_length, "input_mask": max_seq_length, "segment_ids": max_seq_length}
    if kind == SPAN:
        fields |= {"start_positions": 1, "end_positions": 1}
    else:
        fields |= {"label_values" if kind == VALUE else "label_ids": max_seq_length if kind == TAGS else 1}
    schema = {
        name: tf.io.FixedLenFeature([size], tf.float32 if name == "label_values" else tf.int64)
        for name, size in fields.items()
    }

    def rows() -> Iterator[Feature]:
        records = iter_tfrecord(Path(path))
        while chunk := [record for _, record in zip(range(READ_RECORDS), records, strict=False)]:
            try:
                parsed = {name: value.numpy() for name, value in tf.io.parse_example(chunk, schema).items()}
            except PARSE_ERRORS as error:
                cause = getattr(error, "message", "one is damaged")
                raise UserError(f"{path}: records of another schema or length: {cause}") from error
            if not _are_features(parsed, kind).all():
                raise UserError(f"{path}: holds values that are no features; remove it, it is made again")
            for row in range(len(chunk)):
                n = int(parsed["input_mask"][row].sum())
                if kind == SPAN:
                    label = int(parsed["start_positions"][row, 0]), int(parsed["end_positions"][row, 0])
                elif kind == TAGS:
                    label = parsed["label_ids"][row, :n].tolist()
                else:
                    label = parsed["label_values" if kind == VALUE else "label_ids"][row, 0].item()
                yield Feature(parsed["input_ids"][row, :n].tolist(), parsed["segment_ids"][row, :n].tolist(), label)

    return FeatureSet(rows(), kind)


def _are_features(parsed: dict[str, np.ndarray], kind: LabelKind) -> np.ndarray:
    """Whether values fit together and into the types of a FeatureSet, [R] bool for R records."""

    def below(name: str, end: int | np.ndarray) -> np.ndarray:
        return ((parsed[name] >= 0) & (parsed[name] < end)).all(1)

    mask = parsed["input_mask"]  # [R, S]
    n = np.count_nonzero(mask, axis=1)[:, None]  # [R, 1] tokens
    good = (mask == (np.arange(mask.shape[1]) < n)).all(1) & below("input_ids", 1 << 31) & below("segment_ids", 256)
    if kind == SPAN:
        ordered = parsed["start_positions"] <= parsed["end_positions"]
        return good & ordered.all(1) & below("start_positions", n) & below("end_positions", n)
    if kind == VALUE:
        return good & np.isfinite(parsed["label_values"]).all(1)
    return good & below("label_ids", 1 << 31)


def stored_features(
    path: Path, kind: LabelKind, max_seq_length: int, made_from: Mapping[str, Any]
) -> FeatureSet | None:
    """The features in `path`, if they were made from exactly this (see store_features) and are whole; else None."""
    manifest = path.with_name(path.name + ".json")
    if not (path.is_file() and manifest.is_file()):
        return None
    entry = read_json(manifest)
    if not isinstance(entry, dict) or entry.get("made_from") != dict(made_from):
        return None
    if entry.get("sha256") != sha256_file(path):
        return None
    return read_features(path, kind, max_seq_length)


def store_features(path: Path, features: FeatureSet, max_seq_length: int, made_from: Mapping[str, Any]) -> None:
    """Writes features and, beside them, what they were made from (plain JSON: settings, checksums of the sources)."""
    count = write_features(path, (features[i] for i in range(len(features))), features.kind, max_seq_length)
    entry = {"records": count, "sha256": sha256_file(path), "made_from": dict(made_from)}
    write_json(path.with_name(path.name + ".json"), entry)
