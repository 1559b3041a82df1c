"""Checks every record of folders of pre-training records; no TensorFlow here.

    python -m bert_tf.verify_records FOLDER... [--vocab_file vocab.txt] [--n_processes N]

Of a folder: its manifest, and that the files it lists are there with their size, SHA-256 and numbers of records,
tokens and masked tokens. Of a record: the checksums of its frame; its seven features with their kinds and lengths; the
ranges of all values; that mask, segments, positions, ids, weights and label fit together; and with --vocab_file where
[CLS], [SEP] and [MASK] stand. A folder without manifest (made by other tools) is checked for what its records say.

Every fault is printed with file and record, at most FAULTS_SHOWN of a file. The exit code is 2 when there is any.

S max_seq_length, P max_predictions_per_seq, R records looked at together.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from bert_tf.instances import MIN_SEQ_LENGTH
from bert_tf.records import FLOAT_FEATURES, MANIFEST, feature_shapes, iter_tfrecord, load_manifest, tfrecord_files
from bert_tf.tokenization import CLS, MASK, SEP, load_vocab
from data.executors import Workers, add_flags, advance, open_workers
from data.parallel import available_cores, files_map
from runkit.errors import UserError, run_main
from runkit.files import sha256_file
from runkit.progress import print_line

FAULTS_SHOWN = 5
RECORDS_TOGETHER = 256


class Expected(NamedTuple):
    """What the records of a folder have to keep to; None where nothing says it."""

    max_seq_length: int | None = None  # None: that of the first record of the file
    max_predictions_per_seq: int | None = None
    vocab_size: int | None = None
    masked_lm_prob: float | None = None
    special: tuple[int, int, int] | None = None  # ids of [CLS], [SEP], [MASK]


class FileCheck(NamedTuple):
    """A file to be checked."""

    path: Path
    entry: dict | None  # of the manifest
    expected: Expected


class FileReport(NamedTuple):
    """What was found in a file."""

    records: int
    tokens: int
    masked_tokens: int
    faults: list[str]  # the first FAULTS_SHOWN
    n_faults: int


# --- tf.train.Example without TensorFlow --------------------------------------------------------------------


def _example_class() -> type:
    """The message class of tf.train.Example, in a pool of its own so that TensorFlow's may be loaded beside it."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="verify", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str) -> descriptor_pb2.DescriptorProto:
        return file.message_type.add(name=name)

    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        message(name).field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = message("Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        feature.field.add(
            name=name, number=number, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE,
            type_name=f".verify.{of}", oneof_index=0,
        )  # fmt: skip
    features = message("Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".verify.Feature"
    )
    features.field.add(
        name="feature", number=1, label=field.LABEL_REPEATED, type=field.TYPE_MESSAGE,
        type_name=".verify.Features.FeatureEntry",
    )  # fmt: skip
    message("Example").field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".verify.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("verify.Example"))


_Example = _example_class()


def parse_record(record: bytes) -> dict[str, list]:
    """Feature name -> values. Raises ValueError for what is no tf.train.Example, and for features of wrong kinds."""
    try:
        features = _Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError("not a tf.train.Example") from error
    values = {}
    for name, feature in features.items():
        kind, wanted = feature.WhichOneof("kind"), "float_list" if name in FLOAT_FEATURES else "int64_list"
        if kind != wanted:
            raise ValueError(f"{name} is a {kind}, not a {wanted}")
        values[name] = list(getattr(feature, kind).value)
    return values


# --- records ------------------------------------------------------------------------------------------------


def schema_fault(values: dict[str, list], shapes: dict[str, int]) -> str | None:
    """What is wrong with the names and lengths of a record's features."""
    if values.keys() != shapes.keys():
        return f"the features are {', '.join(sorted(values)) or 'none'}; they have to be {', '.join(sorted(shapes))}"
    for name, length in shapes.items():
        if len(values[name]) != length:
            return f"{name} has {len(values[name])} values, not {length}"
    return None


def value_faults(features: dict[str, np.ndarray], expected: Expected) -> dict[int, str]:
    """Number of a record (from 0) -> its first fault. features: name -> [R, length], the lengths being right."""
    ids, mask, segments = features["input_ids"], features["input_mask"], features["segment_ids"]  # [R, S]
    positions, masked_ids = features["masked_lm_positions"], features["masked_lm_ids"]  # [R, P]
    weights, labels = features["masked_lm_weights"], features["next_sentence_labels"]  # [R, P], [R, 1]
    rows, s, p = len(ids), ids.shape[1], positions.shape[1]
    n = np.count_nonzero(mask, axis=1)[:, None]  # [R, 1] tokens
    k = np.count_nonzero(weights, axis=1)[:, None]  # [R, 1] masked positions
    place, slot = np.arange(s)[None], np.arange(p)[None]  # [1, S], [1, P]
    is_token, is_masked = place < n, slot < k
    a = (is_token & (segments == 0)).sum(axis=1)[:, None]  # [R, 1] tokens of segment 0, if all is well
    vocab_size = expected.vocab_size or np.iinfo(np.int64).max
    budget = np.full_like(k, p)
    if expected.masked_lm_prob is not None:
        budget = np.minimum(p, np.maximum(1, np.round(n * expected.masked_lm_prob)))

    def outside(values: np.ndarray) -> np.ndarray:
        return (values < 0) | (values >= vocab_size)

    inside = is_masked & (positions >= 1) & (positions <= n - 2) & (positions != a - 1)
    ascending = np.diff(positions, axis=1, prepend=0) > 0
    checks = [
        (mask != is_token, "input_mask is not a run of 1 followed by 0"),
        (n < MIN_SEQ_LENGTH, f"fewer than {MIN_SEQ_LENGTH} tokens"),
        (outside(ids), f"an id of input_ids is outside of 0..{vocab_size - 1}"),
        (~is_token & (ids != 0), "input_ids has something in the padding"),
        (
            (segments != (is_token & (place >= a))) | (a < 3) | (a > n - 2),
            "segment_ids are not 0s, 1s, then padding 0s",
        ),
        (weights != is_masked, "masked_lm_weights are not a run of 1.0 followed by 0.0"),
        (k < 1, "no position is masked"),
        (k > budget, "more positions are masked than max_predictions_per_seq and masked_lm_prob allow"),
        (is_masked & ~inside, "masked_lm_positions has a place that is [CLS], [SEP], padding or outside"),
        (is_masked & ~ascending, "masked_lm_positions do not ascend"),
        (~is_masked & ((positions != 0) | (masked_ids != 0)), "masked_lm_positions or masked_lm_ids after the last"),
        (outside(masked_ids), f"an id of masked_lm_ids is outside of 0..{vocab_size - 1}"),
        ((labels != 0) & (labels != 1), "next_sentence_labels is neither 0 nor 1"),
    ]
    if expected.special:
        cls_id, sep_id, mask_id = expected.special
        is_position = np.zeros((rows, s + 1), bool)
        np.put_along_axis(is_position, np.where(inside, positions, s), True, axis=1)
        framed = (place == 0) * cls_id + ((place == a - 1) | (place == n - 1)) * sep_id  # [R, S], 0 elsewhere
        checks += [
            ((framed != 0) & (ids != framed), "input_ids is not [CLS] A [SEP] B [SEP]"),
            ((framed == 0) & np.isin(ids, (cls_id, sep_id)) & ~is_position[:, :s], "[CLS] or [SEP] inside a segment"),
            ((ids == mask_id) & ~is_position[:, :s], "[MASK] stands at a place that is not in masked_lm_positions"),
            (is_masked & np.isin(masked_ids, expected.special), "masked_lm_ids has a special token"),
        ]
    faults: dict[int, str] = {}
    for wrong, text in checks:
        for row in np.flatnonzero(wrong.any(axis=1)):
            faults.setdefault(int(row), text)
    return faults


class _Tally:
    """Counts and faults of a file."""

    def __init__(self, path: Path, expected: Expected):
        self.path, self.expected = path, expected
        self.records = self.tokens = self.masked_tokens = self.n_faults = 0
        self.faults: list[str] = []
        self._shapes: dict[str, int] = {}

    def fault(self, text: str, record: int | None = None) -> None:
        where = f"{self.path}: " if record is None else f"{self.path}: record {record}: "
        self.n_faults += 1
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(where + text)

    def check(self, records: Sequence[bytes]) -> None:
        numbers, rows = [], []
        for number, record in enumerate(records, self.records):
            try:
                values = parse_record(record)
            except ValueError as error:
                self.fault(str(error), number)
                continue
            self._shapes = self._shapes or self._expected_shapes(values)
            if text := schema_fault(values, self._shapes):
                self.fault(text, number)
                continue
            numbers.append(number)
            rows.append(values)
        self.records += len(records)
        if not rows:
            return
        features = {name: np.array([row[name] for row in rows]) for name in self._shapes}
        self.tokens += int(np.count_nonzero(features["input_mask"]))
        self.masked_tokens += int(np.count_nonzero(features["masked_lm_weights"]))
        for row, text in sorted(value_faults(features, self.expected).items()):
            self.fault(text, numbers[row])

    def _expected_shapes(self, values: dict[str, list]) -> dict[str, int]:
        s, p = self.expected.max_seq_length, self.expected.max_predictions_per_seq
        if s is None:
            s, p = (len(values.get(name, ())) for name in ("input_ids", "masked_lm_positions"))
        return feature_shapes(s, p)

    def report(self) -> FileReport:
        return FileReport(self.records, self.tokens, self.masked_tokens, self.faults, self.n_faults)


# --- files and folders --------------------------------------------------------------------------------------


def check_file(check: FileCheck) -> FileReport:
    """Reads a file to its end, or to the first frame that is damaged."""
    path, entry, expected = check
    tally = _Tally(path, expected)
    if not os.path.isfile(path):
        tally.fault(f"missing, but listed in {MANIFEST}")
        return tally.report()
    size = path.stat().st_size
    if entry is not None and size != entry["bytes"]:
        tally.fault(f"{size} bytes, but {MANIFEST} says {entry['bytes']}")
    elif entry is not None and sha256_file(path) != entry.get("sha256"):
        tally.fault(f"SHA-256 is not that of {MANIFEST}")
    try:
        stream = iter_tfrecord(path)
        while records := list(islice(stream, RECORDS_TOGETHER)):
            tally.check(records)
            advance(sum(map(len, records)))
    except UserError as error:
        tally.fault(str(error).removeprefix(f"{path}: "))
        return tally.report()
    for key in ("records", "tokens", "masked_tokens") if entry is not None and not tally.n_faults else ():
        if entry.get(key) != getattr(tally, key):
            tally.fault(f"{getattr(tally, key)} {key}, but {MANIFEST} says {entry.get(key)}")
    return tally.report()


def folder_checks(folder: Path, vocab: dict[str, int] | None) -> tuple[dict | None, list[FileCheck]]:
    """The manifest of a folder and its files. Raises UserError for a folder that is missing, unfinished, empty or made
    with a vocabulary of another size."""
    manifest = load_manifest(folder)
    special = (vocab[CLS], vocab[SEP], vocab[MASK]) if vocab else None
    if manifest is None:
        paths = tfrecord_files(folder)
        if not paths:
            raise UserError(f"{folder}: neither {MANIFEST} nor *.tfrecord files")
        expected = Expected(vocab_size=len(vocab) if vocab else None, special=special)
        return None, [FileCheck(path, None, expected) for path in paths]
    size = manifest.get("vocab_size")
    if vocab and size not in (None, len(vocab)):
        raise UserError(f"{folder}: made with a vocabulary of {size} tokens, but --vocab_file has {len(vocab)}")
    shape = [manifest.get(key) for key in ("max_seq_length", "max_predictions_per_seq")]
    expected = Expected(*shape, size, manifest.get("masked_lm_prob"), special)
    return manifest, [FileCheck(folder / name, entry, expected) for name, entry in manifest["files"].items()]


def verify_folders(folders: Sequence[Path], vocab: dict[str, int] | None, workers: Workers) -> Iterator[str]:
    """Yields every fault as it is found; prints a line for each folder that is sound."""
    for folder in folders:
        try:
            manifest, checks = folder_checks(folder, vocab)
        except UserError as error:
            yield str(error)
            continue
        reports = []
        for check, report in files_map(check_file, checks, workers, _size, f"checking {folder}", lambda c: str(c.path)):
            reports.append(report)
            yield from report.faults
            if report.n_faults > len(report.faults):
                yield f"{check.path}: {report.n_faults - len(report.faults)} more faults"
        sums = {key: sum(getattr(r, key) for r in reports) for key in ("records", "tokens", "masked_tokens")}
        if any(report.n_faults for report in reports):
            continue
        wrong = [key for key, total in sums.items() if manifest and manifest.get(key) != total]
        if wrong:
            yield f"{folder / MANIFEST}: {', '.join(wrong)}: not the sum of the files"
            continue
        strays = [path.name for path in tfrecord_files(folder) if manifest and path.name not in manifest["files"]]
        print_line(
            f"{folder}: sound, {sums['records']} records in {len(checks)} files, {sums['tokens']} tokens, "
            f"{sums['masked_tokens']} of them masked"
            + (f"; not listed in {MANIFEST} and not looked at: {', '.join(strays)}" if strays else "")
        )


def _size(check: FileCheck) -> int:
    return check.path.stat().st_size if os.path.isfile(check.path) else 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="verify_records",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", type=lambda text: Path(text).absolute(), metavar="FOLDER")
    parser.add_argument("--vocab_file", help="the vocabulary the records were made with")
    add_flags(parser, available_cores(), "files looked at at a time (default: one a core, %(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all folders are sound, 2 when there is any fault."""
    arguments = parse_arguments(argv)
    with open_workers(arguments.executor, arguments.n_processes, arguments.scheduler) as workers:
        if workers is None:
            return 0
        vocab = load_vocab(arguments.vocab_file) if arguments.vocab_file else None
        n_faults = 0
        for fault in verify_folders(arguments.folders, vocab, workers):
            n_faults += 1
            print(f"fault: {fault}", file=sys.stderr, flush=True)
    return 2 if n_faults else 0


if __name__ == "__main__":
    from bert_tf import verify_records  # under its own name, so that workers find its functions by module

    run_main(verify_records.main, sys.argv[1:])
