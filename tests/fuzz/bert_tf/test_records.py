"""Hostile TFRecord files, records, and folders of them."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf import features as task_features
from bert_tf.input_pipeline import PretrainingRecords
from bert_tf.records import (
    MANIFEST,
    Feature,
    PretrainingExample,
    encode_example,
    iter_tfrecord,
    masked_crc32c,
    read_record,
    scan_tfrecord,
    write_tfrecord,
)
from bert_tf.verify_records import FileCheck, check_file, folder_checks
from runkit.files import sha256_file, write_json
from tests.fuzz.mutations import answer, fuzz, hostile_json, json_bytes, mutated, mutated_trees

S, P = 16, 3
TOKENS = [2, 7, 8, 9, 3, 7, 8, 9, 3]


def example(ids=TOKENS, label=0) -> bytes:
    n = len(ids)
    return encode_example(
        PretrainingExample(
            [*ids, *[0] * (S - n)], [1] * n + [0] * (S - n), [0] * 5 + [1] * (n - 5) + [0] * (S - n),
            [2, 6, 0], [8, 8, 0], [1.0, 1.0, 0.0], [label],
        )
    )  # fmt: skip


def frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc32c(length)) + record + struct.pack("<I", masked_crc32c(record))


FRAMES = [frame(example()) + frame(example(label=1)), frame(b"") + frame(b"x" * 40)]


def length_only(length: int) -> bytes:
    """A header of a frame that promises any number of bytes, its checksum right."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


@fuzz
@given(
    data=mutated(FRAMES)
    | st.builds(lambda n, tail: length_only(n) + tail, st.integers(0, 2**64 - 1), st.binary(max_size=40))
)
def test_frames(place, data):
    path = place / "x.tfrecord"
    path.write_bytes(data)
    records = answer(lambda: list(iter_tfrecord(path)), path)
    offsets = answer(lambda: scan_tfrecord(path), path)
    if records is not None:
        assert b"".join(map(frame, records)) == data
        assert len(offsets) == len(records) + 1
    if offsets is not None:
        with open(path, "rb") as stream:
            for index in range(len(offsets) - 1):
                answer(lambda i=index: read_record(path, stream.fileno(), offsets, i), path)


# Records in intact frames, so that what is in them is looked at. Numbers beyond int32, wrong kinds, other lengths.
LABELS = st.sampled_from([0, 1, 2, -1, 1 << 31, (1 << 32) + 1, (1 << 63) - 1, -(1 << 63)])


@st.composite
def records(draw):
    values = dict(
        zip(
            PretrainingExample._fields,
            [
                TOKENS + [0] * 7,
                [1] * 9 + [0] * 7,
                [0] * 5 + [1] * 4 + [0] * 7,
                [2, 6, 0],
                [8, 8, 0],
                [1.0, 1.0, 0.0],
                [0],
            ],
            strict=True,
        )
    )
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(values)))
        index = draw(st.integers(0, len(values[name]) - 1)) if values[name] else 0
        number = (
            draw(st.sampled_from([float("nan"), float("inf"), -1.0, 2.0]))
            if name == "masked_lm_weights"
            else draw(LABELS)
        )
        changed = [
            *values[name][:index],
            *draw(st.sampled_from([(number,), (), (number, number)])),
            *values[name][index + 1 :],
        ]
        values[name] = changed
    return encode_example(PretrainingExample(**values))


@fuzz
@given(chosen=st.lists(records() | mutated([example()]) | st.just(example()), min_size=1, max_size=3))
def test_pretraining_records(place, chosen):
    folder = place / "records"
    folder.mkdir(exist_ok=True)
    write_tfrecord(folder / "a.tfrecord", chosen)

    def read():
        data = PretrainingRecords([folder], S, P, seed=1, vocab_size=10, type_vocab_size=2)
        return list(data.evaluation_batches(2))

    batches = answer(read, folder)
    if batches is not None:
        assert sum(len(batch.input_ids) for batch in batches) == len(chosen)
        for batch in batches:
            assert np.isfinite(batch.masked_lm_weights.numpy()).all()
            assert set(np.unique(batch.input_mask)) <= {0, 1}
            assert (batch.input_ids.numpy() < 10).all()
    report = answer(lambda: check_file(FileCheck(folder / "a.tfrecord", *folder_checks_entry(folder))), folder)
    assert report is not None and report.records == len(chosen)


def folder_checks_entry(folder):
    _, (check,) = folder_checks(folder, None)
    return check.entry, check.expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    write_tfrecord(path / "a.tfrecord", [example()] * 3)
    write_tfrecord(path / "empty.tfrecord", [])
    return path


def manifest(folder) -> dict:
    facts = {
        "bytes": (folder / "a.tfrecord").stat().st_size,
        "records": 3,
        "sha256": sha256_file(folder / "a.tfrecord"),
        "tokens": 27,
        "masked_tokens": 6,
    }
    files = {
        "a.tfrecord": facts,
        "empty.tfrecord": {"bytes": 0, "records": 0, "sha256": "e3", "tokens": 0, "masked_tokens": 0},
    }
    return {
        "format": 1,
        "files": files,
        "max_seq_length": S,
        "max_predictions_per_seq": P,
        "vocab_size": 10,
        "masked_lm_prob": 0.3,
    }


@fuzz
@given(data=st.data())
def test_record_manifests(folder, data):
    content = manifest(folder)
    (folder / MANIFEST).write_bytes(data.draw(mutated_trees([content]).map(json_bytes) | hostile_json(content)))

    def read():
        found = PretrainingRecords([folder], S, P, seed=1)
        return sum(len(batch.input_ids) for batch in found.evaluation_batches(2))

    count = answer(read, folder)
    assert count is None or count > 0
    checks = answer(lambda: folder_checks(folder, None), folder)
    for check in checks[1] if checks else ():
        assert answer(lambda c=check: check_file(c), folder) is not None


TASKS = {
    "class": (task_features.CLASS, 1),
    "value": (task_features.VALUE, 0.5),
    "span": (task_features.SPAN, (4, 5)),
    "tags": (task_features.TAGS, [1] * 6),
}


@st.composite
def task_records(draw):
    kind, label = TASKS[draw(st.sampled_from(sorted(TASKS)))]
    record = task_features._record(Feature([2, 7, 3, 7, 8, 3], [0, 0, 0, 1, 1, 1], label), 0, kind, 8)
    values = record._asdict()
    name = draw(st.sampled_from(sorted(values)))
    index = draw(st.integers(0, len(values[name]) - 1))
    number = draw(st.sampled_from([float("nan"), 1e38])) if name == "label_values" else draw(LABELS)
    changed = list(values[name])
    changed[index] = number
    return kind, draw(st.just(encode_example(record._replace(**{name: changed}))) | mutated([encode_example(record)]))


@fuzz
@given(chosen=task_records())
def test_task_features(place, chosen):
    kind, record = chosen
    path = place / "train.tf_record"
    write_tfrecord(path, [record])

    def read():
        found = task_features.read_features(path, kind, 8)
        found.check_ranges(10, 2, str(path))
        return found.batch([0], 8)

    batch = answer(read, path)
    if batch is not None:
        assert np.isfinite(batch.labels.numpy().astype(float)).all()
        assert (batch.input_ids.numpy() >= 0).all() and (batch.segment_ids.numpy() >= 0).all()


# ------------------------------------------------------------------------------------- minimal inputs of faults found
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("input_ids", [(1 << 32) + 5, *[0] * (S - 1)]),  # 5 as int32
        ("input_ids", [-(1 << 63), *[0] * (S - 1)]),
        ("input_mask", [2, *[0] * (S - 1)]),
        ("masked_lm_weights", [float("nan"), 0.0, 0.0]),
    ],
    ids=["wraps", "lowest", "mask", "nan"],
)
def test_values_beyond_their_range_are_refused(tmp_path, field, values):
    good = PretrainingExample(TOKENS + [0] * 7, [1] * S, [0] * S, [2, 6, 0], [8, 8, 0], [1.0, 1.0, 0.0], [0])
    path = tmp_path / "a.tfrecord"
    write_tfrecord(path, [encode_example(good._replace(**{field: values}))])
    assert answer(lambda: list(PretrainingRecords([tmp_path], S, P, seed=1).evaluation_batches(1)), path) is None


def test_an_empty_file_that_should_hold_records(tmp_path):
    write_tfrecord(tmp_path / "a.tfrecord", [])
    write_json(tmp_path / MANIFEST, {"format": 1, "files": {"a.tfrecord": {"bytes": 0, "records": 3}}})
    assert answer(lambda: PretrainingRecords([tmp_path], S, P, seed=1), tmp_path / "a.tfrecord") is None


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../a.tfrecord": {"bytes": 0, "records": 0}}},
        {"files": {"a.tfrecord": {"bytes": 0, "records": "3"}}},
        {"masked_lm_prob": {}},
        {"vocab_size": "10"},
        {"vocab_sha256": []},
    ],
    ids=range(5),
)
def test_manifests_of_wrong_kinds_are_refused(tmp_path, change):
    write_json(tmp_path / MANIFEST, {"format": 1, "files": {}} | change)
    assert answer(lambda: folder_checks(tmp_path, None), tmp_path / MANIFEST) is None


def test_a_record_whose_error_quotes_its_bytes(tmp_path):
    """TensorFlow's message holds them, and Python cannot decode it."""
    path = tmp_path / "train.tf_record"
    write_tfrecord(path, [b"\x0b\x82\x01\n\x19\n\tinput_ids"])
    assert answer(lambda: task_features.read_features(path, task_features.CLASS, 8), path) is None


@pytest.mark.parametrize("label", [1 << 31, -1])
def test_labels_beyond_their_type_are_refused(tmp_path, label):
    path = tmp_path / "train.tf_record"
    record = task_features._record(Feature([2, 7, 3], [0, 0, 0], 1), 0, task_features.CLASS, 8)
    write_tfrecord(path, [encode_example(record._replace(label_ids=[label]))])
    assert answer(lambda: task_features.read_features(path, task_features.CLASS, 8), path) is None
