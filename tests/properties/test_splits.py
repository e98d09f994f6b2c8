"""Splits: whatever the table, no test row and nothing beside it was learnt from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeler.models.errors import TrainingError
from labeler.models.splits import Fold, by_block, by_run, by_time


def _disjoint(folds: list[Fold]) -> None:
    tested = np.concatenate([fold.test for fold in folds])
    assert len(np.unique(tested)) == len(tested)
    for fold in folds:
        assert len(fold.train)
        assert len(fold.test)
        assert not np.intersect1d(fold.train, fold.test).size


@given(rows=st.integers(20, 400), blocks=st.integers(2, 9))
def test_forward_in_time_every_row_learnt_from_is_before_every_row_judged(
    rows: int, blocks: int
) -> None:
    folds = by_time(rows, blocks)

    _disjoint(folds)
    assert len(folds) == blocks
    assert all(fold.train.max() < fold.test.min() for fold in folds)
    assert folds[-1].test.max() == rows - 1


@given(rows=st.integers(20, 400), blocks=st.integers(2, 9))
def test_blocks_are_contiguous_and_judge_every_row_once(rows: int, blocks: int) -> None:
    folds = by_block(rows, blocks)

    _disjoint(folds)
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(rows))
    assert all(np.ptp(fold.test) == len(fold.test) - 1 for fold in folds)


@given(runs=st.lists(st.integers(0, 12), min_size=2, max_size=200), blocks=st.integers(2, 9))
def test_no_run_is_on_both_sides_of_a_split(runs: list[int], blocks: int) -> None:
    places = {run: place for place, run in enumerate(dict.fromkeys(runs))}
    numbered = np.array([places[run] for run in runs])
    names = [str(run) for run in places]
    if len(names) == 1:
        with pytest.raises(TrainingError, match="two runs or more"):
            by_run(numbered, names, blocks)
        return
    folds = by_run(numbered, names, blocks)

    _disjoint(folds)
    assert len(folds) == min(blocks, len(names))
    assert sum(len(fold.test) for fold in folds) == len(runs)
    for fold in folds:
        assert not np.intersect1d(numbered[fold.train], numbered[fold.test]).size


def test_rows_too_few_for_the_blocks_are_refused() -> None:
    with pytest.raises(TrainingError, match="9 rows are too few for 6 blocks"):
        by_time(9, 5)
