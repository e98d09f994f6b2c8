"""Static int8: an ONNX file and calibration rows in, the same graph with 8-bit products out.

Ranges of activations are measured beforehand and written into the file, so a row's scores never
depend on the rows beside it; what would measure them while serving is refused. Weights take 7 bits:
on CPUs without VNNI the sum of two 8-bit products saturates. Encoding and last scores stay float.
"""

import numpy as np
import onnx
from onnx import ModelProto, helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from labeler.models.errors import TrainingError
from labeler.models.inference import Rows, open_session

__all__ = ["CALIBRATION", "can_quantise", "quantise", "require_static", "steps_of"]

_PRODUCTS = ("Gemm",)
_DYNAMIC = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
_CALIBRATION_ROWS_MAX = 20_000
# Share of the values of a tensor above which its range ends: a few extremes do not widen the steps.
_PERCENTILE = 99.99
CALIBRATION = (
    f"static; activations unsigned 8 bits between the {100 - _PERCENTILE:.2f}th and "
    f"{_PERCENTILE}th percentile of up to {_CALIBRATION_ROWS_MAX} training rows, weights 7 bits by "
    "output"
)
"""How ranges were found, for the report."""


def can_quantise(model: bytes) -> bool:
    """Whether the graph has a product to quantise: trees compare and add, and have none."""
    return any(node.op_type in _PRODUCTS for node in onnx.load_from_string(model).graph.node)


def quantise(model: bytes, calibration: Rows) -> bytes:
    """The int8 form of `model` with ranges measured on `calibration` `[n, width]`, training rows.

    Errors: `TrainingError` for a graph without a product.
    """
    if not can_quantise(model):
        raise TrainingError("the graph has no product that could be quantised")
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(model))
    quantizer = QDQQuantizer(
        graph,
        per_channel=True,
        reduce_range=True,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=_ranges(graph, calibration),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=[*_PRODUCTS, "Relu"],
        extra_options={},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    quantised = quantizer.model.model
    _leave_scores_float(quantised)
    onnx.checker.check_model(quantised)
    return bytes(quantised.SerializeToString(deterministic=True))


def require_static(model: bytes, name: str) -> None:
    """Errors: `TrainingError` if a scale of an activation is computed while serving."""
    for graph in _graphs(onnx.load_from_string(model).graph):
        fixed = {item.name for item in graph.initializer}
        fixed |= {out for node in graph.node if node.op_type == "Constant" for out in node.output}
        for node in graph.node:
            measured = node.op_type in _DYNAMIC or (
                node.op_type == "QuantizeLinear" and not fixed.issuperset(node.input[1:])
            )
            if measured:
                raise TrainingError(
                    f"{name}: node {node.name!r} ({node.op_type}) measures its range while "
                    "serving, so a row's scores depend on the rows beside it; expected static "
                    "quantisation"
                )


def steps_of(model: bytes) -> dict[str, list[str]]:
    """The graph's nodes that compute, by what they compute in: `int8` and `float`."""
    graph = onnx.load_from_string(model).graph
    from_8_bits = {
        out for node in graph.node if node.op_type == "DequantizeLinear" for out in node.output
    }
    found: dict[str, list[str]] = {"int8": [], "float": []}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "Reshape"):
            continue
        in_8_bits = node.op_type in _PRODUCTS and node.input[0] in from_8_bits
        found["int8" if in_8_bits else "float"].append(f"{node.name} ({node.op_type})")
    return found


def _ranges(graph: ModelProto, calibration: Rows) -> TensorsData:
    """Lowest and highest value of each tensor at a product, measured as it is served.

    Not with the library's calibrator: its sessions take their threads from the host.
    """
    names = [
        name
        for node in graph.graph.node
        if node.op_type in (*_PRODUCTS, "Relu")
        for name in (node.input[0], node.output[0])
    ]
    open_graph = ModelProto()
    open_graph.CopyFrom(graph)
    names = list(dict.fromkeys(names))
    open_graph.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    every = -(-len(calibration) // _CALIBRATION_ROWS_MAX)
    session = open_session(open_graph.SerializeToString())
    values = session.run(names, {session.get_inputs()[0].name: calibration[::every]})
    ranges = {}
    for name, found in zip(names, values, strict=True):
        ends = np.percentile(found, [100 - _PERCENTILE, _PERCENTILE]).astype(np.float32)
        # Zero is exact in 8 bits, as padding and `Relu` need it.
        ranges[name] = TensorData(
            lowest=min(ends[0], np.float32(0)), highest=max(ends[1], np.float32(0))
        )
    return TensorsData(CalibrationMethod.Percentile, ranges)


def _leave_scores_float(model: ModelProto) -> None:
    """Takes the 8 bits between the last product and what makes scores of it out again."""
    nodes = {out: node for node in model.graph.node for out in node.output}
    (last,) = (node for node in model.graph.node if node.op_type == "Softmax")
    narrow = nodes[last.input[0]]
    assert narrow.op_type == "DequantizeLinear"
    wide = nodes[narrow.input[0]]
    assert wide.op_type == "QuantizeLinear"
    last.input[0] = wide.input[0]
    unused = {*narrow.input[1:], *wide.input[1:]}
    for node in (narrow, wide):
        model.graph.node.remove(node)
    for item in [item for item in model.graph.initializer if item.name in unused]:
        model.graph.initializer.remove(item)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The graph and those inside of its nodes."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    found += _graphs(inner)
    return found
