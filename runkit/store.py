"""Checkpoints on disk: kill -9 or pull the plug at any moment, and the old or the new checkpoint loads.

docs/checkpoints.md is the contract. A checkpoint is a set of files `<name>*` and a manifest `<name>.manifest.json` with
the size and SHA-256 of each, and the run's state. It exists exactly when its manifest does. A save takes these steps:

    1. files and manifest go to a hidden folder and are synced to disk
    2. the files move to their names; so far, a kill leaves the old checkpoint
    3. the manifest moves to its name: from here on there is the new checkpoint
    4. those beyond retention are removed

Whatever a killed save leaves lies in a hidden folder or is listed by the manifest in one. The next save
removes it.

CheckpointFiles does this for checkpoints of any names; CheckpointStore for those of TensorFlow's, `<name>-<step>`.
"""

import contextlib
import errno
import hashlib
import json
import operator
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from runkit.errors import UserError
from runkit.files import (
    atomic_open,
    fsync_directory,
    fsync_file,
    make_directory,
    read_json,
    sha256_file,
    temporary_path,
    write_json,
)

T = TypeVar("T")
MANIFEST = ".manifest.json"
# What a disk may refuse, and what its user can do about it.
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "remove other files of yours, or have the quota raised",
    errno.EROFS: "have the file system mounted for writing, or give another folder",
    errno.EACCES: "make the folder writable to you, or give another one",
    errno.EPERM: "make the folder writable to you, or give another one",
}


class Checkpoint(NamedTuple):
    """A checkpoint whose files were found whole."""

    step: int  # updates done
    prefix: str  # its files are <prefix>*
    state: dict[str, Any]  # what `save` was given, as read back from JSON


class CheckpointFiles:
    """The checkpoints of one run in `directory`, by name. One process saves, one at a time; any may read."""

    def __init__(self, directory: str | os.PathLike, pattern: str, lone_suffix: str = ""):
        """pattern: a regular expression for all names; its groups are the numbers that order them (absent: 0).

        lone_suffix: where given, a checkpoint is the single file <name><lone_suffix>, which holds checksums of its own
        and so counts without a manifest as well: its reader has to check it.
        """
        self.directory, self.lone_suffix = Path(directory), lone_suffix
        self._name = re.compile(pattern)

    def save(self, name: str, step: int, write_files: Callable[[str], None], state: dict[str, Any]) -> Path:
        """Saves a checkpoint and returns its prefix, `<directory>/<name>`.

        write_files(prefix) writes one or more files `<prefix>*`; step is the count of updates; state is plain JSON. An
        error in write_files leaves everything as it was and is passed on. Raises UserError when the disk refuses (full,
        read-only, over quota, no permission), TypeError when the state is not JSON, ValueError if write_files wrote
        nothing or other files.
        """
        state = json.loads(json.dumps(state))
        manifest = self.manifest(name)
        with _naming_refusals(self.directory / name):
            make_directory(self.directory)
            self.clean()
            pending = self._pending_folder(name)
            try:
                write_files(str(pending / name))
                files = _describe(pending, name)
                write_json(pending / manifest.name, _sealed(step, name, files, state))
                self._set_aside(name)
                for file in files:
                    os.replace(pending / file, self.directory / file)
                fsync_directory(self.directory)
                os.replace(pending / manifest.name, manifest)
                fsync_directory(self.directory)
            except BaseException:
                with contextlib.suppress(OSError):  # a disk may refuse this too; then the next save does it
                    self._discard(pending)
                raise
            self.clean()
        return self.directory / name

    def names(self) -> list[str]:
        """All checkpoints, oldest first."""
        ends = (MANIFEST, self.lone_suffix) if self.lone_suffix else (MANIFEST,)
        found = {file.removesuffix(end) for file in self._listdir() for end in ends if file.endswith(end)}
        return sorted(filter(self._name.fullmatch, found), key=self.age)

    def age(self, name: str) -> tuple[int, ...]:
        """The numbers in a name, which order checkpoints."""
        return tuple(int(number or 0) for number in self._name.fullmatch(name).groups())

    def manifest(self, name: str) -> Path:
        """Where the manifest of a checkpoint lies, if it has one."""
        return self.directory / f"{name}{MANIFEST}"

    def read(self, name: str) -> Checkpoint:
        """A checkpoint with a manifest, every byte checked; UserError naming file and cause if it is damaged."""
        manifest = _read_manifest(self.manifest(name))
        if manifest["prefix"] not in (name, _aside(name)):
            raise UserError(f"{self.manifest(name)} is the manifest of {manifest['prefix']}")
        for file, expected in manifest["files"].items():
            path = self.directory / file
            if not os.path.isfile(path):
                raise UserError(f"{path} is missing")
            if path.stat().st_size != expected["bytes"]:
                raise UserError(f"{path} is damaged: {path.stat().st_size} bytes instead of {expected['bytes']}")
            if sha256_file(path) != expected["sha256"]:
                raise UserError(f"{path} is damaged: its contents do not match their checksum")
        return Checkpoint(manifest["step"], str(self.directory / manifest["prefix"]), manifest["state"])

    def newest_valid(self, names: Sequence[str], read: Callable[[str], T], warn: Callable[[str], None]) -> T | None:
        """What `read` returns for the newest of `names`, oldest first, that is whole; None only where there are none.

        A damaged one, for which `read` raises UserError or OSError, is named through `warn` and the one before it
        tried. Raises UserError when there are checkpoints, or files of some, and none is whole: training must not start
        over in silence.
        """
        damages = []
        for name in reversed(names):
            try:
                return read(name)
            except (UserError, OSError) as error:
                damages.append(str(error))
                warn(f"{error}; trying the checkpoint before it")
        damages += [f"{self.directory / file} has no manifest" for file in self._unexplained_files()]
        if damages:
            raise UserError(
                f"no usable checkpoint in {self.directory} ({'; '.join(damages)}); "
                "restore the files, or start over in an empty folder"
            )
        return None

    def remove(self, name: str) -> None:
        """Removes a checkpoint; its manifest first, to a hidden folder, where it lists what a kill leaves.

        Raises UserError when the disk refuses.
        """
        with _naming_refusals(self.directory / name, "remove"):
            if self.manifest(name).exists():
                pending = self._pending_folder(name)
                os.replace(self.manifest(name), pending / self.manifest(name).name)
                self._discard(pending)
            if self.lone_suffix:
                (self.directory / f"{name}{self.lone_suffix}").unlink(missing_ok=True)

    def clean(self) -> None:
        """Removes hidden files and folders: of this save, and what killed ones left (also of TensorFlow's index)."""
        own = re.compile(rf"\.(?:{self._name.pattern})\.(.*\.tmp|replaced.*)|\.checkpoint\..*\.tmp")
        for file in set(filter(own.fullmatch, self._listdir())) - self._published_files():
            path = self.directory / file
            if path.is_dir():
                self._discard(path)
            else:
                path.unlink()

    def _set_aside(self, name: str) -> None:
        """Before a name is saved anew: gives its present checkpoint other file names, under which it stays
        loadable until the new one is published. A damaged one has nothing to protect and goes.
        """
        if not self.manifest(name).exists():
            return
        try:
            self.read(name)
        except UserError:
            self.remove(name)
            return
        manifest = _read_manifest(self.manifest(name))
        aside = _aside(name)
        if manifest["prefix"] == aside:  # a killed save came this far
            return
        pending = self._pending_folder(name)
        _link_or_copy(self.manifest(name), pending / self.manifest(name).name)
        renamed = {file: aside + file.removeprefix(name) for file in manifest["files"]}
        for file, other in renamed.items():
            _link_or_copy(self.directory / file, self.directory / other)
        fsync_directory(self.directory)
        files = {renamed[file]: expected for file, expected in manifest["files"].items()}
        write_json(self.manifest(name), _sealed(manifest["step"], aside, files, manifest["state"]))
        self._discard(pending)

    def _discard(self, pending: Path) -> None:
        """Removes a hidden folder, and those files its manifest lists that no published one does.

        A lone file stays: it got its name as a whole, and counts without a manifest.
        """
        if not self.lone_suffix:
            for file in _listed_files(pending) - self._published_files():
                (self.directory / file).unlink(missing_ok=True)
        shutil.rmtree(pending)

    def _unexplained_files(self) -> list[str]:
        """Checkpoint files that neither a manifest nor a killed save accounts for; no lone ones, which need neither."""
        if self.lone_suffix:
            return []
        files = re.compile(rf"(?:{self._name.pattern})\.(?!manifest\.json$).*")
        hidden = re.compile(rf"\.(?:{self._name.pattern})\..*\.tmp")
        pending = [self.directory / file for file in filter(hidden.fullmatch, self._listdir())]
        known = self._published_files().union(*map(_listed_files, pending))
        return sorted(set(filter(files.fullmatch, self._listdir())) - known)

    def _published_files(self) -> set[str]:
        files = set()
        for name in self.names():
            with contextlib.suppress(UserError):  # damaged, or a lone file without one
                files.update(_read_manifest(self.manifest(name))["files"])
        return files

    def _pending_folder(self, name: str) -> Path:
        folder = temporary_path(self.directory / name)
        folder.mkdir()
        return folder

    def _listdir(self) -> list[str]:
        return os.listdir(self.directory) if self.directory.is_dir() else []


class CheckpointStore:
    """Checkpoints `<name>-<step>*` of one run in `directory`, as TensorFlow names them.

    Kept are the newest `keep`, the milestones (the steps given, and every multiple of milestone_every, 0: none), and
    the step that `save` is told is the best. One process saves, one at a time; any may read.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        name: str = "model.ckpt",
        keep: int = 1,
        milestones: Collection[int] = (),
        milestone_every: int = 0,
    ):
        if keep < 1 or milestone_every < 0:
            raise ValueError(f"keep must be at least 1, not {keep}, and milestone_every 0 or more: {milestone_every}")
        self.directory, self.name, self.keep = Path(directory), name, keep
        self.milestones, self.milestone_every = set(milestones), milestone_every
        self._files = CheckpointFiles(directory, rf"{re.escape(name)}-(0|[1-9]\d*)")

    def save(
        self, step: int, write_files: Callable[[str], None], state: dict[str, Any], best: int | None = None
    ) -> Path:
        """Saves a checkpoint, removes those beyond retention, and returns the prefix, `<directory>/<name>-<step>`.

        best: the step of a checkpoint to be kept beside the others, for the caller to remember in `state`. The rest is
        as in CheckpointFiles.save; raises ValueError for a negative step too.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step must not be negative: {step}")
        prefix = self._files.save(self._name_of(step), step, write_files, state)
        self.tidy(step, best)
        return prefix

    def steps(self) -> list[int]:
        """The steps of all published checkpoints, oldest first."""
        return [step for name in self._files.names() for step in self._files.age(name)]

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step, every byte checked; UserError naming file and cause if it is damaged."""
        return self._files.read(self._name_of(step))

    def newest_valid(self, warn: Callable[[str], None] = warnings.warn) -> Checkpoint | None:
        """The newest checkpoint that is whole; None only where none was ever saved (see CheckpointFiles)."""
        return self._files.newest_valid(self._files.names(), self._files.read, warn)

    def tidy(self, saved: int, best: int | None = None) -> None:
        """Lists the kept checkpoints for TensorFlow, then removes the others, and what killed saves left behind.

        The end of a save; called by a resume too, since a save may have been killed before its end. Steps beyond the
        one just saved are damaged leftovers from before a resume: neither counted nor removed.
        """

        def stays(step: int) -> bool:
            every = self.milestone_every
            return step == best or step in self.milestones or (every > 0 and step % every == 0)

        steps = [step for step in self.steps() if step <= saved]
        kept = retained(steps, self.keep, stays)
        self._write_tensorflow_index(kept)
        for step in steps:
            if step not in kept:
                self._files.remove(self._name_of(step))
        self._files.clean()

    def _write_tensorflow_index(self, steps: list[int]) -> None:
        """Writes the text file `checkpoint` (a CheckpointState) that tf.train.latest_checkpoint reads."""
        prefixes = []
        for step in steps:
            with contextlib.suppress(UserError):  # a damaged manifest
                prefixes.append(json.dumps(_read_manifest(self._files.manifest(self._name_of(step)))["prefix"]))
        index = self.directory / "checkpoint"
        with _naming_refusals(index), atomic_open(index, "w") as stream:
            stream.write(f"model_checkpoint_path: {prefixes[-1]}\n")
            stream.writelines(f"all_model_checkpoint_paths: {prefix}\n" for prefix in prefixes)

    def _name_of(self, step: int) -> str:
        return f"{self.name}-{step}"


def retained(checkpoints: Sequence[T], keep: int, stays: Callable[[T], bool]) -> list[T]:
    """Of checkpoints, oldest first, those to be kept: the newest `keep` and those that stay whatever their age."""
    return [*filter(stays, checkpoints[:-keep]), *checkpoints[-keep:]]


@contextlib.contextmanager
def _naming_refusals(path: Path, verb: str = "write") -> Iterator[None]:
    """Turns a disk's refusal inside the block into a UserError that names `path`, cause and remedy."""
    try:
        yield
    except (OSError, UserError) as error:
        refusal = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(refusal, OSError) or refusal.errno not in REMEDIES:
            raise
        raise UserError(
            f"cannot {verb} {path}: {os.strerror(refusal.errno)}; {REMEDIES[refusal.errno]}, then run again. The "
            f"checkpoints saved before in {path.parent} are as they were"
        ) from error


def _aside(name: str) -> str:
    return f".{name}.replaced"


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
        raise UserError(f"{path} is damaged: its contents do not match their checksum")
    match contents:
        case {"step": int(), "prefix": str(prefix), "files": dict(files), "state": dict()}:
            pass
        case _:
            raise UserError(f"{path} is not the manifest of a checkpoint")
    if not all(map(_is_described, files.values())):
        raise UserError(f"{path} is not the manifest of a checkpoint")
    if any(name != os.path.basename(name) for name in [prefix, *files]):
        raise UserError(f"{path} lists files outside its folder")
    return contents


def _is_described(entry: Any) -> bool:
    """Whether a manifest says of a file how large it is, and its checksum."""
    match entry:
        case {"bytes": int(), "sha256": str()}:
            return True
    return False


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
