"""Checkpoints: everything a run needs to go on, in one file that PyTorch reads with weights_only=True.

Names, as published, for a model called QuartzNet:

    QuartzNet_epoch12_checkpoint.pt           after 12 epochs
    QuartzNet_epoch12_step3000_checkpoint.pt  in the 13th epoch, after 3000 updates in all (ours)
    QuartzNet_best_checkpoint.pt              the best word error rate so far

Beside each lies QuartzNet_..._checkpoint.manifest.json with its SHA-256; both appear as runkit.store has it, whole or
absent. A file is a zip archive in which every tensor has a CRC-32, so that one without a manifest (of the published
recipe, or copied from elsewhere) is checked as well before anything is loaded.

Contents (a dict of tensors, numbers, texts, lists and dicts):

    epoch, step             complete epochs, and updates in all                                     published
    best_wer                percent                                                                 published
    state_dict, ema_state_dict (None without EMA), optimizer, scaler (fp16's loss scale)            published
    position, seed          what the data order and every random draw depend on (no generator has state to save)
    config, labels          the model's configuration, so that no other file is needed to use it
    format                  1
"""

import copy
import dataclasses
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, nn

from jasper_pt import nemo
from jasper_pt.ema import Ema
from jasper_pt.novograd import NovoGrad
from jasper_pt.precision import LossScale
from runkit.errors import UserError
from runkit.store import CheckpointFiles, retained

FORMAT = 1
SUFFIX = ".pt"
RESULTS = Path(__file__).resolve().parents[1] / "results"  # of the launchers
KEPT = 2  # newest checkpoints that stay by default, beside milestones and the best one


@dataclasses.dataclass(frozen=True)
class Position:
    """Where in its data a run stands. What an update sees depends on these and on the seed alone."""

    epoch: int  # complete epochs
    update: int  # updates done in the epoch begun
    updates_per_epoch: int
    global_batch_size: int  # utterances an update, over all processes


# ------------------------------------------------------------------------------------------------------- one file
def write(path: str | Path, contents: Mapping[str, Any]) -> None:
    """Writes a checkpoint. Not atomic: training goes through Checkpoints. Raises OSError when it cannot be written."""
    with open(path, "wb") as stream:
        write_to(stream, contents)


def write_to(stream: IO[bytes], contents: Mapping[str, Any]) -> None:
    """The same to an open file."""
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
    """Reads a checkpoint, ours or a published one, or a NeMo archive, tensors on the CPU. Nothing in it is executed.

    Raises UserError naming file and cause: missing, damaged, or not a checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no checkpoint {path}: {'it is a folder' if path.is_dir() else 'there is no such file'}")
    if nemo.is_archive(path):
        return nemo.read(path)
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError as error:
        raise UserError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    except Exception as error:  # of zipfile, zlib, ...
        raise UserError(f"{path} is damaged, or not a PyTorch checkpoint: {error}") from error
    if damaged is not None:
        raise UserError(f"{path} is damaged: {damaged} does not match its checksum")
    return _load(path)


def _load(path: Path) -> dict[str, Any]:
    """The contents of a file that was found whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(record.file_size for record in archive.infolist())
        if n_bytes > path.stat().st_size:  # torch.save compresses nothing, and torch.load would unpack anything
            raise ValueError(f"its records hold {n_bytes} bytes, more than the file")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, UnpicklingError, EOFError, KeyError, ...
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"cannot read the checkpoint {path}: {cause}") from error
    if not isinstance(contents, dict) or not isinstance(contents.get("state_dict"), dict):
        raise UserError(f"{path} holds no 'state_dict': it is not a checkpoint of this recipe")
    for key, is_right in _CONTENTS.items():
        if key in contents and not is_right(contents[key]):
            raise UserError(f"{path} is damaged: its {key!r} is no {key} of a run")
    return contents


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_weights(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def _is_position(value: Any) -> bool:
    names = {field.name for field in dataclasses.fields(Position)}
    return isinstance(value, dict) and value.keys() == names and all(map(_is_count, value.values()))


_CONTENTS: dict[str, Callable[[Any], bool]] = {
    "epoch": _is_count,
    "step": _is_count,
    "seed": lambda value: type(value) is int,
    "best_wer": lambda value: isinstance(value, int | float),
    "state_dict": _are_weights,
    "ema_state_dict": lambda value: value is None or _are_weights(value),
    "position": _is_position,
}


def find_model(path: str | None) -> Path:
    """The checkpoint that is meant: a file, the newest in a folder, by default the newest in results/."""
    folder = Path(path) if path else RESULTS
    if folder.is_file():
        return folder
    found = [
        file
        for suffix in (f"_checkpoint{SUFFIX}", nemo.SUFFIX)
        for file in folder.rglob(f"*{suffix}")
        if file.is_file()
    ]
    if not found:
        what = f"{folder}: no such file, and no folder with a checkpoint (*_checkpoint{SUFFIX}, *{nemo.SUFFIX})"
        raise UserError(
            what if path else f"no checkpoint in {folder}: give --model, or run 'bash scripts/quickstart.sh asr'"
        )
    return max(found, key=lambda file: file.stat().st_mtime)


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
        """A checkpoint: copies on the CPU, which later updates do not change, so that it can be written beside them.

        step: updates in all; best_wer in percent; config: Config.to_dict().
        """
        return _copied(
            {
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
        )

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
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        try:
            self._check_optimizer(contents["optimizer"], source)
            self.optimizer.load_state_dict(contents["optimizer"])
            self.loss_scale.load_state_dict(contents.get("scaler") or {})
        except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"the optimizer state or loss scale in {source} is damaged, or of another model ({error}); take its "
                "weights only with --init_ckpt"
            ) from error
        for group, own in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(own)  # flags win over the settings saved with the state
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


def _copied(value: Any) -> Any:
    """A deep copy with every tensor on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return copy.deepcopy(value)


# ----------------------------------------------------------------------------------------------- a run's checkpoints
class Checkpoints:
    """The checkpoints in a run's folder. One process saves, one at a time and in any thread; any may read."""

    def __init__(self, directory: str | Path, model_name: str, milestones: Sequence[int] = (), newest: int = KEPT):
        """milestones: epochs whose checkpoints stay for ever; newest: so many of the others stay."""
        self.directory, self.model_name, self.milestones = Path(directory), model_name, set(milestones)
        self.newest = newest
        names = rf"{re.escape(model_name)}_(?:epoch(\d+)(?:_step(\d+))?|best)_checkpoint"
        self._files = CheckpointFiles(directory, names, SUFFIX)

    def path(self, position: Position, step: int) -> Path:
        """The name of the checkpoint at a position."""
        within = f"_step{step}" if position.update else ""
        return self.directory / f"{self.model_name}_epoch{position.epoch}{within}_checkpoint{SUFFIX}"

    @property
    def best_path(self) -> Path:
        return self.directory / f"{self.model_name}_best_checkpoint{SUFFIX}"

    def all(self) -> list[Path]:
        """All but the best, oldest first."""
        return [self.directory / f"{name}{SUFFIX}" for name in self._names()]

    def save(self, contents: Mapping[str, Any]) -> Path:
        """Writes a checkpoint of Run.contents(), then removes those beyond the newest ones and the milestones.

        Raises UserError naming file, cause and remedy when the disk refuses; the others are then as they were.
        """
        path = self.path(Position(**contents["position"]), contents["step"])
        self._write(path, contents)
        self.tidy(path)
        return path

    def tidy(self, path: Path) -> None:
        """Removes checkpoints but the newest ones up to `path` and the milestones, and what killed saves left behind.

        The end of a save; called by a resume too, since a save may have been killed before its end.
        """

        def is_milestone(name: str) -> bool:
            epoch, step = self._files.age(name)
            return epoch in self.milestones and not step

        # Later ones are leftovers of a run that was resumed from before them; no count of kept ones may include those.
        names = [name for name in self._names() if self._files.age(name) <= self._files.age(path.stem)]
        kept = retained(names, self.newest, is_milestone)
        for name in names:
            if name not in kept:
                self._files.remove(name)
        self._files.clean()

    def save_best(self, contents: Mapping[str, Any]) -> Path:
        """Writes the best checkpoint anew. Raises UserError as save does."""
        self._write(self.best_path, contents)
        return self.best_path

    def newest_valid(self, warn: Callable[[str], None] = warnings.warn) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is whole, and its file; None only where there is none.

        A damaged one is named through `warn` and the next older one tried. Raises UserError when there are checkpoints
        and none is whole: training must not start over in silence.
        """
        return self._files.newest_valid(self._names(), self._read, warn)

    def _write(self, path: Path, contents: Mapping[str, Any]) -> None:
        state = {key: contents[key] for key in ("position", "seed")}
        self._files.save(path.stem, contents["step"], lambda prefix: write(prefix + SUFFIX, contents), state)

    def _read(self, name: str) -> tuple[Path, dict[str, Any]]:
        if not self._files.manifest(name).exists():
            path = self.directory / f"{name}{SUFFIX}"
            return path, read(path)
        path = Path(self._files.read(name).prefix + SUFFIX)
        return path, _load(path)

    def _names(self) -> list[str]:
        return [name for name in self._files.names() if name != self.best_path.stem]
