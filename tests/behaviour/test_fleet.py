"""`labeler fleet` and `labeler demo` against real services: every label is accounted for."""

import csv
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import grpc
import pytest

import labeler
from labeler.fleet.audit import audit
from tests.support.load import readings
from tests.support.service import LABELER, Service, StartService, environment, run_labeler
from tests.support.waiting import eventually

PACKAGED = Path(labeler.__file__).parent / "models" / "packaged"
FEW = ("--robots", "200", "--rate", "2", "--connections", "4")
MARGIN = 0.03
"""Of the accuracy on one floor for a second or so, below that on many floors in the report."""


def where(service: Service) -> tuple[str, ...]:
    return ("--address", service.address, "--admin", service.admin_address)


def reported_accuracy() -> float:
    """What the packaged model's report says of data it was not trained on."""
    report = json.loads((PACKAGED / "kiva-floor" / "1" / "report.json").read_text())
    return min(float(found["accuracy"]) for found in report["evaluation"].values())


@pytest.fixture(scope="module")
def run(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run with all that can be asked for: its JSON, and `folder` with its files."""
    folder = tmp_path_factory.mktemp("run")
    files = ("--histograms", str(folder / "histograms"), "--acks", str(folder / "acks.csv"))
    done = run_labeler("fleet", *where(service), *FEW, "--for", "2s", "--audit", *files, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"folder": folder}


def test_every_planned_label_is_sent_answered_and_stored(run: dict[str, Any]) -> None:
    assert (run["planned"], run["sent"], run["labels"]) == (800, 800, 800)
    assert (run["errors"], run["errors_by_kind"], run["unsent"], run["unfed"]) == (0, {}, 0, 0)
    assert (run["stored"], run["server"]["journaled"], run["server"]["pending"]) == (800, 800, 0)
    assert run["sources"] == {"MODEL": 800}
    assert sum(run["durabilities"].get(level, 0) for level in ("JOURNALED", "STORED")) == 800


def test_every_acknowledged_label_is_read_back(run: dict[str, Any]) -> None:
    found = run["audit"]
    assert (found["acknowledged"], found["found"], found["lost"]) == (800, 800, 0)
    with (run["folder"] / "acks.csv").open(newline="") as file:
        keys = {(row["robot_id"], row["sequence"]) for row in csv.DictReader(file)}
    assert len(keys) == 800


def test_the_answers_are_right_as_often_as_the_report_says(run: dict[str, Any]) -> None:
    assert run["judged"] == 800
    assert run["accuracy"] >= reported_accuracy() - MARGIN


def test_the_service_s_stages_and_costs_stand_beside_the_robots_figures(
    run: dict[str, Any],
) -> None:
    stages = {stage["stage"]: stage for stage in run["stages"]}
    assert stages["total"]["count"] == 800
    assert run["server_p99_ms"] == pytest.approx(stages["total"]["us_p99"] / 1000, abs=0.001)
    assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["p999_ms"] <= run["max_ms"]
    assert run["server_cpu_us_per_label"] > 0
    assert run["server"]["memory_bytes_max"] >= run["server"]["memory_bytes"] > 0
    assert run["valid"] == (not run["invalid_because"])


def test_histograms_are_written_where_they_were_asked_for(run: dict[str, Any]) -> None:
    assert run["files"]
    assert all(Path(file).parent == run["folder"] / "histograms" for file in run["files"])
    assert all(Path(file).stat().st_size > 0 for file in run["files"])


def test_a_run_in_a_pipe_is_plain_lines_a_second_and_tables_at_the_end(
    service: Service,
) -> None:
    done = run_labeler("fleet", *where(service), *FEW, "--for", "2s", "--calls", "unary")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0].startswith("s labels/s p50 p99 p99.9 accuracy errors")
    assert [bool(re.match(rf"{second} \d+ ", lines[second])) for second in (1, 2)] == [True, True]
    assert any(line.startswith("total 800 ") for line in lines)
    assert "accounting 800 planned = 800 sent" in lines
    assert "800 sent = 800 answered" in lines
    assert any(line.endswith("; 800 journaled = 800 stored") for line in lines)


def test_a_service_without_an_admin_port_is_measured_by_its_replies(
    service: Service,
) -> None:
    few = ("--robots", "5", "--rate", "10", "--for", "500ms", "--json")
    done = run_labeler("fleet", "--address", service.address, *few)
    found = json.loads(done.stdout)
    assert (found["labels"], found["stored"], found["server"]) == (25, None, None)
    assert found["server_p99_ms"] > 0
    assert any("admin port was not asked" in note for note in found["notes"])


def test_a_model_of_other_labels_gives_no_accuracy_and_says_why(
    start_service: StartService,
) -> None:
    service = start_service(models__load=["kiva-floor", "wall-following"])
    few = ("--robots", "5", "--rate", "10", "--for", "500ms", "--json")
    done = run_labeler("fleet", *where(service), *few, "--model", "wall-following")
    found = json.loads(done.stdout)
    assert (found["labels"], found["accuracy"]) == (25, None)
    assert any("wall-following knows none of the labels" in note for note in found["notes"])


def test_a_fleet_that_nobody_answers_says_so_and_fails() -> None:
    done = run_labeler("fleet", "--address", "127.0.0.1:1", "--robots", "2", "--for", "1s")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_each_robot_gets_a_connection_of_its_own_where_few_files_are_open_by_default(
    service: Service,
) -> None:
    many = ("--robots", "200", "--connections", "200", "--for", "1s", "--json")
    few_files = ["sh", "-c", 'ulimit -Sn 128; exec "$0" "$@"', str(LABELER), "fleet"]
    done = subprocess.run(
        [*few_files, *where(service), *many],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["labels"] == 200


def test_robots_that_burst_or_are_silent_send_as_their_links_say(service: Service) -> None:
    few = ("--robots", "10", "--rate", "10", "--for", "1s", "--json", "--seed", "3")
    faults = ("--fault", "burst:0.5", "--fault", "dead-sensor")
    done = run_labeler("fleet", *where(service), *few, *faults)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["planned"], found["labels"]) == (300, 300)  # half of them five at a time


def test_a_map_is_drawn_without_a_service(tmp_path: Path) -> None:
    file = tmp_path / "floor.svg"
    done = run_labeler("fleet", "--map", str(file), "--robots", "200")
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_when_the_service_is_killed_and_restarted_in_a_run(
    start_service: StartService, tmp_path: Path
) -> None:
    first = start_service()
    ports = {
        "transport__grpc_address": first.address,
        "admin__address": first.admin_address,
    }
    fleet = subprocess.Popen(
        [LABELER, "fleet", *where(first), *FEW, "--for", "12s", "--audit", "--json"],
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: first.status()["labels_total"] > 400, timeout_s=60)
        first.kill()
        second = start_service(**ports)
        eventually(lambda: second.status()["labels_total"] > 100, timeout_s=60)
        said, wrong = fleet.communicate(timeout=120)
    finally:
        fleet.kill()
        fleet.wait()
    assert fleet.returncode == 0, wrong
    found = json.loads(said)
    assert found["errors"] > 0
    assert found["planned"] == found["labels"] + found["errors"] + found["unsent"]
    assert found["audit"]["acknowledged"] == found["labels"] > 500
    assert (found["audit"]["missing"], found["audit"]["changed"], found["lost"]) == (0, 0, 0)
    assert found["server"]["restarted"]
    assert any("restarted" in note for note in found["notes"])


def acks(folder: Path, *rows: tuple[str, int, str, str]) -> Path:
    file = folder / "acks.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(("robot_id", "sequence", "label", "durability"))
        writer.writerows(rows)
    return file


def test_an_audit_finds_what_is_missing_and_what_is_changed(
    service: Service, client: labeler.Client, tmp_path: Path, seed: int
) -> None:
    import random

    rng = random.Random(seed)
    told = {n: client.label("audited", n, readings(rng)).label for n in (1, 2)}
    file = acks(
        tmp_path,
        ("audited", 1, told[1], "JOURNALED"),
        ("audited", 2, "another", "STORED"),
        ("audited", 3, told[1], "JOURNALED"),
        ("audited", 4, told[1], "BUFFERED"),
    )
    found = audit(service.address, file)
    assert (found.acknowledged, found.found, found.changed) == (4, 2, 1)
    assert (found.missing, found.missing_buffered, found.lost) == (1, 1, 2)
    assert any("audited 3: acknowledged" in example for example in found.examples)


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    """One run of the demo, small."""
    short = ("--robots", "100", "--for", "2s", "--warm-up", "1s", "--audit", "--json")
    done = run_labeler("demo", *short)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


KEYS = {
    *("labels", "labels_per_s", "errors", "accuracy", "p50_ms", "p99_ms", "p999_ms"),
    *("server_p99_ms", "stages", "server_cpu_us_per_label", "stored", "schedule_lag_p99_ms"),
    *("valid", "invalid_because", "model"),
}


def test_the_demo_prints_one_object_with_all_that_is_promised(demo: dict[str, Any]) -> None:
    assert not KEYS - demo.keys()
    assert [stage["stage"] for stage in demo["stages"]][-1] == "total"
    assert demo["model"].startswith("kiva-floor ")


def test_what_the_demo_answered_is_stored_without_an_error(demo: dict[str, Any]) -> None:
    assert (demo["labels"], demo["errors"], demo["stored"]) == (200, 0, 200)
    assert demo["audit"]["lost"] == 0


def test_the_demo_is_as_accurate_as_the_report_in_the_package_says(demo: dict[str, Any]) -> None:
    assert demo["accuracy"] >= reported_accuracy() - MARGIN


def answers(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=2)
        except grpc.FutureTimeoutError:
            return False
    return True


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_demo_s_service_ends_with_the_demo_whatever_ends_that(
    ending: signal.Signals,
) -> None:
    demo = subprocess.Popen(
        [LABELER, "demo", "--robots", "10", "--for", "60s"],
        env=environment({}) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout
        opening = demo.stdout.readline()
        address = re.search(r"serves on (\S+),", opening)
        assert address, opening
        assert answers(address[1])
    finally:
        demo.send_signal(ending)
        demo.communicate()
    eventually(lambda: not answers(address[1]), timeout_s=60)
