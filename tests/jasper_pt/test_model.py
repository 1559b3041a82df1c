"""model.py against the published recipe's own numbers, the papers' sizes, and plain nn.Conv1d."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from small_models import BLOCKS, NAMES, VARIANTS, load_truth, small_config, true_state, undo_statistics, warmed

from jasper_pt.config import load_config
from jasper_pt.losses import ctc_loss
from jasper_pt.model import Frames, GroupNorm, build_model

LAYOUTS = ("ncl", "channels_last")


@pytest.fixture(autouse=True)
def one_thread():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------- published numbers
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_log_probs_are_those_of_the_published_code(shared, name, layout):
    model, truth = load_truth(shared, name, layout)
    undo_statistics(model, truth)
    log_probs, lengths = model.eval()(truth["input"], truth["input_lengths"])
    assert lengths.tolist() == truth["output_lengths"].tolist()
    for ours, theirs, length in zip(log_probs, truth["log_probs"], lengths, strict=True):
        torch.testing.assert_close(ours[:length], theirs[:length], rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_every_gradient_are_those_of_the_published_code(shared, name, layout):
    model, truth = load_truth(shared, name, layout)
    log_probs, lengths = model.train()(truth["input"], truth["input_lengths"])
    loss = ctc_loss(log_probs, lengths, truth["targets"], truth["target_lengths"])
    loss.backward()
    torch.testing.assert_close(loss, truth["train_loss"][0], rtol=1e-6, atol=0)
    gradients = {key.removeprefix("grad."): value for key, value in truth.items() if key.startswith("grad.")}
    parameters = dict(model.named_parameters())
    assert set(parameters) == set(gradients) and len(gradients) == {"quartznet": 42, "jasper_dense": 47}[name]
    for key, expected in gradients.items():
        error = (parameters[key].grad - expected).norm() / expected.norm().clamp(min=1e-6)
        assert error < 2e-4, key


def test_statistics_move_as_published(shared):
    """0.1 of the batch's mean and unbiased variance, padding included: the file's first BatchNorm, by hand."""
    model, truth = load_truth(shared, "jasper_dense")
    undo_statistics(model, truth)
    norm = model.encoder.layers[0].mconv[1]
    before = norm.running_mean.clone(), norm.running_var.clone()
    x = truth["input"].clone()
    for utterance, length in zip(x, truth["input_lengths"].tolist(), strict=True):
        utterance[:, length:] = 0
    z = nn.functional.conv1d(x, model.encoder.layers[0].mconv[0].weight, stride=2, padding=5).transpose(0, 1).flatten(1)
    after = true_state(truth)
    for name, old, new in zip(("mean", "var"), before, (z.mean(1), z.var(1)), strict=True):
        expected = after[f"encoder.layers.0.mconv.1.running_{name}"]
        torch.testing.assert_close(0.9 * old + 0.1 * new, expected, rtol=1e-4, atol=1e-5)


def test_jasper_has_its_own_names(shared):
    """A dense Jasper's state under the names conv, res, out is that of the same network under QuartzNet's names."""
    model, truth = load_truth(shared, "jasper_dense")
    model.eval()
    blocks = [
        {"filters": 24, "repeat": 1, "kernel_size": 11, "stride": 2, "residual": False},
        *(
            {"filters": f, "repeat": 2, "kernel_size": k, "residual_dense": True}
            for f, k in ((24, 11), (32, 13), (40, 17))
        ),
        {"filters": 40, "repeat": 1, "kernel_size": 29, "dilation": 2, "residual": False},
        {"filters": 48, "repeat": 1, "kernel_size": 1, "residual": False},
    ]
    jasper = build_model(small_config(blocks, "jasper")).eval()
    renamed = {key.replace(".mconv.", ".conv."): value for key, value in model.state_dict().items()}
    assert "encoder.layers.3.res.2.1.running_var" in renamed and "encoder.layers.3.conv.4.weight" in renamed
    jasper.load_state_dict(renamed)
    inputs = truth["input"], truth["input_lengths"]
    assert torch.equal(jasper(*inputs)[0], model(*inputs)[0])


# ----------------------------------------------------------------------------------------------------- architecture
@pytest.mark.parametrize(
    "name, parameters, tensors, entries, receptive_field",
    [
        ("quartznet5x5", 6_713_181, None, None, None),
        ("quartznet10x5", 12_818_781, None, None, None),
        ("quartznet15x5", 18_924_381, 358, 637, 8057),
        ("jasper10x5dr", 332_632_349, None, None, None),
        ("jasper5x3", 107_681_053, None, None, None),
    ],
)
def test_sizes(name, parameters, tensors, entries, receptive_field):
    config = load_config(name)
    with torch.device("meta"):
        model = build_model(config, config.n_classes)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert tensors is None or len(list(model.parameters())) == tensors
    assert entries is None or len(model.state_dict()) == entries
    assert receptive_field is None or model.receptive_field == receptive_field
    assert model.stride == 2
    assert [model.output_lengths(n) for n in (0, 1, 2, 3, 208, 1679, 1680)] == [0, 1, 1, 2, 104, 840, 840]


@pytest.mark.parametrize(
    "block, parameters",
    [(0, 19_008), (1, 438_528), (4, 446_208), (7, 1_434_368), (8, 1_709_568), (10, 1_740_288), (13, 1_771_008),
     (16, 307_712), (17, 526_336)],
)  # fmt: skip
def test_sizes_of_quartznet_blocks(block, parameters):
    with torch.device("meta"):
        model = build_model(load_config("quartznet15x5"))
    assert sum(p.numel() for p in model.encoder.layers[block].parameters()) == parameters


def test_names_and_places_of_a_separable_block():
    with torch.device("meta"):
        model = build_model(load_config("quartznet5x5"))
    keys = {key.removeprefix("encoder.layers.1.") for key in model.state_dict() if key.startswith("encoder.layers.1.")}
    weights = {key for key in keys if key.endswith("weight")}
    places = [0, 1, 2, 5, 6, 7, 10, 11, 12, 15, 16, 17, 20, 21, 22]
    assert weights == {f"mconv.{i}.weight" for i in places} | {"res.0.0.weight", "res.0.1.weight"}
    assert tuple(model.encoder.layers[1].mconv[0].weight.shape) == (256, 1, 33)
    assert tuple(model.encoder.layers[1].mconv[1].weight.shape) == (256, 256, 1)
    assert {"decoder.layers.0.weight", "decoder.layers.0.bias"} <= set(model.state_dict())


@pytest.mark.parametrize("scheme", ["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"])
def test_initial_weights(scheme):
    """Fan-in of a depthwise filter is K, fan-out C K; kaiming's gain is that of ReLU."""
    block = {"filters": 256, "kernel_size": 33, "repeat": 1, "residual": False, "separable": True}
    model = build_model(small_config([block], init=scheme))
    depthwise, pointwise, norm = model.encoder.layers[0].mconv
    for weight, fan_in, fan_out in ((depthwise.weight, 33, 64 * 33), (pointwise.weight, 64, 256)):
        deviation = (2 / (fan_in + fan_out)) ** 0.5 if "xavier" in scheme else (2 / fan_in) ** 0.5
        assert weight.std().item() == pytest.approx(deviation, rel=0.1)
        assert ("uniform" in scheme) == (weight.abs().max().item() <= 3**0.5 * deviation * (1 + 1e-6))
    assert (norm.eps, norm.momentum) == (1e-3, 0.1)
    assert torch.equal(norm.weight, torch.ones(256)) and torch.equal(norm.running_var, torch.ones(256))


# ------------------------------------------------------------------------------------------------ padding and batches
@pytest.mark.parametrize("activation", ["relu", "selu", "hardtanh"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_utterance_does_not_feel_its_batch(layout, variant, activation):
    blocks = [block | VARIANTS[variant] for block in BLOCKS]
    model = warmed(small_config(blocks, activation=activation))
    model.layout = layout
    features = 3 * torch.randn(5, 64, 96)
    lengths = torch.tensor([96, 71, 40, 1, 0])
    with torch.no_grad():
        together, out_lengths = model(features, lengths)
        assert out_lengths.tolist() == [48, 36, 20, 1, 0]
        junk = nn.functional.pad(features, (0, 32), value=100.0)
        padded, _ = model(junk, lengths)
        for b, length in enumerate(lengths.tolist()[:4]):
            alone, _ = model(features[b : b + 1, :, :length], lengths[b : b + 1])
            valid = slice(out_lengths[b])
            torch.testing.assert_close(alone[0], together[b, valid], rtol=0, atol=1e-4)
            torch.testing.assert_close(padded[b, valid], together[b, valid], rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("masks", [True, False])
def test_layouts_agree_in_values_and_gradients(variant, masks):
    config = small_config([block | VARIANTS[variant] for block in BLOCKS], use_conv_masks=masks)
    model = build_model(config).train()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    features, lengths = torch.randn(3, 64, 60), torch.tensor([60, 33, 12])
    results = {}
    for layout in LAYOUTS:
        model.load_state_dict(start)
        model.layout = layout
        inputs = features.clone().requires_grad_()
        log_probs, out_lengths = model(inputs, lengths)
        loss = ctc_loss(log_probs, out_lengths, torch.randint(0, 28, (3, 4), generator=torch.manual_seed(1)),
                        torch.tensor([4, 3, 2]))  # fmt: skip
        model.zero_grad()
        loss.backward()
        results[layout] = [loss, inputs.grad, *(p.grad for p in model.parameters()), *model.buffers()]
        results[layout] = [tensor.detach().double() for tensor in results[layout]]
        if masks:  # exactly
            assert not inputs.grad[1, :, 33:].any() and not inputs.grad[2, :, 12:].any()
    for ncl, last in zip(*results.values(), strict=True):
        assert (ncl - last).norm() <= 1e-3 * ncl.norm().clamp(min=1e-3)


def test_bfloat16_training_on_channels_last_is_close_and_keeps_float32_weights():
    model = build_model(small_config(BLOCKS)).train()
    features, lengths = torch.randn(3, 64, 64), torch.tensor([64, 33, 12])
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            log_probs, out_lengths = model(features, lengths)
        assert log_probs.dtype == torch.float32
        model.zero_grad()
        ctc_loss(log_probs, out_lengths, torch.ones(3, 2, dtype=torch.int64), torch.tensor([2, 2, 2])).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert gradients[1].dtype == torch.float32
    assert nn.functional.cosine_similarity(*gradients, 0) > 0.95


def test_masks_are_made_once_for_each_length_vector(monkeypatch):
    made = []
    original = Frames.__init__
    monkeypatch.setattr(Frames, "__init__", lambda self, *a, **k: (made.append(a), original(self, *a, **k))[1])
    build_model(small_config(BLOCKS))(torch.randn(2, 64, 20), torch.tensor([20, 10]))
    assert len(made) == 2  # before and behind the stride


def test_lengths_out_of_range_are_refused():
    model = build_model(small_config(BLOCKS))
    for wrong in (21, -1):
        with pytest.raises(ValueError, match=r"lengths must lie in 0\.\.20"):
            model(torch.randn(2, 64, 20), torch.tensor([20, wrong]))


def test_group_norm_is_that_of_the_valid_frames():
    norm = GroupNorm(3, 12)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 12, 20)
    x[1, :, 7:] = 0
    y = norm(x, Frames(torch.tensor([20, 7]), 20))
    plain = nn.functional.group_norm(x[1:, :, :7], 3, norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(y[1:, :, :7], plain)
    torch.testing.assert_close(y[:1], nn.functional.group_norm(x[:1], 3, norm.weight, norm.bias, norm.eps))


def test_dropout_is_for_training_only():
    blocks = [block | {"dropout": 0.5} for block in BLOCKS]
    model = build_model(small_config(blocks))
    features, lengths = torch.randn(2, 64, 40), torch.tensor([40, 40])
    assert not torch.equal(model.train()(features, lengths)[0], model(features, lengths)[0])
    assert torch.equal(model.eval()(features, lengths)[0], model(features, lengths)[0])
