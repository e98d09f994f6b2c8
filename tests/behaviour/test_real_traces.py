"""Real arrivals, read by `labeler.fleet.traces`, are as bursty as their sets' descriptions say.

Needs the real sets: `LABELER_DATA_DIR`, else `../shared/data` beside the project. Skips loudly
where that is missing; with `LABELER_REQUIRE_DATA=1` a skip fails.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labeler.fleet.traces import Join, faster, overlay, read_times

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("LABELER_DATA_DIR") or ROOT.parent / "shared" / "data")
CLOUD, LAB = DATA / "trace-azure-llm-2023", DATA / "trace-rad-robot-lab"

_MISSING = [str(folder) for folder in (CLOUD, LAB) if not folder.is_dir()]
if _MISSING and os.environ.get("LABELER_REQUIRE_DATA") == "1":
    pytest.fail(f"LABELER_REQUIRE_DATA=1, but there is no {' and no '.join(_MISSING)}", False)
if _MISSING:
    pytest.skip(
        f"no real data at {' and '.join(_MISSING)}; set LABELER_DATA_DIR", allow_module_level=True
    )


def counts(times_us: Array, window_us: int) -> Array:
    """Arrivals in each window, the last one cut short by the end of the trace."""
    return np.bincount(times_us // window_us)


def dispersion(times_us: Array, window_us: int) -> float:
    """Variance over mean of the counts; 1 for a Poisson process."""
    found = counts(times_us, window_us)
    return float(found.var() / found.mean())


def variation(times_us: Array) -> float:
    gaps = np.diff(times_us)
    return float(gaps.std() / gaps.mean())


@pytest.mark.parametrize(
    ("file", "rows", "cv", "busiest", "dispersions"),
    [
        ("code.csv", 8819, 13.2, 67, {100: 2.5, 1000: 13, 10_000: 71, 60_000: 161}),
        ("conv.csv", 19_366, 1.09, 16, {100: 1.1, 1000: 1.4, 10_000: 4.0, 60_000: 21}),
    ],
)
def test_the_clouds_services_are_as_bursty_as_described(
    file: str, rows: int, cv: float, busiest: int, dispersions: dict[int, float]
) -> None:
    [times] = read_times(CLOUD / file)

    assert len(times) == rows
    assert variation(times) == pytest.approx(cv, rel=0.01)
    assert counts(times, 1_000_000).max() == busiest
    found = {ms: dispersion(times, ms * 1000) for ms in dispersions}
    assert found == pytest.approx(dispersions, rel=0.04)


def test_a_speed_up_moves_the_variance_to_a_shorter_window() -> None:
    [times] = read_times(CLOUD / "code.csv")

    assert dispersion(faster(times, 100), 10_000) == pytest.approx(
        dispersion(times, 1_000_000), 0.01
    )


def test_copies_over_each_other_smooth_the_bursts() -> None:
    [times] = read_times(CLOUD / "code.csv")

    found = overlay(times, 50, seed=1)

    assert len(found) == 50 * len(times)
    mean, most = (float(getattr(counts(found, 1_000_000), name)()) for name in ("mean", "max"))
    assert mean == pytest.approx(50 * 2.57, rel=0.01)
    assert most / mean < 5  # 26 in the trace itself


@pytest.mark.parametrize(
    ("run", "rows", "busiest", "dispersions"),
    [
        ("20211005111628-5", 10_356, 21, {1000: 3.3, 10_000: 23, 60_000: 107}),
        ("20211022152644-1", 6817, 9, {1000: 1.7, 10_000: 8.0, 60_000: 38}),
        ("20210907135242-2", 5234, 10, {1000: 3.9, 10_000: 27, 60_000: 125}),
        ("20211022125332-1", 3850, 9, {1000: 3.4, 10_000: 20, 60_000: 76}),
        ("20211012132024-1", 3576, 9, {1000: 3.9, 10_000: 26, 60_000: 117}),
    ],
)
def test_a_labs_run_is_as_bursty_as_described(
    run: str, rows: int, busiest: int, dispersions: dict[int, float]
) -> None:
    [times] = read_times(LAB / "commands.csv.gz", where={"run": run})

    assert len(times) == rows
    assert counts(times, 1_000_000).max() == busiest
    found = {ms: dispersion(times, ms * 1000) for ms in dispersions}
    assert found == pytest.approx(dispersions, rel=0.03)


def test_the_labs_remote_runs_are_found_by_joining_the_table_of_runs() -> None:
    join = Join(LAB / "runs.csv", "run")

    runs = read_times(LAB / "commands.csv.gz", where={"mode": "remote"}, join=join, by="run")

    assert len(runs) == 76 - 6
    gaps = np.concatenate([np.diff(times) for times in runs]) / 1e6
    assert sum(map(len, runs)) == 65_871 - 6267
    assert np.percentile(gaps, [10, 50, 90, 99]) == pytest.approx([0.11, 0.22, 1.5, 17], rel=0.06)
    assert gaps.max() / 3600 == pytest.approx(3.4, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(30, rel=0.03)
