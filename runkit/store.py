"""The checkpoint store: kill -9 or pull the plug at any moment, and the old or the new checkpoint loads.

A checkpoint is a set of files `<name>-<step>*` and a manifest `<name>-<step>.manifest.json` with the size and
SHA-256 of each, and the run's state. It exists exactly when its manifest does. A save takes these steps:

    1. files and manifest go to a hidden folder and are synced to disk
    2. the files move to their names; so far, a kill leaves the old checkpoint
    3. the manifest moves to its name: from here on there is the new checkpoint
    4. TensorFlow's `checkpoint` file follows, then the removal of checkpoints beyond `keep`

Whatever a killed save leaves lies in a hidden folder or is listed by the manifest in one. The next save
removes it.
"""

import contextlib
import hashlib
import json
import operator
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from runkit.errors import UserError
from runkit.files import (
    atomic_open,
    fsync_directory,
    fsync_file,
    make_directory,
    naming_write_errors,
    read_json,
    sha256_file,
    temporary_path,
    write_json,
)


class Checkpoint(NamedTuple):
    """A checkpoint whose files were found whole."""

    step: int  # updates done
    prefix: str  # its files are <prefix>*
    state: dict[str, Any]  # what `save` was given, as read back from JSON


class CheckpointStore:
    """Checkpoints of one run in `directory`, the newest `keep` of them. One process saves, any may read."""

    def __init__(self, directory: str | os.PathLike, name: str = "model.ckpt", keep: int = 1):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory, self.name, self.keep = Path(directory), name, keep

    def save(self, step: int, write_files: Callable[[str], None], state: dict[str, Any]) -> Path:
        """Saves a checkpoint and returns its prefix, `<directory>/<name>-<step>`.

        write_files(prefix) writes one or more files `<prefix>*`; state is plain JSON. An error in write_files
        leaves everything as it was and is passed on. Raises UserError when the disk is full, TypeError when
        the state is not JSON, ValueError for a negative step or if write_files wrote nothing or other files.
        """
        step, state = operator.index(step), json.loads(json.dumps(state))
        if step < 0:
            raise ValueError(f"step must not be negative: {step}")
        prefix, manifest = f"{self.name}-{step}", self._manifest(step)
        make_directory(self.directory)
        with naming_write_errors(self.directory / prefix):
            self._clean()
            pending = self._pending_folder(step)
            try:
                write_files(str(pending / prefix))
                files = _describe(pending, prefix)
                write_json(pending / manifest.name, _sealed(step, prefix, files, state))
                self._set_aside(step)
                for file in files:
                    os.replace(pending / file, self.directory / file)
                fsync_directory(self.directory)
                os.replace(pending / manifest.name, manifest)
                fsync_directory(self.directory)
            finally:
                self._discard(pending)
            self._retain(step)
        return self.directory / prefix

    def steps(self) -> list[int]:
        """The steps of all published checkpoints, oldest first."""
        pattern = re.compile(rf"{re.escape(self.name)}-(0|[1-9]\d*)\.manifest\.json")
        matches = map(pattern.fullmatch, self._names())
        return sorted(int(match[1]) for match in matches if match)

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step, every byte checked; UserError naming file and cause if it is damaged."""
        manifest = _read_manifest(self._manifest(step))
        if manifest["step"] != step:
            raise UserError(f"{self._manifest(step)}: is the manifest of step {manifest['step']}")
        for name, expected in manifest["files"].items():
            path = self.directory / name
            if not path.is_file():
                raise UserError(f"{path}: missing")
            if path.stat().st_size != expected["bytes"]:
                raise UserError(f"{path}: {path.stat().st_size} bytes instead of {expected['bytes']}")
            if sha256_file(path) != expected["sha256"]:
                raise UserError(f"{path}: contents do not match their checksum")
        return Checkpoint(step, str(self.directory / manifest["prefix"]), manifest["state"])

    def newest_valid(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None only where none was ever saved.

        A damaged one is named in a warning and the next older one tried. Raises UserError when there are
        checkpoints, or files of some, and none is whole: training must not start over in silence.
        """
        damages = []
        for step in reversed(self.steps()):
            try:
                return self.read(step)
            except (UserError, OSError) as error:
                damages.append(str(error))
                warnings.warn(f"checkpoint of step {step} is damaged: {error}", stacklevel=2)
        damages += [f"{self.directory / name}: no manifest" for name in self._unexplained_files()]
        if damages:
            raise UserError(
                f"no usable checkpoint in {self.directory} ({'; '.join(damages)}); "
                "restore the files, or start over in an empty folder"
            )
        return None

    def _set_aside(self, step: int) -> None:
        """Before a step is saved anew: gives its present checkpoint other file names, under which it stays
        loadable until the new one is published. A damaged one has nothing to protect and goes.
        """
        if step not in self.steps():
            return
        try:
            self.read(step)
        except (UserError, OSError):
            self._remove(step)
            return
        manifest = _read_manifest(self._manifest(step))
        aside = f".{self.name}-{step}.replaced"
        if manifest["prefix"] == aside:  # a killed save came this far
            return
        pending = self._pending_folder(step)
        _link_or_copy(self._manifest(step), pending / self._manifest(step).name)
        renamed = {name: aside + name.removeprefix(manifest["prefix"]) for name in manifest["files"]}
        for name, other in renamed.items():
            _link_or_copy(self.directory / name, self.directory / other)
        fsync_directory(self.directory)
        files = {renamed[name]: expected for name, expected in manifest["files"].items()}
        write_json(self._manifest(step), _sealed(step, aside, files, manifest["state"]))
        self._discard(pending)

    def _retain(self, saved: int) -> None:
        """Lists the kept checkpoints for TensorFlow, then removes older ones.

        Steps beyond the one just saved are damaged leftovers from before a resume: neither counted nor
        removed.
        """
        steps = [step for step in self.steps() if step <= saved]
        self._write_tensorflow_index(steps[-self.keep :])
        for step in steps[: -self.keep]:
            self._remove(step)
        self._clean()

    def _remove(self, step: int) -> None:
        """Removes a checkpoint; its manifest first, to a hidden folder, where it lists what a kill leaves."""
        pending = self._pending_folder(step)
        os.replace(self._manifest(step), pending / self._manifest(step).name)
        self._discard(pending)

    def _write_tensorflow_index(self, steps: list[int]) -> None:
        """Writes the text file `checkpoint` (a CheckpointState) that tf.train.latest_checkpoint reads."""
        published = self._published()
        prefixes = [json.dumps(published[step]["prefix"]) for step in steps if step in published]
        with atomic_open(self.directory / "checkpoint", "w") as stream:
            stream.write(f"model_checkpoint_path: {prefixes[-1]}\n")
            stream.writelines(f"all_model_checkpoint_paths: {prefix}\n" for prefix in prefixes)

    def _clean(self) -> None:
        """Removes what killed saves left behind."""
        own = re.compile(rf"\.{re.escape(self.name)}-\d+\.(.*\.tmp|replaced.*)|\.checkpoint\..*\.tmp")
        for name in set(filter(own.fullmatch, self._names())) - self._published_files():
            path = self.directory / name
            if path.is_dir():
                self._discard(path)
            else:
                path.unlink()

    def _discard(self, pending: Path) -> None:
        """Removes a hidden folder, and those files its manifest lists that no published one does."""
        for name in _listed_files(pending) - self._published_files():
            (self.directory / name).unlink(missing_ok=True)
        shutil.rmtree(pending)

    def _unexplained_files(self) -> list[str]:
        """Checkpoint files that neither a manifest nor a killed save accounts for."""
        known = self._published_files().union(*map(_listed_files, self.directory.glob(f".{self.name}-*.tmp")))
        pattern = re.compile(rf"{re.escape(self.name)}-\d+\.(?!manifest\.json$).*")
        return sorted(set(filter(pattern.fullmatch, self._names())) - known)

    def _published(self) -> dict[int, dict[str, Any]]:
        """The undamaged manifests by step."""
        manifests = {}
        for step in self.steps():
            with contextlib.suppress(UserError):
                manifests[step] = _read_manifest(self._manifest(step))
        return manifests

    def _published_files(self) -> set[str]:
        return {name for manifest in self._published().values() for name in manifest["files"]}

    def _manifest(self, step: int) -> Path:
        return self.directory / f"{self.name}-{step}.manifest.json"

    def _pending_folder(self, step: int) -> Path:
        folder = temporary_path(self.directory / f"{self.name}-{step}")
        folder.mkdir()
        return folder

    def _names(self) -> list[str]:
        return os.listdir(self.directory) if self.directory.is_dir() else []


def _describe(folder: Path, prefix: str) -> dict[str, dict[str, Any]]:
    """Syncs the files in a folder to disk; returns their sizes in bytes and SHA-256 by name."""
    own = re.compile(rf"{re.escape(prefix)}(?!\d)(?!\.manifest\.json$).*")  # x-1 has no x-10.index
    files = {}
    for path in sorted(folder.iterdir()):
        if not own.fullmatch(path.name) or not path.is_file():
            raise ValueError(f"write_files wrote {path.name}; only files {prefix}* can be stored")
        fsync_file(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    if not files:
        raise ValueError(f"write_files wrote no file {prefix}*")
    return files


def _sealed(step: int, prefix: str, files: dict, state: dict[str, Any]) -> dict[str, Any]:
    """A manifest, with a checksum over its own contents."""
    contents = {"step": step, "prefix": prefix, "files": files, "state": state}
    return contents | {"sha256": _digest(contents)}


def _read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest. Raises UserError when it is damaged, or lists files outside its folder."""
    manifest = read_json(path)
    contents = dict(manifest) if isinstance(manifest, dict) else {}
    if contents.pop("sha256", None) != _digest(contents):
        raise UserError(f"{path}: contents do not match their checksum")
    if any(name != os.path.basename(name) for name in [manifest["prefix"], *manifest["files"]]):
        raise UserError(f"{path}: lists files outside its folder")
    return contents


def _digest(contents: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _listed_files(pending: Path) -> set[str]:
    """The file names in the manifest of a hidden folder; none where the save was killed before it had one."""
    names = set()
    for path in pending.glob("*.manifest.json"):
        with contextlib.suppress(UserError):  # a damaged list is no ground to remove anything
            names.update(_read_manifest(path)["files"])
    return names


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a filesystem without hard links
        shutil.copyfile(source, target)
        fsync_file(target)
