"""A random forest as one ONNX node. Trees compare and add: there is nothing to quantise in them."""

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from labeler.models.data import Labels
from labeler.models.graphs import Tree, forest_graph
from labeler.models.inference import Rows
from labeler.models.thresholds import float32_below

__all__ = ["ForestSettings", "train_forest"]


@dataclass(frozen=True)
class ForestSettings:
    """How many trees, how small a leaf may be, and whether rare labels weigh more."""

    trees: int = 200
    leaf_rows_min: int = 2
    balanced: bool = False


def train_forest(
    rows: Rows, labels: Labels, labels_total: int, settings: ForestSettings, seed: int
) -> bytes:
    """The ONNX file of a forest trained on `rows` `[n, width]`, `labels` `[n]` below the total.

    Input `input` float32 `[N, width]`, output `scores` float32 `[N, labels_total]`; rows sum to 1.
    The same arguments give the same bytes.
    """
    forest = RandomForestClassifier(
        settings.trees,
        min_samples_leaf=settings.leaf_rows_min,
        class_weight="balanced_subsample" if settings.balanced else None,
        random_state=seed,
        n_jobs=1,
    )
    forest.fit(rows, labels)
    trees = [_tree(one, forest, labels_total) for one in forest.estimators_]
    return forest_graph(rows.shape[1], trees, labels_total)


def _tree(
    estimator: DecisionTreeClassifier, forest: RandomForestClassifier, labels_total: int
) -> Tree:
    learnt = estimator.tree_
    values = np.zeros((learnt.node_count, labels_total))
    shares = learnt.value[:, 0] / learnt.value[:, 0].sum(axis=1, keepdims=True)
    values[:, forest.classes_] = shares / len(forest.estimators_)
    return Tree(
        left=learnt.children_left,
        right=learnt.children_right,
        columns=learnt.feature,
        thresholds=[float32_below(float(threshold)) for threshold in learnt.threshold],
        values=values,
    )
