"""Models made for a test: their scores are the payload itself, so an answer tells whose it is.

A version's `offset` is added to every score, so an answer tells its version too. `cost` makes each
run take longer, however many rows it has: about 3 ms for each 1,000 steps. A `holdable` version
costs nothing by itself: a row made by `holding(steps)` makes the run that it is in take so many.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from labeler.models.inference import Rows
from labeler.models.package import VersionSpec, write_version

NAME = "identity"
_SIDE = 16  # of the matrix that a step multiplies
_HOLD = 777.0


def write_identity(
    root: Path,
    width: int = 4,
    version: str = "1",
    offset: float = 0.0,
    cost: int = 0,
    name: str = NAME,
    holdable: bool = False,
    scores: int | None = None,
) -> Path:
    """A version in `root/NAME/VERSION`: labels `at-0` …, scores `payload + offset` bit for bit.

    `scores`: of the payload's first so many values only, as a model has at most 4,096 labels.
    """
    kept = width if scores is None else scores
    labels = [f"at-{place}" for place in range(kept)]
    spec = VersionSpec(name, version, width, labels, "input", "scores", False, None, 1e-6, None)
    golden: Rows = np.eye(min(width, 16), width, dtype=np.float32)
    return write_version(
        root, spec, {"fp32": _graph((width, kept), offset, cost, holdable)}, golden, {}
    )


def holding(steps: int, width: int = 4) -> list[float]:
    """A row that keeps a holdable model at work for about 3 ms for each 1,000 steps."""
    return [_HOLD, float(steps), *[0.0] * (width - 2)]


def settings(root: Path, name: str = NAME) -> dict[str, object]:
    """What a service needs to serve it, and nothing else."""
    return {
        "models__repositories": [str(root)],
        "models__load": [name],
        "models__default": name,
    }


def _graph(shape: tuple[int, int], offset: float, cost: int, holdable: bool) -> bytes:
    width, kept = shape
    rows = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["rows", width])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", kept])
    constants = [numpy_helper.from_array(np.array(offset, dtype=np.float32), "offset")]
    nodes: list[NodeProto] = []
    moved = "offset"
    if cost or holdable:
        nodes, constants = _waste(), constants + _waste_constants()
        if holdable:
            nodes, constants = _steps_asked_for() + nodes, constants + _hold_constants()
        else:
            constants.append(numpy_helper.from_array(np.array(cost, dtype=np.int64), "steps"))
        moved = "moved"
    ends = {"from": [0], "to": [kept], "axis": [1]}
    constants += [numpy_helper.from_array(np.array(end), name) for name, end in ends.items()]
    nodes.append(helper.make_node("Slice", ["input", *ends], ["kept"]))
    nodes.append(helper.make_node("Add", ["kept", moved], ["scores"]))
    graph = helper.make_graph(nodes, NAME, [rows], [scores], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _waste() -> list[NodeProto]:
    """A loop whose result is 0 whatever the input: as it depends on the batch, it is not folded."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["matrix", "shrink"], ["next"]),
        ],
        "step",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("matrix", TensorProto.FLOAT, [_SIDE, _SIDE]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [_SIDE, _SIDE]),
        ],
    )
    return [
        helper.make_node("Shape", ["input"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sides"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["sides"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "zero"], ["nothing"]),
        helper.make_node("Add", ["zeros", "nothing"], ["start"]),
        helper.make_node("Loop", ["steps", "yes", "start"], ["end"], body=body),
        helper.make_node("ReduceSum", ["end"], ["waste"], keepdims=0),
        helper.make_node("Add", ["offset", "waste"], ["moved"]),
    ]


def _waste_constants() -> list[TensorProto]:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "zero": np.array(0, dtype=np.float32),
        "zeros": np.zeros((_SIDE, _SIDE), dtype=np.float32),
        "shrink": np.eye(_SIDE, dtype=np.float32) / 2,
        "yes": np.array(True),
    }
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def sign_again(folder: Path, name: str) -> None:
    """Puts the size and hash that the file `name` has now into the version's manifest."""
    content = (folder / name).read_bytes()
    lines = (folder / "model.toml").read_text().splitlines()
    at = lines.index(f'path = "{name}"')
    lines[at + 1] = f'sha256 = "{sha256(content).hexdigest()}"'
    lines[at + 2] = f"bytes = {len(content)}"
    (folder / "model.toml").write_text("\n".join(lines) + "\n")


def _steps_asked_for() -> list[NodeProto]:
    """The largest second value of the rows whose first is the mark; 0 where there is none."""
    return [
        helper.make_node("Gather", ["input", "first"], ["marks"], axis=1),
        helper.make_node("Gather", ["input", "second"], ["wishes"], axis=1),
        helper.make_node("Equal", ["marks", "mark"], ["marked"]),
        helper.make_node("Where", ["marked", "wishes", "zero"], ["wished"]),
        helper.make_node("ReduceMax", ["wished"], ["longest"], keepdims=0),
        helper.make_node("Cast", ["longest"], ["steps"], to=TensorProto.INT64),
    ]


def _hold_constants() -> list[TensorProto]:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "first": np.array(0, dtype=np.int64),
        "second": np.array(1, dtype=np.int64),
        "mark": np.array(_HOLD, dtype=np.float32),
    }
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]
