"""The update: independent of how a global batch is split, safe against gradients that are not finite."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import losses, model
from bert_tf.distributed import Distributed
from bert_tf.input_pipeline import Batch
from bert_tf.ops import DropoutKey
from bert_tf.optimization import create_optimizer
from bert_tf.precision import LossScale
from bert_tf.train_step import TrainStep, create_evaluation
from bert_tf.weights import ComputeWeights

CONFIG = model.BertConfig(
    vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=16, type_vocab_size=2,
)  # fmt: skip
LEARNING_RATE = 0.02


def make_batch(examples=8, length=12, predictions=4, seed=0) -> Batch:
    rng = np.random.default_rng(seed)
    mask = (np.arange(length)[None, :] < rng.integers(6, length + 1, examples)[:, None]).astype(np.int32)
    ids = rng.integers(0, CONFIG.vocab_size, (examples, length)) * mask
    positions = np.stack([rng.permutation(6)[:predictions] for _ in range(examples)])
    labels = rng.integers(0, CONFIG.vocab_size, (examples, predictions))
    counts = rng.integers(1, predictions + 1, examples)  # rows with different numbers of masked words
    weights = (np.arange(predictions)[None, :] < counts[:, None]).astype(np.float32)
    integers = (ids, mask, np.zeros_like(ids), positions, labels)
    return Batch(*(tf.constant(a, tf.int32) for a in integers), tf.constant(weights),
                 tf.constant(rng.integers(0, 2, examples), tf.int32))  # fmt: skip


def split(batch: Batch, parts: int) -> list[Batch]:
    return [Batch(*tensors) for tensors in zip(*(tf.split(t, parts) for t in batch[:7]), strict=True)]


class Setup:
    def __init__(self, accumulation, optimizer="lamb", dtype=tf.float32, loss_scale=None, group=None, **options):
        self.bert = model.BertForPreTraining(CONFIG, seed=5)
        self.weights = ComputeWeights(self.bert.variables, dtype)
        self.optimizer = create_optimizer(optimizer, self.weights.masters)
        self.loss_scale = loss_scale or LossScale(False)
        self.step = TrainStep(self.bert, losses.Pretraining(), self.weights, self.optimizer, self.loss_scale,
                              group or Distributed(), accumulation, seed=5, **options)  # fmt: skip

    def values(self) -> dict[str, np.ndarray]:
        slots = self.optimizer.slots
        return {model.variable_name(v): v.numpy() for v in [*self.weights.masters, *slots.values()]}


def run(accumulation: int, updates: int = 2, **options):
    setup = Setup(accumulation, **options)
    results = [setup.step(split(make_batch(seed=u), accumulation), LEARNING_RATE, u) for u in range(updates)]
    return setup, results


@pytest.fixture(scope="module")
def whole():
    return run(1)


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_accumulation_gives_the_update_of_the_whole_batch(whole, accumulation):
    """8x1 = 4x2 = 2x4 = 1x8, with dropout on, moments included, though rows differ in masked words."""
    setup, results = run(accumulation)
    for got, want in zip(results, whole[1], strict=True):
        np.testing.assert_allclose(got.gradient_norm, want.gradient_norm, rtol=1e-5)
        np.testing.assert_allclose(np.array(got.sums), np.array(want.sums), rtol=1e-5)
    expected = whole[0].values()
    for name, value in setup.values().items():
        # LAMB's first steps divide gradients by their own size: rounding of a tiny gradient shows in full.
        np.testing.assert_allclose(value, expected[name], atol=2e-5, err_msg=name)
    assert int(setup.optimizer.step) == 2


def test_gradients_are_those_of_a_plain_mean_loss():
    """Against one tape over the loss as the paper writes it, without any of the step's machinery."""
    setup, batch = Setup(1, optimizer="adam"), make_batch()
    before = setup.values()
    key = setup.step._dropout_key(0, 0, batch)
    with tf.GradientTape() as tape:
        sums = losses.pretraining_sums(setup.bert(batch, setup.weights, key), batch)
        loss = sums.masked_lm_loss / sums.masked_lm_weight + sums.next_sentence_loss / 8
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, setup.weights.masters)]
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
    result = setup.step([batch], LEARNING_RATE, 0)
    np.testing.assert_allclose(result.gradient_norm, norm, rtol=1e-4)
    assert norm > 1  # so that clipping shows
    for variable, gradient in zip(setup.weights.masters, gradients, strict=True):
        moment = setup.optimizer.slots[f"{model.variable_name(variable)}/adam_m"]
        np.testing.assert_allclose(moment, 0.1 * gradient / norm, atol=1e-6)
    assert any(np.any(before[name] != value) for name, value in setup.values().items())


class FakeGroup(Distributed):
    """Rank `rank` of `size`; the other ranks' contributions are given, as every rank would compute them."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.calls: list[str] = []

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor], compression=None, name="tensors"):
        self.calls.append(name)
        return [t * self.size for t in tensors]  # all ranks hold the same data in this test


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_gradients_are_exchanged_once_an_update(micro_batches):
    group = FakeGroup(0, 2)
    setup = Setup(micro_batches, group=group)
    setup.step(split(make_batch(), micro_batches // 2), LEARNING_RATE, 0)
    assert [name for name in group.calls if name == "gradients"] == ["gradients"]


def test_micro_batches_are_dealt_although_the_processes_do_not_divide_them():
    steps = [Setup(5, group=FakeGroup(rank, 3)).step for rank in range(3)]
    assert [step.own_micro_batches for step in steps] == [2, 2, 1]
    with pytest.raises(ValueError, match="nothing for rank 2"):
        Setup(2, group=FakeGroup(2, 3))


def test_a_process_asked_to_stop_tells_all(whole):
    setup = Setup(1)
    assert not whole[1][0].stop
    assert setup.step([make_batch()], LEARNING_RATE, 0, stop=True).stop


def test_own_loss_is_this_processs_share(whole):
    result = whole[1][0]
    np.testing.assert_allclose(result.own_loss, result.sums.means()["loss"], rtol=1e-6)


def test_ranks_draw_the_dropout_of_their_place():
    setup = Setup(6, group=FakeGroup(1, 3))
    key = setup.step._dropout_key(7, 1, make_batch(examples=4))
    assert int(key.first_row) == (1 * 3 + 1) * 4
    assert int(Setup(2).step._dropout_key(7, 0, make_batch()).seed) == int(key.seed)


# ------------------------------------------------------------------------------------------- not finite
def poison(setup):
    """Makes the forward pass overflow until cured."""
    kernel = setup.weights.masters[-1]
    value = kernel.numpy()
    setup.weights.refresh(kernel, tf.fill(kernel.shape, np.float32(np.inf)))
    return lambda: setup.weights.refresh(kernel, tf.constant(value))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_an_update_that_is_not_finite_moves_nothing_but_the_loss_scale(accumulation):
    setup = Setup(accumulation, dtype=tf.float16, loss_scale=LossScale(True, initial=1024.0))
    batches = split(make_batch(), accumulation)
    assert setup.step(batches, LEARNING_RATE, 0).applied
    cure = poison(setup)
    before = setup.values()
    result = setup.step(batches, LEARNING_RATE, 1)
    assert not result.applied and not np.isfinite(result.gradient_norm)
    assert float(setup.loss_scale.scale) == 512.0
    assert int(setup.optimizer.step) == 1
    for name, value in setup.values().items():
        assert np.array_equal(value, before[name], equal_nan=True), name
    cure()
    assert setup.step(batches, LEARNING_RATE, 2).applied and int(setup.optimizer.step) == 2


def test_one_bad_micro_batch_of_four_skips_exactly_one_update():
    setup = Setup(4, dtype=tf.float16, loss_scale=LossScale(True, initial=2.0**32))
    batches = split(make_batch(), 4)
    skipped = 0
    while not setup.step(batches, LEARNING_RATE, skipped).applied:
        skipped += 1
        assert int(setup.optimizer.step) == 0
    # 2^32 times a gradient near 1 is beyond float16's 65504: about sixteen halvings bring it back.
    assert 10 <= skipped <= 24 and float(setup.loss_scale.scale) == 2.0 ** (32 - skipped)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_reduced_precision_follows_float32(whole, dtype):
    setup, results = run(2, dtype=dtype, loss_scale=LossScale(dtype == tf.float16))
    for got, want in zip(results, whole[1], strict=True):
        assert got.applied
        np.testing.assert_allclose(got.sums.means()["loss"], want.sums.means()["loss"], rtol=0.01)
        np.testing.assert_allclose(got.gradient_norm, want.gradient_norm, rtol=0.05)
    copy = setup.weights(setup.weights.masters[0])
    assert np.array_equal(copy.numpy(), tf.cast(setup.weights.masters[0], dtype).numpy())  # copies follow the masters


def test_xla_gives_the_same_update(whole):
    setup, _ = run(2, use_xla=True)
    for name, value in setup.values().items():
        np.testing.assert_allclose(value, whole[0].values()[name], atol=2e-5, err_msg=name)


# -------------------------------------------------------------------------------------------- evaluation
@pytest.mark.parametrize("batch_size", [1, 3, 8, 16])
def test_evaluation_counts_every_example_once(batch_size):
    setup, batch = Setup(1), make_batch(examples=8)
    evaluate = create_evaluation(setup.bert, losses.Pretraining(), setup.weights)
    reference = losses.pretraining_sums(setup.bert(batch, setup.weights), batch)
    total = losses.PretrainingSums(*[0.0] * 6)
    for start in range(0, 8, batch_size):
        part = Batch(*(t[start : start + batch_size] for t in batch[:7]))
        total = total + evaluate(losses.pad_batch(part, batch_size))
    assert float(total.examples) == 8
    np.testing.assert_allclose(np.array(total, np.float64), np.array(reference, np.float64), rtol=1e-5)


def test_sums_by_numpy():
    rng = np.random.default_rng(1)
    batch = make_batch(examples=3)
    logits = model.PretrainingLogits(tf.constant(rng.normal(size=(12, 61)), tf.float32),
                                     tf.constant(rng.normal(size=(3, 2)), tf.float32))  # fmt: skip
    sums = losses.pretraining_sums(logits, batch)

    def nll(x, y):
        x = x.astype(np.float64)
        return np.log(np.exp(x).sum(-1)) - x[np.arange(len(y)), y]

    ids, weights = batch.masked_lm_ids.numpy().ravel(), batch.masked_lm_weights.numpy().ravel()
    labels = batch.next_sentence_labels.numpy()
    np.testing.assert_allclose(sums.masked_lm_loss, (nll(logits[0].numpy(), ids) * weights).sum(), rtol=1e-5)
    np.testing.assert_allclose(sums.next_sentence_loss, nll(logits[1].numpy(), labels).sum(), rtol=1e-5)
    assert float(sums.masked_lm_correct) == ((logits[0].numpy().argmax(-1) == ids) * weights).sum()
    assert float(sums.next_sentence_correct) == (logits[1].numpy().argmax(-1) == labels).sum()
    means = sums.means()
    np.testing.assert_allclose(means["loss"], means["masked_lm_loss"] + means["next_sentence_loss"])


def test_dropout_key_is_a_function_of_seed_and_update():
    key: DropoutKey = Setup(1).step._dropout_key(3, 0, make_batch())
    again = Setup(1).step._dropout_key(3, 0, make_batch())
    other = Setup(1).step._dropout_key(4, 0, make_batch())
    assert int(key.seed) == int(again.seed) != int(other.seed)
