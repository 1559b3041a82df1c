"""The published learning rates, and what holds for every policy."""

import json
import math

import pytest

from jasper_pt.schedules import POLICIES, create_schedule, learning_rate
from runkit.errors import UserError

# The QuartzNet script: 241 steps an epoch, 2 + 140 of 260 epochs at and before the peak.
SCRIPT = {
    "peak": 0.01,
    "min_lr": 1e-5,
    "steps_per_epoch": 241,
    "epochs": 260,
    "warmup_epochs": 2,
    "hold_epochs": 140,
    "gamma": 0.981,
}


def test_equals_the_published_program(shared):
    truth = json.loads((shared / "data" / "truth_asr" / "schedule.json").read_text())
    settings = {key: truth[key] for key in SCRIPT}
    rows = [dict(zip(truth["columns"], row, strict=True)) for row in truth["rows"]]
    assert settings == SCRIPT and {row["policy"] for row in rows} == {"exponential", "legacy"}
    for row in rows:
        found = learning_rate(row["step"], row["epoch"], row["policy"], **settings)
        assert found == pytest.approx(row["lr"], rel=1e-12), row


@pytest.mark.parametrize(("epoch", "expected"), [(142, 0.01), (143, 0.00981), (200, 0.003287), (260, 0.001040)])
def test_published_rates_by_epoch(epoch, expected):
    """Rates of the specification, the same in the first and the last update of an epoch."""
    schedule = create_schedule("exponential", **SCRIPT)
    assert schedule((epoch - 1) * 241 + 1) == pytest.approx(expected, rel=3e-4)
    assert schedule(epoch * 241) == schedule((epoch - 1) * 241 + 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_warmup_counts_from_the_first_update_and_meets_the_peak(policy):
    schedule = create_schedule(policy, **SCRIPT)
    assert schedule(1) == pytest.approx(0.01 * 2 / 483)  # not the peak, as in the published program
    assert schedule(481) == pytest.approx(0.01 * 482 / 483)
    assert schedule(482) == schedule(483) == schedule(142 * 241) == 0.01
    rates = [schedule(step) for step in range(1, 260 * 241 + 1, 100)]
    top = rates.index(0.01)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates) >= 1e-5


def test_legacy_and_cosine_end_at_the_floor():
    assert create_schedule("legacy", **SCRIPT)(260 * 241) == 1e-5
    assert create_schedule("cosine", **SCRIPT)(260 * 241) == 1e-5
    halfway = (142 * 241 + 260 * 241) // 2
    assert create_schedule("cosine", **SCRIPT)(halfway) == pytest.approx(0.005, rel=1e-3)
    assert create_schedule("legacy", **SCRIPT)(halfway) == pytest.approx(0.0025, rel=1e-3)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_warmup_and_hold(policy):
    schedule = create_schedule(policy, peak=1.0, min_lr=0.0, steps_per_epoch=10, epochs=4, gamma=0.5)
    assert schedule(1) == {"exponential": 0.5, "legacy": (39 / 40) ** 2,
                           "cosine": (1 + math.cos(math.pi / 40)) / 2}[policy]  # fmt: skip


def test_a_run_of_nothing_but_warmup_or_beyond_its_end_is_defined():
    assert create_schedule("legacy", 1.0, 0.1, 10, epochs=2, warmup_epochs=2)(20) == 1.0
    assert create_schedule("legacy", 1.0, 0.1, 10, epochs=2)(1000) == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "poly"}, "exponential, legacy, cosine"),
        ({"peak": float("nan")}, "finite"),
        ({"min_lr": -1.0}, "finite"),
        ({"steps_per_epoch": 0}, "1 or more"),
        ({"warmup_epochs": -1}, "0 or more"),
        ({"gamma": 0.0}, r"\(0, 1\]"),
    ],
)
def test_unusable_settings(change, message):
    with pytest.raises(UserError, match=message):
        create_schedule(**({"policy": "exponential"} | SCRIPT | change))
