"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

from userdp.data.public import PUBLIC_DATASETS

collect_ignore = ["lying_silo"]  # code of containers


@pytest.fixture(scope="session")
def public_cache() -> Path:
    """A folder that holds the four public data sets; skips where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for folder in (os.environ.get("USERDP_DATA"), beside):
        if folder and all((Path(folder) / entry.file).is_file() for entry in PUBLIC_DATASETS.values()):
            return Path(folder)
    pytest.skip(f"the public data sets are neither in USERDP_DATA nor in {beside}; fetch them to run this test")
