"""Precision policies, and the loss scale through case L01 and by hand."""

import json

import pytest
import tensorflow as tf

from bert_tf.precision import LossScale, Precision
from runkit.errors import UserError


def run(loss_scale, overflow):
    update = tf.function(loss_scale.update)
    scales = []
    for bad in overflow:
        update(tf.constant(not bad))
        scales.append(float(loss_scale.scale))
    return scales


def test_policies():
    found = {name: Precision.from_name(name) for name in ("fp32", "tf32", "fp16", "bf16")}
    assert [p.compute_dtype for p in found.values()] == [tf.float32, tf.float32, tf.float16, tf.bfloat16]
    assert [p.loss_scaling for p in found.values()] == [False, False, True, False]
    for wrong in ("FP8", "half", ""):
        with pytest.raises(UserError, match="fp32, tf32, fp16, bf16"):
            Precision.from_name(wrong)


def test_tf32_switch():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = enabled()
    try:
        Precision.from_name("fp32").activate()
        assert not enabled()
        Precision.from_name("tf32").activate()
        assert enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_case_l01(shared):
    case = shared / "cases" / "L01"
    simulation = json.loads((case / "simulation.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    loss_scale = LossScale(True, initial=simulation["init_scale"], growth_interval=simulation["growth_interval"])
    update = tf.function(loss_scale.update)
    after, stopped = {}, None
    for step, overflow in enumerate(simulation["overflow"], 1):
        update(tf.constant(not overflow))
        after[step] = float(loss_scale.scale)
        if verdict := loss_scale.verdict():
            stopped = step, verdict
            break
    for step, scale in expected["scale_after_steps"].items():
        assert after[int(step)] == scale
    assert min(after.values()) >= expected["never_below"] == simulation["min_scale"]
    # 1 after update 18; the second overflow at 1 stops the run, long before the simulation ends
    assert stopped[0] == 20
    assert "18 updates in a row" in stopped[1] and "loss scale 1" in stopped[1]


def test_growth_after_an_interval_of_good_updates():
    loss_scale = LossScale(True, initial=4.0, growth_interval=3)
    assert run(loss_scale, [0, 0, 0, 0, 0, 0]) == [4.0, 4.0, 8.0, 8.0, 8.0, 16.0]


def test_an_overflow_halves_and_starts_the_count_again():
    loss_scale = LossScale(True, initial=4.0, growth_interval=4)
    assert run(loss_scale, [0, 0, 1, 0, 0, 0, 0]) == [4.0, 4.0, 2.0, 2.0, 2.0, 2.0, 4.0]
    assert int(loss_scale.good_steps) == 0 and int(loss_scale.skipped_updates) == 1


def test_published_interval_and_sane_start():
    loss_scale = LossScale(True)
    assert float(loss_scale.scale) == 32768.0
    loss_scale.good_steps.assign(998)
    assert run(loss_scale, [0, 0]) == [32768.0, 65536.0]


def test_scale_is_bounded():
    assert run(LossScale(True, initial=2.0**32, growth_interval=1), [0, 0]) == [2.0**32, 2.0**32]
    assert run(LossScale(True, initial=1.5), [1, 1]) == [1.0, 1.0]


def test_stops_after_skips_in_a_row_and_not_before():
    loss_scale = LossScale(True, initial=2.0**32, max_consecutive_skips=3)
    run(loss_scale, [1, 1, 0, 1, 1])
    assert loss_scale.verdict() is None
    run(loss_scale, [1])
    assert "the gradients of the last 3 updates" in loss_scale.verdict()


def test_one_bad_batch_at_the_minimum_is_forgiven():
    loss_scale = LossScale(True, initial=1.0)
    run(loss_scale, [1, 0, 1, 0, 1])
    assert loss_scale.verdict() is None
    run(loss_scale, [1])
    assert "down to loss scale 1" in loss_scale.verdict()


def test_disabled_is_an_identity_that_still_watches():
    loss_scale = LossScale(False, initial=2.0**10, growth_interval=1, max_consecutive_skips=50)
    assert run(loss_scale, [0, 1, 0] + [1] * 49) == [1.0] * 52
    assert float(loss_scale.scaled(tf.constant(3.0))) == 3.0 and float(loss_scale.inverse()) == 1.0
    assert loss_scale.verdict() is None
    run(loss_scale, [1])
    assert int(loss_scale.skipped_updates) == 51
    assert "50 updates in a row" in loss_scale.verdict() and "loss scale" not in loss_scale.verdict()


def test_scaling_is_undone():
    loss_scale = LossScale(True, initial=1024.0)
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = loss_scale.scaled(x * x)
    assert float(loss) == 9.0 * 1024
    assert float(tape.gradient(loss, x) * loss_scale.inverse()) == 6.0


def test_names_for_checkpoints():
    with tf.name_scope("anywhere"):
        enabled, disabled = LossScale(True), LossScale(False)
    counters = {"loss_scale/consecutive_skips", "loss_scale/skipped_updates"}
    scaling = {"loss_scale/current_loss_scale", "loss_scale/good_steps", "loss_scale/skips_at_minimum"}
    assert set(enabled.state) == counters | scaling
    assert set(disabled.state) == counters


@pytest.mark.parametrize("initial", [0.5, 0.0, -1.0, 2.0**33, float("nan"), float("inf")])
def test_impossible_initial_scale(initial):
    with pytest.raises(UserError, match="init_loss_scale"):
        LossScale(True, initial=initial)


def test_impossible_intervals():
    with pytest.raises(UserError, match="growth interval"):
        LossScale(True, growth_interval=0)
    with pytest.raises(UserError, match="in a row"):
        LossScale(True, max_consecutive_skips=0)
