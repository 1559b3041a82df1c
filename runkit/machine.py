"""What a result was measured on."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")  # those that decide which kernels run


def describe(packages: Iterable[str] = ()) -> dict[str, Any]:
    """The machine and the versions of everything, for a result file; None or empty where unknown.

    cores are those this process may use; memory is in GiB; packages by their distribution names; commit is
    that of the tree this file is in, with "+" when files in it were changed since.
    """
    cpu = _proc("/proc/cpuinfo")
    memory = _proc("/proc/meminfo").get("MemTotal")
    present = set(cpu.get("flags", cpu.get("Features", "")).split())
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(int(memory.split()[0]) / 2**20, 1) if memory else None,
        "cpu_flags": [flag for flag in _FLAGS if flag in present],
        "gpus": _run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines(),
        "python": platform.python_version(),
        "os": platform.platform(),
        "packages": {package: _version(package) for package in packages},
        "commit": _commit(Path(__file__).resolve().parent),
    }


def _proc(path: str) -> dict[str, str]:
    """First value of each "key : value" line; empty where there is no such file (not Linux)."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    values: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        values.setdefault(key.strip(), value.strip())
    return values


def _commit(folder: Path) -> str | None:
    commit = _run("git", "-C", str(folder), "rev-parse", "HEAD")
    changed = commit and _run("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return commit + ("+" if changed else "") if commit else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run(*command: str) -> str:
    """A program's output; empty when it is not there, fails or hangs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
