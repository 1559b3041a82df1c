"""Our C++ for decoding: compiled on the machine it runs on, in some ten seconds, at first use, and kept.

Called through ctypes, which lets go of Python's lock meanwhile. Without g++ (or $CXX) the references in Python run,
some hundred times slower, and a warning says so. $JASPER_KERNELS: see jasper_pt.native.
"""

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_int64, c_long, c_void_p
from pathlib import Path

from jasper_pt import native
from runkit.compiled import build_folder, compiled_library

SOURCES = Path(__file__).resolve().parent
COMPILE = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-pthread", "-Wall", "-Wextra"]
ERROR_SIZE = 1024
READER = ctypes.CFUNCTYPE(c_long, c_void_p, c_long)


class Options(ctypes.Structure):
    """beam::Options"""

    _fields_ = (
        *((name, c_double) for name in ("alpha", "beta", "unknown", "token_threshold", "beam_threshold")),
        *((name, c_int64) for name in ("width", "top_k", "sentence_ends", "closed")),
    )


# Results and arguments of each function; "!" marks those that have a buffer for an error as their last argument.
FUNCTIONS = {
    "ngram_read_arpa!": (c_void_p, READER),
    "ngram_open_kenlm!": (c_void_p, c_char_p),
    "ngram_free": (None, c_void_p),
    "ngram_order": (c_int64, c_void_p),
    "ngram_description": (c_char_p, c_void_p),
    "ngram_index": (c_int64, c_void_p, c_char_p, c_int64),
    "ngram_number_of_words": (c_int64, c_void_p),
    "ngram_word": (c_char_p, c_void_p, c_int64),
    "ngram_score": (None, c_void_p, c_char_p, c_int64, c_int64, c_int64, POINTER(c_double)),
    "beam_new!": (
        c_void_p,
        *(c_char_p, c_int64, c_void_p, POINTER(Options), c_char_p, c_int64, c_char_p, c_int64, POINTER(c_double)),
    ),
    "beam_free": (None, c_void_p),
    "beam_decode!": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, POINTER(c_int64), c_int64, c_int64),
    "beam_start": (c_void_p, c_void_p),
    "beam_feed!": (c_int64, c_void_p, c_void_p, c_int64),
    "beam_best!": (c_void_p, c_void_p),
    "beam_finish!": (c_void_p, c_void_p, c_int64),
    "beam_stop": (None, c_void_p),
    "results_free": (None, c_void_p),
    "results_sizes": (None, c_void_p, POINTER(c_int64)),
    "results_hypotheses": (POINTER(c_int64), c_void_p),
    "results_tokens": (POINTER(c_int64), c_void_p),
    "results_scores": (POINTER(c_double), c_void_p),
    "results_ids": (POINTER(c_int64), c_void_p),
    "results_frames": (POINTER(c_int64), c_void_p),
    "results_ends": (POINTER(c_int64), c_void_p),
    "results_confidences": (POINTER(c_double), c_void_p),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions, or None where the references are to be used. Raises UserError where $JASPER_KERNELS rules that
    out."""
    found = native.load(_built, "C++ beam search", "the one in Python runs, some hundred times slower")
    if found is None:
        return None
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(found, name.rstrip("!"))
        function.restype = result
        function.argtypes = [*arguments, *([c_char_p] if name.endswith("!") else [])]
    return found


def _built() -> Path:
    """The compiled library for this source, compiler and processor; made if it is not there."""
    sources, headers = (sorted(SOURCES.glob(pattern)) for pattern in ("*.cpp", "*.hpp"))
    return compiled_library(
        build_folder("jasper_pt"), "search", dict.fromkeys(sources, COMPILE), headers, ["-pthread"]
    )  # fmt: skip


class NativeError(Exception):
    """What a function of the library has reported."""


def call(name: str, *arguments):
    """A function that reports errors, by its name without "!". Raises NativeError."""
    error = ctypes.create_string_buffer(ERROR_SIZE)
    result = getattr(library(), name)(*arguments, error)
    if error.value:
        raise NativeError(error.value.decode(errors="replace"))
    return result


def texts(values) -> bytes:
    """Texts as the library takes them: a zero behind each."""
    return b"".join(value.encode() + b"\0" for value in values)
