"""Learning rates against the published tables and hand-computed values."""

import json
import math

import pytest

from bert_tf.schedules import compensated_linear_warmup, create_schedule, polynomial_warmup
from runkit.errors import UserError

# (total, warm-up, peak) and lr at some steps, from the formulas, as printed for the published phases.
LAMB_PHASE_1 = (
    (7038, 2000, 6e-3),
    {0: 0.0, 1: 3.0e-6, 1999: 5.997e-3, 2000: 5.0764e-3, 3500: 4.2541e-3, 7037: 7.152e-5},
)
LAMB_PHASE_2 = (1564, 200, 4e-3), {0: 0.0, 199: 3.98e-3, 200: 3.7355e-3, 1563: 1.0114e-4}
ADAM = (1144000, 10000, 8e-4), {0: 0.0, 5000: 4e-4, 10000: 8e-4, 577000: 4e-4, 1144000: 0.0}


@pytest.mark.parametrize(("optimizer", "table"), [("lamb", LAMB_PHASE_1), ("lamb", LAMB_PHASE_2), ("adam", ADAM)])
def test_published_tables(optimizer, table):
    (total, warmup, peak), expected = table
    schedule = create_schedule(optimizer, peak, warmup, total)
    assert {step: schedule(step) for step in expected} == pytest.approx(expected, rel=5e-5)


def test_adam_start_is_compensated():
    # the decay drops by start / T a step, and start is 8e-4 / (1 - 10000 / 1144000) = 8.0705e-4
    total, warmup, peak = ADAM[0]
    first, second = (compensated_linear_warmup(step, peak, warmup, total) for step in (warmup, warmup + 1))
    assert first == peak
    assert (first - second) * total == pytest.approx(8.0705e-4, rel=1e-4)


def test_warmup_ends_where_decay_begins():
    total, warmup, peak = 100, 10, 1.0
    for step in range(total):
        lamb = step / 10 if step < 10 else math.sqrt(1 - step / 100)
        adam = step / 10 if step < 10 else (100 - step) / 90
        assert create_schedule("lamb", peak, warmup, total)(step) == pytest.approx(lamb, abs=1e-15)
        assert create_schedule("adam", peak, warmup, total)(step) == pytest.approx(adam, abs=1e-15)


def test_no_warmup_and_past_the_end():
    for optimizer in ("lamb", "adam"):
        schedule = create_schedule(optimizer, 2.0, 0, 10)
        assert schedule(0) == 2.0
        assert schedule(10) == schedule(11) == schedule(10**9) == 0.0


def test_case_l03_resume_continues_the_schedule(shared):
    case = shared / "cases" / "L03"
    settings = json.loads((case / "settings.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    peak, warmup, total = (settings[k] for k in ("learning_rate", "num_warmup_steps", "num_train_steps"))
    rates = {step: polynomial_warmup(int(step), peak, warmup, total, power=1.0) for step in expected["lr_at"]}
    assert rates == pytest.approx(expected["lr_at"], rel=1e-12)
    # a function of the step alone: a run resumed at the interruption has nothing else to restore
    resumed = expected["after_resume_first_step"]
    assert resumed == settings["interrupt_at"]
    assert polynomial_warmup(resumed, peak, warmup, total, power=1.0) == pytest.approx(0.0063, rel=1e-12)


@pytest.mark.parametrize(
    ("peak", "warmup", "total", "named"),
    [
        (1e-3, 10, 10, "num_warmup_steps is 10 and num_train_steps is 10"),
        (1e-3, 2000, 100, "num_warmup_steps is 2000"),
        (1e-3, -1, 100, "num_warmup_steps is -1"),
        (1e-3, 0, 0, "num_train_steps is 0"),
        (-1e-3, 0, 100, "learning_rate is -0.001"),
        (float("nan"), 0, 100, "learning_rate is nan"),
        (float("inf"), 0, 100, "learning_rate is inf"),
    ],
)
@pytest.mark.parametrize("optimizer", ["lamb", "adam"])
def test_impossible_settings_are_refused_at_once(optimizer, peak, warmup, total, named):
    with pytest.raises(UserError, match=named):
        create_schedule(optimizer, peak, warmup, total)


def test_other_refusals():
    with pytest.raises(UserError, match="step is -1"):
        polynomial_warmup(-1, 1e-3, 0, 10, 0.5)
    with pytest.raises(UserError, match="'sgd'"):
        create_schedule("sgd", 1e-3, 0, 10)
