"""Between NeMo's archives and checkpoints of this recipe, in the direction that the source's suffix says.

    python -m jasper_pt.nemo_dle_model_converter stt_de_quartznet15x5.nemo DIR    -> DIR/model.pt, DIR/model_config.yaml
    python -m jasper_pt.nemo_dle_model_converter QuartzNet_epoch400_checkpoint.pt DIR    -> DIR/quartznet.nemo

An imported model needs no YAML file beside it: model.pt holds its configuration, with which it trains as well.
model_config.yaml is for reading and changing it. Neither direction is needed to use a model: --ckpt takes both kinds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import yaml

from jasper_pt import checkpoint, nemo
from jasper_pt.config import load_config, parse_config
from jasper_pt.model import build_model
from runkit.errors import UserError, run_main
from runkit.files import atomic_open


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="nemo_dle_model_converter", description=__doc__.partition("\n")[0])
    parser.add_argument("source_model", type=Path, help="a .nemo archive, or a checkpoint (.pt)")
    parser.add_argument("dest_dir", type=Path, help="an existing folder")
    parser.add_argument("--dle_config_yaml", type=Path, help="configuration of a .pt that holds none")
    parser.add_argument(
        "--raw", action="store_true", help="not the averaged (EMA) weights of a .pt that has them (added)"
    )
    options = parser.parse_args(argv)
    if not options.dest_dir.is_dir():
        raise UserError(f"{options.dest_dir} is no folder: make it first")
    if nemo.is_archive(options.source_model):
        from_nemo(options.source_model, options.dest_dir)
    elif options.source_model.suffix == checkpoint.SUFFIX:
        to_nemo(options.source_model, options.dest_dir, options.dle_config_yaml, options.raw)
    else:
        raise UserError(f"{options.source_model}: its suffix must be {nemo.SUFFIX} or {checkpoint.SUFFIX}")


def from_nemo(source: Path, folder: Path) -> None:
    """DIR/model.pt and DIR/model_config.yaml."""
    contents = checkpoint.read(source)
    config = parse_config(contents["config"], str(source))
    checkpoint.load_weights(build_model(config), contents["state_dict"], source)  # says what does not fit
    with atomic_open(folder / "model_config.yaml", "w") as stream:
        yaml.safe_dump(contents["config"], stream, sort_keys=False, allow_unicode=True)
    with atomic_open(folder / "model.pt") as stream:
        checkpoint.write_to(stream, contents)
    print(f"written: {folder / 'model.pt'}, {folder / 'model_config.yaml'}")


def to_nemo(source: Path, folder: Path, config_file: Path | None, raw: bool) -> None:
    """DIR/quartznet.nemo, or jasper.nemo."""
    contents = checkpoint.read(source)
    if config_file:
        config = load_config(config_file)
    elif "config" in contents:
        config = parse_config(contents["config"], f"configuration in {source}")
    else:
        raise UserError(f"{source} holds no configuration: give --dle_config_yaml")
    average = None if raw else contents.get("ema_state_dict")
    weights = checkpoint.present_names(average or contents["state_dict"])
    checkpoint.load_weights(build_model(config), weights, source)
    target = folder / f"{config.family}{nemo.SUFFIX}"
    nemo.write(target, config, weights)
    print(f"written: {target} ({'averaged' if average else 'raw'} weights)")


if __name__ == "__main__":
    run_main(main)
