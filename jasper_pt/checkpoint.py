"""Checkpoints: everything a run needs to go on, in one file that PyTorch reads with weights_only=True.

Names, as published, for a model called QuartzNet:

    QuartzNet_epoch12_checkpoint.pt           after 12 epochs
    QuartzNet_epoch12_step3000_checkpoint.pt  in the 13th epoch, after 3000 updates in all (ours)
    QuartzNet_best_checkpoint.pt              the best word error rate so far

A file is written beside its name, synced to disk and renamed: it is whole or absent. It is a zip archive in which every
tensor has a CRC-32; a reader checks all of them, so damage is found before anything is loaded.

Contents (a dict of tensors, numbers, texts, lists and dicts):

    epoch, step             complete epochs, and updates in all                                     published
    best_wer                percent                                                                 published
    state_dict, ema_state_dict (None without EMA), optimizer, scaler (fp16's loss scale)            published
    position, seed          what the data order and every random draw depend on (no generator has state to save)
    config, labels          the model's configuration, so that no other file is needed to use it
    format                  1
"""

import dataclasses
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, nn

from jasper_pt.ema import Ema
from jasper_pt.novograd import NovoGrad
from jasper_pt.precision import LossScale
from runkit.errors import UserError
from runkit.files import atomic_open

FORMAT = 1
KEPT = 2  # newest checkpoints, beside milestones and the best one


@dataclasses.dataclass(frozen=True)
class Position:
    """Where in its data a run stands. What an update sees depends on these and on the seed alone."""

    epoch: int  # complete epochs
    update: int  # updates done in the epoch begun
    updates_per_epoch: int
    global_batch_size: int  # utterances an update, over all processes


# ------------------------------------------------------------------------------------------------------- one file
def write(path: Path, contents: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically. Raises UserError naming the file when the disk is full."""
    with atomic_open(path) as stream:
        watched = _Watched(stream)
        try:
            torch.save(dict(contents), watched)
        except RuntimeError as error:
            raise watched.error or error from None


class _Watched:
    """A stream that remembers why it failed: torch.save replaces that by an error without a cause."""

    def __init__(self, stream: IO[bytes]):
        self.stream, self.error = stream, None

    def write(self, data: bytes) -> int:
        try:
            return self.stream.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.stream.flush()


def read(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint, ours or a published one, tensors on the CPU. Nothing in it is executed.

    Raises UserError naming file and cause: missing, damaged, or not a checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no checkpoint {path}: {'it is a folder' if path.is_dir() else 'there is no such file'}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise UserError(f"{path} is damaged: {damaged} does not match its checksum")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is damaged, or not a PyTorch checkpoint: {error}") from error
    except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError, KeyError, ...
        raise UserError(f"cannot read the checkpoint {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(contents, dict) or not isinstance(contents.get("state_dict"), dict):
        raise UserError(f"{path} holds no 'state_dict': it is not a checkpoint of this recipe")
    return contents


def load_weights(model: nn.Module, state_dict: Mapping[str, Tensor], source: str | Path) -> None:
    """Loads all weights by name. Raises UserError that lists what is missing, unknown or of another shape."""
    own = model.state_dict()
    state_dict = present_names(state_dict)
    shapes = [
        f"{key} {list(state_dict[key].shape)} instead of {list(own[key].shape)}"
        for key in own
        if key in state_dict and state_dict[key].shape != own[key].shape
    ]
    problems = {
        "missing": [key for key in own if key not in state_dict],
        "unknown": [key for key in state_dict if key not in own],
        "of another shape": shapes,
    }
    if any(problems.values()):
        text = "; ".join(f"{what}: {_some(keys)}" for what, keys in problems.items() if keys)
        raise UserError(f"{source} does not fit the model ({text}); is --model_config the one it was trained with?")
    model.load_state_dict(state_dict)


def present_names(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names in use, also of checkpoints of the first version of the Jasper recipe."""
    renamed = {
        key.replace("jasper_encoder.encoder.", "encoder.layers.").replace(
            "jasper_decoder.decoder_layers.", "decoder.layers."
        ): value
        for key, value in state_dict.items()
    }
    return {
        key: value for key, value in renamed.items() if not key.startswith(("acoustic_model.", "audio_preprocessor"))
    }


def _some(names: Sequence[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


# ------------------------------------------------------------------------------------------------ a run's state
class Run(NamedTuple):
    """What training changes, beside its place in the data."""

    model: nn.Module
    ema: Ema | None
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale

    def contents(self, position: Position, step: int, best_wer: float, seed: int, config: Mapping) -> dict[str, Any]:
        """A checkpoint. step: updates in all; best_wer in percent; config: Config.to_dict()."""
        return {
            "format": FORMAT,
            "epoch": position.epoch,
            "step": step,
            "best_wer": best_wer,
            "state_dict": dict(self.model.state_dict()),
            "ema_state_dict": None if self.ema is None else dict(self.ema.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.loss_scale.state_dict(),
            "position": dataclasses.asdict(position),
            "seed": seed,
            "config": dict(config),
            "labels": list(config["labels"]),
        }

    def restore(self, contents: Mapping[str, Any], source: str | Path) -> list[str]:
        """Puts back everything that contents() took; returns what could not be, for the reader.

        Raises UserError where the checkpoint is of another model or optimizer.
        """
        notes = []
        load_weights(self.model, contents["state_dict"], source)
        if self.ema is not None:
            average = contents.get("ema_state_dict")
            if average is None:
                notes.append(f"{source} was saved without EMA: the average starts at its weights")
            load_weights(self.ema.model, average or contents["state_dict"], source)
        elif contents.get("ema_state_dict") is not None:
            notes.append(f"{source} holds EMA weights, which go no further: --ema is 0")
        if "optimizer" not in contents:
            raise UserError(f"{source} holds weights only: start from it with --init_ckpt")
        self._check_optimizer(contents["optimizer"], source)
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(contents["optimizer"])
        for group, own in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(own)  # flags win over the settings saved with the state
        self.loss_scale.load_state_dict(contents.get("scaler") or {})
        return notes

    def _check_optimizer(self, saved: Mapping[str, Any], source: str | Path) -> None:
        """NovoGrad keeps one second moment a tensor, the others one an element; Apex's keeps them elsewhere."""
        scalar = isinstance(self.optimizer, NovoGrad)
        seconds = [state.get("exp_avg_sq") for state in saved["state"].values()]
        if any(second is None or (second.dim() == 0) != scalar for second in seconds):
            raise UserError(
                f"the optimizer state in {source} is not {type(self.optimizer).__name__}'s: give the --optimizer it "
                "was trained with, or take its weights only with --init_ckpt"
            )


# ----------------------------------------------------------------------------------------------- a run's checkpoints
class Checkpoints:
    """The checkpoints in a run's folder. One process saves, any may read."""

    def __init__(self, directory: str | Path, model_name: str, milestones: Sequence[int] = ()):
        """milestones: epochs whose checkpoints stay for ever."""
        self.directory, self.model_name, self.milestones = Path(directory), model_name, set(milestones)
        self._pattern = re.compile(rf"{re.escape(model_name)}_epoch(\d+)(?:_step(\d+))?_checkpoint\.pt")

    def path(self, position: Position, step: int) -> Path:
        """The name of the checkpoint at a position."""
        within = f"_step{step}" if position.update else ""
        return self.directory / f"{self.model_name}_epoch{position.epoch}{within}_checkpoint.pt"

    @property
    def best_path(self) -> Path:
        return self.directory / f"{self.model_name}_best_checkpoint.pt"

    def all(self) -> list[Path]:
        """All but the best, oldest first."""
        return [path for _, path in sorted(self._found())]

    def save(self, contents: Mapping[str, Any]) -> Path:
        """Writes a checkpoint of Run.contents(), then removes those beyond the newest two and the milestones."""
        path = self.path(Position(**contents["position"]), contents["step"])
        write(path, contents)
        found = sorted(self._found())
        saved = next(order for order, other in found if other == path)
        # Later ones are leftovers of a run that was resumed from before them; no count of kept ones may include those.
        older = [(order, other) for order, other in found if order <= saved]
        for (epoch, step), other in older[:-KEPT]:
            if step or epoch not in self.milestones:
                other.unlink()
        return path

    def save_best(self, contents: Mapping[str, Any]) -> Path:
        """Writes the best checkpoint anew."""
        write(self.best_path, contents)
        return self.best_path

    def newest_valid(self, warn: Callable[[str], None] = warnings.warn) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is whole; None only where there is none.

        A damaged one is named through `warn` and the next older one tried. Raises UserError when there are checkpoints
        and none is whole: training must not start over in silence.
        """
        damages = []
        for path in reversed(self.all()):
            try:
                return path, read(path)
            except UserError as error:
                damages.append(str(error))
                warn(f"{error}; trying the checkpoint before it")
        if damages:
            raise UserError(
                f"no usable checkpoint in {self.directory} ({'; '.join(damages)}); restore the files, or start over in "
                "an empty folder"
            )
        return None

    def _found(self) -> list[tuple[tuple[int, int], Path]]:
        """((complete epochs, updates in all or 0), path) of each file, in no order."""
        if not self.directory.is_dir():
            return []
        matches = [(self._pattern.fullmatch(path.name), path) for path in self.directory.iterdir()]
        return [((int(match[1]), int(match[2] or 0)), path) for match, path in matches if match]
