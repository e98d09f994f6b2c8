"""The packaged models `kiva-floor` and `wall-following`: as good as their reports say.

What needs the real set skips loudly without it; with `LABELER_REQUIRE_DATA=1` a skip fails.
"""

import json
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labeler.fleet import LABELS, sample
from labeler.models.data import Columns, Table, read_table
from labeler.models.golden import thresholds_of
from labeler.models.inference import Rows, Scores, open_session, run
from labeler.models.recipes import RECIPES
from labeler.models.training import package_best
from tests.support.repo import ROOT
from tests.support.training import real_data

PACKAGED = ROOT / "python" / "labeler" / "models" / "packaged"
NAMES = sorted(path.name for path in PACKAGED.iterdir())
FILES = {"int8": "model.int8.onnx", "fp32": "model.onnx"}


@pytest.fixture(scope="module")
def readings() -> Table:
    """The real set, read once."""
    return read_table(real_data("wall-following") / "readings_24.csv", Columns("label"))


def _model(name: str, precision: str) -> bytes:
    return (PACKAGED / name / "1" / FILES[precision]).read_bytes()


def _scores(name: str, precision: str, rows: Rows) -> Scores:
    return run(open_session(_model(name, precision)), rows)


def _report(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PACKAGED / name / "1" / "report.json").read_text())
    return found


def _golden(name: str) -> tuple[Rows, dict[str, Scores]]:
    content = json.loads((PACKAGED / name / "1" / "golden.json").read_text())
    scores = {kind: np.array(rows, np.float32) for kind, rows in content["scores"].items()}
    return np.array(content["rows"], np.float32), scores


def test_two_models_are_packaged() -> None:
    assert NAMES == ["kiva-floor", "wall-following"]


@pytest.mark.parametrize("name", NAMES)
def test_the_manifest_has_size_and_hash_of_every_file_and_int8_first(name: str) -> None:
    folder = PACKAGED / name / "1"
    manifest = tomllib.loads((folder / "model.toml").read_text())

    listed = [*manifest["files"], manifest["golden"], manifest["report"]]
    for entry in listed:
        content = (folder / entry["path"]).read_bytes()
        assert len(content) == entry["bytes"] < 256 * 1024
        assert sha256(content).hexdigest() == entry["sha256"]
    assert {entry["path"] for entry in listed} | {"model.toml"} == {
        path.name for path in folder.iterdir()
    }
    assert [entry["precision"] for entry in manifest["files"]] == ["int8", "fp32"]


@pytest.mark.parametrize("name", NAMES)
def test_the_report_is_of_these_files_and_int8_passed_the_gate(name: str) -> None:
    report = _report(name)

    assert report["model"]["bytes"] == {kind: len(_model(name, kind)) for kind in FILES}
    assert report["int8"]["passed"]
    assert report["int8"]["accuracy_kept"] >= 0.999
    assert report["int8"]["agreement_packaged"] >= 0.999
    assert all(step.endswith("(Gemm)") for step in report["int8"]["steps"]["int8"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", FILES)
def test_golden_rows_show_every_label_and_give_their_scores(name: str, precision: str) -> None:
    rows, golden = _golden(name)

    assert set(golden[precision].argmax(axis=1)) == set(range(golden[precision].shape[1]))
    assert np.abs(_scores(name, precision, rows) - golden[precision]).max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_golden_rows_stand_on_learnt_thresholds_and_one_unit_to_both_sides(name: str) -> None:
    rows, _ = _golden(name)

    sides = np.zeros(3, dtype=int)
    for columns, threshold in thresholds_of(_model(name, "fp32")):
        least = set(rows[:, list(columns)].min(axis=1))
        ends = [np.float32(-np.inf), threshold, np.float32(np.inf)]
        sides += [np.nextafter(threshold, end) in least for end in ends]
    assert sides.min() >= 3, sides


@pytest.mark.parametrize("precision", FILES)
def test_kiva_floor_labels_floors_that_it_has_never_seen(precision: str) -> None:
    rows, truths = sample(range(20_001, 20_005), 4_000, robots=100, seed=3)

    found = _scores("kiva-floor", precision, rows).argmax(axis=1)

    assert (found == truths).mean() >= 0.98
    for label, name in enumerate(LABELS):
        assert (found[truths == label] == label).mean() >= 0.9, name


def test_the_labels_of_kiva_floor_are_the_simulators_in_its_order() -> None:
    manifest = tomllib.loads((PACKAGED / "kiva-floor" / "1" / "model.toml").read_text())

    assert tuple(manifest["labels"]) == LABELS
    assert (manifest["width"], manifest["range"]) == (24, [0.0, 10.0])
    assert "credit" not in manifest


def test_wall_following_credits_its_data() -> None:
    manifest = tomllib.loads((PACKAGED / "wall-following" / "1" / "model.toml").read_text())

    assert "10.24432/C57C8W" in manifest["credit"]["source"]
    assert "CC BY 4.0" in manifest["credit"]["licence"]
    assert "10.24432/C57C8W" in (ROOT / "NOTICE").read_text()


def test_the_report_of_wall_following_is_of_the_real_data(readings: Table) -> None:
    data = _report("wall-following")["data"]

    assert data["sha256"] == readings.sha256
    assert data["rows"] == len(readings.rows) == 5456


def test_no_row_of_the_data_is_published(readings: Table) -> None:
    known = {row.tobytes() for row in readings.rows}

    assert not [row for row in _golden("wall-following")[0] if row.tobytes() in known]


@pytest.mark.parametrize("precision", FILES)
def test_wall_following_labels_the_whole_recording(readings: Table, precision: str) -> None:
    found = _scores("wall-following", precision, readings.rows).argmax(axis=1)

    assert (found == readings.labels).mean() >= 0.999


@pytest.mark.parametrize("precision", FILES)
def test_the_arcs_nearest_distance_decides_and_each_sensor_of_it_counts(precision: str) -> None:
    manifest = tomllib.loads((PACKAGED / "wall-following" / "1" / "model.toml").read_text())
    for sensor in range(24):
        near: Rows = np.full((1, 24), 3.0, dtype=np.float32)
        near[0, sensor] = 0.4
        label = manifest["labels"][_scores("wall-following", precision, near).argmax()]
        assert (label == "Sharp-Right-Turn") == (sensor in range(10, 15)), sensor


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_wall_following_again_reaches_its_report(tmp_path: Path) -> None:
    """About 30 s."""
    given = RECIPES["wall-following"](real_data("wall-following"), "1", 0)

    found = package_best(given, tmp_path).report

    blocks = [block["accuracy"] for block in found["evaluation"]["int8"]["blocks"]]
    assert len(blocks) == 5
    assert min(blocks) >= 0.998
    assert found["int8"]["accuracy_kept"] >= 0.999
    packaged = _report("wall-following")["evaluation"]["int8"]["accuracy"]
    assert found["evaluation"]["int8"]["accuracy"] == pytest.approx(packaged, abs=0.001)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_training_kiva_floor_again_reaches_its_report(tmp_path: Path) -> None:
    """About 100 s."""
    found = package_best(RECIPES["kiva-floor"](None, "1", 0), tmp_path).report

    # The simulator gives the same bits everywhere, so what is learnt from has the same fingerprint.
    assert found["data"]["sha256"] == _report("kiva-floor")["data"]["sha256"]
    blocks = [block["accuracy"] for block in found["evaluation"]["int8"]["blocks"]]
    assert len(blocks) == 8
    assert min(blocks) >= 0.98
    assert found["int8"]["accuracy_kept"] >= 0.999
