"""ONNX graphs of what was learnt, written node by node: few nodes, one input, one output.

Input `input` float32 `[rows, width]`, output `scores` float32 `[rows, labels]`. Learns nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from labeler.models.inference import Rows

__all__ = [
    "INPUT",
    "OUTPUT",
    "STEP_SLOPE",
    "Encoding",
    "Layer",
    "Tree",
    "forest_graph",
    "network_graph",
]

INPUT, OUTPUT = "input", "scores"
# Makes a step of an encoding: any difference of two float32 above 1e-30 becomes at least 1.
STEP_SLOPE = np.float32(1e30)


@dataclass(frozen=True)
class Encoding:
    """Values from 0 to 1: `clip((features[:, columns] - lows) * slopes)`; all `[encoded]`."""

    columns: npt.NDArray[np.int64]
    lows: npt.NDArray[np.float32]
    slopes: npt.NDArray[np.float32]

    def of(self, features: Rows) -> Rows:
        """Encoded rows `[n, encoded]` of `features` `[n, columns]`, bit for bit as the graph."""
        encoded: Rows = np.clip((features[:, self.columns] - self.lows) * self.slopes, 0, 1)
        return encoded


@dataclass(frozen=True)
class Layer:
    """`weights` float32 `[in, out]`, `biases` float32 `[out]`."""

    weights: npt.NDArray[np.float32]
    biases: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Tree:
    """One tree, arrays `[nodes]`: a leaf has `left` -1; else `x[columns] <= thresholds` goes left.

    `values` float `[nodes, labels]`: what a leaf adds to the scores.
    """

    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    thresholds: Sequence[float]
    values: npt.NDArray[np.float64]


def network_graph(
    width: int, minima: Sequence[Sequence[int]], encoding: Encoding, layers: Sequence[Layer]
) -> bytes:
    """Encodes, multiplies and adds; between layers `Relu`, at the end `Softmax`."""
    # A network that looks at minima alone needs no columns beside them.
    alone = bool(minima) and int(encoding.columns.min()) >= width
    nodes, constants, features = _minima(minima, alone)
    columns = encoding.columns - width * alone
    constants |= {"columns": columns[np.newaxis], "lows": encoding.lows, "slopes": encoding.slopes}
    constants |= {"zero": np.float32(0), "one": np.float32(1)}
    nodes += [
        _taken(features, "columns", "gathered"),
        helper.make_node("Sub", ["gathered", "lows"], ["above"], "sub"),
        helper.make_node("Mul", ["above", "slopes"], ["sloped"], "mul"),
        helper.make_node("Clip", ["sloped", "zero", "one"], ["encoded"], "clip"),
    ]
    given = "encoded"
    for number, layer in enumerate(layers, start=1):
        weights, biases, out = f"weights{number}", f"biases{number}", f"sums{number}"
        constants |= {weights: layer.weights, biases: layer.biases}
        nodes.append(helper.make_node("Gemm", [given, weights, biases], [out], f"gemm{number}"))
        given = out
        if number < len(layers):
            given = f"hidden{number}"
            nodes.append(helper.make_node("Relu", [out], [given], f"relu{number}"))
    nodes.append(helper.make_node("Softmax", [given], [OUTPUT], "softmax", axis=1))
    return _serialised(nodes, constants, width, len(layers[-1].biases))


def forest_graph(width: int, trees: Sequence[Tree], labels_total: int) -> bytes:
    """Sums the leaves that a row reaches."""
    node = helper.make_node(
        "TreeEnsembleRegressor",
        [INPUT],
        [OUTPUT],
        "trees",
        domain="ai.onnx.ml",
        n_targets=labels_total,
        aggregate_function="SUM",
        post_transform="NONE",
        **_tree_attributes(trees),
    )
    return _serialised([node], {}, width, labels_total)


def _minima(
    minima: Sequence[Sequence[int]], alone: bool
) -> tuple[list[NodeProto], dict[str, Any], str]:
    """`input`, followed by the least value of each group of columns, or that `alone`."""
    if not minima:
        return [], {}, INPUT
    longest = max(len(group) for group in minima)
    # A shorter group repeats its last column, which changes no minimum.
    padded = [[*group, *[group[-1]] * (longest - len(group))] for group in minima]
    groups = np.array(padded, dtype=np.int64)
    constants = {"groups": groups.reshape(1, -1), "grouped_shape": np.array([-1, *groups.shape])}
    nodes = [
        _taken(INPUT, "groups", "in_a_row"),
        helper.make_node("Reshape", ["in_a_row", "grouped_shape"], ["grouped"], "grouped"),
        helper.make_node("ReduceMin", ["grouped"], ["minima"], "minima", axes=[2], keepdims=0),
    ]
    if alone:
        return nodes, constants, "minima"
    nodes.append(helper.make_node("Concat", [INPUT, "minima"], ["features"], "features", axis=1))
    return nodes, constants, "features"


def _taken(given: str, columns: str, taken: str) -> NodeProto:
    """`given[:, columns]`: `Gather` takes seven times as long for 256 rows of single columns."""
    domain = "ai.onnx.ml"
    return helper.make_node(
        "ArrayFeatureExtractor", [given, columns], [taken], taken, domain=domain
    )


def _tree_attributes(trees: Sequence[Tree]) -> dict[str, Any]:
    """The trees in the flat form of the ONNX operator."""
    flat: dict[str, Any] = {}

    def add(**values: int | float | str) -> None:
        for key, value in values.items():
            flat.setdefault(key, []).append(value)

    for tree_id, tree in enumerate(trees):
        for node in range(len(tree.left)):
            leaf = tree.left[node] < 0
            add(
                nodes_treeids=tree_id,
                nodes_nodeids=node,
                nodes_featureids=0 if leaf else int(tree.columns[node]),
                nodes_values=0.0 if leaf else tree.thresholds[node],
                nodes_modes="LEAF" if leaf else "BRANCH_LEQ",
                nodes_truenodeids=0 if leaf else int(tree.left[node]),
                nodes_falsenodeids=0 if leaf else int(tree.right[node]),
                nodes_missing_value_tracks_true=0,
            )
            for label, value in enumerate(tree.values[node]) if leaf else ():
                if value > 0:
                    add(
                        target_treeids=tree_id,
                        target_nodeids=node,
                        target_ids=label,
                        target_weights=float(value),
                    )
    return flat


def _serialised(
    nodes: Sequence[NodeProto], constants: dict[str, Any], width: int, labels_total: int
) -> bytes:
    given, returned = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", columns])
        for name, columns in ((INPUT, width), (OUTPUT, labels_total))
    )
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "labeler", [given], [returned], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="labeler")
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))
