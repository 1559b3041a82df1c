"""fast.py: the same results as the model, in fp32 and bf16."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from small_models import BLOCKS, NAMES, VARIANTS, load_truth, small_config, undo_statistics, warmed

from jasper_pt.fast import FastModel, fold_batch_norm
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_thread():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers(shared, name):
    model, truth = load_truth(shared, name)
    undo_statistics(model, truth)
    log_probs, lengths = FastModel(model)(truth["input"], truth["input_lengths"])
    assert lengths.tolist() == truth["output_lengths"].tolist()
    for ours, theirs, length in zip(log_probs, truth["log_probs"], lengths, strict=True):
        torch.testing.assert_close(ours[:length], theirs[:length], rtol=0, atol=1e-4)
    # bf16: log-probabilities of these random networks spread over tens; the labels it chooses are the same
    log_probs, _ = FastModel(model, "bf16")(truth["input"], truth["input_lengths"])
    for ours, theirs, length in zip(log_probs, truth["log_probs"], lengths, strict=True):
        deviation = (ours[:length] - theirs[:length]).square().mean().sqrt() / theirs[:length].std()
        assert deviation < 0.02
        assert (ours[:length].argmax(-1) == theirs[:length].argmax(-1)).float().mean() > 0.95


@pytest.mark.parametrize("activation", ["relu", "selu", "hardtanh"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_block(variant, activation):
    model = warmed(small_config([block | VARIANTS[variant] for block in BLOCKS], activation=activation))
    features, lengths = 3 * torch.randn(4, 64, 70), torch.tensor([70, 45, 1, 0])
    with torch.no_grad():
        expected, out_lengths = model(features, lengths)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fast, half = FastModel(model), FastModel(model, "bf16")
    results = [form(features, lengths) for form in (fast, half)]
    for log_probs, ours in results:
        assert log_probs.dtype == torch.float32 and ours.tolist() == out_lengths.tolist()
    for b, length in enumerate(out_lengths.tolist()):
        torch.testing.assert_close(results[0][0][b, :length], expected[b, :length], rtol=0, atol=1e-4)
        torch.testing.assert_close(results[1][0][b, :length], expected[b, :length], rtol=0.05, atol=0.3)
    # the model is as it was, and stays apart
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    nn.init.zeros_(model.decoder.layers[0].weight)
    assert torch.equal(fast(features, lengths)[0], results[0][0])


@pytest.mark.parametrize("masks", [True, False])
def test_wide_convolutions(masks):
    wide = [block | {"separable": False} for block in BLOCKS]
    model = warmed(small_config(wide, "jasper", use_conv_masks=masks))
    features, lengths = torch.randn(3, 64, 60), torch.tensor([60, 40, 9])
    with torch.no_grad():
        expected, out_lengths = model(features, lengths)
    for precision, tolerance in (("fp32", 1e-4), ("bf16", 0.3)):
        log_probs, _ = FastModel(model, precision)(features, lengths)
        for b, length in enumerate(out_lengths.tolist()):
            torch.testing.assert_close(log_probs[b, :length], expected[b, :length], rtol=0.05, atol=tolerance)


def test_features_and_lengths_are_left_alone():
    model = warmed(small_config(BLOCKS))
    features, lengths = torch.randn(2, 64, 40), torch.tensor([40, 11])
    copies = features.clone(), lengths.clone()
    FastModel(model)(features, lengths)
    assert torch.equal(features, copies[0]) and torch.equal(lengths, copies[1])


def test_folding_is_exact_in_float64():
    layers = nn.ModuleList([nn.Conv1d(3, 5, 1, bias=False), nn.BatchNorm1d(5, eps=1e-3), nn.ReLU()]).double().eval()
    for tensor in (layers[1].running_mean, layers[1].weight, layers[1].bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(layers[1].running_var, 0.1, 3)
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    expected = nn.Sequential(*layers)(x)
    fold_batch_norm(layers)
    assert isinstance(layers[1], nn.Identity)
    torch.testing.assert_close(nn.Sequential(*layers)(x), expected)


def test_other_precisions_are_refused():
    with pytest.raises(UserError, match="precision 'fp16' is not available on CPUs; choose fp32 or bf16"):
        FastModel(warmed(small_config(BLOCKS)), "fp16")


def test_the_benchmark_writes_its_rows(tmp_path):
    small = tmp_path / "small.yaml"
    small.write_text(yaml.safe_dump(small_config(BLOCKS).to_dict()), encoding="utf-8")
    command = [sys.executable, ROOT / "benchmarks" / "asr_cpu.py", "--model", small, "--out", tmp_path / "out.json"]
    options = "--batch 1 --seconds 0.64 --rounds 1 --turn 0 --latency 0.3 --threads 1".split()
    subprocess.run([*command, *options], check=True, capture_output=True)
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [row["task"] for row in result["rows"]] == ["inference"] * 4 + ["training"] * 4 + ["inference 1 x 0.3 s"] * 4
    assert {(row["contestant"], row["precision"]) for row in result["rows"]} == {
        (side, precision) for side in ("plain", "ours") for precision in ("fp32", "bf16")
    }
    for row in result["rows"]:
        assert row["audio_seconds_per_second"] > 0 and row["times_plain"] > 0
        if (row["contestant"], row["precision"]) == ("ours", "fp32"):
            assert row["difference"] < 1e-3  # identical weights
