"""Folders of exported models: metadata.json describes the other files, and tells when one is not what it was."""

import importlib.metadata
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runkit.errors import UserError
from runkit.files import read_json, sha256_file, write_json

METADATA = "metadata.json"


def package_versions(packages: Sequence[str], remedy: str) -> dict[str, str]:
    """Versions of the packages that write and run exports. Raises UserError for one that is missing."""
    try:
        return {name: importlib.metadata.version(name) for name in packages}
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"the package {error.name} is missing: run {remedy}") from error


def check_output_dir(path: Path) -> None:
    """Raises UserError for a folder that holds anything but an earlier export: it would be replaced."""
    if path.is_dir() and any(path.iterdir()) and not (path / METADATA).exists():
        raise UserError(f"{path} holds other files, and an export replaces the whole folder: give another --output_dir")


def write_metadata(folder: Path, values: dict[str, Any]) -> None:
    """Writes the description, with the hashes of all files in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    hashes = {str(path.relative_to(folder)): sha256_file(path) for path in files}
    write_json(folder / METADATA, values | {"files": hashes})


def read_metadata(folder: str | os.PathLike, keys: Collection[str], maker: str) -> dict[str, Any]:
    """The description. Raises UserError for a folder without it, or whose export has none of these keys; maker: the
    script that makes such exports."""
    path = Path(folder) / METADATA
    if not path.is_file():
        raise UserError(f"{folder} is no export: it has no {METADATA}; {maker} makes exports")
    metadata = read_json(path)
    lacking = {*keys, "files"} - metadata.keys()
    if lacking:
        names = ", ".join(sorted(lacking))
        raise UserError(f"{path} has no {names}: it was made by another program or an older one; use {maker}")
    return metadata


def check_files(folder: str | os.PathLike, names: Sequence[str], maker: str) -> None:
    """Raises UserError unless the files are those that were exported; maker as in read_metadata."""
    known = read_metadata(folder, (), maker)["files"]
    for name in names:
        if name not in known:
            raise UserError(f"{folder} has no {name}; it has {', '.join(sorted(known))}")
        path = Path(folder) / name
        if not path.is_file() or sha256_file(path) != known[name]:
            raise UserError(f"{path} is missing, or is not what {METADATA} describes: export anew")


def onnx_session(path: str | os.PathLike, threads: int | None = None) -> Any:
    """A file under ONNX Runtime on the CPU; threads: by default all cores of the process. Raises UserError where the
    file or the package is missing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("the package onnxruntime is missing: run scripts/setup.sh") from error
    if not Path(path).is_file():
        raise UserError(f"{os.fspath(path)} does not exist: export the model anew")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


def quantize(
    source: Path, target: Path, op: str, feeds: Iterable[Mapping[str, Any]], exclude: Sequence[str] = ()
) -> None:
    """Static int8 quantisation of the nodes of one kind by ONNX Runtime: activations uint8, weights int8 by channel.

    feeds: inputs by name of the batches that ranges are taken from; exclude: names of nodes that stay as they are.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        inputs = iter(feeds)

        def get_next(self) -> dict | None:
            return next(self.inputs, None)

    quantize_static(
        str(source), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=True,
        op_types_to_quantize=[op], nodes_to_exclude=list(exclude),
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
