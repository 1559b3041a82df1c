"""Every fault is found and named, and sound folders are sound."""

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf import create_pretraining_data, verify_records
from bert_tf.records import PretrainingExample, encode_example, iter_tfrecord, write_tfrecord
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
WORDS = "the old mill by river town had grain boats and light men who came from north with rope salt wood".split()
CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with vocab.txt, and records of two files in out/."""
    folder, rng = tmp_path_factory.mktemp("made"), random.Random(1)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, ".", *WORDS]), encoding="utf-8")
    (folder / "text").mkdir()
    for name in ("a.txt", "b.txt"):
        documents = [
            "".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 12))) + " .\n" for _ in range(rng.randint(2, 8)))
            for _ in range(30)
        ]
        (folder / "text" / name).write_text("\n".join(documents), encoding="utf-8")
    sizes = ["--max_seq_length=32", "--max_predictions_per_seq=5", "--n_processes=1", "--dupe_factor=2"]
    paths = [
        f"--vocab_file={folder / 'vocab.txt'}",
        f"--input_file={folder / 'text'}",
        f"--output_dir={folder / 'out'}",
    ]
    assert create_pretraining_data.main([*paths, *sizes]) == 0
    return folder


@pytest.fixture
def records(made, tmp_path) -> Path:
    """A copy of the folder of records."""
    folder = tmp_path / "records"
    folder.mkdir()
    for path in (made / "out").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def verify(*words, n_processes: int = 1) -> int:
    return verify_records.main([*map(str, words), f"--n_processes={n_processes}"])


def faults_of(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("fault: ")]


def replace_record(folder: Path, number: int, encoded: bytes) -> None:
    """Puts a record into a.tfrecord and makes frames and manifest agree with it."""
    path = folder / "a.tfrecord"
    contents = list(iter_tfrecord(path))
    contents[number] = encoded
    manifest = read_json(folder / "manifest.json")
    manifest["files"]["a.tfrecord"] |= write_tfrecord(path, contents)._asdict()
    write_json(folder / "manifest.json", manifest)


def an_example(**changes) -> PretrainingExample:
    """[CLS] the [MASK] . [SEP] mill by . [SEP] in 32 places, with one of two kept words masked."""
    ids = [CLS, 6, MASK, 5, SEP, 8, 9, 5, SEP]
    example = PretrainingExample(
        input_ids=ids + [0] * 23,
        input_mask=[1] * 9 + [0] * 23,
        segment_ids=[0] * 5 + [1] * 4 + [0] * 23,
        masked_lm_positions=[2, 0, 0, 0, 0],
        masked_lm_ids=[7, 0, 0, 0, 0],
        masked_lm_weights=[1.0, 0.0, 0.0, 0.0, 0.0],
        next_sentence_labels=[1],
    )
    return example._replace(**changes)


@pytest.mark.parametrize("n_processes", [1, 2])
def test_a_sound_folder(made, capsys, n_processes):
    assert verify(made / "out", "--vocab_file", made / "vocab.txt", n_processes=n_processes) == 0
    printed = capsys.readouterr()
    manifest = read_json(made / "out" / "manifest.json")
    assert f"out: sound, {manifest['records']} records in 2 files, {manifest['tokens']} tokens" in printed.out
    assert "fault" not in printed.err


def test_a_folder_of_other_tools(made, tmp_path, capsys):
    """Written by TensorFlow, without a manifest."""
    tf = pytest.importorskip("tensorflow")
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        for label in (0, 1):
            features = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                if name == "masked_lm_weights"
                else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                for name, values in an_example(next_sentence_labels=[label])._asdict().items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    assert verify(tmp_path, "--vocab_file", made / "vocab.txt") == 0
    assert "sound, 2 records in 1 files, 18 tokens, 2 of them masked" in capsys.readouterr().out


def test_a_flipped_bit_of_a_record(records, capsys):
    path = records / "b.tfrecord"
    data = bytearray(path.read_bytes())
    size = 16 + struct.unpack_from("<Q", data)[0]
    data[size + 100] ^= 4
    path.write_bytes(data)
    assert verify(records) == 2
    faults = faults_of(capsys)
    assert len(faults) == 2
    assert "b.tfrecord: SHA-256 is not that of manifest.json" in faults[0]
    assert f"b.tfrecord: wrong checksum of the data in record 1 at byte {size}" in faults[1]


def test_a_file_that_is_cut(records, capsys):
    path = records / "b.tfrecord"
    path.write_bytes(path.read_bytes()[:-7])
    assert verify(records) == 2
    size, cut = faults_of(capsys)
    assert f"b.tfrecord: {path.stat().st_size} bytes, but manifest.json says {path.stat().st_size + 7}" in size
    last = read_json(records / "manifest.json")["files"]["b.tfrecord"]["records"] - 1
    assert "b.tfrecord: cut short" in cut and f"in record {last} at byte" in cut


def test_the_example_of_these_tests_is_sound(made, records, capsys):
    replace_record(records, 3, encode_example(an_example()))
    assert verify(records, "--vocab_file", made / "vocab.txt") == 2
    assert all("tokens, but manifest.json says" in fault for fault in faults_of(capsys))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"input_mask": [1] * 8 + [0, 1] + [0] * 22}, "input_mask is not a run"),
        ({"input_mask": [1] * 8 + [2] + [0] * 23}, "input_mask is not a run"),
        ({"input_mask": [1] * 4 + [0] * 28}, "fewer than 5 tokens"),
        ({"input_ids": [CLS, 6, MASK, 5, SEP, 8, 99, 5, SEP] + [0] * 23}, "input_ids is outside of 0..25"),
        ({"input_ids": [CLS, 6, -1, 5, SEP, 8, 9, 5, SEP] + [0] * 23}, "input_ids is outside of 0..25"),
        ({"input_ids": [CLS, 6, MASK, 5, SEP, 8, 9, 5, SEP, 7] + [0] * 22}, "something in the padding"),
        ({"segment_ids": [0] * 5 + [1] * 5 + [0] * 22}, "segment_ids are not"),
        ({"segment_ids": [0] * 4 + [1, 0, 1, 1, 1] + [0] * 23}, "segment_ids are not"),
        ({"segment_ids": [0] * 32}, "segment_ids are not"),
        ({"masked_lm_weights": [0.0] * 5}, "no position is masked"),
        ({"masked_lm_weights": [0.5] + [0.0] * 4}, "masked_lm_weights are not"),
        ({"masked_lm_weights": [0.0, 1.0, 0.0, 0.0, 0.0]}, "masked_lm_weights are not"),
        (
            {"masked_lm_weights": [1.0, 1.0, 0, 0, 0], "masked_lm_positions": [2, 3, 0, 0, 0]},
            "more positions are masked than",
        ),
        ({"masked_lm_positions": [0] * 5}, "masked_lm_positions has a place"),
        ({"masked_lm_positions": [4, 0, 0, 0, 0]}, "masked_lm_positions has a place"),
        ({"masked_lm_positions": [8, 0, 0, 0, 0]}, "masked_lm_positions has a place"),
        ({"masked_lm_positions": [40, 0, 0, 0, 0]}, "masked_lm_positions has a place"),
        ({"masked_lm_positions": [2, 3, 0, 0, 0]}, "after the last"),
        ({"masked_lm_ids": [7, 7, 0, 0, 0]}, "after the last"),
        ({"masked_lm_ids": [26, 0, 0, 0, 0]}, "masked_lm_ids is outside of 0..25"),
        ({"masked_lm_ids": [CLS, 0, 0, 0, 0]}, "masked_lm_ids has a special token"),
        ({"next_sentence_labels": [2]}, "neither 0 nor 1"),
        ({"input_ids": [6, 6, MASK, 5, SEP, 8, 9, 5, SEP] + [0] * 23}, "not [CLS] A [SEP] B [SEP]"),
        ({"input_ids": [CLS, 6, MASK, 5, 5, 8, 9, 5, SEP] + [0] * 23}, "not [CLS] A [SEP] B [SEP]"),
        ({"input_ids": [CLS, SEP, MASK, 5, SEP, 8, 9, 5, SEP] + [0] * 23}, "inside a segment"),
        ({"input_ids": [CLS, MASK, 6, 5, SEP, 8, 9, 5, SEP] + [0] * 23}, "[MASK] stands at a place"),
        ({"input_ids": [CLS, 6]}, "input_ids has 2 values, not 32"),
    ],
)
def test_a_record_with_a_fault(made, records, capsys, changes, fault):
    replace_record(records, 3, encode_example(an_example(**changes)))
    assert verify(records, "--vocab_file", made / "vocab.txt") == 2
    found = faults_of(capsys)
    assert len(found) == 1
    assert "a.tfrecord: record 3: " in found[0] and fault in found[0]


def test_positions_that_do_not_ascend(made, records, capsys):
    ids = [CLS, *[6] * 14, SEP, *[7] * 14, SEP, 0]
    example = an_example(
        input_ids=ids,
        input_mask=[1] * 31 + [0],
        segment_ids=[0] * 16 + [1] * 15 + [0],
        masked_lm_positions=[5, 3, 9, 0, 0],
        masked_lm_ids=[6, 6, 6, 0, 0],
        masked_lm_weights=[1.0, 1.0, 1.0, 0.0, 0.0],
    )
    replace_record(records, 0, encode_example(example))
    assert verify(records) == 2
    assert "a.tfrecord: record 0: masked_lm_positions do not ascend" in faults_of(capsys)[0]


def test_what_is_no_example(records, capsys):
    replace_record(records, 1, b"\xff\xff")
    replace_record(records, 2, b"")
    assert verify(records) == 2
    one, two = faults_of(capsys)
    assert "a.tfrecord: record 1: not a tf.train.Example" in one
    assert "a.tfrecord: record 2: the features are none; they have to be input_ids" in two


def test_many_faults_of_a_file_are_counted(records, capsys):
    for number in range(8):
        replace_record(records, number, b"")
    verify(records)
    found = faults_of(capsys)
    assert len(found) == verify_records.FAULTS_SHOWN + 1
    assert found[-1].endswith("a.tfrecord: 3 more faults")


def test_manifests(records, tmp_path, capsys):
    (records / "a.tfrecord").rename(records / "c.tfrecord")
    assert verify(records, tmp_path / "nowhere") == 2
    missing, nowhere = faults_of(capsys)
    assert "a.tfrecord: missing, but listed in manifest.json" in missing
    assert "nowhere: no such folder" in nowhere
    (records / "c.tfrecord").rename(records / "a.tfrecord")
    manifest = read_json(records / "manifest.json")
    write_json(records / "manifest.json", manifest | {"tokens": manifest["tokens"] + 1})
    assert verify(records) == 2
    assert "manifest.json: tokens: not the sum of the files" in faults_of(capsys)[0]
    manifest["files"]["a.tfrecord"]["masked_tokens"] += 1
    write_json(records / "manifest.json", manifest)
    assert verify(records) == 2
    assert "a.tfrecord: " in (fault := faults_of(capsys)[0]) and "masked_tokens, but manifest.json says" in fault
    (records / "manifest.partial.json").write_text("{}", encoding="utf-8")
    assert verify(records) == 2
    assert "has not ended" in faults_of(capsys)[0]


def test_a_vocabulary_of_another_size(made, tmp_path, capsys):
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join(SPECIAL_TOKENS), encoding="utf-8")
    assert verify(made / "out", "--vocab_file", other) == 2
    assert "made with a vocabulary of 26 tokens, but --vocab_file has 5" in faults_of(capsys)[0]


def test_the_command(made):
    result = subprocess.run(
        [sys.executable, "-m", "bert_tf.verify_records", "out", "--n_processes=2"],
        cwd=made, env={"PYTHONPATH": str(ROOT)}, capture_output=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "checking" in result.stderr and "sound" in result.stdout
