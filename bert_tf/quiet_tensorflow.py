"""Imports TensorFlow without its start-up chatter; import this before anything else that imports TensorFlow.

TensorFlow's libraries write notes to the file descriptor of stderr while they are loaded, before any setting can turn
them off. They are caught and sorted here: known notes are dropped, everything else is written out as it was.

TensorFlow also imports Keras if it can, a fifth of the time and 50 MB; nothing here needs it, so it finds none.
tf.keras is there all the same: it is imported when it is first used.
"""

import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_CHATTER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I0000 .*(oneDNN custom operations are on|This TensorFlow binary is optimized)"
    rb"|To enable the following instructions: "
)


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Lets imports of Keras fail, unless it is there already."""
    if "keras" in sys.modules:
        yield
        return
    sys.modules["keras"] = None  # Python's way to say that a module is not to be found
    try:
        yield
    finally:
        del sys.modules["keras"]


def _import_tensorflow() -> None:
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            with _without_keras():
                importlib.import_module("tensorflow")
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            caught.seek(0)
            for line in caught:
                if not _CHATTER.match(line):
                    os.write(2, line)


if "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # from here on errors only
    _import_tensorflow()
