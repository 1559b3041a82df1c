"""Features: storage, buckets, orders, batches."""

import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.features import (
    CLASS,
    SPAN,
    TAGS,
    VALUE,
    FeatureSet,
    TrainingOrder,
    bucket_of,
    choose_buckets,
    prediction_batches,
    read_features,
    store_features,
    stored_features,
    training_batches,
    write_features,
)
from bert_tf.records import Feature
from runkit.errors import UserError

LABELS = {
    "class": (CLASS, lambda i, n: i % 3),
    "value": (VALUE, lambda i, n: i / 8),
    "span": (SPAN, lambda i, n: (i % n, n - 1)),
    "tags": (TAGS, lambda i, n: [1 + (i + j) % 4 for j in range(n)]),
}


def make(kind_name: str, lengths) -> tuple[list[Feature], FeatureSet]:
    kind, label = LABELS[kind_name]
    features = [Feature(list(range(10 * i + 1, 10 * i + 1 + n)), [j % 2 for j in range(n)], label(i, n))
                for i, n in enumerate(lengths)]  # fmt: skip
    return features, FeatureSet(features, kind)


@pytest.mark.parametrize("kind_name", LABELS)
def test_a_batch_is_padded_and_filled_up(kind_name):
    _, stored = make(kind_name, [3, 5])
    batch = stored.batch([1, 0], length=6, rows=3)
    assert batch.input_ids.numpy().tolist() == [[11, 12, 13, 14, 15, 0], [1, 2, 3, 0, 0, 0], [0] * 6]
    assert batch.input_mask.numpy().tolist() == [[1] * 5 + [0], [1] * 3 + [0] * 3, [0] * 6]
    assert batch.segment_ids.numpy().tolist() == [[0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0] * 6]
    assert batch.weights.numpy().tolist() == [1, 1, 0]
    expected = {
        "class": [1, 0, 0],
        "value": [0.125, 0, 0],
        "span": [[1, 4], [0, 2], [0, 0]],
        "tags": [[2, 3, 4, 1, 2, 0], [1, 2, 3, 0, 0, 0], [0] * 6],
    }[kind_name]
    assert batch.labels.numpy().tolist() == expected


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="fit"):
        FeatureSet([Feature([1, 2], [0], 0)], CLASS)


def test_ids_beyond_the_tables_are_refused():
    _, stored = make("class", [3, 5])
    stored.check_ranges(16, 2, "vocab.txt")
    with pytest.raises(UserError, match=r"vocab.txt: 15 in input_ids.*15 rows"):
        stored.check_ranges(15, 2, "vocab.txt")
    with pytest.raises(UserError, match="1 in segment_ids"):
        stored.check_ranges(16, 1, "vocab.txt")


# -------------------------------------------------------------------------------------------------- files
@pytest.mark.parametrize("kind_name", LABELS)
def test_records_come_back(kind_name, tmp_path):
    features, stored = make(kind_name, [3, 8, 1])
    path = tmp_path / "train.tf_record"
    assert write_features(path, features, stored.kind, 8) == 3
    back = read_features(path, stored.kind, 8)
    for index, feature in enumerate(features):
        assert list(back[index].input_ids) == feature.input_ids and list(back[index].segment_ids) == feature.segment_ids
        np.testing.assert_array_equal(back[index].label, feature.label)


def test_records_have_the_published_schema(tmp_path):
    features, _ = make("span", [3, 2])
    write_features(tmp_path / "f", [features[0], Feature([1, 2], [0, 0], (0, 0))], SPAN, 4)
    first, second = (tf.train.Example.FromString(r.numpy()).features.feature
                     for r in tf.data.TFRecordDataset(str(tmp_path / "f")))  # fmt: skip
    assert {name: list(first[name].int64_list.value) for name in first} == {
        "unique_ids": [1_000_000_000], "input_ids": [1, 2, 3, 0], "input_mask": [1, 1, 1, 0],
        "segment_ids": [0, 1, 0, 0], "start_positions": [0], "end_positions": [2], "is_impossible": [0],
    }  # fmt: skip
    assert second["unique_ids"].int64_list.value == [1_000_000_001] and second["is_impossible"].int64_list.value == [1]


def test_stored_features_are_used_only_for_the_same_source(tmp_path):
    _, stored = make("class", [3, 8, 1])
    path = tmp_path / "train.tf_record"
    assert stored_features(path, CLASS, 8, {"source": "a"}) is None
    store_features(path, stored, 8, {"source": "a"})
    assert len(stored_features(path, CLASS, 8, {"source": "a"})) == 3
    assert stored_features(path, CLASS, 8, {"source": "b"}) is None
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert stored_features(path, CLASS, 8, {"source": "a"}) is None


def test_other_records_are_named(tmp_path):
    features, _ = make("class", [3])
    write_features(tmp_path / "f", features, CLASS, 8)
    with pytest.raises(UserError, match="another schema"):
        read_features(tmp_path / "f", SPAN, 8)
    with pytest.raises(UserError, match="another schema"):
        read_features(tmp_path / "f", CLASS, 9)


# -------------------------------------------------------------------------------------------------- buckets
@pytest.mark.parametrize("seed", range(8))
def test_buckets_pad_least_of_all_choices(seed):
    """Against all subsets of the candidates."""
    lengths = np.random.default_rng(seed).integers(1, 90, 40)
    candidates = sorted({min(96, -(-int(n) // 16) * 16) for n in lengths})

    def padded(buckets):
        return sum(bucket_of(int(n), buckets) for n in lengths)

    for count in (1, 2, 3):
        best = min(padded(sorted({*chosen, candidates[-1]}))
                   for k in range(count) for chosen in itertools.combinations(candidates, k))  # fmt: skip
        found = choose_buckets(lengths, 96, count, 16)
        assert padded(found) == best and len(found) <= count and found == sorted(set(found))


def test_buckets_never_exceed_the_maximum():
    assert choose_buckets([100, 3], 100, 2, 16) == [16, 100]
    assert choose_buckets([], 128) == [128]
    assert choose_buckets([20, 20], 128) == [32]


# --------------------------------------------------------------------------------------------------- orders
@pytest.mark.parametrize("by_length", [False, True])
def test_an_epoch_holds_every_feature_once(by_length):
    lengths = np.random.default_rng(0).integers(3, 60, 96)
    order = TrainingOrder(lengths, seed=1, global_batch=8, updates=24, by_length=by_length)
    updates = [order.indices(u) for u in range(24)]
    assert all(len(indices) == 8 for indices in updates)
    assert Counter(np.concatenate(updates).tolist()) == dict.fromkeys(range(96), 2)
    assert [order.indices(u).tolist() for u in (23, 0, 7)] == [updates[u].tolist() for u in (23, 0, 7)]
    other = TrainingOrder(lengths, seed=2, global_batch=8, updates=24, by_length=by_length)
    assert not np.array_equal(other.indices(0), updates[0])


def test_buckets_regroup_the_same_features():
    """Whatever the number of updates, those seen are those of the published order."""
    lengths = np.random.default_rng(0).integers(3, 60, 50)
    for total in (5, 32, 47):
        orders = [TrainingOrder(lengths, 3, 4, total, by_length) for by_length in (False, True)]
        seen = [Counter(np.concatenate([order.indices(u) for u in range(total)]).tolist()) for order in orders]
        assert seen[0] == seen[1]


def test_updates_that_replace_skipped_ones_go_on():
    order = TrainingOrder(np.arange(3, 53), 3, 4, 10, True)
    assert all(len(order.indices(u)) == 4 for u in range(10, 80))


def test_like_lengths_share_an_update():
    lengths = np.random.default_rng(0).integers(3, 200, 1000)
    spread = [np.mean([np.ptp(lengths[order.indices(u)]) for u in range(31)])
              for order in (TrainingOrder(lengths, 3, 8, 125, by_length) for by_length in (False, True))]  # fmt: skip
    assert spread[1] < 0.2 * spread[0]


def test_an_update_is_the_same_for_any_split():
    """4 x 2 on one process, 2 x 2 on two, 1 x 8 at once: the same features in an update, each once."""
    _, stored = make("class", np.random.default_rng(0).integers(3, 60, 40))
    order = TrainingOrder(stored.lengths, 3, 8, 20, True)

    def ids(batch_size, size):
        rows = []
        for rank in range(size):
            for batch in next(training_batches(stored, order, [64], 2, batch_size, rank, size)):
                rows += batch.input_ids.numpy()[:, 0].tolist()
        return sorted(rows)

    assert ids(8, 1) == ids(4, 1) == ids(2, 2) == ids(1, 8)


def test_batches_take_the_shortest_bucket_that_fits():
    _, stored = make("class", [5, 20, 30, 7])
    order = TrainingOrder(stored.lengths, 3, 2, 2, True)
    shapes = [next(training_batches(stored, order, [16, 32], u, 1))[0].input_ids.shape[1] for u in range(2)]
    longest = [stored.lengths[order.indices(u)][0] for u in range(2)]
    assert shapes == [16 if n <= 16 else 32 for n in longest]


@pytest.mark.parametrize("buckets", [[64], [16, 64]])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_prediction_takes_every_feature_once(buckets, size):
    _, stored = make("class", [5, 20, 30, 7, 60, 3, 9, 8, 8, 8, 8, 8, 8, 8])
    seen = []
    for rank in range(size):
        for indices, batch in prediction_batches(stored, buckets, 2, 64, rank, size):
            rows, length = batch.input_ids.shape
            assert length in buckets and rows == 2 * 64 // length  # the tokens of two full sequences
            assert batch.weights.numpy().sum() == len(indices)
            assert batch.input_mask.numpy().sum(1)[: len(indices)].tolist() == stored.lengths[indices].tolist()
            seen += indices.tolist()
    assert sorted(seen) == list(range(14))
    batches = list(prediction_batches(stored, buckets, 2, 64, fill_up=False))
    assert all(batch.input_ids.shape[0] == len(indices) for indices, batch in batches)
    assert sum(len(indices) for indices, _ in batches) == 14
