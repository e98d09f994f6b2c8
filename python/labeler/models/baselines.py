"""What a model must be better than: figures on the same folds that need no thought.

The forest is the plain one of a data set's first look (300 trees), so that figures found elsewhere
with it can be put beside these. Never packaged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from labeler.models.data import Labels, Table
from labeler.models.evaluate import figures
from labeler.models.splits import Fold

__all__ = ["simple_baseline"]

_FOREST_ROWS_MAX = 50_000
_TREES = 300


def simple_baseline(table: Table, folds: Sequence[Fold], balanced: bool) -> dict[str, Any]:
    """Always the commonest label, the label of the row before, and a forest where rows are few."""
    truth = np.concatenate([table.labels[fold.test] for fold in folds])
    common = np.concatenate(
        [np.full(len(fold.test), np.bincount(table.labels[fold.train]).argmax()) for fold in folds]
    )
    before = np.concatenate([table.labels[np.maximum(fold.test - 1, 0)] for fold in folds])
    found: dict[str, Any] = {
        "source": "computed here, on the same folds and rows",
        "commonest_label_accuracy": float((common == truth).mean()),
        "label_of_the_row_before_accuracy": float((before == truth).mean()),
    }
    if len(table.rows) > _FOREST_ROWS_MAX:
        found["forest"] = f"not computed above {_FOREST_ROWS_MAX} rows"
        return found
    scores = np.concatenate([_forest_scores(table, fold, balanced) for fold in folds])
    settings = ", min_samples_leaf=2, balanced_subsample" if balanced else ""
    found["forest"] = {
        "model": f"scikit-learn's RandomForest, {_TREES} trees, seed 0{settings}, float64",
        **figures(truth, scores, table.classes),
    }
    return found


def _forest_scores(table: Table, fold: Fold, balanced: bool) -> Any:
    forest = RandomForestClassifier(
        _TREES,
        min_samples_leaf=2 if balanced else 1,
        class_weight="balanced_subsample" if balanced else None,
        random_state=0,
        n_jobs=1,
    )
    labels: Labels = table.labels[fold.train]
    forest.fit(table.rows[fold.train], labels)
    scores = np.zeros((len(fold.test), len(table.classes)), dtype=np.float32)
    scores[:, forest.classes_] = forest.predict_proba(table.rows[fold.test])
    return scores
