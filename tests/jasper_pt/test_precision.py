"""What the precisions mean, and what is done about updates that are not finite."""

import json
import re

import pytest
import torch

from jasper_pt.precision import PRECISIONS, LossScale, choose_precision
from runkit.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "amp", "device", "expected"),
    [
        (None, False, CPU, "fp32"),
        (None, False, GPU, "tf32"),
        (None, True, CPU, "bf16"),
        (None, True, GPU, "fp16"),
        ("fp32", True, GPU, "fp32"),
        ("bf16", False, CPU, "bf16"),
    ],
)
def test_choice(name, amp, device, expected):
    assert choose_precision(name, amp, device).name == expected


def test_unknown_name():
    with pytest.raises(UserError, match="fp32, tf32, bf16, fp16"):
        choose_precision("int8", False, CPU)
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        choose_precision("fp16", False, CPU)


@pytest.mark.parametrize("name", PRECISIONS)
def test_autocast_computes_products_in_the_dtype(name):
    precision = PRECISIONS[name]
    with precision.autocast(CPU):
        product = torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
    assert product.dtype == precision.dtype
    assert precision.loss_scaling == (name == "fp16")


def test_activate_sets_the_switches_and_can_take_them_back():
    PRECISIONS["tf32"].activate()
    assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
    PRECISIONS["fp32"].activate()
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32


# ------------------------------------------------------------------------------------------------- loss scale
def test_overflows_lower_the_scale_as_in_case_L01_and_then_stop_training(shared):
    expected = json.loads((shared / "cases" / "L01" / "expected.json").read_text())
    scale = LossScale(enabled=True)
    scales = {}
    for step in range(1, 29):
        applied = scale.update(loss_finite=True, gradient_finite=step <= 2)
        assert applied == (step <= 2)
        scales[str(step)] = scale.scale
        if step < 28:
            assert scale.verdict() is None
    assert scales | expected["scale_after_steps"] == scales
    assert min(scales.values()) == expected["never_below"] == 1.0
    assert re.search("last 10 updates.*loss scale 1.*weights are as they were", scale.verdict())


def test_good_updates_raise_the_scale_and_end_a_run_of_bad_ones():
    scale = LossScale(enabled=True, initial=4.0)
    for _ in range(1999):
        scale.update(True, True)
    assert scale.scale == 4.0
    scale.update(True, True)
    assert scale.scale == 8.0
    scale.update(True, False)
    assert (scale.scale, scale.good_updates, scale.skipped_updates) == (4.0, 0, 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_losses_that_are_not_finite_spend_the_patience(enabled):
    scale = LossScale(enabled, patience=3)
    start = scale.scale
    for _ in range(2):
        assert not scale.update(loss_finite=False, gradient_finite=False)
    assert scale.verdict() is None
    assert scale.update(True, True)  # one good update: patience anew
    for _ in range(3):
        assert scale.verdict() is None
        scale.update(False, False)
    assert scale.scale == start and "last 3 updates" in scale.verdict()


def test_state_round_trip_also_from_torchs_scaler():
    scale = LossScale(True)
    for good in (True, False, True):
        scale.update(True, good)
    other = LossScale(True)
    other.load_state_dict(scale.state_dict())
    assert vars(other) == vars(scale)
    other.load_state_dict(
        {"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7}
    )
    assert (other.scale, other.good_updates) == (512.0, 7)


def test_a_run_that_turns_to_fp16_starts_with_a_fresh_scale():
    scale = LossScale(True)
    scale.load_state_dict(LossScale(False).state_dict())
    assert scale.scale == 2.0**16
    scale.load_state_dict({})  # of a published checkpoint without --amp
    assert scale.scale == 2.0**16


def test_unusable_patience():
    with pytest.raises(UserError, match="nonfinite_patience"):
        LossScale(False, patience=0)
