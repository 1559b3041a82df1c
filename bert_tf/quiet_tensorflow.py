"""Imports TensorFlow without its start-up chatter; import this before anything else that imports TensorFlow.

TensorFlow's libraries write notes to the file descriptor of stderr while they are loaded, before any setting can turn
them off. They are caught and sorted here: known notes are dropped, everything else is written out as it was.
"""

import importlib
import os
import re
import sys
import tempfile

_CHATTER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I0000 .*(oneDNN custom operations are on|This TensorFlow binary is optimized)"
    rb"|To enable the following instructions: "
)


def _import_tensorflow() -> None:
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
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
