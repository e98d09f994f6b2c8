"""Golden rows: made-up payloads whose scores every later load must give again.

They stand where two machines could differ: on thresholds and one unit in the last place to both
sides, and at the ends of each column. They are published with the model, so none is taken from the
data. Rows whose two best labels are nearly equal are left out: a label that the last bit of a score
decides proves nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from labeler.models.graphs import STEP_SLOPE
from labeler.models.inference import Rows, open_session, run

__all__ = ["golden_rows", "thresholds_of"]

_THRESHOLDS_MAX = 32
_RANDOM_ROWS = 40
_MARGIN_MIN = 0.02


def golden_rows(models: Sequence[bytes], rows: Rows, seed: int) -> Rows:
    """Golden rows `[n, width]`, n up to 139, for models trained on `rows` `[m, width]`.

    Of `rows` only the 1st and 99th percentile of each column are used.
    """
    random = np.random.default_rng(seed)
    low, high = np.percentile(rows, [1, 99], axis=0).astype(np.float32)
    high = np.where(high > low, high, low + 1)
    made = _around_thresholds(thresholds_of(models[-1]), low, high, random)
    made += [row.astype(np.float64) for row in (low, high, (low + high) / 2)]
    made += list(random.uniform(low, high, (_RANDOM_ROWS, len(low))))
    golden: Rows = np.stack(made).astype(np.float32)
    clear = np.ones(len(golden), dtype=bool)
    for model in models:
        best = np.sort(run(open_session(model), golden), axis=1)
        clear &= best[:, -1] - best[:, -2] >= _MARGIN_MIN
    # A model that is never sure keeps all: what it gives must be the same all the same.
    return golden[clear] if clear.any() else golden


def thresholds_of(model: bytes) -> list[tuple[tuple[int, ...], np.float32]]:
    """Every learnt threshold: the columns whose least value is compared with it, and its value."""
    graph = onnx.load_from_string(model).graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    if "slopes" in constants:
        steps = constants["slopes"] == STEP_SLOPE
        found = zip(constants["columns"][0, steps], constants["lows"][steps], strict=True)
        pairs = {(int(column), np.float32(low)) for column, low in found}
    else:
        (trees,) = graph.node
        values = {item.name: helper.get_attribute_value(item) for item in trees.attribute}
        nodes = zip(
            values["nodes_modes"], values["nodes_featureids"], values["nodes_values"], strict=True
        )
        pairs = {(column, np.float32(value)) for mode, column, value in nodes if mode != b"LEAF"}
    groups = _groups(graph, constants)
    return [(groups.get(column, (column,)), value) for column, value in sorted(pairs)]


def _groups(graph: onnx.GraphProto, constants: dict[str, Any]) -> dict[int, tuple[int, ...]]:
    """Columns of each minimum, by the minimum's place among the features."""
    if "groups" not in constants:
        return {}
    # A network that looks at minima alone has no columns before them.
    alone = not any(node.op_type == "Concat" for node in graph.node)
    first = 0 if alone else graph.input[0].type.tensor_type.shape.dim[1].dim_value
    places = constants["groups"].reshape(constants["grouped_shape"][1:].tolist()).tolist()
    return {first + place: tuple(dict.fromkeys(row)) for place, row in enumerate(places)}


def _around_thresholds(
    found: Sequence[tuple[tuple[int, ...], np.float32]],
    low: Rows,
    high: Rows,
    random: np.random.Generator,
) -> list[npt.NDArray[np.float64]]:
    made = []
    every = max(1, -(-len(found) // _THRESHOLDS_MAX))
    for columns, threshold in found[::every]:
        for value in (
            np.nextafter(threshold, np.float32(-np.inf)),
            threshold,
            np.nextafter(threshold, np.float32(np.inf)),
        ):
            # Of several columns the others are larger, so that this one is the least.
            row = random.uniform(low, high) if len(columns) == 1 else random.uniform(high / 2, high)
            row[list(columns)] = np.maximum(row[list(columns)], float(value) + 1)
            row[random.choice(columns)] = value
            made.append(row)
    return made
