"""The ops of ops.py and the updates of optimization.py in C++ for CPUs: compiled where they run, in a few seconds, at
first use, and kept.

They are TensorFlow operations on TensorFlow's own threads. On a GPU, and where there is no compiler, the functions that
XLA compiles run instead. $BERT_KERNELS: `xla` never uses the kernels, `cpu` insists on them.
"""

import functools
import os
import warnings
from pathlib import Path

import tensorflow as tf

from runkit.compiled import CompileError, build_folder, compiled_library
from runkit.errors import UserError

SOURCES = Path(__file__).resolve().parent
ARITHMETIC = [
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
    "-Wno-psabi",
]
INTERFACE = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter"]


@functools.cache
def library():
    """The operations, or None where XLA's functions are to be used. Raises UserError where $BERT_KERNELS rules that
    out."""
    choice = os.environ.get("BERT_KERNELS", "")
    if choice not in ("", "xla", "cpu"):
        raise UserError(f"BERT_KERNELS is {choice!r}; choose xla or cpu, or leave it unset")
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if has_gpu and choice == "cpu":
        raise UserError(
            "BERT_KERNELS=cpu, but the model runs on a GPU; unset it, or hide the GPU (CUDA_VISIBLE_DEVICES=)"
        )
    if choice == "xla" or has_gpu:
        return None
    try:
        return tf.load_op_library(str(_built()))
    except (CompileError, tf.errors.OpError) as error:
        cause = str(error).strip().splitlines()[0]
        if choice == "cpu":
            raise UserError(f"BERT_KERNELS=cpu, but the C++ kernels cannot be built: {cause}") from error
        warnings.warn(
            f"no C++ kernels ({cause}): functions compiled by XLA run, and a CPU takes a quarter longer. "
            "Install g++ (or set CXX), or accept it with BERT_KERNELS=xla",
            stacklevel=2,
        )
        return None


def _built() -> Path:
    """The compiled library for this source, compiler, TensorFlow and processor; made if it is not there."""
    # TensorFlow's headers by -isystem: their warnings are none of ours.
    of_tensorflow = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith(("-I", "--std"))]
    version = f"-DBERT_TENSORFLOW_VERSION={tf.version.VERSION}"  # for the key: the folder may stay the same
    interface = [*INTERFACE, *of_tensorflow, version, "-isystem", tf.sysconfig.get_include()]
    sources = {
        SOURCES / "attention.cc": ARITHMETIC,
        SOURCES / "elementwise.cc": ARITHMETIC,
        SOURCES / "optimizer.cc": ARITHMETIC,
        SOURCES / "tensorflow_ops.cc": interface,
    }
    return compiled_library(
        _folder(), "bert_kernels", sources, sorted(SOURCES.glob("*.h")), tf.sysconfig.get_link_flags()
    )


def _folder() -> Path:
    return build_folder("bert_tf")
