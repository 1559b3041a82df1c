"""The stream of batches: order, resuming, ranks, evaluation, and what is refused."""

import itertools
import os
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from bert_tf.input_pipeline import Batch, PretrainingRecords, _prefetched, permutation  # noqa: E402
from bert_tf.ops import NOT_PACKED  # noqa: E402
from bert_tf.records import PretrainingExample, encode_example, write_tfrecord  # noqa: E402
from runkit.errors import UserError  # noqa: E402
from runkit.files import write_json  # noqa: E402

S, P = 16, 4


def record(number: int) -> bytes:
    """An example that is recognized by its first id."""
    return encode_example(
        PretrainingExample(
            input_ids=[number] + [7] * 9 + [0] * 6,
            input_mask=[1] * 10 + [0] * 6,
            segment_ids=[0] * 5 + [1] * 5 + [0] * 6,
            masked_lm_positions=[2, 8, 0, 0],
            masked_lm_ids=[number + 1, 300, 0, 0],
            masked_lm_weights=[1.0, 1.0, 0.0, 0.0],
            next_sentence_labels=[number % 2],
        )
    )


def write_folder(folder: Path, counts: list[int], first: int = 0, manifest: bool = True) -> Path:
    """Files of counts records, numbered on from first."""
    numbers = itertools.count(first)
    files = {}
    for i, count in enumerate(counts):
        summary = write_tfrecord(folder / f"x_{i}.tfrecord", map(record, itertools.islice(numbers, count)))
        files[f"x_{i}.tfrecord"] = summary._asdict()
    if manifest:
        write_json(folder / "manifest.json", {"format": 1, "files": files})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", [5, 9, 1, 0, 12])  # 27 records


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr("bert_tf.input_pipeline.GROUP_FILES", 2)


def numbers(batch: Batch) -> list[int]:
    return batch.input_ids[:, 0].numpy().tolist()


def take(stream, n: int) -> list[list[int]]:
    result = [numbers(batch) for batch in itertools.islice(stream, n)]
    stream.close()
    return result


def records(folder, seed: int = 1) -> PretrainingRecords:
    folders = folder if isinstance(folder, list) else [folder]
    return PretrainingRecords(folders, S, P, seed)


# --- values -------------------------------------------------------------------------------------------------


def test_batch_has_the_schema(folder):
    (batch, *_) = list(records(folder).evaluation_batches(27))
    assert Batch._fields == (*PretrainingExample._fields[:6], "next_sentence_labels", "packing")
    assert batch.packing == NOT_PACKED and int(batch.examples) == 27
    for name, value in list(batch._asdict().items())[:7]:
        assert value.dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32), name
    assert [value.shape for value in batch[:7]] == [(27, S)] * 3 + [(27, P)] * 3 + [(27,)]
    ids = batch.input_ids.numpy()
    assert sorted(ids[:, 0]) == list(range(27))
    for row, number in enumerate(ids[:, 0]):
        assert ids[row].tolist() == [number] + [7] * 9 + [0] * 6
        assert batch.segment_ids[row].numpy().tolist() == [0] * 5 + [1] * 5 + [0] * 6
        assert batch.masked_lm_ids[row].numpy().tolist() == [number + 1, 300, 0, 0]
        assert batch.masked_lm_weights[row].numpy().tolist() == [1.0, 1.0, 0.0, 0.0]
        assert batch.next_sentence_labels[row].numpy() == number % 2


# --- training order -----------------------------------------------------------------------------------------


def test_every_epoch_has_every_record_once(folder, small_groups):
    """27 records in batches of 4: epochs end inside batches, groups of two files too."""
    order = list(itertools.chain.from_iterable(take(records(folder).batches(0, 4, 1, 0, 1), 27)))
    epochs = [order[i : i + 27] for i in range(0, 108, 27)]
    assert all(sorted(epoch) == list(range(27)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(epoch != list(range(27)) for epoch in epochs)


def test_order_depends_on_the_seed_alone(folder):
    first = take(records(folder, seed=1).batches(0, 9, 1, 0, 1), 3)
    assert take(records(folder, seed=1).batches(0, 9, 1, 0, 1), 3) == first
    assert take(records(folder, seed=2).batches(0, 9, 1, 0, 1), 3) != first


def test_records_of_a_group_are_mixed_across_files(tmp_path):
    """With 4 equal files in a group, neighbours are from the same file a quarter of the time."""
    folder = write_folder(tmp_path / "data", [500] * 4)
    order = np.array(take(records(folder).batches(0, 2000, 1, 0, 1), 1)[0])
    assert abs(np.mean(order[:-1] // 500 == order[1:] // 500) - 0.25) < 0.05


@pytest.mark.parametrize("start", [0, 1, 26, 27, 28, 1000, 10**12 + 5])
def test_resuming_at_any_record(folder, small_groups, start):
    position = start % 27 + 27  # the same place of another epoch has another order, so compare like with like
    whole = list(itertools.chain.from_iterable(take(records(folder).batches(0, 1, 1, 0, 1), position + 40)))
    resumed = list(itertools.chain.from_iterable(take(records(folder).batches(position, 4, 2, 0, 1), 10)))
    assert resumed == whole[position : position + 40]
    far = take(records(folder).batches(start, 27, 1, 0, 1), 1)[0]
    assert len(far) == 27


def test_an_update_has_the_same_records_for_any_split(folder, small_groups):
    """GBS 24 over 5 updates, wrapping epochs."""
    splits = [(24, 1), (12, 1), (4, 1), (12, 2), (4, 2), (4, 3), (2, 4), (1, 24), (4, 4), (2, 5)]
    reference = take(records(folder).batches(48, 24, 1, 0, 1), 5)
    for batch_size, size in splits:
        n = 24 // batch_size  # micro-batches, which not all numbers of processes divide
        streams = [iter(records(folder).batches(48, batch_size, n, rank, size)) for rank in range(size)]
        for update in range(5):
            micro_batches = [numbers(next(streams[number % size])) for number in range(n)]
            assert list(itertools.chain.from_iterable(micro_batches)) == reference[update], (batch_size, size)


def test_fewer_files_and_records_than_ranks(tmp_path):
    folder = write_folder(tmp_path / "data", [3])
    ranks = [take(records(folder).batches(0, 2, 8, rank, 8), 6) for rank in range(8)]
    assert all(len(batch) == 2 for rank in ranks for batch in rank)
    counts = Counter(number for rank in ranks for batch in rank for number in batch)
    assert counts == {0: 32, 1: 32, 2: 32}


def test_several_folders_are_one_data_set(tmp_path):
    folders = [
        write_folder(tmp_path / "a", [4, 3]),
        write_folder(tmp_path / "b", [5], first=7, manifest=False),
    ]
    stream = records(folders)
    assert stream.n_records == 12
    assert len(stream.manifests) == 1
    assert sorted(take(stream.batches(0, 12, 1, 0, 1), 1)[0]) == list(range(12))


def test_order_does_not_depend_on_the_place_of_the_folder(tmp_path):
    a, b = (write_folder(tmp_path / name, [5, 6, 7]) for name in ("one", "another"))
    assert take(records(a).batches(0, 18, 1, 0, 1), 2) == take(records(b).batches(0, 18, 1, 0, 1), 2)


def test_permutation():
    found = {tuple(permutation(4, seed)) for seed in range(600)}
    assert found == set(itertools.permutations(range(4)))
    first = Counter(permutation(4, seed)[0] for seed in range(4000))
    assert all(abs(count - 1000) < 120 for count in first.values())
    assert permutation(0, 1).tolist() == []


def test_groups_are_bounded_in_bytes(tmp_path, monkeypatch):
    """Each group is exhausted before the next begins."""
    folder = write_folder(tmp_path / "data", [50] * 6)
    size = (folder / "x_0.tfrecord").stat().st_size
    monkeypatch.setattr("bert_tf.input_pipeline.GROUP_BYTES", int(2.5 * size))
    order = np.array(take(records(folder).batches(0, 300, 1, 0, 1), 1)[0]).reshape(3, 100) // 50
    assert all(len(set(group)) == 2 for group in order.tolist())
    assert sorted(set(order.flatten().tolist())) == list(range(6))


# --- evaluation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("batch_size", [1, 4, 26, 27, 100])
def test_evaluation_scores_every_record_once(folder, small_groups, batch_size, size):
    batches = [
        [numbers(b) for b in records(folder).evaluation_batches(batch_size, rank=rank, size=size)]
        for rank in range(size)
    ]
    assert sorted(n for rank in batches for batch in rank for n in batch) == list(range(27))
    lengths = [len(rank) for rank in batches]
    assert max(lengths) - min(lengths) <= 1


def test_bounded_evaluation_is_a_fixed_fair_sample(tmp_path):
    folder = write_folder(tmp_path / "data", [300] * 4)
    sample = [n for b in records(folder, seed=1).evaluation_batches(50, max_batches=8) for n in numbers(b)]
    assert len(set(sample)) == 400
    assert sample == [n for b in records(folder, seed=2).evaluation_batches(50, max_batches=8) for n in numbers(b)]
    assert all(70 < count < 130 for count in Counter(n // 300 for n in sample).values())
    ranks = [[n for b in records(folder).evaluation_batches(50, 8, rank, 3) for n in numbers(b)] for rank in range(3)]
    assert sorted(n for rank in ranks for n in rank) == sorted(sample)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 16])
def test_case_p06(shared, tmp_path, batch_size):
    (tmp_path / "ten.tfrecord").symlink_to(shared / "cases/P06/ten_examples.tfrecord")
    stream = records_of_any_shape(tmp_path)
    assert sum(batch.input_ids.shape[0] for batch in stream.evaluation_batches(batch_size)) == 10


def test_case_l05(shared, tmp_path):
    (tmp_path / "shard_0.tfrecord").symlink_to(shared / "cases/L05/shard_0.tfrecord")
    stream = records_of_any_shape(tmp_path)
    evaluated = [[len(b.input_ids) for b in stream.evaluation_batches(2, rank=rank, size=2)] for rank in range(2)]
    assert sum(map(sum, evaluated)) == 5
    for rank in range(2):
        assert [len(batch) for batch in take(stream.batches(0, 2, 2, rank, 2), 7)] == [2] * 7


def records_of_any_shape(folder: Path) -> PretrainingRecords:
    first = next(iter(tf.data.TFRecordDataset([str(path) for path in folder.glob("*.tfrecord")])))
    features = tf.train.Example.FromString(first.numpy()).features.feature
    s, p = (len(features[name].int64_list.value) for name in ("input_ids", "masked_lm_positions"))
    return PretrainingRecords([folder], s, p, 1)


# --- refusals -----------------------------------------------------------------------------------------------


def test_case_p04(shared, tmp_path):
    (tmp_path / "seq16_pred4.tfrecord").symlink_to(shared / "cases/P04/seq16_pred4.tfrecord")
    with pytest.raises(UserError) as error:
        PretrainingRecords([tmp_path], 16, 20, 1)
    for part in ("seq16_pred4.tfrecord", "max_predictions_per_seq 4", "--max_predictions_per_seq is 20"):
        assert part in str(error.value)
    with pytest.raises(UserError, match="max_seq_length 16, but --max_seq_length is 128"):
        PretrainingRecords([tmp_path], 128, 4, 1)
    assert PretrainingRecords([tmp_path], 16, 4, 1).n_records > 0


def test_every_file_of_a_foreign_folder_is_checked(tmp_path):
    folder = write_folder(tmp_path / "data", [3], manifest=False)
    write_tfrecord(folder / "y.tfrecord", [tf.train.Example().SerializeToString()])
    with pytest.raises(UserError, match=r"y.tfrecord: not pre-training records: no feature input_ids, .*it has none"):
        records(folder)
    write_tfrecord(folder / "y.tfrecord", [b"\xff\xff\xff"])
    with pytest.raises(UserError, match=r"y.tfrecord: not pre-training records: the first is not a tf.train.Example"):
        records(folder)


def test_no_records(tmp_path):
    with pytest.raises(UserError, match="absent: no such folder"):
        records(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: neither manifest.json nor \*.tfrecord"):
        records(tmp_path / "empty")
    with pytest.raises(UserError, match=r"no records in .*hollow"):
        records(write_folder(tmp_path / "hollow", [0]))
    with pytest.raises(UserError, match="no records in an empty list"):
        records([])


def test_truncated_file_of_a_foreign_folder(tmp_path):
    folder = write_folder(tmp_path / "data", [3, 4], manifest=False)
    path = folder / "x_1.tfrecord"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match=r"x_1.tfrecord: cut short .* in record 3 at byte"):
        records(folder)


def test_strays_are_not_read(folder):
    write_tfrecord(folder / "stray.tfrecord", [record(99)])
    with pytest.warns(UserWarning, match=r"stray.tfrecord"):
        stream = records(folder)
    assert stream.n_records == 27


def test_damaged_data_is_named_where_it_is_read(folder):
    path = folder / "x_1.tfrecord"
    data = bytearray(path.read_bytes())
    frame = len(data) // 9
    data[4 * frame + 20] ^= 1
    path.write_bytes(data)
    stream = records(folder).batches(0, 9, 1, 0, 1)
    with pytest.raises(UserError, match=rf"x_1.tfrecord: wrong checksum of the data in record 4 at byte {4 * frame}"):
        take(stream, 4)


def test_record_of_another_shape_is_named(tmp_path):
    folder = write_folder(tmp_path / "data", [3], manifest=False)
    odd = PretrainingExample([1], [1], [0], [0], [0], [0.0], [0])
    write_tfrecord(folder / "y.tfrecord", [record(1), encode_example(odd)])
    with pytest.raises(UserError, match=r"y.tfrecord: record 1 has not the shapes .*'input_ids': 16"):
        take(records(folder).batches(0, 5, 1, 0, 1), 1)


def test_wrong_count_in_the_manifest(folder):
    summary = write_tfrecord(folder / "x_1.tfrecord", map(record, range(3)))
    write_json(
        folder / "manifest.json",
        {"format": 1, "files": {"x_1.tfrecord": {**summary._asdict(), "records": 4}}},
    )
    with pytest.warns(UserWarning), pytest.raises(UserError, match=r"x_1.tfrecord: 3 records instead of 4"):
        take(records(folder).batches(0, 4, 1, 0, 1), 1)


# --- the thread ---------------------------------------------------------------------------------------------


def running_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "input pipeline"]


def test_closing_ends_the_thread_and_closes_files(folder):
    open_files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    stream = records(folder).batches(0, 4, 1, 0, 1)
    next(stream)
    assert len(running_threads()) == 1
    stream.close()
    assert not running_threads()
    if open_files is not None:
        assert len(os.listdir("/proc/self/fd")) == open_files


def test_an_exception_in_the_consumer_ends_the_thread(folder):
    def consume():
        for _ in records(folder).batches(0, 4, 1, 0, 1):
            raise RuntimeError("in training")

    with pytest.raises(RuntimeError, match="in training"):
        consume()
    deadline = time.monotonic() + 5
    while running_threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_errors_of_the_thread_are_raised_after_the_batches_before_them():
    def failing():
        yield 1
        yield 2
        raise ValueError("third")

    stream = _prefetched(failing())
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(stream)
    assert not running_threads()


def test_only_a_few_batches_are_read_ahead():
    made = []

    def endless():
        for i in itertools.count():
            made.append(i)
            yield i

    stream = _prefetched(endless())
    next(stream)
    time.sleep(0.3)
    assert len(made) <= 12
    stream.close()
