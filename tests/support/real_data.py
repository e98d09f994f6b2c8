"""Files of the real data sets: `LABELER_DATA_DIR`, else `../shared/data` beside the project.

A test that needs one skips loudly without it; with `LABELER_REQUIRE_DATA=1` the skip fails.
"""

import os
from pathlib import Path

import pytest

from tests.support.repo import ROOT


def data_file(name: str) -> Path:
    """A file of the data sets, such as `wall-following/readings_24.csv`."""
    folder = Path(os.environ.get("LABELER_DATA_DIR") or ROOT.parent / "shared" / "data")
    file = folder / name
    if not file.is_file():
        missing = f"no real data at {file}; set LABELER_DATA_DIR"
        if os.environ.get("LABELER_REQUIRE_DATA") == "1":
            pytest.fail(f"LABELER_REQUIRE_DATA=1, but {missing}", pytrace=False)
        pytest.skip(missing)
    return file
