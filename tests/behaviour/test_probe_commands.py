"""`labeler report` and `labeler matrix` against real services: an operator's two pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import labeler
from labeler.cli.matrix import _json as as_json
from labeler.cli.matrix import _show as show
from labeler.fleet.probe import Cell
from tests.support.made_models import write_identity
from tests.support.service import Service, StartService, run_labeler

SHARES = ("mean", "p50", "p95", "p99", "p999", "max")
SHORT = ("--robots", "40", "--rate", "10", "--for", "1s", "--warm-up", "500ms")
QUICK = ("--calls", "1,8", "--for", "300ms", "--warm-up", "100ms")


def where(service: Service) -> tuple[str, ...]:
    return ("--address", service.address, "--admin", service.admin_address)


def asked(command: str, *options: str) -> dict[str, Any]:
    done = run_labeler(command, *options, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def report(service: Service) -> dict[str, Any]:
    """The report of a short run."""
    return asked("report", *where(service), *SHORT)


@pytest.fixture
def several(start_service: StartService, tmp_path: Path) -> Service:
    """A service of three models of four values, and of one that takes six."""
    for name in ("alpha", "beta", "gamma"):
        write_identity(tmp_path / "models", name=name)
    write_identity(tmp_path / "models", name="wide", width=6)
    return start_service(
        models__repositories=[str(tmp_path / "models")],
        models__load=["alpha", "beta", "gamma", "wide"],
        models__default="alpha",
    )


# --- labeler report


def test_a_report_has_the_mean_beside_the_percentiles_in_every_place(
    report: dict[str, Any],
) -> None:
    assert (report["labels"], report["errors_by_kind"]) == (400, {})
    assert list(report["latency_ms"]) == ["client", "client_from_send", "server", "network"]
    for place, found in report["latency_ms"].items():
        assert tuple(found) == SHARES, place
        assert 0 <= found["p50"] <= found["p95"] <= found["p99"] <= found["p999"] <= found["max"]
        assert 0 < found["mean"] <= found["max"]


def test_server_and_network_together_are_what_the_client_waits_for(
    report: dict[str, Any],
) -> None:
    latency = report["latency_ms"]
    # Of means, and of them alone, the parts add up; each is rounded down to 1 µs.
    parts = latency["server"]["mean"] + latency["network"]["mean"]
    assert parts == pytest.approx(latency["client_from_send"]["mean"], abs=0.01, rel=0.01)


def test_a_report_asks_the_admin_port_for_stages_and_cost(report: dict[str, Any]) -> None:
    stages = {stage["stage"]: stage["count"] for stage in report["stages"]}
    # Those of the measured part, with the few of the warm-up that were under way when it ended, and
    # without those that came before the reading there was taken: 27 ms late are 11 of 400.
    assert 300 <= stages["total"] < 600
    assert report["server_cpu_us_per_label"] > 0
    assert report["unaccounted"] == []


def test_a_report_reads_for_people_too(service: Service) -> None:
    done = run_labeler("report", *where(service), *SHORT, "--calls", "unary")
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    head = next(line for line in done.stdout.splitlines() if "p99.9" in line).split()
    assert head == ["mean", "p50", "p95", "p99", "p99.9", "max"]
    assert {"client, from the planned time", "network: client minus server"} <= set(lines)
    assert "times the mean" in lines["mean"]
    assert "in the service, by stage" in done.stdout


def test_without_its_admin_port_a_report_says_what_it_lacks(service: Service) -> None:
    found = asked("report", "--address", service.address, *SHORT)
    assert found["stages"] == []
    assert [note for note in found["notes"] if "admin port" in note]
    assert found["latency_ms"]["network"]["p99"] > 0


def test_a_report_s_labels_are_told_from_real_ones(start_service: StartService) -> None:
    served = start_service()
    asked("report", *where(served), "--robots", "3", "--rate", "5", "--for", "1s")
    with labeler.Client(served.address) as client:
        assert next(client.list("probe-0")).robot_id == "probe-0"
        assert list(client.list("robot-0")) == []


def test_a_report_of_several_models_asks_which(several: Service) -> None:
    done = run_labeler("report", *where(several), *SHORT)
    assert done.returncode == 1
    assert "several models are served, say which with --model: alpha 1, beta 1" in done.stderr
    found = asked("report", *where(several), *SHORT, "--model", "wide")
    assert (found["model"], found["labels"]) == ("wide 1", 400)


@pytest.mark.parametrize("command", ["report", "matrix"])
def test_a_model_that_is_not_served_is_answered_with_those_that_are(
    service: Service, command: str
) -> None:
    done = run_labeler(command, *where(service), "--model", "pallets")
    assert done.returncode == 1
    assert "model 'pallets' is not served, expected one of: kiva-floor 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report", "matrix"])
def test_nobody_there_is_told_in_a_line(command: str) -> None:
    done = run_labeler(command, "--address", "127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- labeler matrix


def test_a_matrix_has_a_cell_for_each_number_of_models_and_calls(several: Service) -> None:
    found = asked("matrix", *where(several), *QUICK)
    places = [(cell["models"], cell["calls"]) for cell in found["cells"]]
    assert places == [(models, calls) for models in (1, 2, 3) for calls in (1, 8)]
    assert found["models"] == ["alpha 1", "beta 1", "gamma 1"]
    for cell in found["cells"]:
        assert cell["labels"] > 0
        assert cell["errors"] == {}
        assert cell["p99_ms"] == cell["latency_ms"]["client"]["p99"] > 0
        assert {stage["stage"] for stage in cell["stages"]} >= {"queue", "infer", "total"}


def test_models_of_another_width_are_left_out_and_named(several: Service) -> None:
    [note] = asked("matrix", *where(several), *QUICK)["notes"]
    assert note == "wide: left out, they do not take 4 values"
    done = run_labeler("matrix", *where(several), *QUICK, "--model", "alpha", "--model", "wide")
    assert done.returncode == 1
    assert "alpha takes 4, wide takes 6" in done.stderr


def test_every_model_of_a_cell_is_asked_as_often(several: Service) -> None:
    asked("matrix", *where(several), "--calls", "8", "--for", "500ms", "--model", "beta")
    with labeler.Client(several.address) as client:
        assert next(client.list("probe-0")).model == "beta"
    asked("matrix", *where(several), "--calls", "8", "--for", "500ms")
    with labeler.Client(several.address) as client:
        models = {next(client.list(f"probe-{robot}")).model for robot in range(3)}
    assert models == {"alpha", "beta", "gamma"}


def test_a_level_that_was_not_reached_is_told(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody-asks")
    # Nobody listens there: an outage from the start.
    out = start_service(
        writer__store="dynamodb",
        dynamodb__table="labels",
        dynamodb__region="eu-west-1",
        dynamodb__endpoint_url="http://127.0.0.1:1",
    )
    # A call waits for its level until its deadline, two seconds.
    wanted = ("--calls", "4", "--for", "3s", "--warm-up", "100ms", "--durability", "STORED")
    [cell] = asked("matrix", *where(out), *wanted)["cells"]
    assert cell["durabilities"] == {"JOURNALED": cell["labels"]}
    assert cell["errors"] == {}
    shown = run_labeler("matrix", *where(out), *wanted).stdout
    assert re.search(r"^durability   \d+ JOURNALED$", shown, re.MULTILINE)


def test_a_cell_above_the_limit_is_marked(service: Service) -> None:
    red = run_labeler("matrix", *where(service), *QUICK, "--red", "0.001")
    assert red.returncode == 0, red.stderr
    [row] = [line for line in red.stdout.splitlines() if line.split()[:1] == ["1"]]
    assert row.count("!") == 2
    fine = run_labeler("matrix", *where(service), *QUICK, "--red", "100000")
    assert "!" not in fine.stdout
    assert "every cell   at most" in fine.stdout
    assert "one model is asked, kiva-floor; load more" in fine.stdout


def test_a_cell_without_a_label_is_red_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(SHARES, 0.0)
    places = dict.fromkeys(("client", "client_from_send", "server", "network"), nothing)
    cell = Cell(2, 64, 0, 0.0, places, {"UNAVAILABLE": 7}, False, ["nobody was there"])
    [found] = as_json([cell], [], 140.0, [])["cells"]
    assert (found["p99_ms"], found["red"]) == (None, True)
    show([cell], 140.0, [])
    shown = capsys.readouterr().out
    assert "no label !" in shown
    assert "2 models, 64 calls: 7 UNAVAILABLE" in shown
    assert "2 models, 64 calls: nobody was there" in shown
