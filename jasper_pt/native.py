"""Which of our C++ libraries run, and what is said where one cannot be had.

$JASPER_KERNELS: `reference` never uses C++, `cpu` insists on it, `cuda` is for a GPU's kernels.
"""

import ctypes
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from runkit.compiled import CompileError
from runkit.errors import UserError

CHOICES = ("", "reference", "cpu", "cuda")


def load(built: Callable[[], Path], what: str, without: str) -> ctypes.CDLL | None:
    """A library, or None where its reference is to be used: as asked for, or with a warning where it cannot be built.

    built: compiles it if need be and gives its place; what: its name in messages; without: what runs then, and how
    slowly. Raises UserError for a $JASPER_KERNELS that is unknown, or insists on what cannot be built.
    """
    choice = os.environ.get("JASPER_KERNELS", "")
    if choice not in CHOICES:
        raise UserError(f"JASPER_KERNELS is {choice!r}; choose reference, cpu or cuda, or leave it unset")
    if choice == "reference":
        return None
    try:
        return ctypes.CDLL(str(built()))
    except (OSError, CompileError) as error:
        if choice == "cpu":
            raise UserError(f"JASPER_KERNELS=cpu, but the {what} cannot be built: {error}") from error
        warnings.warn(
            f"no {what} ({error}): {without}. Install g++ (or set CXX), or accept it with JASPER_KERNELS=reference",
            stacklevel=3,
        )
        return None
