"""Tables, models and packages for tests of training: small, and the same in every run.

The real data is found here, once: `LABELER_DATA_DIR`, else `../shared/data` beside the project.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from labeler.models.data import Columns, Labels, Table, read_table
from labeler.models.evaluate import Family
from labeler.models.graphs import INPUT, OUTPUT, Tree, forest_graph
from labeler.models.inference import Rows
from labeler.models.networks import NetworkSettings, train_network
from labeler.models.package import VersionSpec, write_version
from labeler.models.splits import by_time
from labeler.models.training import Task
from tests.support.repo import ROOT

DATA = Path(os.environ.get("LABELER_DATA_DIR") or ROOT.parent / "shared" / "data")
QUICK = NetworkSettings(hidden=(16,), bins=4, leaves=8, epochs=12, batch_rows=32)


def real_data(name: str) -> Path:
    """A set's folder; without it the test is skipped, or fails with `LABELER_REQUIRE_DATA=1`."""
    folder = DATA / name
    if not folder.is_dir():
        missing = f"no real data at {folder}; set LABELER_DATA_DIR"
        if os.environ.get("LABELER_REQUIRE_DATA") == "1":
            pytest.fail(f"LABELER_REQUIRE_DATA=1, but {missing}")
        pytest.skip(missing)
    return folder


def write_rides(path: Path, rows: int = 900, seed: int = 5) -> Path:
    """Rides in three runs: `go` where it is light, `wait` where it is not, `yield` near something.

    `idle` is 0 in every row, so nothing can be learnt from it.
    """
    random = np.random.default_rng(seed)
    lines = ["ride,light,near_m,idle,state"]
    for row in range(rows):
        light, near = random.uniform(0, 100), random.uniform(0, 10)
        state = "yield" if near < 2 else "go" if light > 40 else "wait"
        lines.append(f"ride-{row * 3 // rows},{light:.3f},{near:.3f},0,{state}")
    path.write_text("\n".join(lines) + "\n")
    return path


def rides(folder: Path) -> Table:
    """The table of `write_rides`."""
    return read_table(write_rides(folder / "rides.csv"), Columns("state", run="ride"))


def _trained(
    settings: NetworkSettings, rows: Rows, labels: Labels, labels_total: int, seed: int
) -> bytes:
    return train_network(rows, labels, labels_total, settings, seed)


def network(settings: NetworkSettings = QUICK) -> Family:
    """A family that trains a small network."""
    return Family("network", partial(_trained, settings), {})


def task(table: Table, train: Callable[..., bytes] | None = None, seed: int = 0) -> Task:
    """A task on `table`, forward in time, with the quick network or what `train` makes."""
    family = network() if train is None else Family("network", train, {})
    return Task(
        name="rides",
        version="1",
        table=table,
        split="forward in time",
        folds=by_time(len(table.rows), 2),
        families=[family],
        seed=seed,
        baseline=dict,
    )


def stump(threshold: float, root: Path, name: str, labels: Sequence[str] = ("low", "high")) -> Path:
    """A packaged model of one value: the first label up to `threshold`, the second above."""
    values = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    tree = Tree(
        left=np.array([1, -1, -1]),
        right=np.array([2, -1, -1]),
        columns=np.zeros(3, dtype=np.int64),
        thresholds=[threshold, 0.0, 0.0],
        values=values,
    )
    model = forest_graph(1, [tree], 2)
    golden: Rows = np.array([[0.0], [1.0]], dtype=np.float32)
    spec = VersionSpec(name, "1", 1, labels, INPUT, OUTPUT, False, None, 1e-6, None)
    return write_version(root, spec, {"fp32": model}, golden, {})
