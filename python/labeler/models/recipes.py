"""What `labeler train` can make: the two packaged models, and a model of anybody's own table.

Each recipe gives a `Task`; how it is trained, judged and packaged is the same for all. No threshold
of a label's rule is written here: which columns belong together is given, the rest is learnt.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labeler.models.baselines import simple_baseline
from labeler.models.data import Columns, Table, read_table
from labeler.models.errors import TrainingError
from labeler.models.evaluate import Family
from labeler.models.forests import ForestSettings, train_forest
from labeler.models.networks import NetworkSettings, train_network
from labeler.models.package import Credit
from labeler.models.splits import Fold, by_block, by_run, by_time
from labeler.models.training import Task

__all__ = [
    "FAMILIES",
    "RECIPES",
    "OwnTable",
    "kiva_floor",
    "own_table",
    "split_columns",
    "wall_following",
]

FAMILIES = ("auto", "network", "trees")
_BLOCKS, _BLOCKS_MAX = 5, 100
_BALANCED_SHARE_MAX = 0.1

# The sensors of the ring of each set, from 0, as its description names the arcs.
_WALL_ARCS = {
    "front": range(10, 15),
    "left": range(17, 20),
    "right": range(4, 9),
    "back": range(22, 24),
}
_FLOOR_ARCS = {
    "ahead": (23, 0, 1),
    "front": (22, 23, 0, 1, 2),
    "sides": (3, 4, 5, 6, 7, 17, 18, 19, 20, 21),
}

_FLOOR_TRAINING = range(100, 140)
_FLOOR_UNSEEN = range(9_000, 9_008)
_FLOOR_TRAINING_ROWS, _FLOOR_UNSEEN_ROWS = 160_000, 40_000
_FLOOR_UNSEEN_SEED = 77

_WALL_CREDIT = Credit(
    title="Wall-Following Robot Navigation Data",
    authors="A. Freire, M. Veloso, G. Barreto (2009), UCI Machine Learning Repository",
    source="https://doi.org/10.24432/C57C8W",
    licence="CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
    changes=(
        "A small network was trained on the 24-sensor file, reduced to the minima of four arcs; no "
        "row of the data is in this folder, the golden rows are made up."
    ),
)


@dataclass(frozen=True)
class OwnTable:
    """Somebody's own table, and how its model is to be made and judged.

    Split by runs where `columns` name a column of runs, else forward in time, in `blocks` blocks.
    """

    path: Path
    columns: Columns
    blocks: int = _BLOCKS
    family: str = "auto"


def kiva_floor(data: Path | None, version: str, seed: int) -> Task:
    """24 ranges of a robot on a warehouse floor to what it should do, learnt on simulated floors.

    Learnt on forty floors and judged, as packaged, on eight others with other robots.
    """
    if data is not None:
        raise TrainingError(f"kiva-floor learns from simulated floors and takes no --data ({data})")
    from labeler.fleet import LABELS, WIDTH, sample

    parts = [
        sample(_FLOOR_TRAINING, _FLOOR_TRAINING_ROWS, seed=1),
        sample(_FLOOR_UNSEEN, _FLOOR_UNSEEN_ROWS, seed=_FLOOR_UNSEEN_SEED),
    ]
    rows = np.concatenate([ranges for ranges, _ in parts])
    labels = np.concatenate([truths for _, truths in parts]).astype(np.int64)
    digest = hashlib.sha256(rows.tobytes() + labels.astype("<i2").tobytes()).hexdigest()
    table = Table(
        rows=rows,
        labels=labels,
        classes=tuple(LABELS),
        columns=tuple(f"range{sensor}" for sensor in range(WIDTH)),
        source="labeler.fleet.sample, rows and labels",
        sha256=digest,
    )
    train = np.arange(_FLOOR_TRAINING_ROWS)
    unseen = np.array_split(np.arange(_FLOOR_TRAINING_ROWS, len(rows)), len(_FLOOR_UNSEEN))
    folds = [
        Fold(f"floor {floor}", train, test)
        for floor, test in zip(_FLOOR_UNSEEN, unseen, strict=True)
    ]
    settings = NetworkSettings(
        hidden=(64,),
        minima=tuple(tuple(arc) for arc in _FLOOR_ARCS.values()),
        bins=1,
        minima_bins=4,
        leaves=12,
        epochs=18,
        batch_rows=256,
        penalty=1e-4,
    )
    return Task(
        name="kiva-floor",
        version=version,
        table=table,
        split=(
            f"floors {_FLOOR_TRAINING[0]}–{_FLOOR_TRAINING[-1]} to learn, floors "
            f"{_FLOOR_UNSEEN[0]}–{_FLOOR_UNSEEN[-1]} with other robots to judge"
        ),
        folds=folds,
        families=[_network(settings)],
        seed=seed,
        baseline=lambda: _floor_baseline(table, folds),
        cautions=(
            "The simulator's controller is an exact rule of the true ranges; the model sees them "
            "with noise, so some labels near a threshold can't be known from its payload.",
            "The arcs whose minima are features are those that the controller looks at.",
            "Faults of sensors (bias, dust, a dead sensor) were off while training and judging.",
        ),
        packaged_rows=train,
        accuracy_min=0.98,
        range=(0.0, 10.0),
    )


def wall_following(data: Path | None, version: str, seed: int) -> Task:
    """24 distances of a robot's ring to one of four moves, learnt from a real recording."""
    if data is None:
        raise TrainingError("wall-following needs --data DIR, the folder of readings_24.csv")
    table = read_table(data / "readings_24.csv", Columns("label"))
    folds = by_block(len(table.rows), _BLOCKS)
    settings = NetworkSettings(
        hidden=(16,),
        minima=tuple(tuple(arc) for arc in _WALL_ARCS.values()),
        bins=0,
        minima_bins=0,
        leaves=8,
        epochs=60,
        penalty=1e-5,
    )
    return Task(
        name="wall-following",
        version=version,
        table=table,
        split="5 contiguous held-out blocks",
        folds=folds,
        families=[_network(settings)],
        seed=seed,
        baseline=lambda: {
            "source": "the data set's README: 300 trees, seed 0, the same blocks",
            "forest_24_sensors": {"accuracy": 0.992, "f1_macro": 0.987},
            "forest_4_distances": {"accuracy": 0.9998, "f1_macro": 0.9996},
            "label_of_the_row_before_accuracy": 0.928,
        },
        cautions=(
            "The label is an exact rule of two arcs' nearest distances: the figures prove the path "
            "and int8, not the model.",
            "The settings of the network were chosen on these blocks.",
        ),
        accuracy_min=0.998,
        range=(0.0, 10.0),
        credit=_WALL_CREDIT,
    )


RECIPES: dict[str, Callable[[Path | None, str, int], Task]] = {
    "kiva-floor": kiva_floor,
    "wall-following": wall_following,
}


def split_columns(text: str) -> tuple[str | None, str | None]:
    """The columns of runs and of time that a split names: `time`, `time:COLUMN`, `run:COLUMN`.

    Errors: `TrainingError`.
    """
    kind, colon, column = text.partition(":")
    if kind == "run" and column:
        return column, None
    if kind == "time" and bool(colon) == bool(column):
        return None, column or None
    raise TrainingError(f"--split {text!r}, expected time, time:COLUMN or run:COLUMN")


def own_table(own: OwnTable, name: str, version: str, seed: int) -> Task:
    """A model of a table of somebody's own. Errors: `TrainingError`."""
    if own.family not in FAMILIES:
        raise TrainingError(f"--family {own.family!r}, expected one of {', '.join(FAMILIES)}")
    if not 2 <= own.blocks <= _BLOCKS_MAX:
        raise TrainingError(f"--blocks {own.blocks}, expected 2 to {_BLOCKS_MAX}")
    table = read_table(own.path, own.columns)
    if own.columns.run:
        kind = f"by runs of {own.columns.run}"
        folds = by_run(table.runs, table.run_names, own.blocks)
    else:
        kind = "forward in time"
        folds = by_time(len(table.rows), own.blocks)
    counts = np.bincount(table.labels)
    balanced = len(counts) == 2 and bool(counts.min() < _BALANCED_SHARE_MAX * counts.sum())
    families = {
        "network": _network(NetworkSettings(balanced=balanced)),
        "trees": _trees(ForestSettings(balanced=balanced)),
    }
    wanted = families if own.family == "auto" else {own.family: families[own.family]}
    cautions = ["Judged on one table; a robot that differs from it may be labelled worse."]
    if len(wanted) > 1:
        cautions.append("The family was chosen on the same folds that it is reported on.")
    return Task(
        name=name,
        version=version,
        table=table,
        split=kind,
        folds=folds,
        families=list(wanted.values()),
        seed=seed,
        baseline=lambda: simple_baseline(table, folds, balanced),
        cautions=cautions,
    )


def _network(settings: NetworkSettings) -> Family:
    return Family(
        "network",
        lambda rows, labels, total, seed: train_network(rows, labels, total, settings, seed),
        asdict(settings),
    )


def _trees(settings: ForestSettings) -> Family:
    return Family(
        "trees",
        lambda rows, labels, total, seed: train_forest(rows, labels, total, settings, seed),
        asdict(settings),
    )


def _floor_baseline(table: Table, folds: Sequence[Fold]) -> dict[str, Any]:
    """The controller's own rule on the noisy payloads: what noise alone costs."""
    from labeler.fleet import label_of

    test = np.concatenate([fold.test for fold in folds])
    truth = table.labels[test]
    common = int(np.bincount(truth).argmax())
    return {
        "source": "computed here, on the same floors",
        "controllers_rule_on_the_noisy_ranges_accuracy": float(
            (label_of(table.rows[test]) == truth).mean()
        ),
        "commonest_label_accuracy": float((truth == common).mean()),
    }
