"""Files that are whole or absent: written beside their target, synced to disk, then renamed.

Temporary names are hidden (`.<name>.<token>.tmp`), so no glob over finished files can pick one up.
"""

import codecs
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from runkit.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>


@contextlib.contextmanager
def atomic_open(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Opens a temporary file that becomes `path` when the block ends, and vanishes when it raises.

    mode is "wb", or "w" for UTF-8 text with "\\n" line ends. Missing parent folders are made; a symbolic link
    is written through. Raises UserError when the file cannot be made or the disk is full.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f'mode must be "wb" or "w", not {mode!r}')
    target = Path(os.path.realpath(path))
    temporary = temporary_path(target)
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    with naming_write_errors(target):
        make_directory(target.parent)
        try:
            stream = open(temporary, mode.replace("w", "x"), **text)  # noqa: SIM115 (closed below)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror}") from error
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
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
    temporary = temporary_path(target)
    with naming_write_errors(target):
        make_directory(temporary)
        try:
            yield temporary
            for folder, _, names in os.walk(temporary):
                for name in names:
                    fsync_file(os.path.join(folder, name))
                fsync_directory(folder)
            replaced = _move_into_place(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        fsync_directory(target.parent)
        if replaced:
            shutil.rmtree(replaced)


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
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")


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


def read_json(path: str | os.PathLike) -> Any:
    """Reads a JSON file (UTF-8, BOM allowed); UserError naming file, line and column when it is broken."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from error
    try:
        return json.loads(text)
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
