"""Small networks for the tests: of every kind, and those of the published recipe's own code (shared/data/truth_asr)."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from jasper_pt.config import Config, load_config, parse_config
from jasper_pt.model import AcousticModel, build_model

NAMES = ("quartznet", "jasper_dense")  # of the files

BLOCKS = [
    {"filters": 24, "repeat": 1, "kernel_size": 11, "stride": 2, "residual": False, "separable": True, "dropout": 0},
    {"filters": 24, "repeat": 2, "kernel_size": 13, "residual": True, "separable": True, "dropout": 0},
    {"filters": 40, "repeat": 2, "kernel_size": 7, "residual": True, "residual_dense": True, "dropout": 0},
    {"filters": 40, "repeat": 2, "kernel_size": 5, "residual": True, "residual_dense": True, "dropout": 0},
    {"filters": 32, "repeat": 1, "kernel_size": 9, "dilation": 2, "residual": False, "separable": True, "dropout": 0},
]

VARIANTS = {
    "batch": {},
    "group": {"normalization": "group", "norm_groups": 4},
    "instance": {"normalization": "instance"},
    "layer": {"normalization": "layer"},
    "per channel": {"normalization": "group", "norm_groups": -1},
    "grouped": {"groups": 4},
}


def small_config(blocks: list[dict], family: str = "quartznet", **encoder) -> Config:
    """A config with these blocks and everything else as in the published files."""
    raw = load_config({"quartznet": "quartznet5x5", "jasper": "jasper5x3"}[family]).to_dict()
    raw[family]["encoder"] |= {"blocks": blocks} | encoder
    raw[family]["decoder"]["in_feats"] = blocks[-1]["filters"]
    return parse_config(raw)


def warmed(config: Config) -> AcousticModel:
    """A model whose BatchNorm statistics have seen something."""
    model = build_model(config)
    model.train()
    for _ in range(3):
        model(3 * torch.randn(4, 64, 96) + 1, torch.tensor([96, 80, 64, 50]))
    return model.eval()


def load_truth(shared: Path, name: str, layout: str = "auto") -> tuple[AcousticModel, dict[str, Tensor]]:
    """The network with its state, and the tensors of the file."""
    folder = shared / "data" / "truth_asr"
    truth = load_file(folder / f"{name}.safetensors")
    description = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    model = build_model(small_config(description["encoder"]))
    model.layout = layout
    model.load_state_dict(true_state(truth))
    return model, truth


def true_state(truth: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("state."): value for key, value in truth.items() if key.startswith("state.")}


@torch.no_grad()
def undo_statistics(model: nn.Module, truth: dict[str, Tensor]) -> None:
    """Takes the BatchNorm statistics back by one training pass.

    The files' statistics are those after the training pass, their evaluation was before it. A pass moves a statistic r
    to 0.9 r + 0.1 s, where the batch's s does not depend on r: one more pass shows 0.1 s.
    """
    after = true_state(truth)
    model.load_state_dict(after)
    model.train()(truth["input"], truth["input_lengths"])
    for key, value in model.state_dict().items():
        if key.endswith(("running_mean", "running_var")):
            batch = value - 0.9 * after[key]
            value.copy_((after[key] - batch) / 0.9)
