"""Where the files of this folder's tests lie."""

import tempfile
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

set_hypothesis_home_dir(Path(tempfile.gettempdir(), "hypothesis"))  # not in the repository


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """One folder for all examples, each of which overwrites the files of the one before."""
    return tmp_path_factory.mktemp("fuzz")
