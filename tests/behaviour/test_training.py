"""Training on a table of one's own: from the CSV to a service that answers, and the report."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import labeler
from labeler.cli import main
from labeler.models.forests import ForestSettings, train_forest
from labeler.models.inference import Rows, open_session, run
from labeler.models.networks import NetworkSettings, train_network
from labeler.models.training import package_best
from tests.support.service import StartService, environment, run_labeler
from tests.support.training import rides, task, write_rides

FILES = ("model.onnx", "model.int8.onnx", "golden.json")


def test_a_table_of_ones_own_is_trained_packaged_and_served(
    tmp_path: Path, start_service: StartService
) -> None:
    table = write_rides(tmp_path / "Rides.v2.csv")
    options = ["--label", "state", "--split", "run:ride", "--drop", "idle", "--family", "network"]
    out = tmp_path / "models"

    done = run_labeler("train", "--data", str(table), *options, "--out", str(out), "--json")

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["folder"] == str(out / "rides" / "1")
    assert [fold["name"] for fold in shown["report"]["split"]["folds"]] == [
        f"run ride-{number}" for number in range(3)
    ]
    assert shown["report"]["evaluation"]["int8"]["accuracy"] > 0.95
    service = start_service(
        models__repositories=[str(out)], models__load=["rides"], models__default="rides"
    )
    expected = {(90.0, 9.0): "go", (5.0, 9.0): "wait", (90.0, 0.5): "yield"}
    with labeler.Client(service.address, timeout_ms=5000) as client:
        for number, (payload, label) in enumerate(expected.items(), start=1):
            assert client.label("robot-1", number, payload).label == label


def test_trees_are_trained_packaged_and_served_as_fp32(
    tmp_path: Path, start_service: StartService
) -> None:
    table = write_rides(tmp_path / "rides.csv", rows=300)
    options = ["--label", "state", "--split", "time", "--drop", "ride", "--family", "trees"]

    done = run_labeler("train", "--data", str(table), *options, "--out", str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    assert "there is no product to quantise" in done.stdout
    service = start_service(
        models__repositories=[str(tmp_path / "out")],
        models__load=["rides"],
        models__default="rides",
    )
    with labeler.Client(service.address, timeout_ms=5000) as client:
        assert client.label("robot-1", 1, (90.0, 9.0, 0.0)).label == "go"
        assert [model.precision for model in client.models() if model.serving] == ["fp32"]


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(tmp_path: Path) -> None:
    table = rides(tmp_path)
    folders = [
        package_best(task(table, seed=seed), tmp_path / f"out-{place}").folder
        for place, seed in enumerate((0, 0, 1))
    ]

    first, second, other = ([(f / name).read_bytes() for name in FILES] for f in folders)
    assert first == second
    assert not [name for name, a, b in zip(FILES, first, other, strict=True) if a == b]


def test_the_report_says_what_docs_promise(tmp_path: Path) -> None:
    table = rides(tmp_path)
    report = json.loads(
        (package_best(task(table), tmp_path / "out").folder / "report.json").read_text()
    )

    assert set(report) == {
        *("format", "model", "split", "evaluation", "int8", "candidates", "baseline"),
        *("run_cpu_us", "data", "libraries", "cautions"),
    }
    for precision in ("int8", "fp32"):
        found = report["evaluation"][precision]
        assert found["rows"] == sum(block["rows"] for block in found["blocks"]) == 600
        assert set(found["recall"]) == {"go", "wait", "yield"}
        assert 0 < found["f1_macro"] <= 1
        assert set(report["run_cpu_us"][precision]) == {"1", "32", "256"}
    assert {"accuracy_fp32", "accuracy_int8", "accuracy_kept", "agreement"} <= set(report["int8"])
    assert report["data"]["sha256"] == table.sha256
    assert report["data"]["rows"] == sum(report["data"]["rows_by_label"].values()) == 900
    assert report["split"]["folds"][0] == {
        "name": "rows 301–600", "train_rows": 300, "test_rows": 300
    }  # fmt: skip
    assert set(report["libraries"]) == {"numpy", "onnx", "onnxruntime", "python", "scikit-learn"}


def test_of_two_labels_the_report_says_how_well_the_rarer_one_is_found(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    values = random.uniform(0, 1, 600)
    lines = ["v,stopped", *(f"{value:.4f},{int(value > 0.9)}" for value in values)]
    path = tmp_path / "stops.csv"
    path.write_text("\n".join(lines) + "\n")

    done = run_labeler(
        "train", "--data", str(path), "--label", "stopped", "--split", "time", "--family",
        "network", "--blocks", "2", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]
    rare = report["evaluation"]["fp32"]["rare"]
    assert rare["label"] == "1"
    assert rare["average_precision"] > 0.9
    assert rare["f1_at_half"] > 0.8
    baseline = report["baseline"]
    assert 0.8 < baseline["commonest_label_accuracy"] < 1
    assert baseline["forest"]["rare"]["average_precision"] > 0.9


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("family", ["network", "trees"])
def test_neighbouring_float32_values_with_other_labels_are_told_apart(
    step: int, family: str
) -> None:
    near = np.float32(3.0)
    for _ in range(step):
        near = np.nextafter(near, np.float32(4.0))
    rows: Rows = np.full((400, 5), 4.0, dtype=np.float32)
    rows[:200, 2] = near
    rows[200:, 2] = np.nextafter(near, np.float32(4.0))
    labels = np.repeat(np.arange(2), 200)
    if family == "trees":
        model = train_forest(rows, labels, 2, ForestSettings(trees=16), 0)
    else:
        model = train_network(rows, labels, 2, NetworkSettings(leaves=4, epochs=30), 0)

    assert (run(open_session(model), rows).argmax(axis=1) == labels).all()


@pytest.mark.parametrize("family", ["network", "trees"])
def test_a_label_that_the_training_rows_lack_gets_a_score_near_zero(family: str) -> None:
    random = np.random.default_rng(1)
    rows: Rows = random.uniform(0, 1, (200, 3)).astype(np.float32)
    labels = np.where(rows[:, 0] > 0.5, 3, 1)
    if family == "trees":
        model = train_forest(rows, labels, 4, ForestSettings(trees=9), 0)
    else:
        model = train_network(rows, labels, 4, NetworkSettings(epochs=30), 0)

    scores = run(open_session(model), rows)
    assert scores.shape == (200, 4)
    assert scores[:, [0, 2]].max() < 1e-6
    assert np.abs(scores.sum(axis=1) - 1).max() < 1e-5
    assert (scores.argmax(axis=1) == labels).mean() > 0.95


def test_far_outside_of_what_was_trained_on_scores_stay_finite() -> None:
    random = np.random.default_rng(1)
    rows: Rows = random.uniform(0, 1, (200, 3)).astype(np.float32)
    model = train_network(rows, (rows[:, 0] > 0.5).astype(np.int64), 2, NetworkSettings(), 0)
    largest = np.finfo(np.float32).max

    ends = [[largest] * 3, [-largest] * 3, [1e-42, -0.0, -largest]]
    scores = run(open_session(model), np.array(ends, dtype=np.float32))
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["no-such"], "no recipe 'no-such', expected kiva-floor or wall-following"),
        ([], "--data is missing, expected a recipe or labeler train --data FILE"),
        (["--data", "t.csv", "--label", "a"], "--split is missing"),
        (["--data", "t.csv", "--label", "a", "--split", "half"], "--split 'half', expected time"),
        (["--data", "no.csv", "--label", "a", "--split", "time"], "no.csv can't be read"),
        (["kiva-floor", "--label", "a"], "--label 'a' is for a table of your own"),
        (["kiva-floor", "--data", "x"], "kiva-floor learns from simulated floors"),
        (["wall-following"], "wall-following needs --data DIR"),
        (
            ["--data", "t.csv", "--label", "a", "--split", "time", "--family", "deep"],
            "--family 'deep', expected one of auto, network, trees",
        ),
        (
            ["--data", "t.csv", "--label", "a", "--split", "time", "--blocks", "1"],
            "--blocks 1, expected 2 to 100",
        ),
        (
            ["--data", "t.csv", "--label", "a", "--split", "time", "--missing", "fill"],
            "--missing 'fill', expected drop or refuse",
        ),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process, where scikit-learn is loaded already: loading it takes seconds each time.
    monkeypatch.setattr(sys, "argv", ["labeler", "train", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()

    said = capsys.readouterr().err
    assert exited.value.code == 1
    assert expected in said
    assert said.startswith("labeler: ")
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["Rides", "../rides", ""])
def test_a_name_that_is_no_folder_name_is_refused_before_anything_is_learnt(
    tmp_path: Path, name: str
) -> None:
    given = task(rides(tmp_path))
    object.__setattr__(given, "name", name)

    with pytest.raises(labeler.LabelerError, match=r"name is '.*', expected 1 to 64 of a-z"):
        package_best(given, tmp_path / "out", lambda said: pytest.fail(said))


@pytest.mark.parametrize("missing", ["sklearn", "onnx"])
def test_without_the_extra_train_says_what_to_install_and_the_rest_of_the_command_line_works(
    missing: str, tmp_path: Path
) -> None:
    table = write_rides(tmp_path / "rides.csv")
    script = f"import sys; sys.modules[{missing!r}] = None; from labeler.cli import main; main()"

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=environment({}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = command("train", "--data", str(table), "--label", "state", "--split", "time")
    assert done.returncode == 1
    assert done.stderr == (
        f"labeler: {missing} is not installed; training needs more than the service: "
        "pip install 'labeler[serve,train]'\n"
    )
    assert command("models", "verify", "kiva-floor").returncode == 0


def test_a_running_service_has_loaded_neither_scikit_learn_nor_grpcio(
    start_service: StartService,
) -> None:
    service = start_service()

    loaded = Path(f"/proc/{service.pid}/maps").read_text()
    assert "onnxruntime" in loaded
    assert not [name for name in ("sklearn", "scipy", "grpc/_cython", "onnx/") if name in loaded]
