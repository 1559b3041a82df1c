"""Archives that cannot write beside their folder: tar (plain, gzip, bzip2, xz) and zip."""

import bz2
import contextlib
import errno
import gzip
import lzma
import math
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from data.download import CHUNK_BYTES, SPARE_BYTES, byte_progress, lock, require_space
from runkit.errors import UserError
from runkit.files import make_directory, naming_write_errors, temporary_directory

MAX_RATIO = 100  # unpacked bytes for each byte of the archive; text in bzip2 has about 5, a bomb 1000 and more
MAX_RATIO_FREE = 64 << 20  # bytes that any archive may hold, however small it is
MAX_MEMBERS = 3_000_000
MAX_LINKS = 10_000  # looking where they lead takes time for each
MAX_DEPTH = 100  # folders in each other; Python makes and removes them by recursion
MAX_NAME = 4096  # bytes, PATH_MAX of Linux
MAX_EXTENDED = 4 * MAX_NAME  # bytes of a tar's extended header, which has names and attributes and is read at once
MAX_BETWEEN = 1 << 20  # bytes of a tar that belong to no member, in one place; GNU tar fills the end to 10 kB
# What the libraries raise for damaged archives, besides OSError without a number.
BROKEN = (
    EOFError,
    ValueError,
    NotImplementedError,
    OverflowError,
    RecursionError,  # headers about headers, links to links
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


class _Member(NamedTuple):
    name: str
    kind: str  # "file", "folder", "symlink", "hardlink", or what it is that cannot be unpacked
    link: str  # where a link points to
    position: int  # bytes of the archive up to here, for the progress
    open: Callable[[], IO[bytes]]


@contextlib.contextmanager
def unpacked(archive: Path, folder: Path, max_bytes: int | None = None) -> Iterator[Path]:
    """Yields a temporary folder in `folder` with all that is in the archive, for the caller to move from there; it
    goes at the end, and what a killed run left goes before.

    Contents only: permissions, owners and dates are the default ones. Raises UserError, leaving nothing, for a broken
    or incomplete archive, and for a hostile one: an absolute name, "..", a link that leaves the tree, a device, one
    name twice, more than MAX_MEMBERS members, more bytes than MAX_RATIO allows (or max_bytes, or the disk).
    """
    make_directory(folder)
    try:
        stream = open(archive, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"cannot read {archive}: {error.strerror}") from error
    with stream, naming_write_errors(folder):
        lock(stream, f"{archive}: another process is unpacking it")
        require_space(folder, os.fstat(stream.fileno()).st_size, f"what is in {archive.name}")  # at least
        with temporary_directory(folder / archive.name) as tree:
            _extract(archive, stream, tree, max_bytes)
            os.sync()  # one call for what may be 100,000 files
            yield tree


def _extract(archive: Path, stream: IO[bytes], tree: Path, max_bytes: int | None) -> None:
    n_packed = os.fstat(stream.fileno()).st_size
    limits = [
        (max(MAX_RATIO * n_packed, MAX_RATIO_FREE), f"{MAX_RATIO} times its own {n_packed}"),
        (shutil.disk_usage(tree).free - SPARE_BYTES, "the disk has free"),
        *([] if max_bytes is None else [(max_bytes, "expected")]),
    ]
    limit, of_what = min(limits)
    root = os.path.realpath(tree)
    links: list[tuple[_Member, str]] = []
    n_members = n_bytes = position = 0
    try:
        with byte_progress(n_packed, f"unpacking {archive.name}") as advance:
            for member in _members(stream):
                n_members += 1
                if n_members > MAX_MEMBERS:
                    raise UserError(f"{archive}: holds more than {MAX_MEMBERS} members; it is not unpacked")
                path = _safe_path(archive, root, member)
                if member.kind == "folder":
                    os.makedirs(path, exist_ok=True)
                elif member.kind == "file":
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with member.open() as source, open(path, "xb") as output:
                        while chunk := source.read(CHUNK_BYTES):
                            n_bytes += len(chunk)
                            if n_bytes > limit:
                                raise UserError(f"{archive}: holds more bytes than {of_what}; it is not unpacked")
                            output.write(chunk)
                else:
                    links.append((member, path))
                    if len(links) > MAX_LINKS:
                        raise UserError(f"{archive}: holds more than {MAX_LINKS} links; it is not unpacked")
                advance(member.position - position)
                position = member.position
            advance(n_packed - position)
        # Links come last, so that nothing is written through them but links; and they are looked at again when all
        # are there, because each can change where the others lead.
        for member, path in links:
            _make_link(archive, root, member, path)
        for member, path in links:
            _require_below(archive, root, member, os.path.realpath(path))
    except BROKEN as error:
        raise UserError(f"{archive}: is broken or incomplete ({error}); remove it and fetch it again") from error
    except MemoryError as error:
        raise UserError(
            f"{archive}: needs more memory than there is (a damaged header?); it is not unpacked"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        if error.errno is None:  # gzip and bzip2 say so that their data are damaged
            raise UserError(f"{archive}: is broken or incomplete ({error}); remove it and fetch it again") from error
        name = repr(os.path.relpath(error.filename, root)) if error.filename else "a member"
        twice = error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
        cause = "is in it twice" if twice else f"cannot be written ({error.strerror})"
        raise UserError(f"{archive}: {name} {cause}; it is not unpacked") from error


def _safe_path(archive: Path, root: str, member: _Member) -> str:
    """Where a member goes below root. Raises UserError when that is elsewhere, or it is nothing to be unpacked."""
    if member.kind not in ("file", "folder", "symlink", "hardlink"):
        raise UserError(f"{archive}: {member.name!r} is {member.kind}; it is not unpacked")
    parts = re.split(r"[/\\]", member.name)  # "\" too: on some systems it separates
    path = os.path.normpath(os.path.join(root, member.name))
    if ".." in parts or parts[0] == "" or parts[0].endswith(":"):
        raise UserError(f"{archive}: {member.name!r} would be written outside of its folder; it is not unpacked")
    if len(parts) > MAX_DEPTH:
        raise UserError(f"{archive}: {member.name[:80]!r}... lies in {len(parts)} folders; it is not unpacked")
    _require_below(archive, root, member, os.path.realpath(path))
    return path


def _make_link(archive: Path, root: str, member: _Member, path: str) -> None:
    folder = os.path.dirname(path)
    goal = os.path.join(root if member.kind == "hardlink" else folder, member.link)
    _require_below(archive, root, member, os.path.realpath(folder))
    _require_below(archive, root, member, os.path.realpath(goal))
    os.makedirs(folder, exist_ok=True)
    if member.kind == "symlink":
        if os.path.isabs(member.link):  # into the temporary folder, by its name
            raise UserError(f"{archive}: {member.name!r} is an absolute link; it is not unpacked")
        os.symlink(member.link, path)
    elif os.path.isfile(goal):
        os.link(goal, path, follow_symlinks=False)
    else:
        raise UserError(f"{archive}: {member.name!r} is a link to {member.link!r}, which is not in it")


def _require_below(archive: Path, root: str, member: _Member, real_path: str) -> None:
    if real_path != root and not real_path.startswith(root + os.sep):
        raise UserError(f"{archive}: {member.name!r} leads out of its folder; it is not unpacked")


def _members(stream: IO[bytes]) -> Iterator[_Member]:
    magic = stream.read(6)
    stream.seek(0)
    if magic.startswith(b"PK"):
        yield from _zip_members(stream)
        return
    openers = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    opener = next((opener for start, opener in openers.items() if magic.startswith(start)), contextlib.nullcontext)
    with opener(stream) as plain:
        # As a stream: one pass, nothing is sought.
        metered = _Metered(plain)
        with tarfile.open(fileobj=metered, mode="r|", tarinfo=_StrictInfo) as tar:
            for info in tar:
                metered.left = math.inf
                tar.members.clear()  # which it would keep to the end
                kinds = {
                    "file": info.isfile(),
                    "folder": info.isdir(),
                    "symlink": info.issym(),
                    "hardlink": info.islnk(),
                }
                kind = next((kind for kind, applies in kinds.items() if applies), "a device, or of an unknown type")
                yield _Member(info.name, kind, info.linkname, stream.tell(), partial(tar.extractfile, info))
                metered.left = MAX_BETWEEN
        # To the end, where the compressed formats have their checksum.
        while metered.read(CHUNK_BYTES):
            pass


class _Metered:
    """A stream of which no more than `left` bytes are read: a compressed one can hold gigabytes of nothing."""

    def __init__(self, stream: IO[bytes]):
        self.stream, self.left = stream, float(MAX_BETWEEN)

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise tarfile.ReadError(f"over {MAX_BETWEEN} bytes in one place that belong to no file")
        return data


class _StrictInfo(tarfile.TarInfo):
    """Headers as tarfile reads them, except that it takes a damaged or missing one for the end of the archive, and an
    extended one of any size."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}, where a member or the end mark should be") from error
        if info.type in _EXTENDED and info.size > MAX_EXTENDED:
            raise tarfile.ReadError(f"an extended header of {info.size} bytes")
        return info


_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def _zip_members(stream: IO[bytes]) -> Iterator[_Member]:
    position = 0
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16  # as Unix programs leave it; 0 from others
            kind = "folder" if info.is_dir() else "file"
            link = ""
            if info.flag_bits & 1:
                kind = "encrypted"
            elif stat.S_ISLNK(mode):
                with archive.open(info) as target:
                    link = os.fsdecode(target.read(MAX_NAME + 1))
                kind = "symlink" if len(link) <= MAX_NAME else "a link to a name that is too long"
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "a device, or of an unknown type"
            position += info.compress_size
            yield _Member(info.filename, kind, link, position, partial(archive.open, info))
