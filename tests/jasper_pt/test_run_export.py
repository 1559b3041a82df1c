"""run_export.py: exports are the model, for any batch and length; what is not the model leaves no file."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime", reason="run scripts/setup.sh asr")
sys.path.insert(0, str(Path(__file__).parent))
from small_models import BLOCKS, VARIANTS, small_config, warmed

from jasper_pt.features import LogMel
from jasper_pt.metrics import ErrorCounts
from jasper_pt.run_export import (
    ExportedFeatures,
    ExportedForm,
    Score,
    check_parity,
    export_features,
    export_onnx,
    export_program,
    forward_of,
    onnx_forward,
)
from runkit.errors import UserError
from runkit.exports import check_output_dir

pytestmark = pytest.mark.xdist_group("asr_export")  # its models are made once


@pytest.mark.parametrize("variant", ["batch", "group", "grouped"])
def test_exports_are_the_model(tmp_path, variant):
    torch.manual_seed(0)
    config = small_config([block | VARIANTS[variant] for block in BLOCKS])
    model = warmed(config)
    program = export_program(ExportedForm(model), config)
    export_onnx(program, tmp_path / "model.onnx")
    for forward in (forward_of(program.module()), onnx_forward(tmp_path / "model.onnx", 1)):
        for lengths in ([70, 45, 1, 0], [33], [3, 2]):
            features = 3 * torch.randn(len(lengths), 64, max(lengths))
            wanted, wanted_lengths = forward_of(model)(features, torch.tensor(lengths))
            found, found_lengths = forward(features, torch.tensor(lengths))
            assert found_lengths.tolist() == wanted_lengths.tolist() and found.shape == wanted.shape
            for ours, theirs, length in zip(found, wanted, wanted_lengths.tolist(), strict=True):
                torch.testing.assert_close(ours[:length], theirs[:length], rtol=0, atol=1e-3)


def test_exported_features_are_those_of_the_model(tmp_path):
    torch.manual_seed(0)
    config = small_config(BLOCKS).input_val.features
    export_features(ExportedFeatures(config), tmp_path / "features.onnx")
    forward, log_mel = onnx_forward(tmp_path / "features.onnx", 1, ("audio", "lengths")), LogMel(config)
    for lengths in ([4001, 2560, 2561, 1, 0], [320, 161], [2400]):
        audio = 0.1 * torch.randn(len(lengths), max(lengths))
        wanted, wanted_frames = log_mel(audio, torch.tensor(lengths))
        found, frames = forward(audio, torch.tensor(lengths))
        assert frames.tolist() == wanted_frames.tolist() == [-(-length // 160) for length in lengths]
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-3)
    # Digital silence: log_guard keeps it finite, beside others and alone.
    silence, _ = forward(torch.zeros(1, 3200), torch.tensor([3200]))
    assert torch.equal(silence, torch.zeros_like(silence))


@pytest.mark.parametrize("difference, texts", [(0.5, ["a"]), (float("nan"), ["a"]), (0.0, ["b"])])
def test_what_differs_is_refused(difference, texts):
    with pytest.raises(UserError, match="does not agree"):
        check_parity("model.onnx", Score(texts, ErrorCounts(), difference), Score(["a"], ErrorCounts(), 0.0))


def test_a_folder_of_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="other files"):
        check_output_dir(tmp_path)
