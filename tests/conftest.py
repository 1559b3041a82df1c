"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository (or $SHARED_DIR); skips the test where it is absent."""
    root = Path(__file__).resolve().parents[1]
    path = Path(os.environ.get("SHARED_DIR", root.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"no folder of shared test data at {path} (set SHARED_DIR)")
    return path
