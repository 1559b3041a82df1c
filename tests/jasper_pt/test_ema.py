"""The moving average follows its formula over weights and statistics, and counts what cannot be averaged."""

import numpy as np
import pytest
import torch
from torch import nn

from jasper_pt.ema import Ema
from runkit.errors import UserError


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_equals_numpy_for_every_entry():
    model = small_model()
    ema = Ema(model, 0.9)
    expected = {key: value.numpy().astype(np.float64).copy() for key, value in model.state_dict().items()}
    for seed in range(5):
        torch.manual_seed(seed)
        model(torch.randn(2, 3, 6))  # moves the statistics
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        ema.update()
        for key, value in model.state_dict().items():
            expected[key] = 0.9 * expected[key] + 0.1 * value.numpy()
    averages = ema.model.state_dict()
    assert int(averages.pop("1.num_batches_tracked")) == 5
    for key, value in averages.items():
        np.testing.assert_allclose(value.numpy(), expected[key], rtol=1e-5, atol=1e-6)
    assert {"0.weight", "0.bias", "1.weight", "1.running_mean", "1.running_var"} <= averages.keys()


def test_the_average_is_a_model_of_its_own():
    model = small_model().train()
    ema = Ema(model, 0.5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ema.model(torch.randn(2, 3, 6))
    ema.update()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training and not ema.model.training
    assert not any(parameter.requires_grad for parameter in ema.model.parameters())


def test_it_follows_a_model_that_was_loaded_or_moved_in_place():
    model = small_model()
    ema = Ema(model, 0.5)
    state = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    ema.model.load_state_dict(state)
    ema.update()
    assert all(float(value.abs().sum()) == 0 for value in ema.model.state_dict().values())


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, 1.5])
def test_unusable_decays(decay):
    with pytest.raises(UserError, match="0 switches averaging off"):
        Ema(small_model(), decay)
