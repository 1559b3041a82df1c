"""Models of Triton's repositories: config.pbtxt and the files of a version.

    repository/
        NAME/config.pbtxt
        NAME/VERSION/model.py, model.onnx, ...

Form: Triton's model_repository.md and model_config.proto.
"""

import argparse
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runkit.errors import UserError
from runkit.files import atomic_directory

BACKENDS = ("python", "onnxruntime")
ONNX_MODEL = "runkit.serving.onnx_model"  # model.py of the python backend where the file to run is an ONNX graph


class Tensor(NamedTuple):
    """An input or output, without the dimension of the batch. -1: any size; () with scalar: one number a row."""

    name: str
    type: str  # FP32, INT32, INT64, STRING
    dims: Sequence[int] = (1,)
    scalar: bool = False  # the model sees [B], clients send [B, 1]
    optional: bool = False
    ragged: bool = False  # requests of other sizes may stand in the same batch


class Serving(NamedTuple):
    """How requests reach a model."""

    max_batch_size: int = 8
    delay_ms: float | None = None  # how long a request may wait for others to share a batch; None: no batches are made
    engines: int = 1  # copies of the model
    gpu: bool = False


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of both recipes' repositories."""
    add = parser.add_argument
    add("--triton_model_version", type=int, default=1)
    add("--triton_model_overwrite", action="store_true", help="replaces models of these names")
    add("--triton_max_batch_size", type=int, default=8)
    add("--triton_dyn_batching_delay", type=float, default=0.0, help="ms a request may wait for others; 0: no batching")
    add("--triton_engine_count", type=int, default=1, help="copies of each model")
    add("--backend", choices=BACKENDS, default="python", help="what runs the ONNX model")
    add("--backend_device", choices=("cpu", "gpu"), default="cpu", help="where onnxruntime runs it")
    add("--onnx_file", default="model.onnx", help="model_int8.onnx: the quantised model")
    add("--threads", type=int, default=0, help="of the ONNX model under the python backend; 0: all cores")


def from_arguments(args: argparse.Namespace) -> Serving:
    """Raises UserError for flags that make no sense."""
    if args.backend == "python" and args.backend_device == "gpu":
        raise UserError("--backend_device=gpu needs --backend=onnxruntime: the python backend runs on the CPU")
    if args.triton_model_version < 1 or args.threads < 0:
        raise UserError("--triton_model_version must be 1 or more, --threads 0 or more")
    if args.triton_max_batch_size < 1 or args.triton_engine_count < 1 or not args.triton_dyn_batching_delay < 60_000:
        raise UserError(
            "--triton_max_batch_size and --triton_engine_count must be 1 or more, --triton_dyn_batching_delay below a "
            "minute"
        )
    return Serving(
        args.triton_max_batch_size,
        args.triton_dyn_batching_delay if args.triton_dyn_batching_delay > 0 else None,
        args.triton_engine_count,
        args.backend_device == "gpu",
    )


def behind(serving: Serving) -> Serving:
    """For a model that another one asks: requests have waited there already, so that only those share a batch here
    which come while it works."""
    return serving if serving.delay_ms is None else serving._replace(delay_ms=0.0)


def in_front(serving: Serving) -> Serving:
    """For the model that asks: it runs on the CPU."""
    return serving._replace(gpu=False)


def model_config(
    name: str,
    backend: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    serving: Serving,
    parameters: Mapping[str, Any] | None = None,
) -> str:
    """The text of config.pbtxt."""
    config: dict[str, Any] = {"name": name, "backend": backend, "max_batch_size": serving.max_batch_size}
    if backend == "onnxruntime":
        config["default_model_filename"] = "model.onnx"
    config["input"] = [_described(tensor) for tensor in inputs]
    config["output"] = [_described(tensor) for tensor in outputs]
    config["instance_group"] = [{"count": serving.engines, "kind": Name("KIND_GPU" if serving.gpu else "KIND_CPU")}]
    if serving.delay_ms is not None:
        config["dynamic_batching"] = {
            "preferred_batch_size": sorted({max(1, serving.max_batch_size // 2), serving.max_batch_size}),
            "max_queue_delay_microseconds": round(1000 * serving.delay_ms),
        }
    given = (parameters or {}).items()
    config["parameters"] = [{"key": key, "value": {"string_value": str(value)}} for key, value in given]
    return text_format(config)


def _described(tensor: Tensor) -> dict[str, Any]:
    fields = {"name": tensor.name, "data_type": Name(f"TYPE_{tensor.type}"), "dims": list(tensor.dims)}
    flags = {"optional": tensor.optional, "allow_ragged_batch": tensor.ragged}
    return fields | {key: True for key, said in flags.items() if said} | ({"reshape": {}} if tensor.scalar else {})


class Name(str):
    """A value of an enumeration, written without quotes."""


def text_format(fields: Mapping[str, Any], indent: str = "") -> str:
    """Protocol buffers' text format of nested fields; a list is a repeated field."""
    lines = []
    for key, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, Mapping):
                lines.append(f"{indent}{key} {{\n{text_format(value, indent + '  ')}{indent}}}\n")
            else:
                plain = value if isinstance(value, Name) else json.dumps(value, ensure_ascii=False)
                lines.append(f"{indent}{key}: {plain}\n")
    return "".join(lines)


def python_model(module: str) -> str:
    """model.py: this tree's class, which the server finds by PYTHONPATH."""
    return (
        '"""Made by scripts/triton/export_model.sh; the server needs this tree on its PYTHONPATH."""\n\n'
        f"from {module} import TritonPythonModel  # noqa: F401\n"
    )


def write_model(
    repository: str | os.PathLike,
    name: str,
    version: int,
    config: str,
    files: Mapping[str, str | Path],
    overwrite: bool = False,
) -> Path:
    """Puts a model with one version in place, whole or not at all. files: by names, texts or files to copy.

    Raises UserError where it is there and `overwrite` is not said.
    """
    target = Path(repository) / name
    if target.exists() and not overwrite:
        raise UserError(f"{target} is there already: say --triton_model_overwrite to replace it")
    if target.exists() and any(target.iterdir()) and not (target / "config.pbtxt").is_file():
        raise UserError(f"{target} holds other files than a model, and would be replaced: choose another place or name")
    with atomic_directory(target) as folder:
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")
        place = folder / str(version)
        place.mkdir()
        for file, content in files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, place / file)
            else:
                (place / file).write_text(content, encoding="utf-8")
    return target
