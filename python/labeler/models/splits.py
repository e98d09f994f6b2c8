"""Honest splits: what a model is judged on comes later, or from another run, than what it learnt.

Rows are never shuffled: neighbouring rows look alike, and a shuffled split would show a model the
answers. Looks at the order of rows and at their runs only, never at values or labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from labeler.models.errors import TrainingError

__all__ = ["Fold", "Indices", "by_block", "by_run", "by_time"]

Indices = npt.NDArray[np.int64]
"""Numbers of rows."""


@dataclass(frozen=True, eq=False)
class Fold:
    """`test` rows, judged by a model that learnt from the `train` rows and no other."""

    name: str
    train: Indices
    test: Indices


def by_time(rows_total: int, blocks: int) -> list[Fold]:
    """Forward in time: each of `blocks` equal parts after the first is judged by all before it."""
    parts = _parts(rows_total, blocks + 1)
    return [Fold(_rows(test), np.arange(test[0]), test) for test in parts[1:]]


def by_block(rows_total: int, blocks: int) -> list[Fold]:
    """Contiguous blocks, each judged by a model of all the others, also of later ones."""
    every = np.arange(rows_total)
    return [
        Fold(_rows(test), np.setdiff1d(every, test), test) for test in _parts(rows_total, blocks)
    ]


def by_run(runs: Indices, names: Sequence[str], blocks: int) -> list[Fold]:
    """Whole runs, each in one fold only; more runs than `blocks` are put together in order.

    `runs`: the run of each row, numbered by appearance. Errors: `TrainingError` for one run alone.
    """
    if len(names) < 2:
        raise TrainingError(
            f"the column of runs holds {list(names)} only, expected two runs or more; "
            "split by time instead"
        )
    groups = _groups(np.bincount(runs, minlength=len(names)), min(blocks, len(names)))
    folds = []
    for group in groups:
        inside = np.isin(runs, group)
        name = names[group[0]] if len(group) == 1 else f"{names[group[0]]} … {names[group[-1]]}"
        folds.append(Fold(f"run {name}", np.flatnonzero(~inside), np.flatnonzero(inside)))
    return folds


def _groups(sizes: Indices, count: int) -> list[list[int]]:
    """Runs in order as `count` groups of about equally many rows, none empty."""
    groups: list[list[int]] = [[]]
    before = 0
    for run, size in enumerate(sizes):
        left = len(sizes) - run
        needed = count - len(groups)
        full = before + size / 2 > sizes.sum() * len(groups) / count
        if groups[-1] and needed and (full or left == needed):
            groups.append([])
        groups[-1].append(run)
        before += size
    return groups


def _parts(rows_total: int, count: int) -> list[Indices]:
    if rows_total < 2 * count:
        raise TrainingError(f"{rows_total} rows are too few for {count} blocks, expected more rows")
    return np.array_split(np.arange(rows_total), count)


def _rows(part: Indices) -> str:
    return f"rows {part[0] + 1}–{part[-1] + 1}"
