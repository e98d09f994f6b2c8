"""The packaged model `wall-following`: learnt, repeatable, and as good as its report says.

Needs the real set: `LABELER_DATA_DIR`, else `../shared/data` beside the project. Skips loudly where
that or the extra `train` is missing; with `LABELER_REQUIRE_DATA=1` a skip fails.
"""

import json
import os
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("LABELER_DATA_DIR") or ROOT.parent / "shared" / "data")
FOLDER = DATA / "wall-following"
PACKAGED = ROOT / "python" / "labeler" / "models" / "packaged" / "wall-following" / "1"

_MISSING = None if FOLDER.is_dir() else f"no real data at {FOLDER}; set LABELER_DATA_DIR"
try:
    import onnx

    from labeler.models import inference
    from labeler.models import train_wall_following as wall_following
    from labeler.models.package import PackagingError, VersionSpec, write_version
except ImportError as error:
    _MISSING = f"the extra `train` is not installed: {error}"

if _MISSING and os.environ.get("LABELER_REQUIRE_DATA") == "1":
    pytest.fail(f"LABELER_REQUIRE_DATA=1, but {_MISSING}", pytrace=False)
if _MISSING:
    pytest.skip(_MISSING, allow_module_level=True)


@pytest.fixture(scope="module")
def readings() -> "wall_following.Readings":
    """The real set, read once."""
    return wall_following.read_data(FOLDER)


@pytest.fixture(scope="module")
def model() -> bytes:
    """The packaged model file."""
    return (PACKAGED / "model.onnx").read_bytes()


@pytest.fixture(scope="module")
def golden() -> dict[str, Array]:
    """The packaged golden rows and their scores, float32."""
    content = json.loads((PACKAGED / "golden.json").read_text())
    rows = np.array(content["rows"], dtype=np.float32)
    return {"rows": rows, "scores": np.array(content["scores"]["fp32"], dtype=np.float32)}


def _scores(model: bytes, rows: Array) -> Array:
    return inference.run(inference.open_session(model), rows)


def _thresholds(model: bytes) -> dict[int, list[float]]:
    """Thresholds of the graph's trees by arc: 0 front, 1 left, 2 right, 3 back."""
    (trees,) = (
        node for node in onnx.load_from_string(model).graph.node if "TreeEnsemble" in node.op_type
    )
    values = {item.name: onnx.helper.get_attribute_value(item) for item in trees.attribute}
    found: dict[int, list[float]] = {}
    for mode, arc, value in zip(
        values["nodes_modes"], values["nodes_featureids"], values["nodes_values"], strict=True
    ):
        if mode != b"LEAF":
            found.setdefault(arc, []).append(value)
    return found


def test_each_held_out_block_passes_the_gate_through_the_exported_graph(
    readings: "wall_following.Readings",
) -> None:
    blocks = wall_following.evaluate_blocks(readings)
    assert len(blocks) == 5
    assert sum(block.rows for block in blocks) == len(readings.rows) == 5456
    accuracies = [block.accuracy for block in blocks]
    assert min(accuracies) >= 0.998
    assert np.mean(accuracies) >= 0.999


def test_training_again_gives_the_packaged_model_byte_by_byte(
    readings: "wall_following.Readings", model: bytes
) -> None:
    first, second = (wall_following.train(readings.rows, readings.labels) for _ in range(2))
    assert first == second
    assert first == model


def test_packaging_again_gives_the_same_model_and_golden_rows(
    readings: "wall_following.Readings", tmp_path: Path
) -> None:
    folder = wall_following.package(readings, tmp_path)
    assert folder == tmp_path / "wall-following" / "1"
    for name in ("model.onnx", "golden.json"):
        assert (folder / name).read_bytes() == (PACKAGED / name).read_bytes(), name


@pytest.mark.parametrize("step", range(4))
def test_neighbouring_float32_distances_with_other_labels_are_told_apart(step: int) -> None:
    near = np.float32(3.0)
    for _ in range(step):
        near = np.nextafter(near, np.float32(4.0))
    rows = np.full((400, 24), 4.0, dtype=np.float32)
    rows[:200, 12] = near
    rows[200:, 12] = np.nextafter(near, np.float32(4.0))
    labels = np.repeat(np.arange(2), 200)
    found = _scores(wall_following.train(rows, labels), rows).argmax(axis=1)
    assert (found == labels).all()


def test_another_seed_gives_another_model(
    readings: "wall_following.Readings", model: bytes
) -> None:
    assert wall_following.train(readings.rows, readings.labels, seed=1) != model


def test_the_thresholds_come_from_the_data_and_not_from_the_script(
    readings: "wall_following.Readings",
) -> None:
    moved = readings.rows + np.float32(1.0)
    model = wall_following.train(moved, readings.labels)
    found = _scores(model, moved).argmax(axis=1)
    assert (found == readings.labels).mean() == 1.0
    assert min(min(values) for values in _thresholds(model).values()) > 1.0


def test_the_arcs_nearest_distance_decides_and_each_sensor_of_it_counts(model: bytes) -> None:
    far = np.full((1, 24), 3.0, dtype=np.float32)
    expected = _scores(model, far)
    front = range(10, 15)
    for sensor in range(24):
        near = far.copy()
        near[0, sensor] = 0.4
        label = _scores(model, near).argmax()
        turns = tomllib.loads((PACKAGED / "model.toml").read_text())["labels"][label]
        assert (turns == "Sharp-Right-Turn") == (sensor in front), sensor
    assert np.array_equal(_scores(model, far), expected)


def test_scores_of_a_row_sum_to_one_and_do_not_depend_on_its_neighbours(
    readings: "wall_following.Readings", model: bytes
) -> None:
    rows = readings.rows[::7]
    scores = _scores(model, rows)
    assert scores.dtype == np.float32
    assert scores.shape == (len(rows), 4)
    assert (scores.sum(axis=1) == 1.0).all()
    for index in range(0, len(rows), 50):
        alone = _scores(model, rows[index : index + 1])[0]
        among = np.full((64, 24), np.finfo(np.float32).max, dtype=np.float32)
        among[33] = rows[index]
        assert alone.tobytes() == scores[index].tobytes() == _scores(model, among)[33].tobytes()


def test_golden_rows_give_their_scores_and_hold_no_row_of_the_data(
    readings: "wall_following.Readings", model: bytes, golden: dict[str, Array]
) -> None:
    assert np.array_equal(_scores(model, golden["rows"]), golden["scores"])
    known = {row.tobytes() for row in readings.rows}
    assert not [index for index, row in enumerate(golden["rows"]) if row.tobytes() in known]


def test_golden_rows_stand_on_each_threshold_and_one_unit_to_both_sides(
    model: bytes, golden: dict[str, Array]
) -> None:
    columns = {0: range(10, 15), 1: range(17, 20), 2: range(4, 9), 3: range(22, 24)}
    for arc, values in _thresholds(model).items():
        minima = set(golden["rows"][:, list(columns[arc])].min(axis=1))
        for value in map(np.float32, values):
            below, above = (np.nextafter(value, np.float32(end)) for end in (-np.inf, np.inf))
            assert {below, value, above} <= minima, (arc, value)


def test_golden_rows_show_every_label(golden: dict[str, Array]) -> None:
    assert set(golden["scores"].argmax(axis=1)) == {0, 1, 2, 3}


def test_the_manifest_has_size_and_hash_of_every_file_and_credits_the_data() -> None:
    manifest = tomllib.loads((PACKAGED / "model.toml").read_text())
    listed = [*manifest["files"], manifest["golden"], manifest["report"]]
    for entry in listed:
        content = (PACKAGED / entry["path"]).read_bytes()
        assert len(content) == entry["bytes"] < 256 * 1024
        assert sha256(content).hexdigest() == entry["sha256"]
    names = {entry["path"] for entry in listed} | {"model.toml"}
    assert names == {path.name for path in PACKAGED.iterdir()}
    assert "10.24432/C57C8W" in manifest["credit"]["source"]
    assert "CC BY 4.0" in manifest["credit"]["licence"]
    assert "10.24432/C57C8W" in (ROOT / "NOTICE").read_text()


def test_the_report_is_of_this_data_and_this_model(
    readings: "wall_following.Readings", model: bytes
) -> None:
    report = json.loads((PACKAGED / "report.json").read_text())
    content = (FOLDER / "readings_24.csv").read_bytes()
    assert report["data"]["sha256"] == sha256(content).hexdigest()
    assert report["data"]["rows"] == len(readings.rows)
    assert report["model"]["bytes"] == len(model)
    measured = [block.accuracy for block in wall_following.evaluate_blocks(readings)]
    assert [block["accuracy"] for block in report["evaluation"]["blocks"]] == measured
    assert set(report["run_cpu_us"]) == {"1", "32", "256"}


def test_labels_that_cannot_be_learnt_are_not_packaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    header, *lines = (FOLDER / "readings_24.csv").read_text().splitlines()
    labels = [line.rsplit(",", 1)[1] for line in lines]
    labels.reverse()
    wrong = [f"{line.rsplit(',', 1)[0]},{label}" for line, label in zip(lines, labels, strict=True)]
    (folder / "readings_24.csv").write_text("\n".join([header, *wrong]) + "\n")
    out = tmp_path / "out"
    assert wall_following.main(["--data", str(folder), "--out", str(out)]) == 1
    assert "nothing was written" in capsys.readouterr().err
    assert not out.exists()


def test_a_version_is_written_once_and_never_replaced(
    model: bytes, golden: dict[str, Array], tmp_path: Path
) -> None:
    labels = ["a", "b", "c", "d"]
    spec = VersionSpec("m", "1", 24, labels, "input", "scores", False, None, 0.0, None)
    folder = write_version(tmp_path, spec, {"fp32": model}, golden["rows"], {})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(PackagingError, match="versions never change"):
        write_version(tmp_path, spec, {"fp32": model}, golden["rows"][:1], {})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


def test_a_model_with_other_outputs_than_its_labels_leaves_no_folder(
    model: bytes, golden: dict[str, Array], tmp_path: Path
) -> None:
    spec = VersionSpec("m", "1", 24, ["a", "b"], "input", "scores", False, None, 0.0, None)
    with pytest.raises(PackagingError, match=r"expected finite float32 \[\d+, 2\]"):
        write_version(tmp_path, spec, {"fp32": model}, golden["rows"], {})
    assert list(tmp_path.iterdir()) == []
