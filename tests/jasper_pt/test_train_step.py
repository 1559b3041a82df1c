"""An update is the same however its global batch is split, and leaves no trace where it is skipped."""

import copy
import functools
import math

import pytest
import torch

from jasper_pt import train_step
from jasper_pt.checkpoint import Run
from jasper_pt.config import parse_config
from jasper_pt.distributed import Distributed
from jasper_pt.ema import Ema
from jasper_pt.loader import AsrBatch
from jasper_pt.losses import consistency_loss, ctc_loss
from jasper_pt.model import build_model
from jasper_pt.novograd import NovoGrad, create_optimizer
from jasper_pt.precision import PRECISIONS, LossScale, Precision
from jasper_pt.train_step import TrainingStep, pre_allocate

torch.set_num_threads(1)
LABELS = [" ", *"abcde"]
FP32, CPU = PRECISIONS["fp32"], Distributed(torch.device("cpu"))


def config(dropout=0.0, normalization="batch"):
    block = {"residual": False, "separable": True, "dropout": dropout, "normalization": normalization}
    blocks = [
        {"filters": 8, "kernel_size": 5, "stride": 2, "repeat": 1} | block,
        {"filters": 8, "kernel_size": 3, "repeat": 2} | block | {"residual": True},
    ]
    audio, features = {}, {"n_filt": 4, "dither": 0.0}
    inputs = {"audio_dataset": audio, "filterbank_features": features}
    model = {"encoder": {"in_feats": 4, "blocks": blocks}, "decoder": {"in_feats": 8}}
    return parse_config({"name": "T", "labels": LABELS, "input_train": inputs, "input_val": inputs, "quartznet": model})


def new_run(dropout=0.0, ema=0.9, loss_scaling=False, patience=10, optimizer="novograd"):
    torch.manual_seed(0)
    model = build_model(config(dropout))
    with torch.no_grad():
        for buffer in model.buffers():  # statistics worth freezing
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
    return Run(
        model,
        Ema(model, ema) if ema else None,
        create_optimizer(optimizer, model.parameters(), 0.01, 1e-3),
        LossScale(loss_scaling, patience),
    )


def new_step(run, sizes, precision=FP32, group=CPU, **options):
    """The step of one process that has all parts, of these sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    shares = list(zip([0, *ends], ends, strict=False))
    return TrainingStep(run, precision, group, ends[-1], sizes[0], shares, **options)


def examples(count=8, frames=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 4, frames, generator=generator)
    lengths = torch.randint(frames // 2, frames + 1, (count,), generator=generator)
    lengths[0] = frames
    targets = torch.randint(0, len(LABELS), (count, 4), generator=generator)
    return features, lengths, targets, torch.randint(1, 5, (count,), generator=generator)


def batches(sizes, data=None):
    """The examples cut into micro-batches."""
    data = examples(sum(sizes)) if data is None else data
    parts = zip(*(tensor.split(sizes) for tensor in data), strict=True)
    return [
        AsrBatch(*part, [f"u{i}" for i in range(size)], ["a"] * size, [1.5] * size, list(range(size)))
        for part, size in zip(parts, sizes, strict=True)
    ]


def state(run):
    return copy.deepcopy((run.model.state_dict(), run.ema and run.ema.model.state_dict(), run.optimizer.state_dict()))


def same(a, b, equal=torch.equal):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], equal) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y, equal) for x, y in zip(a, b, strict=True))
    return equal(a, b) if torch.is_tensor(a) else a == b


# ------------------------------------------------------------------------------------------------- one update
def test_an_update_is_what_its_parts_say():
    run, twin = new_run(), new_run()
    (batch,) = batches([8])
    result = new_step(run, [8])([batch], 0.02, 1)

    twin.model.train()
    log_probs, lengths = twin.model(batch.features, batch.feature_lengths)
    loss = ctc_loss(log_probs, lengths, batch.targets, batch.target_lengths)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in twin.model.parameters()]).norm()
    twin.optimizer.param_groups[0]["lr"] = 0.02
    twin.optimizer.step()
    twin.ema.update()
    # Apart, the parts run in another memory layout, which on some processors sums in another order.
    close = functools.partial(torch.allclose, rtol=1e-5, atol=1e-6)
    assert same(state(run), state(twin), close)
    assert result.loss == pytest.approx(loss.item()) and result.gradient_norm == pytest.approx(norm.item())
    assert (result.applied, result.stop, result.utterances, result.seconds) == (True, False, 8, 12.0)
    assert torch.equal(result.log_probs, log_probs) and torch.equal(result.lengths, lengths)


def test_the_rate_is_set_before_the_update_it_is_for():
    run = new_run(ema=0.0)
    before = copy.deepcopy(run.model.state_dict())
    new_step(run, [8])(batches([8]), 0.0, 1)
    assert all(torch.equal(before[name], p) for name, p in run.model.named_parameters())


def test_running_statistics_take_in_the_micro_batches_in_their_order():
    run, twin = new_run(), new_run()
    data = batches([4, 2])
    step = TrainingStep(run, FP32, CPU, 6, 3, [(0, 3), (3, 6)])  # shares say the order, batches the sizes
    step(data, 0.0, 1)
    twin.model.train()
    for batch in data:
        twin.model(batch.features, batch.feature_lengths)
    for name, found in run.model.named_buffers():
        torch.testing.assert_close(found, dict(twin.model.named_buffers())[name])


@pytest.mark.parametrize("sizes", [[4, 4], [2, 2, 2, 2], [1] * 8, [5, 3], [3, 3, 2]])
def test_splits_of_a_batch_agree_when_statistics_are_frozen(sizes):
    whole, split = new_run(), new_run()
    for update in (1, 2, 3):
        data = examples(8, seed=update)
        expected = new_step(whole, [8], freeze_bn_stats=True)(batches([8], data), 0.01, update)
        step = new_step(split, sizes, freeze_bn_stats=True)
        found = step(batches(sizes, data), 0.01, update)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)
        assert found.utterances == 8
    for a, b in zip(split.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_frozen_statistics_stay_and_others_move():
    for freeze in (True, False):
        run = new_run()
        before = {name: buffer.clone() for name, buffer in run.model.named_buffers()}
        new_step(run, [8], freeze_bn_stats=freeze)(batches([8]), 0.01, 1)
        assert all(torch.equal(before[name], b) for name, b in run.model.named_buffers()) == freeze
        assert all(torch.equal(before[name], b) for name, b in run.ema.model.named_buffers()) == freeze


def test_a_model_without_batch_norm_trains_too():
    model = build_model(config(normalization="group"))
    assert not list(model.buffers())
    run = Run(model, None, create_optimizer("novograd", model.parameters(), 0.01, 0.0), LossScale(False))
    assert new_step(run, [4, 4])(batches([4, 4]), 0.01, 1).applied


def test_gradients_of_an_earlier_update_are_gone():
    run, twin = new_run(), new_run()
    for p in run.model.parameters():
        p.grad = torch.full_like(p, 1e6)  # such as left over from an interrupted one
    new_step(run, [8])(batches([8]), 0.01, 1)
    new_step(twin, [8])(batches([8]), 0.01, 1)
    assert same(state(run), state(twin))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_micro_batches_is_an_error(count):
    with pytest.raises(ValueError, match="zip"):
        new_step(new_run(), [4, 4])(batches([4] * count) if count else [], 0.01, 1)


def test_clipping():
    gradients = {}
    for clip in (0.0, 0.5, 1e6):
        run = new_run()
        result = new_step(run, [4, 4], clip_norm=clip)(batches([4, 4]), 0.01, 1)
        norm = torch.cat([p.grad.flatten() for p in run.model.parameters()]).norm()
        gradients[clip] = float(norm)
        assert result.gradient_norm > 0.5
    assert gradients[0.5] == pytest.approx(0.5, rel=1e-5)
    assert gradients[0.0] == gradients[1e6] == pytest.approx(result.gradient_norm, rel=1e-6)


def test_a_loss_scale_changes_nothing_else():
    scaling = Precision("fp32 with a scale", torch.float32, loss_scaling=True)
    plain, scaled = new_run(), new_run(loss_scaling=True)
    for update in (1, 2):
        a = new_step(plain, [4, 4])(batches([4, 4]), 0.01, update)
        b = new_step(scaled, [4, 4], scaling)(batches([4, 4]), 0.01, update)
        assert a.gradient_norm == b.gradient_norm  # a power of two is exact
    assert scaled.loss_scale.scale == 2.0**16 and same(state(plain), state(scaled))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_precision_learns_nearly_the_same(name):
    full, half = new_run(), new_run(loss_scaling=PRECISIONS[name].loss_scaling)
    half.loss_scale.scale = min(half.loss_scale.scale, 256.0)  # the first scale is meant to overflow
    for update in (1, 2, 3):
        a = new_step(full, [8])(batches([8]), 0.01, update)
        b = new_step(half, [8], precision=PRECISIONS[name])(batches([8]), 0.01, update)
        assert b.applied and b.loss == pytest.approx(a.loss, rel=0.02)
    assert all(p.dtype == torch.float32 for p in half.model.parameters())


def test_dropout_depends_on_seed_and_update_alone():
    def loss(seed, update, disturb=0):
        torch.manual_seed(disturb)
        return new_step(new_run(dropout=0.5), [8], seed=seed)(batches([8]), 0.01, update).loss

    first = loss(0, 1)
    assert loss(0, 1, disturb=5) == first
    assert len({first, loss(0, 2), loss(1, 1)}) == 3


# -------------------------------------------------------------------------------------------- updates skipped
def poisoned(sizes=(4, 4)):
    data = examples(sum(sizes))
    data[0][-1, 0, 0] = math.nan
    return batches(list(sizes), data)


@pytest.mark.parametrize("optimizer", ["novograd", "adamw"])
def test_a_skipped_update_leaves_no_trace(optimizer):
    run = new_run(optimizer=optimizer)
    step = new_step(run, [4, 4])
    assert step(batches([4, 4]), 0.01, 1).applied
    before = state(run)
    result = step(poisoned(), 0.01, 2)
    assert not result.applied and not math.isfinite(result.loss)
    assert same(state(run)[:2], before[:2]) and same(state(run)[2]["state"], before[2]["state"])
    assert step(batches([4, 4]), 0.01, 3).applied
    assert all(torch.isfinite(value).all() for value in run.model.state_dict().values())


def test_a_run_of_them_stops_training_at_its_patience():
    run = new_run(patience=3)
    step = new_step(run, [4, 4])
    for update in (1, 2, 3):
        assert run.loss_scale.verdict() is None
        step(poisoned(), 0.01, update)
    assert "last 3 updates" in run.loss_scale.verdict()


def test_an_overflow_lowers_the_scale_and_leaves_no_trace():
    run = new_run(loss_scaling=True)
    run.loss_scale.scale = 2.0**127
    before = state(run)
    result = new_step(run, [8], precision=Precision("", torch.float32, loss_scaling=True))(batches([8]), 0.01, 1)
    assert math.isfinite(result.loss) and not math.isfinite(result.gradient_norm) and not result.applied
    assert run.loss_scale.scale == 2.0**126 and run.loss_scale.bad_updates == 0
    assert same(state(run)[:2], before[:2])


def test_a_target_too_long_to_align_costs_nothing(shared):
    """Case A09: the loss and the gradients stay finite."""
    features, lengths, _, _ = examples(2)
    targets, target_lengths = torch.ones(2, 30, dtype=torch.int64), torch.tensor([30, 2])
    run = new_run()
    result = new_step(run, [2])(batches([2], (features, lengths, targets, target_lengths)), 0.01, 1)
    assert result.applied and math.isfinite(result.loss) and result.loss > 0
    assert all(torch.isfinite(p.grad).all() for p in run.model.parameters())


def test_a_request_to_stop_is_passed_on():
    assert new_step(new_run(), [8])(batches([8]), 0.01, 1, lambda: True).stop


# ------------------------------------------------------------------------------------------- pre-allocation
def test_pre_allocation_leaves_everything_as_it_was(monkeypatch):
    run = new_run(dropout=0.5)
    step = new_step(run, [3, 3])
    before, random = state(run), torch.get_rng_state()
    shapes = []

    def watched(log_probs, *args):
        shapes.append(log_probs.shape)
        return ctc_loss(log_probs, *args)

    monkeypatch.setattr(train_step, "ctc_loss", watched)
    pre_allocate(step, 3, range(208, 241, 16), n_filt=4, n_classes=len(LABELS) + 1)
    assert shapes == [(3, frames, len(LABELS) + 1) for frames in (104, 112, 120)]
    assert same(state(run), before) and torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in run.model.parameters())
    assert isinstance(run.optimizer, NovoGrad) and not run.optimizer.state


# ----------------------------------------------------------------------------------------------------- two views
def with_views(parts):
    generator = torch.Generator().manual_seed(5)
    second = torch.randn(sum(len(part.keys) for part in parts), *parts[0].features.shape[1:], generator=generator)
    views = second.split([len(part.keys) for part in parts])
    return [part._replace(second_view=view) for part, view in zip(parts, views, strict=True)]


def test_two_views_make_one_loss():
    run, twin = new_run(), new_run()
    (batch,) = with_views(batches([8]))
    result = new_step(run, [8], consistency=0.2)([batch], 0.02, 1)

    twin.model.train()
    features = torch.cat([batch.features, batch.second_view])
    log_probs, lengths = twin.model(features, batch.feature_lengths.repeat(2))
    first, second = log_probs.split(8)
    losses = [ctc_loss(view, lengths[:8], batch.targets, batch.target_lengths) for view in (first, second)]
    loss = sum(losses) / 2 + 0.2 * consistency_loss(first, second, lengths[:8])
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in twin.model.parameters()]).norm()
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    assert result.utterances == 8 and torch.equal(result.lengths, lengths[:8])
    torch.testing.assert_close(result.log_probs, first)


@pytest.mark.parametrize("sizes", [[4, 4], [5, 3]])
def test_splits_of_two_views_agree(sizes):
    whole, split = new_run(), new_run()
    data = with_views(batches([8]))
    parts = with_views(batches(sizes, examples(8)))
    one = new_step(whole, [8], freeze_bn_stats=True, consistency=0.5)(data, 0.01, 1)
    two = new_step(split, sizes, freeze_bn_stats=True, consistency=0.5)(parts, 0.01, 1)
    assert two.loss == pytest.approx(one.loss, rel=1e-5)
    assert two.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
