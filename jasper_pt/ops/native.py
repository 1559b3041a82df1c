"""Our C++ kernels for CPUs: compiled on the machine they run on, in about a second, at first use, and kept.

They are plain C functions on raw memory, called through ctypes, so that a compiler is all it takes; their threads are
those of PyTorch's own OpenMP runtime. Without g++ (or $CXX) the reference in PyTorch runs, and a warning says so.
$JASPER_KERNELS: see jasper_pt.native.
"""

import ctypes
import functools
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime must be there before the kernels are loaded

from jasper_pt import native
from runkit.compiled import build_folder, compiled_library

SOURCES = Path(__file__).resolve().parent
# -fopenmp compiles the pragmas; linking without it leaves the runtime's symbols to the library PyTorch has loaded.
COMPILE = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-Wall", "-Wextra"]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where the reference is to be used. Raises UserError where $JASPER_KERNELS rules that out."""
    without = "PyTorch's depthwise convolutions run, and training on the CPU takes twice as long"
    return native.load(_built, "C++ kernels", without)


def _built() -> Path:
    """The compiled library for this source, compiler and processor; made if it is not there."""
    return compiled_library(_folder(), "cpu_kernels", dict.fromkeys(sorted(SOURCES.glob("*.cpp")), COMPILE))


def _folder() -> Path:
    return build_folder("jasper_pt")
