"""A small network on encoded columns, made so that 8 bits lose nothing that matters.

Each column becomes a few values from 0 to 1: its place within quantile bins, and steps at the
thresholds that a decision tree finds (piecewise linear encoding, Gorishniy et al. 2022). So their
range is known before any data is seen, steps are exact in 8 bits, and a value far outside of what
was trained on counts as the nearest that was. Draws nothing but from its seed.
"""

import itertools
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.class_weight import compute_sample_weight
from threadpoolctl import threadpool_limits

from labeler.models.data import Labels
from labeler.models.graphs import STEP_SLOPE, Encoding, Layer, network_graph
from labeler.models.inference import Rows
from labeler.models.thresholds import float32_below

__all__ = ["NetworkSettings", "train_network"]

# Below every score that a label of the training rows can get.
_NEVER = -30.0


@dataclass(frozen=True)
class NetworkSettings:
    """How columns are encoded and how the network learns.

    `minima`: groups of columns whose least value is a feature of its own. `bins`, `minima_bins`:
    quantile bins of a column and of a minimum, 0 for none. `leaves`: of the tree whose thresholds
    become steps, 0 for none. `rates`: the learning rates of equal shares of the `epochs`.
    """

    hidden: tuple[int, ...] = (64, 32)
    minima: tuple[tuple[int, ...], ...] = ()
    bins: int = 8
    minima_bins: int = 8
    leaves: int = 32
    epochs: int = 21
    batch_rows: int = 128
    rates: tuple[float, ...] = (3e-3, 1e-3, 2e-4)
    penalty: float = 3e-2
    balanced: bool = False


def train_network(
    rows: Rows, labels: Labels, labels_total: int, settings: NetworkSettings, seed: int
) -> bytes:
    """The ONNX file of a network trained on `rows` `[n, width]`, `labels` `[n]` below the total.

    Input `input` float32 `[N, width]`, output `scores` float32 `[N, labels_total]`; rows sum to 1.
    A label that `labels` lacks gets a score near 0. On one machine the same arguments give the
    same bytes.
    """
    features = _features(rows, settings.minima)
    encoding = _encode(features, labels, rows.shape[1], settings, seed)
    with threadpool_limits(1):
        network = _fit(encoding.of(features), labels, settings, seed)
    layers = [
        Layer(weights.astype(np.float32), biases.astype(np.float32))
        for weights, biases in zip(network.coefs_, network.intercepts_, strict=True)
    ]
    layers[-1] = _all_labels(layers[-1], network.classes_, labels_total)
    return network_graph(rows.shape[1], settings.minima, encoding, layers)


def _features(rows: Rows, minima: tuple[tuple[int, ...], ...]) -> Rows:
    """The columns, then the minimum of each group: `[n, width + groups]`, as the graph has it."""
    nearest = [rows[:, list(group)].min(axis=1, keepdims=True) for group in minima]
    return np.concatenate([rows, *nearest], axis=1)


def _encode(
    features: Rows, labels: Labels, width: int, settings: NetworkSettings, seed: int
) -> Encoding:
    bins = [settings.bins] * width + [settings.minima_bins] * (features.shape[1] - width)
    found: list[tuple[int, np.float32, np.float32]] = []
    for column, count in enumerate(bins):
        edges = _edges(features[:, column], count)
        for low, high in itertools.pairwise(edges):
            slope = np.float32(1) / max(high - low, 1 / STEP_SLOPE)
            found.append((column, low, slope))
    if settings.leaves > 1:
        used = [column for column, count in enumerate(bins) if count or column >= width]
        found += _steps(features, labels, used, settings.leaves, seed)
    columns, lows, slopes = zip(*found, strict=True)
    return Encoding(
        np.array(columns, dtype=np.int64),
        np.array(lows, dtype=np.float32),
        np.array(slopes, dtype=np.float32),
    )


def _edges(values: Rows, bins: int) -> npt.NDArray[np.float32]:
    """Borders of up to `bins` quantile bins; a column of one value gets one bin above it."""
    if not bins:
        return np.empty(1, dtype=np.float32)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)).astype(np.float32))
    return edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1], dtype=np.float32)


def _steps(
    features: Rows, labels: Labels, used: list[int], leaves: int, seed: int
) -> list[tuple[int, np.float32, np.float32]]:
    """A step just above each threshold of a tree with so many leaves."""
    tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=seed)
    tree.fit(features[:, used], labels)
    inner = tree.tree_.children_left >= 0
    thresholds = sorted(
        {
            (used[int(column)], float32_below(float(threshold)))
            for column, threshold in zip(
                tree.tree_.feature[inner], tree.tree_.threshold[inner], strict=True
            )
        }
    )
    return [(column, np.float32(threshold), STEP_SLOPE) for column, threshold in thresholds]


def _fit(encoded: Rows, labels: Labels, settings: NetworkSettings, seed: int) -> MLPClassifier:
    network = MLPClassifier(
        settings.hidden,
        alpha=settings.penalty,
        batch_size=min(settings.batch_rows, len(encoded)),
        n_iter_no_change=settings.epochs,
        warm_start=True,
        random_state=seed,
    )
    weights = compute_sample_weight("balanced", labels) if settings.balanced else None
    for rate in settings.rates:
        epochs = max(1, settings.epochs // len(settings.rates))
        network.set_params(learning_rate_init=rate, max_iter=epochs)
        with warnings.catch_warnings():
            # It is told how long to learn, and stops there on purpose.
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(encoded, labels, sample_weight=weights)
    return network


def _all_labels(last: Layer, classes: Labels, labels_total: int) -> Layer:
    """The last layer with one column a label, also of labels that it has never seen."""
    weights, biases = last.weights, last.biases
    if len(classes) == 2:
        # One output, the log-odds of the second class: half to each side, softmax gives the same.
        weights = np.concatenate([-weights / 2, weights / 2], axis=1)
        biases = np.concatenate([-biases / 2, biases / 2])
    full = Layer(
        np.zeros((len(weights), labels_total), dtype=np.float32),
        np.full(labels_total, _NEVER, dtype=np.float32),
    )
    full.weights[:, classes] = weights
    full.biases[classes] = biases
    return full
