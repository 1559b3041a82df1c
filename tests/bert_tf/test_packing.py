"""Packed batches: every sequence once, and the same update as padded ones, dropout included."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import kernels, losses, model, ops, run_classifier, run_pretraining
from bert_tf.distributed import Distributed
from bert_tf.features import CLASS, SPAN, TAGS, VALUE, FeatureSet, TrainingOrder, batch_spec, training_batches
from bert_tf.input_pipeline import Batch, PretrainingRecords, packed, packed_spec
from bert_tf.optimization import create_optimizer
from bert_tf.packing import STEP, Plan, Rows, best_fit_decreasing
from bert_tf.precision import LossScale
from bert_tf.records import Feature, PretrainingExample, encode_example, write_tfrecord
from bert_tf.train_step import TrainStep
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError
from runkit.log import read_log
from tests.bert_tf import mains

S, P = 24, 4
CONFIG = model.BertConfig(
    vocab_size=61, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=32, type_vocab_size=2,
)  # fmt: skip
ONE_ROW, ROWS, FIXED = Rows(None, False), Rows(S, False), Rows(S, True)


# ------------------------------------------------------------------------------------------------------ the rows
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(40, 90))
def test_every_sequence_has_one_place_and_rows_hold_no_more_than_they_can(lengths, capacity):
    rows = best_fit_decreasing(lengths, capacity)
    assert sorted(itertools.chain.from_iterable(rows)) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= capacity for row in rows)
    assert rows == best_fit_decreasing(list(lengths), capacity)
    # Any two rows hold more than one row could: the second was opened when its first sequence fitted nowhere.
    sums = sorted(sum(lengths[index] for index in row) for row in rows)
    assert len(rows) < 2 or sums[0] + sums[1] > capacity
    for rows_of in (capacity, None):
        plan = Plan(lengths, rows_of)
        tokens = np.arange(1, sum(lengths) + 1)
        flat, parts = plan.rows(tokens).ravel(), np.split(tokens, np.cumsum(lengths)[:-1])
        for start, part in zip(plan.starts, parts, strict=True):
            assert flat[start : start + len(part)].tolist() == part.tolist()
            assert start // plan.shape[1] == (start + len(part) - 1) // plan.shape[1]
        assert np.count_nonzero(flat) == len(tokens)


def test_best_fit_by_hand():
    # 70 and 60 open rows, 35 goes to the second and leaves 5; 4 fits both, the second better; 30 fills the first.
    assert best_fit_decreasing([4, 35, 60, 70], 100) == [[3], [2, 1, 0]]
    assert best_fit_decreasing([30, 4, 70, 60, 35], 100) == [[2, 0], [3, 4, 1]]
    with pytest.raises(ValueError, match="10 tokens does not fit into rows of 9"):
        best_fit_decreasing([10], 9)


def test_one_row_has_a_whole_number_of_steps():
    plan = Plan([5, 20, STEP], None)
    assert plan.shape == (1, 2 * STEP) and plan.starts.tolist() == [0, 5, 25]
    example, position, starts, lengths = plan.arrays()
    assert example[0].tolist() == [0] * 5 + [1] * 20 + [2] * STEP + [-1] * 7
    assert position[0].tolist() == [*range(5), *range(20), *range(STEP), *[0] * 7]
    assert starts.dtype == lengths.dtype == example.dtype == position.dtype == np.int32


# ----------------------------------------------------------------------------------------------------- equality
def pretraining_arrays(examples=6, seed=0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, S + 1, examples)
    lengths[:2] = S, 5
    mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
    weights = (np.arange(P) < rng.integers(1, P + 1, examples)[:, None]).astype(np.float32)
    return {
        "input_ids": rng.integers(1, CONFIG.vocab_size, (examples, S)).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(S) > lengths[:, None] // 2).astype(np.int32) * mask,
        "masked_lm_positions": np.stack([rng.permutation(5)[:P] for _ in range(examples)]).astype(np.int32),
        "masked_lm_ids": rng.integers(0, CONFIG.vocab_size, (examples, P)).astype(np.int32),
        "masked_lm_weights": weights,
        "next_sentence_labels": rng.integers(0, 2, examples).astype(np.int32),
    }


def features(kind, count=6, seed=0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    result = []
    for length in [S, 5, *rng.integers(4, S + 1, count - 2)]:
        label = {CLASS: 1, VALUE: float(rng.normal()), SPAN: tuple(sorted(rng.integers(0, length, 2).tolist())),
                 TAGS: rng.integers(0, 3, length).tolist()}[kind]  # fmt: skip
        result.append(Feature(rng.integers(1, 61, length).tolist(), rng.integers(0, 2, length).tolist(), label))
    return FeatureSet(result, kind)


def pretraining_case():
    arrays = pretraining_arrays()
    padded = Batch(**{name: tf.constant(value) for name, value in arrays.items()})
    return model.BertForPreTraining(CONFIG, 3), losses.Pretraining(), padded, lambda rows: packed(arrays, rows)


def task_case(kind, build, objective):
    found = features(kind)
    indices = np.array([3, 0, 5, 1, 4, 2])
    return build(), objective, found.batch(indices, S), lambda rows: found.packed(indices, rows)


CASES = {
    "pre-training": pretraining_case,
    "questions": lambda: task_case(SPAN, lambda: model.BertForQuestionAnswering(CONFIG, 3), losses.QuestionAnswering()),
    "classes": lambda: task_case(CLASS, lambda: model.BertForClassification(CONFIG, 3, 3), losses.Classification()),
    "numbers": lambda: task_case(VALUE, lambda: model.BertForClassification(CONFIG, 1, 3), losses.Regression()),
    "tags": lambda: task_case(TAGS, lambda: model.BertForTagging(CONFIG, 3, 3), losses.Tagging()),
}


def perturb(bert):
    """Biases that are not zero, so that none is left out unnoticed."""
    rng = np.random.default_rng(3)
    for variable in bert.variables:
        variable.assign_add(rng.normal(0, 0.05, variable.shape).astype(np.float32))


def loss_and_gradients(bert, objective, batch, key, dtype=tf.float32):
    weights = ComputeWeights(bert.variables, dtype)
    with tf.GradientTape() as tape:
        weights.watch(tape)
        sums = objective.sums(bert(batch, weights, key), batch)
        loss = objective.loss(sums, 1.0 / objective.counts(batch))
    names = [model.variable_name(variable) for variable in weights.masters]
    return sums, dict(zip(names, weights.gradients(loss, tape), strict=True))


@pytest.mark.parametrize("path", ["kernels", "xla"])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_the_padded_batch(case, dropout, path):
    if path == "kernels" and kernels.library() is None:
        pytest.skip("no kernels here")
    bert, objective, padded, pack = CASES[case]()
    perturb(bert)
    key = ops.DropoutKey(tf.constant(5, tf.uint32), tf.constant(12, tf.uint32)) if dropout else None
    with ops.inside_xla(path == "xla"):
        expected, gradients = loss_and_gradients(bert, objective, padded, key)
        for rows in (ONE_ROW, ROWS, FIXED):
            batch = pack(rows)
            assert int(batch.examples) == 6
            assert rows.capacity is None or int(batch.input_ids.shape[0]) < 6
            found, got = loss_and_gradients(bert, objective, batch, key)
            np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-5)
            for name, want in gradients.items():
                scale = max(np.abs(want).max(), 1e-2)  # some are zero but for rounding
                np.testing.assert_allclose(got[name] / scale, want / scale, atol=1e-5, err_msg=name)
    if dropout:
        assert not np.allclose(np.array(expected)[0], np.array(loss_and_gradients(bert, objective, padded, None)[0])[0])


@pytest.mark.parametrize("case", CASES)
def test_reduced_precision_stays_close(case):
    bert, objective, padded, pack = CASES[case]()
    expected, _ = loss_and_gradients(bert, objective, padded, None)
    found, _ = loss_and_gradients(bert, objective, pack(ONE_ROW), None, tf.bfloat16)
    np.testing.assert_allclose(float(found[0]), float(expected[0]), rtol=0.02)


@pytest.mark.parametrize("accumulation, rows, use_xla", [(1, ONE_ROW, False), (3, ONE_ROW, False), (2, FIXED, True)])
def test_updates_are_those_of_padded_batches(accumulation, rows, use_xla):
    """Two updates with dropout and clipping, packed in micro-batches of their own."""
    results = []
    for pack in (False, True):
        bert = model.BertForPreTraining(CONFIG, seed=5)
        weights = ComputeWeights(bert.variables, tf.float32)
        optimizer = create_optimizer("adam", weights.masters)
        parts = accumulation if pack else 1
        step = TrainStep(
            bert, losses.Pretraining(), weights, optimizer, LossScale(False), Distributed(), parts, use_xla=use_xla,
            seed=5, batch_spec=packed_spec() if pack else None,
        )  # fmt: skip
        for update in range(2):
            arrays = pretraining_arrays(seed=update)
            cut = [{k: np.split(v, parts)[i] for k, v in arrays.items()} for i in range(parts)]
            batches = [packed(part, rows) if pack else Batch(**part) for part in cut]
            result = step([Batch(*map(tf.constant, b[:7])) for b in batches] if not pack else batches, 0.01, update)
        results.append((result, {model.variable_name(v): v.numpy() for v in weights.masters}))
    (padded, want), (result, got) = results
    np.testing.assert_allclose(result.gradient_norm, padded.gradient_norm, rtol=1e-5)
    np.testing.assert_allclose(np.array(result.sums), np.array(padded.sums), rtol=1e-5)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=1e-4, err_msg=name)


@pytest.mark.skipif(kernels.library() is None, reason="no kernels here")
@pytest.mark.parametrize("length, depth", [(1, 4), (7, 5), (49, 8), (200, 64)])
def test_the_kernel_by_brute_force(length, depth):
    """One sequence among others against the formula in float64; nothing of the others shows."""
    heads, lengths = 2, [3, length, 6]
    plan = Plan(lengths, None)
    tokens = plan.shape[1]
    rng = np.random.default_rng(0)
    x, bias = rng.normal(size=(tokens, 3 * heads * depth)), rng.normal(size=3 * heads * depth)
    packing = ops.Packing(*map(tf.constant, plan.arrays()))
    layout = ops.layout(tf.ones(plan.shape, tf.int32), packing, tf.float32)
    result = ops.attention(tf.constant(x, tf.float32), tf.constant(bias, tf.float32), layout, heads, None, 0, 0.1)
    own = (x + bias)[3 : 3 + length].reshape(length, 3, heads, depth)
    scores = np.einsum("qad,kad->aqk", own[:, 0], own[:, 1]) / np.sqrt(depth)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("aqk,kad->qad", p / p.sum(-1, keepdims=True), own[:, 2]).reshape(length, -1)
    np.testing.assert_allclose(result[3 : 3 + length], expected, atol=1e-5)
    assert not result[sum(lengths) :].numpy().any()  # padding
    x[0], x[-1] = np.nan, np.inf
    again = ops.attention(tf.constant(x, tf.float32), tf.constant(bias, tf.float32), layout, heads, None, 0, 0.1)
    np.testing.assert_array_equal(again[3 : 3 + length], result[3 : 3 + length])
    assert np.isnan(again[:3]).all()


# -------------------------------------------------------------------------------------------------- the pipelines
def example(number: int, **changes) -> bytes:
    length = 4 + number % (S - 3)
    values = {
        "input_ids": [number] + [7] * (length - 1) + [0] * (S - length),
        "input_mask": [1] * length + [0] * (S - length),
        "segment_ids": [0] * 2 + [1] * (length - 2) + [0] * (S - length),
        "masked_lm_positions": [2, length - 1, 0, 0],
        "masked_lm_ids": [number + 1, number + 2, 0, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0, 0.0],
        "next_sentence_labels": [number % 2],
    }
    return encode_example(PretrainingExample(**values | changes))


@pytest.mark.parametrize("rows", [ONE_ROW, ROWS, FIXED])
def test_packed_stream_has_the_records_of_the_padded_one(tmp_path, rows):
    write_tfrecord(tmp_path / "x.tfrecord", [example(number) for number in range(30)])
    records = PretrainingRecords([tmp_path], S, P, seed=1)
    for rank in range(2):
        streams = [records.batches(12, 4, 3, rank, 2, pack=pack) for pack in (None, rows)]
        for _, padded, batch in zip(range(5), *streams, strict=False):
            starts, flat = batch.packing.starts.numpy(), batch.input_ids.numpy().ravel()
            lengths = padded.input_mask.numpy().sum(1)
            assert batch.packing.lengths.numpy().tolist() == lengths.tolist()
            for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
                for name in ("input_ids", "segment_ids"):
                    own = getattr(batch, name).numpy().ravel()[start : start + length]
                    assert own.tolist() == getattr(padded, name).numpy()[row, :length].tolist()
            assert batch.next_sentence_labels.numpy().tolist() == padded.next_sentence_labels.numpy().tolist()
            real = batch.masked_lm_weights.numpy() > 0
            assert len(real) == (16 if rows.fixed else 8) and real.sum() == 8
            number = flat[starts].repeat(2)
            ends = (starts + lengths - 1).tolist()
            positions = batch.masked_lm_positions.numpy()[real].reshape(4, 2).T.tolist()
            assert positions == [(starts + 2).tolist(), ends]
            assert batch.masked_lm_ids.numpy()[real].tolist() == (number + [1, 2] * 4).tolist()
            assert batch.input_mask.numpy().sum() == lengths.sum()
        for stream in streams:
            stream.close()


@pytest.mark.parametrize(
    "changes",
    [{"input_mask": [1, 0, 1] + [0] * (S - 3)}, {"input_mask": [0] * S}, {"masked_lm_positions": [2, 20, 0, 0]}],
)
def test_a_record_whose_tokens_are_not_first_is_named(tmp_path, changes):
    write_tfrecord(tmp_path / "x.tfrecord", [example(1), example(2, **changes)])
    with pytest.raises(UserError, match=r"x.tfrecord: record 1 is not tokens followed by padding"):
        next(PretrainingRecords([tmp_path], S, P, seed=1).batches(0, 2, 1, pack=ONE_ROW))


def test_task_stream_has_the_same_features_packed():
    found = features(TAGS, 20)
    order = TrainingOrder(found.lengths, 1, 8, 5, by_length=True)
    streams = [training_batches(found, order, [S], 0, 4, pack=pack) for pack in (None, ONE_ROW)]
    for _, padded, batches in zip(range(5), *streams, strict=False):
        for one, batch in zip(padded, batches, strict=True):
            mask, real = one.input_mask.numpy() > 0, batch.input_mask.numpy() > 0
            for name in ("input_ids", "segment_ids", "labels"):
                assert getattr(one, name).numpy()[mask].tolist() == getattr(batch, name).numpy()[real].tolist()
            assert batch.weights.numpy().tolist() == [1.0] * 4
            tf.nest.assert_same_structure(batch, batch_spec(TAGS, packed=True))


# ------------------------------------------------------------------------------------------------------- the mains
@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    write_tfrecord(tmp_path / "records" / "x.tfrecord", [example(number) for number in range(40)])
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    rng = np.random.default_rng(1)
    lines = [f"id{n}\t{n % 2}\t*\t{' '.join(rng.choice(list('abcdefgh'), rng.integers(1, 20)))}" for n in range(40)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def train_losses(output: Path) -> list[float]:
    lines = read_log(output / "bert_dllog.json")
    return [line["data"]["total_loss"] for line in lines if line["type"] == "LOG" and isinstance(line["step"], int)]


def test_pretraining_and_its_resume_are_the_same_packed(data):
    values = {
        "bert_config_file": data / "config.json", "input_files_dir": data / "records", "do_train": True,
        "max_seq_length": S, "max_predictions_per_seq": P, "train_batch_size": 4, "num_accumulation_steps": 2,
        "num_warmup_steps": 1, "learning_rate": 0.01, "save_checkpoints_steps": 2, "precision": "fp32",
    }  # fmt: skip
    found = {}
    for name, pack in (("padded", False), ("packed", True), ("default", None)):
        for steps in (2, 4):
            mains.run_here(
                run_pretraining,
                values | {"output_dir": data / name, "num_train_steps": steps, "pack_sequences": pack},
            )
        found[name] = train_losses(data / name)
        assert len(found[name]) == 4
    np.testing.assert_allclose(found["packed"], found["padded"], rtol=1e-4)
    default = json.loads((data / "default" / "run_config.json").read_text())
    assert default["packed"] == (kernels.library() is not None)


def test_classification_is_the_same_packed(data):
    values = {
        "bert_config_file": data / "config.json", "vocab_file": data / "vocab.txt", "task_name": "cola",
        "data_dir": data, "do_train": True, "max_seq_length": S, "train_batch_size": 5, "num_train_epochs": 1,
        "learning_rate": 0.01, "precision": "fp32", "display_loss_steps": 1,
    }  # fmt: skip
    found = []
    for pack in (False, True):
        mains.run_here(run_classifier, values | {"output_dir": data / str(pack), "pack_sequences": pack})
        found.append(train_losses(data / str(pack)))
    assert len(found[0]) == 8
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
