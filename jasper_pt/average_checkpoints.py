"""Averages the weights of several checkpoints of one run into a new one.

    python -m jasper_pt.average_checkpoints results/run --last 5 --output results/run/average.pt
    python -m jasper_pt.average_checkpoints A.pt B.pt C.pt --output average.pt

The mean of weights along the end of a run is often better than the last of them (Izmailov et al., "Averaging weights
leads to wider optima and better generalization", arXiv 1803.05407; for sequence models Vaswani et al., arXiv
1706.03762, section 6.1). Of a folder the checkpoints at the ends of epochs count, the newest --last of them;
run_training keeps as many with --save_frequency 1 --keep_newest N.

BatchNorm's running means and variances are averaged as the weights are. With --train_manifests they are recomputed: the
averaged model sees the training data once, augmented as in training, and each statistic becomes the mean over batches
(arXiv 1803.05407, section 3.2). Counters are the newest checkpoint's.

What is written holds weights, configuration and labels, and serves wherever a checkpoint's weights do (run_inference
--ckpt, run_training --init_ckpt); a run cannot go on from it. Checkpoints are read as checkpoint.py reads them: nothing
in them is executed.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started by path: python jasper_pt/average_checkpoints.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from jasper_pt import checkpoint
from jasper_pt.config import Config, load_config, parse_config
from jasper_pt.loader import AsrBatch, TrainLoader, filter_utterances
from jasper_pt.manifest import check_files, read_manifest
from jasper_pt.model import build_model
from jasper_pt.train_step import batch_norms
from runkit.errors import UserError, run_main
from runkit.files import atomic_open
from runkit.progress import Progress


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags. Unknown ones are refused."""
    parser = argparse.ArgumentParser(prog="average_checkpoints", description=__doc__.split("\n\n")[0])
    flag = parser.add_argument
    flag("checkpoints", nargs="+", type=Path, metavar="CKPT", help="checkpoints, or the folder of one run")
    flag("--output", required=True, type=Path, help="the file to write, .pt")
    flag("--last", type=int, help="of a folder, the checkpoints of so many epochs, the newest; default: all")
    flag("--ema", action="store_true", help="average the moving averages instead of the raw weights")
    flag("--train_manifests", nargs="+", default=[], help="recompute BatchNorm's statistics on these")
    flag("--dataset_dir", help="folder that audio paths in the manifests start from")
    flag("--model_config", help="YAML file, for checkpoints that hold no configuration")
    flag("--batch_size", type=int, default=16, help="utterances of a pass that recomputes statistics")
    flag("--num_workers", type=int, help="threads that read audio; default: by the machine")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Averages, and writes the result; returns 0. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    if args.output.suffix != checkpoint.SUFFIX:
        raise UserError(f"--output {args.output}: a checkpoint's name ends in {checkpoint.SUFFIX}")
    if args.batch_size < 1:
        raise UserError(f"--batch_size is {args.batch_size}; it must be 1 or more")
    paths = choose(args.checkpoints, args.last)
    contents, weights = average_files(paths, args.ema)
    if args.train_manifests:
        config = config_of(contents, paths[-1], args.model_config)
        n_batches = recompute(weights, config, contents, args)
        print(f"BatchNorm's statistics: the mean over {n_batches} batches of the training data")
    with atomic_open(args.output) as stream:
        checkpoint.write_to(stream, contents | {"state_dict": weights, "averaged": [path.name for path in paths]})
    kind = "moving averages" if args.ema else "weights"
    print(f"written: {args.output}, the mean of the {kind} of {', '.join(map(str, paths))}")
    return 0


def choose(given: Sequence[Path], last: int | None) -> list[Path]:
    """The files to average, oldest first. Raises UserError where they are fewer than two, or than were asked for."""
    if len(given) == 1 and given[0].is_dir():
        paths = of_epochs(given[0])
        if last is not None and not 2 <= last <= len(paths):
            raise UserError(
                f"--last {last}: {given[0]} holds the checkpoints of {len(paths)} epochs, and 2 or more are averaged; "
                "run_training keeps more of them with --save_frequency 1 --keep_newest N"
            )
        paths = paths[-last:] if last else paths
    elif last is not None:
        raise UserError("--last is for the folder of one run; these are files")
    else:
        paths = list(given)
    if len(paths) < 2:
        raise UserError(f"{', '.join(map(str, given))}: two checkpoints or more are needed, and there are {len(paths)}")
    return paths


def of_epochs(folder: Path) -> list[Path]:
    """The checkpoints at the ends of epochs in a run's folder, oldest first. Raises UserError where they are of several
    models."""
    matches = [re.fullmatch(r"(.+)_epoch(\d+)_checkpoint", path.stem) for path in folder.glob(f"*{checkpoint.SUFFIX}")]
    found = sorted((match[1], int(match[2]), match[0]) for match in matches if match)
    models = sorted({model for model, _, _ in found})
    if len(models) > 1:
        raise UserError(f"{folder} holds checkpoints of several models ({', '.join(models)}): name the files")
    return [folder / f"{name}{checkpoint.SUFFIX}" for _, _, name in found]


def average_files(paths: Sequence[Path], ema: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the last file holds beside weights and training state, and the mean of all files' weights.

    Sums are kept in float64; whole numbers are the last file's. Raises UserError naming the file that differs from the
    first in its names, shapes, labels or architecture, and one without EMA weights.
    """
    sums: dict[str, Tensor] = {}
    first: dict[str, Any] = {}
    for path in paths:
        contents = checkpoint.read(path)
        weights = contents.get("ema_state_dict") if ema else contents["state_dict"]
        if weights is None:
            raise UserError(f"{path} holds no EMA weights: leave --ema out")
        if not sums:
            first = contents
            sums = {key: value.double() if value.is_floating_point() else value for key, value in weights.items()}
            continue
        if difference := _difference(first, contents, sums, weights):
            raise UserError(f"{path} is not of the same run as {paths[0]}: {difference}")
        for key, value in weights.items():
            sums[key] = sums[key] + value.double() if value.is_floating_point() else value
    mean = {key: (sums[key] / len(paths)).to(v.dtype) if v.is_floating_point() else v for key, v in weights.items()}
    kept = ("format", "epoch", "step", "seed", "config", "labels")
    return {key: contents[key] for key in kept if key in contents} | {"ema_state_dict": None}, mean


def _difference(
    a: Mapping[str, Any], b: Mapping[str, Any], weights_a: Mapping[str, Tensor], weights_b: Mapping[str, Tensor]
) -> str | None:
    """What keeps two checkpoints from being averaged."""
    if a.get("labels") != b.get("labels"):
        return "its labels differ"
    if odd := weights_a.keys() ^ weights_b.keys():
        return f"only one of them has {min(odd)}"
    for key, value in weights_b.items():
        if value.shape != weights_a[key].shape:
            return f"{key} has the shape {list(value.shape)}, not {list(weights_a[key].shape)}"
    models = [contents.get("config", {}).get(family) for contents in (a, b) for family in ("quartznet", "jasper")]
    if models[:2] != models[2:]:
        return "its encoder's configuration differs"
    return None


def config_of(contents: Mapping[str, Any], path: Path, model_config: str | None) -> Config:
    """--model_config, else what the checkpoint was saved with."""
    if model_config:
        return load_config(model_config)
    if "config" not in contents:
        raise UserError(f"{path} holds no configuration, which recomputing statistics needs: give --model_config")
    return parse_config(contents["config"], f"configuration in {path}")


# ------------------------------------------------------------------------------------------------------- BatchNorm
def recompute(weights: dict[str, Tensor], config: Config, contents: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Replaces BatchNorm's statistics in `weights` by those over the training data; returns the number of batches.

    The data are those of the run's next epoch: its seed, augmentation and order. Dropout is off.
    """
    utterances = [u for path in args.train_manifests for u in read_manifest(path, args.dataset_dir)]
    utterances, files = check_files(utterances)
    utterances, _ = filter_utterances(utterances, config, train=True)
    for line in files.lines():
        print(line)
    seed = contents.get("seed", 0)
    loader = TrainLoader(utterances, config, args.batch_size, seed=seed, num_workers=args.num_workers)
    model = build_model(config)
    checkpoint.load_weights(model, weights, args.output)
    if not batch_norms(model):
        raise UserError("the model has no BatchNorm, and so no statistics to recompute: leave --train_manifests out")
    with Progress(loader.updates_per_epoch, "BatchNorm", "batches") as bar:
        n_batches = recompute_statistics(model, loader.epoch(contents.get("epoch", 0) + 1), bar.update)
    weights.update({key: value for key, value in model.state_dict().items() if "running_" in key})
    return n_batches


@torch.no_grad()
def recompute_statistics(model: nn.Module, batches: Iterable[AsrBatch], done: Callable[[], None]) -> int:
    """Sets BatchNorm's running mean and variance to the means over batches of what each normalises with; returns their
    number. Weights and counters stay. done: called after each batch."""
    layers = batch_norms(model)
    momenta = [layer.momentum for layer in layers]
    counters = [layer.num_batches_tracked.clone() for layer in layers]
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    model.train()
    for dropout in dropouts:
        dropout.eval()
    sums = [(torch.zeros_like(x.running_mean).double(), torch.zeros_like(x.running_var).double()) for x in layers]
    count = 0
    for layer in layers:
        layer.momentum = 1.0  # a pass leaves its own statistics in the buffers
    for batch in batches:
        model(batch.features, batch.feature_lengths)
        for layer, (mean, variance) in zip(layers, sums, strict=True):
            mean += layer.running_mean
            variance += layer.running_var
        count += 1
        done()
    for layer, momentum, counter, (mean, variance) in zip(layers, momenta, counters, sums, strict=True):
        layer.momentum = momentum
        layer.num_batches_tracked.copy_(counter)
        layer.running_mean.copy_(mean / count)
        layer.running_var.copy_(variance / count)
    model.eval()
    return count


if __name__ == "__main__":
    run_main(main)
