"""The sender against the real service: what it sends arrives, what it reports is true."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labeler
from labeler._core import loadgen
from labeler.fleet import LABELS
from tests.support.database import stored
from tests.support.sending import ended, run, sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import MODEL

WIDTH = 24


def fed(rows: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.uniform(0.4, 5.0, (rows, WIDTH)).astype("<f4")


def truths(indices: list[int]) -> bytes:
    return np.array(indices, "<i2").tobytes()


@contextmanager
def unserved(backlog: int | None = None) -> Iterator[str]:
    """An address where nobody is a server: closed, or open with nobody behind it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if backlog is not None:
            held.listen(backlog)
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("rpc", ["label", "label_stream"])
def test_every_label_of_the_plan_is_sent_and_answered(service: Service, rpc: str) -> None:
    result = run(sender(service.address, rpc=rpc, server_pid=service.pid, durability="JOURNALED"))
    assert (result["planned"], result["sent"], result["answered"]) == (200, 200, 200)
    assert result["errors"] == {}
    assert result["sources"] == {"MODEL": 200}
    assert result["durabilities"] == {"JOURNALED": 200}
    assert result["models"] == {f"{MODEL} 1": 200}
    assert result["latency_us"]["count"] == result["server_us"]["count"] == 200
    assert result["latency_us"]["p50"] >= result["latency_uncorrected_us"]["p50"] > 0
    assert result["server"] is not None
    assert result["server"]["rss_bytes_max"] >= result["server"]["rss_bytes"] > 0


def test_what_is_not_the_server_s_time_is_told_call_by_call(service: Service) -> None:
    for rpc in ("label", "label_stream"):
        result = run(sender(service.address, rpc=rpc))
        whole, server = result["latency_uncorrected_us"], result["server_us"]
        counts = [result["network_us"]["count"], server["count"], whole["count"]]
        assert counts == [200, 200, 200]
        # Of means alone the parts add up; each is rounded down to 1 µs.
        parts = server["mean"] + result["network_us"]["mean"]
        assert parts == pytest.approx(whole["mean"], abs=10, rel=0.01)
        assert whole["p50"] <= whole["p95"] <= whole["p99"]


def test_a_batch_counts_its_rows_and_has_one_latency(service: Service) -> None:
    schedule = {"shape": "constant", "rate_per_s": 5}
    made = sender(service.address, rpc="label_batch", batch_rows=100, schedule=schedule)
    result = run(made)
    assert (result["planned"], result["answered"], result["latency_us"]["count"]) == (500, 500, 5)


@pytest.mark.parametrize("payload", ["float", "double", "raw_float32", "raw_float64"])
def test_every_form_of_payload_gets_the_same_labels(
    service: Service, seed: int, payload: str
) -> None:
    values = fed(50, np.random.default_rng(seed))
    with labeler.Client(service.address, timeout_ms=5_000) as client:
        replies = [client.label(f"{payload}-{seed}", 1 + n, row) for n, row in enumerate(values)]
    right = [LABELS.index(reply.label) for reply in replies]
    schedule = {"shape": "constant", "rate_per_s": 50}
    made = sender(service.address, payload=payload, rows="fed", labels=LABELS, schedule=schedule)
    made.feed(values.tobytes(), truths(right), b"")
    result = run(made)
    assert (result["judged"], result["accuracy"]) == (50, 1.0)


def test_fed_rows_are_judged_by_their_truths(service: Service, seed: int) -> None:
    values = fed(40, np.random.default_rng(seed))
    with labeler.Client(service.address, timeout_ms=5_000) as client:
        replies = [client.label(f"truth-{seed}", 1 + n, row) for n, row in enumerate(values)]
    right = [LABELS.index(reply.label) for reply in replies]
    said = [(index + 1) % len(LABELS) if n % 4 == 0 else index for n, index in enumerate(right)]
    said[1] = -1  # nobody knows
    schedule = {"shape": "constant", "rate_per_s": 40}
    made = sender(service.address, rpc="label_stream", rows="fed", labels=LABELS, schedule=schedule)
    made.feed(values.tobytes(), truths(said), b"")
    result = run(made)
    assert (result["judged"], result["correct"]) == (39, 29)
    assert result["accuracy"] == pytest.approx(29 / 39)
    expected: dict[str, dict[str, int]] = {}
    for truth, label in zip(said, right, strict=True):
        if truth >= 0:
            row = expected.setdefault(LABELS[truth], {})
            row[LABELS[label]] = row.get(LABELS[label], 0) + 1
    assert result["by_label"] == expected


def test_skus_and_robots_arrive_under_their_names(service: Service, seed: int) -> None:
    prefix, skus = f"sku-robot-{seed}-", ["crate", "pallet"]
    schedule = {"shape": "constant", "rate_per_s": 4}
    made = sender(
        service.address, robots=2, robot_prefix=prefix, rows="fed", skus=skus, schedule=schedule,
        durability="STORED", first_sequence=7,
    )  # fmt: skip
    made.feed(
        fed(4, np.random.default_rng(seed)).tobytes(), truths([-1] * 4), truths([0, 1, -1, 1])
    )
    assert run(made)["answered"] == 4
    with labeler.Client(service.address, timeout_ms=5_000) as client:
        found = {
            (robot, sequence): client.get(f"{prefix}{robot}", sequence).sku
            for robot in (0, 1)
            for sequence in (7, 8)
        }
    assert found == {(0, 7): "crate", (1, 7): "pallet", (0, 8): "", (1, 8): "pallet"}


def test_hundreds_of_robots_have_connections_of_their_own(service: Service) -> None:
    robots = {"robots": 300, "connections": 300}
    result = run(sender(service.address, rpc="label_stream", **robots))
    assert (result["answered"], result["errors"]) == (200, {})


def test_a_closed_loop_says_so(service: Service) -> None:
    made = sender(service.address, schedule={"shape": "saturate", "in_flight": 8})
    result = run(made)
    assert result["closed_loop"]
    assert result["answered"] == result["sent"] > 0


def test_acknowledged_labels_are_in_the_file_and_read_back_as_they_were(
    service: Service, tmp_path: Path, seed: int
) -> None:
    acks = tmp_path / "acks.csv"
    plan = {"robot_prefix": f"acks-{seed}-", "acks_file": str(acks), "rpc": "label_stream"}
    result = run(sender(service.address, **plan))
    with acks.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == result["answered"] == 200
    with labeler.Client(service.address, timeout_ms=5_000) as client:
        for line in lines[::20]:
            sequence = int(line["sequence"])
            assert client.get(line["robot_id"], sequence).label == line["label"]


def test_labels_that_were_sent_can_be_read_back_by_the_sender(service: Service, seed: int) -> None:
    plan = {"robot_prefix": f"read-{seed}-", "durability": "STORED", "timeout_ms": 20_000}
    first = run(sender(service.address, **plan))["first_sequence"]
    got = run(sender(service.address, **plan, rpc="get_label", first_sequence=first))
    assert (got["answered"], got["errors"]) == (200, {})
    past = run(sender(service.address, **plan, rpc="get_label", first_sequence=first + 10))
    assert (past["answered"], past["errors"]) == (0, {"NOT_FOUND": 200})
    listed = run(sender(service.address, **plan, rpc="list_labels"))
    assert (listed["answered"], listed["errors"]) == (200, {})


def test_nobody_answers_in_time_says_who_and_how_long() -> None:
    with unserved() as address:
        made = sender(address, ready_timeout_ms=300)
        with pytest.raises(labeler.UnavailableError) as failure:
            made.connect()
    assert address in failure.value.message
    assert "refused" in failure.value.message
    with pytest.raises(labeler.UnavailableError):
        made.result()


def test_a_listener_that_is_no_server_is_not_ready() -> None:
    with unserved(backlog=8) as address:
        with pytest.raises(labeler.UnavailableError, match=address):
            sender(address, ready_timeout_ms=300).connect()


def test_a_bad_plan_is_refused_by_its_field() -> None:
    with pytest.raises(labeler.InvalidRequestError) as failure:
        sender("127.0.0.1:1", schedule={"shape": "constant", "rate_per_s": -1})
    assert failure.value.field == "schedule.rate_per_s"
    assert failure.value.value == "-1"
    assert "to" in failure.value.expected


def test_rows_that_do_not_fit_are_refused_by_name() -> None:
    made = sender("127.0.0.1:1", rows="fed", labels=LABELS)
    with pytest.raises(labeler.InvalidRequestError) as failure:
        made.feed(bytes(4 * WIDTH), truths([len(LABELS)]), b"")
    assert failure.value.field == "truths[0]"


def test_an_acknowledgement_file_that_cannot_be_is_a_disk_error(tmp_path: Path) -> None:
    with pytest.raises(labeler.DiskError, match="nowhere"):
        sender("127.0.0.1:1", acks_file=str(tmp_path / "nowhere" / "acks.csv"))


def test_steps_out_of_order_are_refused() -> None:
    made = sender("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="after connect"):
        made.fire()
    with pytest.raises(RuntimeError, match="once the run is over"):
        made.result()


def test_stop_ends_a_long_run(service: Service) -> None:
    made = sender(service.address, duration_s=3_600)
    made.connect()
    made.fire()
    eventually(lambda: made.snapshot()["answered"] > 0)
    made.stop()
    result = ended(made)
    assert result["answered"] == result["planned"] > 0
    assert result["elapsed_s"] < 3_600


def test_snapshots_add_up_to_the_result(service: Service) -> None:
    made = sender(service.address)
    made.connect()
    made.fire()
    seen = 0
    while not made.wait(100):
        seen += made.snapshot()["interval"]["answered"]
    seen += made.snapshot()["interval"]["answered"]
    assert seen == ended(made)["answered"]


def test_a_feeder_waits_for_room_while_python_goes_on(service: Service) -> None:
    made = sender(service.address, rows="fed", duration_s=3_600)
    many = 16_384
    values, none = bytes(4 * WIDTH * many), truths([-1] * many)
    made.feed(values, none, b"")
    feeder = threading.Thread(target=made.feed, args=(values, none, b""))
    feeder.start()
    # The queue is full: while the feeder waits, this thread goes on.
    assert run_and_stop(made)["answered"] > 0
    feeder.join(60)
    assert not feeder.is_alive()


def run_and_stop(made: loadgen.Sender) -> loadgen.Result:
    made.connect()
    made.fire()
    eventually(lambda: made.snapshot()["answered"] > 0)
    made.stop()
    return ended(made)


def test_a_feed_that_ends_leaves_the_rest_unfed(service: Service) -> None:
    made = sender(service.address, rows="fed")
    made.feed(bytes(4 * WIDTH * 3), truths([-1] * 3), b"")
    made.end_feed()
    assert run(made)["errors"]["UNFED"] == 197


@pytest.mark.parametrize("rpc", ["label", "label_stream"])
def test_a_server_that_stands_still_is_a_timeout(start_service: StartService, rpc: str) -> None:
    service = start_service()
    made = sender(service.address, rpc=rpc, timeout_ms=200)
    made.connect()
    os.kill(service.pid, signal.SIGSTOP)
    try:
        made.fire()
        result = ended(made)
    finally:
        os.kill(service.pid, signal.SIGCONT)
    assert (result["answered"], result["errors"]) == (0, {"TIMEOUT": 200})


@pytest.mark.parametrize("rpc", ["label", "label_stream"])
def test_a_server_that_is_killed_and_comes_back_loses_nothing_acknowledged(
    start_service: StartService, tmp_path: Path, rpc: str
) -> None:
    acks = tmp_path / "acks.csv"
    service = start_service()
    plan = {"rpc": rpc, "duration_s": 3_600, "acks_file": str(acks), "durability": "JOURNALED"}
    made = sender(service.address, **plan)
    made.connect()
    made.fire()
    eventually(lambda: made.snapshot()["answered"] > 50)
    service.kill()
    eventually(lambda: made.snapshot()["errors"].get("UNAVAILABLE", 0) > 0)
    before = made.snapshot()["answered"]
    again = start_service(transport__grpc_address=service.address)
    eventually(lambda: made.snapshot()["answered"] > before + 50, timeout_s=30)
    made.stop()
    ended(made)
    assert again.stop() == 0
    held = stored(again.database)
    with acks.open(newline="") as file:
        lines = list(csv.DictReader(file))
    missing = [
        line
        for line in lines
        if held.get((line["robot_id"], int(line["sequence"]))) != line["label"]
    ]
    assert len(lines) > 100
    assert not missing


def test_histograms_are_written_as_logs(service: Service, tmp_path: Path) -> None:
    made = sender(service.address)
    run(made)
    written = [Path(path) for path in made.write_histograms(str(tmp_path / "figures"))]
    names = ["latency_us", "latency_uncorrected_us", "server_us", "network_us", "schedule_lag_us"]
    assert [path.name for path in written] == [f"{name}.hlog" for name in names]
    assert all("HIST" in path.read_text() for path in written)


def test_the_sender_is_found_under_its_name() -> None:
    script = "import labeler._core.loadgen as l; print(l.Sender.__module__, l.__name__)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["labeler._core.loadgen"] * 2


def test_a_forked_child_is_refused_and_the_parent_goes_on(service: Service) -> None:
    # In an interpreter of its own: a fork of the test process would take pytest's threads along.
    script = """
import json, os, sys
import labeler
from labeler._core import loadgen
made = loadgen.Sender(sys.argv[1])
made.connect()
child = os.fork()
if child == 0:
    try:
        made.fire()
    except labeler.ForkedError:
        del made
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
made.fire()
assert made.wait(60_000)
print(made.result()["answered"])
"""
    plan = {"address": service.address, "robots": 2, "duration_s": 1}
    plan["schedule"] = {"shape": "constant", "rate_per_s": 50}
    command = [sys.executable, "-W", "ignore", "-c", script, json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("50", 0), done.stderr
