"""Our C++ kernels for CPUs: compiled on the machine they run on, in about a second, at first use, and kept.

They are plain C functions on raw memory, called through ctypes, so that a compiler is all it takes; their threads are
those of PyTorch's own OpenMP runtime. Without g++ (or $CXX) the reference in PyTorch runs, and a warning says so.
$JASPER_KERNELS: `reference` never uses the kernels, `cpu` insists on them.
"""

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime must be there before the kernels are loaded

from runkit.compiled import CompileError, build_folder, compiled_library
from runkit.errors import UserError

SOURCES = Path(__file__).resolve().parent
# -fopenmp compiles the pragmas; linking without it leaves the runtime's symbols to the library PyTorch has loaded.
COMPILE = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-Wall", "-Wextra"]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where the reference is to be used. Raises UserError where $JASPER_KERNELS rules that out."""
    choice = os.environ.get("JASPER_KERNELS", "")
    if choice not in ("", "reference", "cpu", "cuda"):
        raise UserError(f"JASPER_KERNELS is {choice!r}; choose reference, cpu or cuda, or leave it unset")
    if choice == "reference":
        return None
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, CompileError) as error:
        if choice == "cpu":
            raise UserError(f"JASPER_KERNELS=cpu, but the C++ kernels cannot be built: {error}") from error
        warnings.warn(
            f"no C++ kernels ({error}): PyTorch's depthwise convolutions run, and training on the CPU takes twice as "
            "long. Install g++ (or set CXX), or accept it with JASPER_KERNELS=reference",
            stacklevel=2,
        )
        return None


def _built() -> Path:
    """The compiled library for this source, compiler and processor; made if it is not there."""
    return compiled_library(_folder(), "cpu_kernels", dict.fromkeys(sorted(SOURCES.glob("*.cpp")), COMPILE))


def _folder() -> Path:
    return build_folder("jasper_pt")
