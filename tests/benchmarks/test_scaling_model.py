"""The model of benchmarks/scaling_model.py: its formulas by hand, its inputs against their sources, its document."""

import math
import random
from pathlib import Path

import pytest

from benchmarks import scaling_model as model

ROOT = Path(__file__).resolve().parents[2]


def simulated_ring(n_bytes: float, size: int, bandwidth: float, latency: float) -> float:
    """Seconds of a ring all-reduce by doing it: numbers go round in chunks until everybody has every sum."""
    values = [[random.Random(member * size + chunk).random() for chunk in range(size)] for member in range(size)]
    expected = [sum(member[chunk] for member in values) for chunk in range(size)]
    seconds = 0.0
    for step in range(2 * (size - 1)):
        adding = step < size - 1
        sent = [((member - step) % size, member) for member in range(size)]
        for (chunk, member), value in [((c, m), values[m][c]) for c, m in sent]:
            after = (member + 1) % size
            values[after][chunk] = values[after][chunk] + value if adding else value
        seconds += latency + n_bytes / size / bandwidth
    for member in values:
        assert member == pytest.approx(expected)
    return seconds


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_ring(size):
    assert model.ring_seconds(6e6, size, 1e9, 1e-5) == pytest.approx(simulated_ring(6e6, size, 1e9, 1e-5))


def test_tree():
    assert model.tree_seconds(1e9, 1, 1e9, 1.0) == 0.0
    assert model.tree_seconds(0, 8, 1e9, 1.0) == 6.0  # three levels up, three down
    assert model.tree_seconds(1e9, 1024, 1e9, 0.0) == 2.0


def test_one_node_is_a_ring_on_nvlink():
    machine = model.DGX_A100
    ring = model.ring_seconds(1e9, 8, machine.nvlink * model.LINK_EFFICIENCY, model.NVLINK_LATENCY)
    assert model.flat_ring_seconds(1e9, machine, 8) == pytest.approx(ring)
    assert model.hierarchical_seconds(1e9, machine, 8) == pytest.approx(ring)


def test_a_hierarchy_has_fewer_hops_and_a_ring_less_volume():
    machine = model.DGX_A100
    assert model.hierarchical_seconds(1e3, machine, 1024) < model.flat_ring_seconds(1e3, machine, 1024) / 10
    assert model.flat_ring_seconds(1e12, machine, 16) < model.hierarchical_seconds(1e12, machine, 16)


def test_exchange_of_nothing_and_of_messages():
    one = model.exchange_seconds(model.FUSED_BYTES, model.DGX_A100, 64)
    assert model.exchange_seconds(3 * model.FUSED_BYTES, model.DGX_A100, 64) == pytest.approx(3 * one)
    assert model.exchange_seconds(3 * model.FUSED_BYTES, model.DGX_A100, 1) == 0.0


def test_nodes_are_whole():
    assert [model.node_count(model.DGX_A100, gpus) for gpus in (1, 8, 256)] == [1, 1, 32]
    with pytest.raises(ValueError, match="12 GPUs"):
        model.node_count(model.DGX_A100, 12)


def test_overlap():
    assert model.exposed_seconds(5.0, 3.0, overlapped=False) == 5.0
    assert model.exposed_seconds(5.0, 3.0, overlapped=True) == pytest.approx(3.0)
    assert model.exposed_seconds(1.0, 3.0, overlapped=True) == 0.0


def best_interval(save: float, between: float) -> float:
    """By search over Daly's exact time of a job with exponential failures, up to factors that do not depend on it."""
    candidates = (between * 1.002**n for n in range(-5000, 1000))
    return min(candidates, key=lambda t: (math.exp((t + save) / between) - 1) / t)


@pytest.mark.parametrize(("save", "between"), [(1.0, 1e5), (30.0, 3600.0), (100.0, 1000.0)])
def test_intervals(save, between):
    best = best_interval(save, between)
    assert model.daly_interval(save, between) == pytest.approx(best, rel=0.005)
    assert model.young_interval(save, between) == pytest.approx(best, rel=0.35)
    around = [
        model.lost_share(save, factor * model.young_interval(save, between), between, 60) for factor in (0.9, 1, 1.1)
    ]
    assert min(around) == around[1]


def test_daly_where_saves_never_pay():
    assert model.daly_interval(10.0, 4.0) == 4.0


def test_parameters():
    """Those of Hugging Face's BertForPreTraining of bert-base-uncased and bert-large-uncased."""
    assert (model.BERT_BASE, model.BERT_LARGE) == (110_106_428, 336_226_108)


@pytest.mark.parametrize(("name", "count"), [("jasper10x5dr", model.JASPER), ("quartznet15x5", model.QUARTZNET)])
def test_parameters_of_speech(name, count):
    assert f"{count:,} parameters" in (ROOT / "configs" / "asr" / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    "series", [*model.BERT_SERIES, *model.SPEECH_SERIES], ids=lambda s: f"{s.title} {s.machine.name}"
)
def test_what_was_fitted_is_met(series):
    first = series.rows[0]
    assert series.predicted(first.gpus, first.accumulation, 0.1) == pytest.approx(series.seconds(first), rel=1e-9)
    assert [row.gpus for row in series.rows] == sorted(row.gpus for row in series.rows)


def test_fixed_seconds():
    """From two equations by hand: t1 = 128 m + x1 + f, t2 = 4 m + x2 + f."""
    series = model.BERT_SERIES[0]
    t1, t2 = 64 * 8 * 128 / 2871.89, 64 * 256 * 4 / 77479.87
    x1, x2 = (model.exchange_seconds(2 * 336_226_108, model.DGX_A100, gpus) for gpus in (8, 256))
    micro_batch = (t1 - x1 - t2 + x2) / 124
    assert pytest.approx(t2 - x2 - 4 * micro_batch) == model.FIXED_SECONDS
    assert series.micro_batch(model.FIXED_SECONDS) == pytest.approx(micro_batch)


def test_published_rows_are_met_within_what_the_document_says():
    bert, speech = (model.errors(series, model.FIXED_SECONDS) for series in (model.BERT_SERIES, model.SPEECH_SERIES))
    assert (len(bert), len(speech)) == (20, 15)
    assert max(map(abs, bert)) < 0.06
    assert max(map(abs, speech)) < 0.11


def test_accumulation_keeps_the_global_batch_while_it_can():
    job = model.JOBS[0]
    assert [job.accumulation(gpus) for gpus in (8, 1024, 4096)] == [128, 1, 1]


def test_the_document_has_the_tables():
    document = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    missing = [line for line in model.report().splitlines() if line and line not in document]
    assert not missing, "python benchmarks/scaling_model.py prints other tables than docs/scaling.md shows"
