"""Our C++ kernels for CPUs: compiled on the machine they run on, in about a second, at first use, and kept.

They are plain C functions on raw memory, called through ctypes, so that a compiler is all it takes; their threads are
those of PyTorch's own OpenMP runtime. Without g++ (or $CXX) the reference in PyTorch runs, and a warning says so.
$JASPER_KERNELS: `reference` never uses the kernels, `cpu` insists on them.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime must be there before the kernels are loaded

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
    except (OSError, subprocess.CalledProcessError) as error:
        cause = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
        if choice == "cpu":
            raise UserError(f"JASPER_KERNELS=cpu, but the C++ kernels cannot be built: {cause}") from error
        warnings.warn(
            f"no C++ kernels ({cause}): PyTorch's depthwise convolutions run, and training on the CPU takes twice as "
            "long. Install g++ (or set CXX), or accept it with JASPER_KERNELS=reference",
            stacklevel=2,
        )
        return None


def _built() -> Path:
    """The compiled library for this source, compiler and processor; made if it is not there."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    sources = sorted(SOURCES.glob("*.cpp"))
    content = b"".join(source.read_bytes() for source in sources)
    key = hashlib.sha256(content + repr((COMPILE, version, _processor())).encode()).hexdigest()[:16]
    folder = _folder()
    path = folder / f"cpu_kernels-{key}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        objects = []
        for source in sources:
            objects.append(f"{temporary}/{source.stem}.o")
            command = [*compiler, *COMPILE, "-c", str(source), "-o", objects[-1]]
            subprocess.run(command, capture_output=True, text=True, check=True)
        command = [*compiler, "-shared", *objects, "-o", f"{temporary}/kernels.so"]
        subprocess.run(command, capture_output=True, text=True, check=True)
        os.replace(f"{temporary}/kernels.so", path)
    return path


def _folder() -> Path:
    """Where compiled kernels are kept: build/ of the tree, or the user's cache where the tree cannot be written."""
    tree = SOURCES.parents[1] / "build"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jasper_pt"
    for folder in (tree, cache):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError(f"neither {tree} nor {cache} can be written")


def _processor() -> str:
    """What -march=native depends on: a folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
