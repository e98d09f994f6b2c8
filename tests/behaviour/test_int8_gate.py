"""The gate of int8 both ways, and what is never packaged: ranges or rows that lean on others."""

import json
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import labeler
from labeler.models.data import Labels
from labeler.models.errors import TrainingError
from labeler.models.graphs import INPUT, OUTPUT
from labeler.models.inference import Rows, open_session, run
from labeler.models.networks import train_network
from labeler.models.package import VersionSpec, write_version
from labeler.models.quantise import quantise, require_static, steps_of
from labeler.models.shapes import batches_that_differ
from labeler.models.training import package_best
from tests.support.service import StartService
from tests.support.training import QUICK, rides, task

SPEC = VersionSpec("m", "1", 2, ["a", "b"], INPUT, OUTPUT, False, (0.0, 9.0), 1e-4, None)
GOLDEN: Rows = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


def with_an_outlier(rows: Rows, labels: Labels, labels_total: int, seed: int) -> bytes:
    """The quick network with a huge weight in each output of its first layer, on an idle input.

    fp32 stays as it is, since that input is always 0; 8 bits have no step left for the others.
    """
    model = onnx.load_from_string(train_network(rows, labels, labels_total, QUICK, seed))
    constants = {item.name: item for item in model.graph.initializer}
    columns = numpy_helper.to_array(constants["columns"])[0]
    idle = int(np.flatnonzero(columns == 2)[0])
    weights = numpy_helper.to_array(constants["weights1"]).copy()
    weights[idle] = 1e6
    constants["weights1"].CopyFrom(numpy_helper.from_array(weights, "weights1"))
    return bytes(model.SerializeToString())


def _files(folder: Path) -> list[str]:
    manifest = tomllib.loads((folder / "model.toml").read_text())
    return [entry["precision"] for entry in manifest["files"]]


def test_int8_that_keeps_the_accuracy_is_packaged_first(tmp_path: Path) -> None:
    trained = package_best(task(rides(tmp_path)), tmp_path / "out")

    assert _files(trained.folder) == ["int8", "fp32"]
    found = trained.report["int8"]
    assert found["passed"]
    assert found["accuracy_kept"] >= found["accuracy_kept_min"] == 0.999
    assert found["steps"]["int8"] == ["gemm1 (Gemm)", "gemm2 (Gemm)"]
    assert "softmax (Softmax)" in found["steps"]["float"]


def test_a_model_that_breaks_under_int8_is_packaged_and_served_as_fp32_and_the_report_says_so(
    tmp_path: Path, start_service: StartService
) -> None:
    trained = package_best(task(rides(tmp_path), with_an_outlier), tmp_path / "out")

    assert _files(trained.folder) == ["fp32"]
    assert not (trained.folder / "model.int8.onnx").exists()
    found = json.loads((trained.folder / "report.json").read_text())
    assert found["model"]["precisions"] == ["fp32"]
    assert not found["int8"]["passed"]
    assert found["int8"]["accuracy_kept"] < 0.999
    assert found["evaluation"]["int8"]["accuracy"] < found["evaluation"]["fp32"]["accuracy"]
    assert "expected at least 0.999" in found["int8"]["reason"]
    models = {"repositories": [str(tmp_path / "out")], "load": ["rides"], "default": "rides"}
    service = start_service(**{f"models__{name}": value for name, value in models.items()})
    with labeler.Client(service.address, timeout_ms=5000) as client:
        assert client.label("robot-1", 1, [90.0, 9.0, 0.0]).label == "go"
        assert {model.precision for model in client.models() if model.serving} == {"fp32"}


def test_a_gate_passed_on_the_folds_is_taken_back_where_the_packaged_model_breaks(
    tmp_path: Path,
) -> None:
    table = rides(tmp_path)

    def breaks_on_all_rows(rows: Rows, labels: Labels, labels_total: int, seed: int) -> bytes:
        if len(rows) == len(table.rows):
            return with_an_outlier(rows, labels, labels_total, seed)
        return train_network(rows, labels, labels_total, QUICK, seed)

    trained = package_best(task(table, breaks_on_all_rows), tmp_path / "out")

    assert _files(trained.folder) == ["fp32"]
    assert "model to package agrees" in trained.report["int8"]["reason"]


def test_a_fold_below_the_accuracy_asked_for_leaves_nothing_written(tmp_path: Path) -> None:
    table = rides(tmp_path)
    np.random.default_rng(1).shuffle(table.labels)
    given = task(table)
    object.__setattr__(given, "accuracy_min", 0.9)

    with pytest.raises(TrainingError, match=r"expected at least 0\.9 on each fold; nothing was"):
        package_best(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dynamic_quantisation_is_refused(tmp_path: Path) -> None:
    table = rides(tmp_path)
    model = train_network(table.rows, table.labels, 3, QUICK, 0)
    source, target = tmp_path / "fp32.onnx", tmp_path / "dynamic.onnx"
    # The library's own tool, on a form of the product that it knows.
    graph = onnx.load_from_string(model)
    for node in graph.graph.node:
        if node.op_type == "Gemm":
            node.op_type = "MatMul"
            del node.input[2]
    onnx.save(graph, source)
    quantize_dynamic(source, target)
    spec = VersionSpec("m", "1", 3, table.classes, INPUT, OUTPUT, False, None, 1e-4, None)

    with pytest.raises(TrainingError, match="measures its range while serving"):
        write_version(tmp_path / "out", spec, {"int8": target.read_bytes()}, table.rows[:5], {})
    assert not (tmp_path / "out").exists()


def _graph(nodes: list[onnx.NodeProto], **constants: object) -> bytes:
    """A graph of two values in, two scores out."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2])
        for name in (INPUT, OUTPUT)
    ]
    initializers = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _scaled_by_the_batch() -> bytes:
    return _graph(
        [
            helper.make_node("ReduceMax", [INPUT], ["top"], keepdims=0),
            helper.make_node("Div", ["top", "steps"], ["scale"]),
            helper.make_node("QuantizeLinear", [INPUT, "scale", "zero"], ["q"], "measured"),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], [OUTPUT]),
        ],
        steps=np.float32(255),
        zero=np.uint8(0),
    )


def test_a_scale_that_is_computed_from_the_batch_is_refused_by_its_node() -> None:
    with pytest.raises(TrainingError, match=r"file: node 'measured' \(QuantizeLinear\)"):
        require_static(_scaled_by_the_batch(), "file")


def test_a_model_whose_rows_lean_on_each_other_is_found_and_not_packaged(tmp_path: Path) -> None:
    leaning = _graph(
        [
            helper.make_node("ReduceMax", [INPUT], ["top"], axes=[0], keepdims=1),
            helper.make_node("Sub", [INPUT, "top"], [OUTPUT]),
        ]
    )

    assert batches_that_differ(open_session(leaning), GOLDEN, (0.0, 9.0))
    with pytest.raises(TrainingError, match="a row's scores change in batches of"):
        write_version(tmp_path, SPEC, {"int8": leaning}, GOLDEN, {})
    assert list(tmp_path.iterdir()) == []


def test_an_int8_row_alone_and_beside_extremes_has_the_same_bits(tmp_path: Path) -> None:
    table = rides(tmp_path)
    model = train_network(table.rows, table.labels, 3, QUICK, 0)
    session = open_session(quantise(model, table.rows))

    assert batches_that_differ(session, table.rows[:40], None) == []


def test_weights_take_seven_bits_so_that_no_cpu_saturates(tmp_path: Path) -> None:
    table = rides(tmp_path)
    graph = onnx.load_from_string(
        quantise(train_network(table.rows, table.labels, 3, QUICK, 0), table.rows)
    ).graph
    weights = [
        numpy_helper.to_array(item)
        for item in graph.initializer
        if item.name.startswith("weights")
        and item.data_type == TensorProto.INT8
        and item.name.endswith("_quantized")
    ]

    assert len(weights) == 2
    # Two products of an unsigned 8-bit and a signed 7-bit number fit into 16 bits.
    assert max(int(np.abs(weight).max()) for weight in weights) <= 64


def test_a_forest_has_no_int8_form(tmp_path: Path) -> None:
    from labeler.models.forests import ForestSettings, train_forest

    table = rides(tmp_path)
    model = train_forest(table.rows, table.labels, 3, ForestSettings(trees=3), 0)

    with pytest.raises(TrainingError, match="no product that could be quantised"):
        quantise(model, table.rows)
    assert steps_of(model) == {"int8": [], "float": ["trees (TreeEnsembleRegressor)"]}
    assert run(open_session(model), table.rows).shape == (len(table.rows), 3)
