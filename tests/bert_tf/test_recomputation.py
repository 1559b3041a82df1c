"""Activation recomputation: the same numbers, bit for bit, from less memory."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import kernels, losses, model, ops
from bert_tf.ops import DropoutKey
from bert_tf.weights import ComputeWeights
from tests.bert_tf import test_packing, test_train_step

CONFIG = dataclasses.replace(test_train_step.CONFIG, num_hidden_layers=2)
ROOT = Path(__file__).resolve().parents[2]


def loss_and_gradients(dtype, recompute: bool, use_xla: bool = False) -> list[np.ndarray]:
    bert = model.BertForPreTraining(CONFIG, seed=5)
    bert.bert.recompute_activations = recompute
    weights, batch = ComputeWeights(bert.variables, dtype), test_train_step.make_batch()
    key = DropoutKey(tf.constant(3, tf.uint32), tf.constant(0, tf.uint32))

    @tf.function(jit_compile=use_xla or None, autograph=False)
    def run():
        with ops.inside_xla(use_xla):
            with tf.GradientTape() as tape:
                weights.watch(tape)
                sums = losses.pretraining_sums(bert(batch, weights, key), batch)
                loss = sums.masked_lm_loss + sums.next_sentence_loss
            return [loss, *weights.gradients(loss, tape)]

    return [tf.cast(value, tf.float32).numpy() for value in run()]


@pytest.fixture(params=["", "xla"])
def implementation(request, monkeypatch):
    """Our kernels where there is a compiler, and XLA's functions in their place."""
    monkeypatch.setenv("BERT_KERNELS", request.param)
    kernels.library.cache_clear()
    yield request.param
    monkeypatch.undo()
    kernels.library.cache_clear()


def test_loss_and_gradients_are_the_same_bit_for_bit(implementation):
    dtype = tf.float32 if implementation == "xla" else tf.bfloat16
    kept, again = loss_and_gradients(dtype, False), loss_and_gradients(dtype, True)
    for one, other in zip(kept, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(np.any(gradient != 0) for gradient in again[1:] if gradient.size > 1)


def test_inside_one_xla_program():
    for one, other in zip(
        loss_and_gradients(tf.float32, False, True), loss_and_gradients(tf.float32, True, True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_updates_with_accumulation_are_the_same(monkeypatch):
    monkeypatch.setattr(test_train_step, "CONFIG", CONFIG)
    batches = test_train_step.split(test_train_step.make_batch(), 4)
    values = []
    for recompute in (False, True):
        setup = test_train_step.Setup(4)
        setup.bert.bert.recompute_activations = recompute
        for update in range(2):
            assert setup.step(batches, test_train_step.LEARNING_RATE, update).applied
        values.append(setup.values())
    for name, value in values[0].items():
        np.testing.assert_array_equal(value, values[1][name], err_msg=name)


def test_evaluation_is_left_alone():
    bert = model.BertForPreTraining(CONFIG, seed=5)
    weights, batch = ComputeWeights(bert.variables, tf.float32), test_train_step.make_batch()
    before = bert(batch, weights).masked_lm.numpy()
    bert.bert.recompute_activations = True
    np.testing.assert_array_equal(bert(batch, weights).masked_lm.numpy(), before)


PEAK = """
import sys
import bert_tf.quiet_tensorflow
import tensorflow as tf
from bert_tf import model
from bert_tf.ops import DropoutKey
from bert_tf.weights import ComputeWeights

config = model.BertConfig(61, 64, 16, 2, 512, max_position_embeddings=256, type_vocab_size=2)
bert = model.Encoder(config, model.Initializer(1, 0.02), has_pooler=False)
bert.recompute_activations = sys.argv[1] == "again"
weights, ids = ComputeWeights(bert.variables, tf.float32), tf.zeros([24, 256], tf.int32)
key = DropoutKey(tf.constant(3, tf.uint32), tf.constant(0, tf.uint32))

@tf.function(autograph=False)
def run():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(bert(ids, ids + 1, ids, weights, key)))
    return weights.gradients(loss, tape)

run()
# Not getrusage: its maximum begins with that of the process that started this one.
status = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
"""


def test_peak_memory_falls():
    """16 layers of 6144 x (8 x 64 + 2 x 512) x 4 = 38 MB each: 604 MB, of which 25 + 2 x 38 MB are left (no scores are
    kept)."""
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", PEAK, how], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
        )
        for how in ("kept", "again")
    ]
    assert peaks[1] < peaks[0] - 300e6


def test_packed_batches_have_the_same_gradients():
    bert, objective, _, pack = test_packing.pretraining_case()
    batch, key = pack(test_packing.ROWS), DropoutKey(tf.constant(3, tf.uint32), tf.constant(0, tf.uint32))
    found = []
    for recompute in (False, True):
        bert.bert.recompute_activations = recompute
        found.append(test_packing.loss_and_gradients(bert, objective, batch, key))
    for one, other in zip(*map(tf.nest.flatten, found), strict=True):
        np.testing.assert_array_equal(one, other)
