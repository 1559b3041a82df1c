"""Files that are whole or absent: written beside their target, synced to disk, then renamed.

Temporary names are hidden (`.<name>.<token>.tmp`), so no glob over finished files can pick one up. Their writers hold
a lock on them, which ends with the process, however it ends: what a killed one left is removed by the next writer of
the same target, what a living one is writing is not. Where the filesystem has no locks, such remains stay.
"""

import codecs
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from runkit.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>
_NAME_CHARACTERS = 100  # of a name that its temporary has


@contextlib.contextmanager
def atomic_open(path: str | os.PathLike, mode: str = "wb", sync: bool = True) -> Iterator[IO]:
    """Opens a temporary file that becomes `path` when the block ends, and vanishes when it raises.

    mode is "wb", or "w" for UTF-8 text with "\\n" line ends. Missing parent folders are made; a symbolic link
    is written through. sync=False does not wait for the disk, for many small files that can be made again. Raises
    UserError when the file cannot be made or the disk is full.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f'mode must be "wb" or "w", not {mode!r}')
    target = Path(os.path.realpath(path))
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    with naming_write_errors(target), _temporary(target, _make_file) as (temporary, descriptor):
        with open(descriptor, mode, closefd=False, **text) as stream:  # closed last: its lock goes with it
            yield stream
        if sync:
            os.fsync(descriptor)
        os.replace(temporary, target)
        if sync:
            fsync_directory(target.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yields an empty temporary folder that becomes `path` when the block ends, and vanishes when it raises.

    An existing folder stays as it was until the new one is complete, then the two change places in one system
    call (Linux; elsewhere, or where the filesystem cannot, two renames, the old one put back if the second
    fails). Raises UserError when `path` is a file, cannot be made, or the disk is full.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise UserError(f"cannot write the folder {target}: a file has that name; move it away")
    with naming_write_errors(target):
        with _temporary(target, _make_folder) as (temporary, _):
            yield temporary
            for folder, _, names in os.walk(temporary):
                for name in names:
                    fsync_file(os.path.join(folder, name))
                fsync_directory(folder)
            replaced = _move_into_place(temporary, target)
            fsync_directory(target.parent)
        if replaced:
            shutil.rmtree(replaced)
        remove_abandoned(target.parent, target.name, "old")


@contextlib.contextmanager
def temporary_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`, which goes when the block ends. Raises UserError when it cannot
    be made or the disk is full."""
    target = Path(os.path.realpath(path))
    with naming_write_errors(target), _temporary(target, _make_folder) as (temporary, _):
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _temporary(target: Path, make: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """Yields a fresh temporary for target and its descriptor, locked while the block lasts; removes it when the block
    raises, and before that what killed writers of the target have left."""
    make_directory(target.parent)
    remove_abandoned(target.parent, target.name)
    temporary, descriptor = _claim(target, make)
    try:
        yield temporary, descriptor
    except BaseException:
        _remove(temporary)
        raise
    finally:
        os.close(descriptor)


def _claim(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    while True:
        temporary = temporary_path(target)
        try:
            descriptor = make(temporary)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror}") from error
        if _lock(descriptor) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)  # another writer has seen it before it was locked, and takes it for abandoned


def _make_file(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)


def _make_folder(path: Path) -> int:
    os.mkdir(path)
    return os.open(path, os.O_RDONLY)


def _lock(descriptor: int) -> bool:
    """Locks an open file; False when another has locked it. A filesystem without locks refuses nobody."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def remove_abandoned(folder: str | os.PathLike, name: str = "", kind: str = "tmp") -> None:
    """Removes what killed writers of <folder>/<name> left, or of anything in the folder.

    kind "tmp": what they were writing; "old": what they were about to replace.
    """
    pattern = re.compile(rf"\.{re.escape(name[:_NAME_CHARACTERS]) or '.+'}\.[0-9a-f]{{8}}\.{kind}")
    for entry in os.scandir(folder):
        if pattern.fullmatch(entry.name):
            with contextlib.suppress(OSError):  # gone, not ours to remove, or on a filesystem without locks
                descriptor = os.open(entry, os.O_RDONLY if entry.is_dir(follow_symlinks=False) else os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(Path(entry))
                finally:
                    os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _move_into_place(temporary: Path, target: Path) -> Path | None:
    """Renames temporary to target; returns where the former target went, None if there was none."""
    if not target.exists():
        os.rename(temporary, target)
        return None
    if _exchange(temporary, target):
        return temporary
    former = temporary.with_suffix(".old")
    os.rename(target, former)
    try:
        os.rename(temporary, target)
    except BaseException:
        os.rename(former, target)
        raise
    return former


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two paths atomically (renameat2 with RENAME_EXCHANGE); False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0


@contextlib.contextmanager
def naming_write_errors(path: str | os.PathLike) -> Iterator[None]:
    """Turns "disk full" inside the block, which carries no file name, into a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UserError(f"cannot write {path}: {error.strerror}; free some space and run again") from error


def make_directory(path: str | os.PathLike) -> None:
    """Makes a folder and its parents where missing. Raises UserError naming it when that cannot be."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror}") from error


def temporary_path(path: Path) -> Path:
    """A fresh hidden name in the folder of `path`."""
    return path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(4)}.tmp")


def fsync_file(path: str | os.PathLike) -> None:
    """Returns when the contents of `path` are on the disk."""
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


def fsync_directory(path: str | os.PathLike) -> None:
    """Returns when the names in the folder `path` are on the disk: a rename is durable only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_directory(path: str | os.PathLike, purpose: str, wait: bool = False) -> Iterator[None]:
    """Keeps a second run out of a folder, which is made if need be; the lock ends with the process, however it ends.

    Raises UserError naming the folder and `purpose` when another process holds it and wait is False.
    """
    make_directory(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{os.fspath(path)}: another run is {purpose} in this folder; let it end") from None
        yield
    finally:
        os.close(descriptor)


def sha256_file(path: str | os.PathLike) -> str:
    """SHA-256 of a file's bytes, 64 lower-case hex digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_default(value: Any) -> Any:
    """`default=` for json.dumps: NumPy scalars and arrays as numbers and lists, paths as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Writes obj atomically as JSON, keys in their own order; NaN and infinity as Python's json has them."""
    text = json.dumps(obj, indent=2, default=json_default) + "\n"
    with atomic_open(path, "w") as stream:
        stream.write(text)


_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """json.loads of text from outside: whatever it refuses is a JSONDecodeError.

    That is also nesting and numbers beyond Python's limits, and half of a surrogate pair ("\\ud800"), which is no
    character and could be written nowhere.
    """
    try:
        value = json.loads(text)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("lists or objects are nested too deeply", text, 0) from None
    except UnicodeEncodeError as error:
        raise json.JSONDecodeError("half of a surrogate pair, which is no character", text, 0) from error
    except ValueError as error:
        raise json.JSONDecodeError("a number has too many digits", text, 0) from error
    return value


def read_json(path: str | os.PathLike) -> Any:
    """Reads a JSON file (UTF-8, BOM allowed); UserError naming file, line and column when it is broken."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from error
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file, whatever the locale, without line ends, BOM and trailing CRs.

    Only "\\n" ends a line, so U+2028, U+0085 and form feeds stay inside. Raises UserError naming file, line
    and byte offset when the text is not UTF-8, or the file when it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            offset = 0
            for number, raw in enumerate(stream, 1):
                start = len(codecs.BOM_UTF8) if offset == 0 and raw.startswith(codecs.BOM_UTF8) else 0
                try:
                    line = raw[start:].decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}:{number}: not UTF-8 at byte {offset + start + error.start} "
                        f"(0x{raw[start + error.start]:02x}); convert it first: iconv -f <encoding> -t UTF-8"
                    ) from error
                offset += len(raw)
                yield line.removesuffix("\n").rstrip("\r")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
