"""Files that stand beside the project: the real data sets, and the public faults that we try.

`LABELER_DATA_DIR` and `LABELER_CASES_DIR`, else `../shared/data` and `../shared/cases`. A test that
needs one skips loudly without it; with `LABELER_REQUIRE_DATA=1` the skip fails.
"""

import os
from pathlib import Path

import pytest

from tests.support.repo import ROOT


def data_file(name: str) -> Path:
    """A file of the data sets, such as `wall-following/readings_24.csv`."""
    return _beside("data", name, "real data")


def case_file(name: str) -> Path:
    """A list of public faults, such as `serving.md`."""
    return _beside("cases", name, "list of faults")


def _beside(folder: str, name: str, what: str) -> Path:
    variable = f"LABELER_{folder.upper()}_DIR"
    file = Path(os.environ.get(variable) or ROOT.parent / "shared" / folder) / name
    if not file.is_file():
        missing = f"no {what} at {file}; set {variable}"
        if os.environ.get("LABELER_REQUIRE_DATA") == "1":
            pytest.fail(f"LABELER_REQUIRE_DATA=1, but {missing}", pytrace=False)
        pytest.skip(missing)
    return file
