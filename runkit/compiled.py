"""C++ of ours, compiled on the machine it runs on, and kept until its source, the compiler or the processor changes."""

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]


class CompileError(Exception):
    """No library could be built; the message is its cause in one line."""


def build_folder(package: str) -> Path:
    """Where a package's libraries are kept: build/ of the tree, or the user's cache where the tree cannot be written.

    Raises CompileError where neither can be.
    """
    tree = TREE / "build"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / package
    for folder in (tree, cache):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise CompileError(f"neither {tree} nor {cache} can be written")


def compiled_library(
    folder: Path,
    name: str,
    sources: Mapping[Path, Sequence[str]],
    headers: Sequence[Path] = (),
    link: Sequence[str] = (),
) -> Path:
    """The shared library of these sources, made by g++ (or $CXX) if `folder` does not have it yet.

    sources: each file with its options. It appears whole or not at all, so that several processes may ask for it at
    once. Raises CompileError.
    """
    try:
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        version = _output([*compiler, "--version"])
        content = b"".join(file.read_bytes() for file in (*sources, *headers))
        described = repr(([list(options) for options in sources.values()], list(link), version, _processor()))
        key = hashlib.sha256(content + described.encode()).hexdigest()[:16]
        path = folder / f"{name}-{key}.so"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                library = f"{temporary}/library.so"
                objects = [f"{temporary}/{source.stem}.o" for source in sources]
                _all_at_once(
                    [*compiler, *options, "-c", str(source), "-o", object_file]
                    for (source, options), object_file in zip(sources.items(), objects, strict=True)
                )
                _output([*compiler, "-shared", *objects, *link, "-o", library])
                os.replace(library, path)
        return path
    except OSError as error:
        raise CompileError(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise CompileError((error.stderr or str(error)).strip().splitlines()[0]) from error


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _all_at_once(commands) -> None:
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    outputs = [process.communicate() for process in running]
    for process, (stdout, stderr) in zip(running, outputs, strict=True):
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, process.args, stdout, stderr)


def _processor() -> str:
    """What -march=native depends on: a folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
