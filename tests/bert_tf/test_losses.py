"""Objectives of fine-tuning against NumPy, and their independence of padding, buckets and splits."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import losses, model
from bert_tf.distributed import Distributed
from bert_tf.features import CLASS, SPAN, TAGS, VALUE, FeatureSet, TaskBatch, batch_spec
from bert_tf.ops import DropoutKey
from bert_tf.optimization import create_optimizer
from bert_tf.precision import LossScale
from bert_tf.records import Feature
from bert_tf.train_step import TrainStep
from bert_tf.weights import ComputeWeights

CONFIG = model.BertConfig(
    vocab_size=61, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=64, type_vocab_size=2,
)  # fmt: skip


def make_classifier(seed=5):
    return model.BertForClassification(CONFIG, 3, seed)


# name: model, objective, kind, label of a feature of n tokens
TASKS = {
    "classification": (make_classifier, losses.Classification(), CLASS, lambda rng, n: int(rng.integers(3))),
    "regression": (lambda: model.BertForClassification(CONFIG, 1, 5), losses.Regression(), VALUE,
                   lambda rng, n: float(rng.normal())),
    "answers": (lambda: model.BertForQuestionAnswering(CONFIG, 5), losses.QuestionAnswering(), SPAN,
                lambda rng, n: tuple(sorted(rng.integers(0, n, 2).tolist()))),
    "tagging": (lambda: model.BertForTagging(CONFIG, 4, 5), losses.Tagging(), TAGS,
                lambda rng, n: rng.integers(0, 4, n).tolist()),
}  # fmt: skip


def make_features(name: str, count=8) -> FeatureSet:
    rng = np.random.default_rng(3)
    label, kind = TASKS[name][3], TASKS[name][2]
    lengths = rng.integers(4, 20, count)
    return FeatureSet(
        [Feature(rng.integers(1, 61, n).tolist(), [0] * (n // 2) + [1] * (n - n // 2), label(rng, n)) for n in lengths],
        kind,
    )


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# -------------------------------------------------------------------------------------------- values by NumPy
def batch_of(labels, mask=None, weights=None) -> TaskBatch:
    mask = np.ones([len(labels), 4], np.int32) if mask is None else np.array(mask, np.int32)
    weights = np.ones(len(labels), np.float32) if weights is None else np.array(weights, np.float32)
    return TaskBatch(*map(tf.constant, (mask, mask, mask, np.array(labels), weights)))


def check(sums: losses.TaskSums, loss: float, correct: float, count: float) -> None:
    np.testing.assert_allclose([float(x) for x in sums], [loss, correct, count], rtol=1e-6)


def test_classification():
    logits = np.array([[2.0, 0.5, -1.0], [0.0, 0.1, 0.3], [1.0, 3.0, 2.0], [9.0, 9.0, 9.0]], np.float32)
    nll = -log_softmax(logits.astype(np.float64))
    batch = batch_of(np.array([0, 1, 1, 0], np.int32), weights=[1, 1, 1, 0])
    check(losses.Classification().sums(tf.constant(logits), batch), nll[0, 0] + nll[1, 1] + nll[2, 1], 2, 3)


def test_regression():
    batch = batch_of(np.array([1.0, -2.0, 5.0], np.float32), weights=[1, 1, 0])
    check(losses.Regression().sums(tf.constant([[1.5], [1.0], [7.0]]), batch), 0.25 + 9.0, 0, 2)


def test_answers_leave_padding_out():
    logits = np.random.default_rng(0).normal(size=[2, 4, 2]).astype(np.float32)
    logits[0, 2, 0] = logits[0, 3, 1] = 9.0  # the best places of row 0: one real, one padding
    batch = batch_of(np.array([[2, 2], [0, 3]], np.int32), mask=[[1, 1, 1, 0], [1, 1, 1, 1]])
    start, end = logits[..., 0].astype(np.float64), logits[..., 1].astype(np.float64)
    expected = -sum(
        (log_softmax(x[row, :n])[label]) / 2
        for row, n, labels in ((0, 3, (2, 2)), (1, 4, (0, 3)))
        for x, label in zip((start, end), labels, strict=True)
    )
    sums = losses.QuestionAnswering().sums(tf.constant(logits), batch)
    right = sum(
        int(start[row, :n].argmax() == labels[0] and end[row, :n].argmax() == labels[1])
        for row, n, labels in ((0, 3, (2, 2)), (1, 4, (0, 3)))
    )
    check(sums, expected, right, 2)


def test_tagging_counts_labelled_tokens():
    logits = np.random.default_rng(1).normal(size=[2, 3, 4]).astype(np.float32)
    labels = np.array([[1, 3, 0], [2, 0, 0]], np.int32)
    nll = -log_softmax(logits.astype(np.float64))
    expected = nll[0, 0, 1] + nll[0, 1, 3] + nll[1, 0, 2]
    best = logits.argmax(-1)
    check(losses.Tagging().sums(tf.constant(logits), batch_of(labels)), expected,
          sum((best == labels)[labels > 0]), 3)  # fmt: skip
    np.testing.assert_array_equal(losses.Tagging().counts(batch_of(labels)), [3])


# ------------------------------------------------------------------------------------------ padding and splits
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("dropout", [False, True])
def test_padding_changes_neither_loss_nor_logits_nor_gradients(name, dropout):
    build, objective, _, _ = TASKS[name]
    bert, features = build(), make_features(name)
    weights = ComputeWeights(bert.variables, tf.float32)
    key = DropoutKey(tf.constant(7, tf.uint32), tf.constant(2, tf.uint32)) if dropout else None
    results = []
    for length in (int(features.lengths.max()), 32, 64):
        batch = features.batch(range(8), length, rows=8)
        with tf.GradientTape() as tape:
            outputs = bert(batch, weights, key)
            sums = objective.sums(outputs, batch)
        gradients = weights.gradients(sums.loss, tape)
        tokens = [outputs[row, : int(n)] if len(outputs.shape) == 3 else outputs[row]
                  for row, n in enumerate(features.lengths)]  # fmt: skip
        results.append((sums, tokens, gradients))
    for sums, tokens, gradients in results[1:]:
        np.testing.assert_allclose(np.array(sums), np.array(results[0][0]), rtol=1e-5)
        for got, want in zip(tokens, results[0][1], strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)
        for got, want in zip(gradients, results[0][2], strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("name", TASKS)
def test_buckets_and_accumulation_give_the_update_of_the_whole_padded_batch(name):
    """8 rows padded to 64 at once, or 2 micro-batches of 4 in buckets of their own: the same weights, dropout on."""
    build, objective, kind, _ = TASKS[name]
    features = make_features(name)
    order = np.argsort(-features.lengths, kind="stable")
    whole = [features.batch(order, 64)]
    parts = [features.batch(part, int(features.lengths[part].max())) for part in (order[:4], order[4:])]
    assert parts[1].input_ids.shape[1] < parts[0].input_ids.shape[1]
    values = []
    for batches in (whole, parts):
        bert = build()
        weights = ComputeWeights(bert.variables, tf.float32)
        step = TrainStep(bert, objective, weights, create_optimizer("adam", weights.masters), LossScale(False),
                         Distributed(), len(batches), seed=3, batch_spec=batch_spec(kind))  # fmt: skip
        result = step(batches, 0.01, 0)
        assert result.applied
        values.append((np.array(result.sums), result.gradient_norm, [v.numpy() for v in weights.masters]))
    np.testing.assert_allclose(values[1][0], values[0][0], rtol=1e-5)
    np.testing.assert_allclose(values[1][1], values[0][1], rtol=1e-5)
    for got, want in zip(values[1][2], values[0][2], strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_rows_that_fill_a_batch_count_for_nothing():
    features = make_features("answers", 3)
    bert = model.BertForQuestionAnswering(CONFIG, 5)
    weights = ComputeWeights(bert.variables, tf.float32)
    sums = []
    for rows in (3, 8):
        batch = features.batch(range(3), 32, rows)
        sums.append(np.array(losses.QuestionAnswering().sums(bert(batch, weights), batch)))
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-6)
    assert sums[0][2] == 3
