"""A real file system that is too small, or read-only; needs root and skips the test without."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A tmpfs of that size in `folder`, which is made."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Remounts what small_disk mounted."""
    _mount("-o", "remount,ro", str(folder))
    try:
        yield
    finally:
        _mount("-o", "remount,rw", str(folder))


def _mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a file system here: {getattr(error, 'stderr', '') or error}".strip())
