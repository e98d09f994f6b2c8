"""The store fails, stalls, locks or refuses: labels go on, wait in the journal, and arrive once.

Through the real server and its real SQLite file. What a dead letter is comes with a later issue:
here no outage makes one. Full counts: about 60 s.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import labeler
from labeler._core import journal_stat
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import lost_or_changed, stored, write_locked
from tests.support.faulty_disk import DATABASE, Fault, FaultyDisk
from tests.support.load import Fleet, Robot, readings, robots
from tests.support.service import Service, StartService
from tests.support.waiting import eventually


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    """Faults for the services of this test."""
    return FaultyDisk(tmp_path / "disk")


def told(service: Service, fleet: list[Robot], seed: int, count: int) -> None:
    """Lets a fleet be told `count` more labels, none of them refused."""
    with Fleet(service.address, fleet, seed) as sending:
        goal = sending.acknowledged() + count
        eventually(lambda: sending.acknowledged() >= goal, timeout_s=60)
    assert not [error for robot in fleet for error in robot.refused]


def failures(service: Service) -> float:
    """Writes that failed as a whole."""
    return service.metrics().sum(names.WRITER_FAILURES.name)


def test_a_store_that_fails_before_and_after_its_commit_loses_and_doubles_nothing(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    """Cases W02, W12, boto3 #2088: each label arrives, and an outage never makes a dead letter."""
    service = start_service(
        prefix=disk.prefix, writer__retry_ms_min=5, writer__retry_ms_max=20, writer__linger_ms=0
    )
    fleet = robots(4)
    faults: list[Fault] = ["write_fails", "sync_fails"] * 3
    for number, fault in enumerate(faults):
        disk.breaks(fault, DATABASE, "once")
        told(service, fleet, seed + number, count=20)
        eventually(lambda: disk.broke(fault))  # noqa: B023 - called at once
    rest = balanced(service)
    assert rest.sum(names.WRITER_FAILURES.name) >= 3
    assert rest.records().parts["dead"] == 0
    assert not lost_or_changed(fleet, service.database)


@contextmanager
def locked_by_another_process(database: Path) -> Iterator[None]:
    """The write lock is held by a process of its own, which read before it wrote."""
    program = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n"
        "db.execute('BEGIN'); db.execute('SELECT count(*) FROM labels').fetchone()\n"
        "db.execute('ROLLBACK'); db.execute('BEGIN IMMEDIATE')\n"
        "db.execute('SELECT count(*) FROM labels').fetchone()\n"
        "print('locked', flush=True); sys.stdin.read(); db.execute('ROLLBACK')\n"
    )
    arguments = [sys.executable, "-c", program, str(database)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"locked\n"
        yield


def test_a_write_lock_that_another_process_holds_past_our_patience_is_a_wait_that_nobody_sees(
    start_service: StartService, seed: int
) -> None:
    """Case W74, aiosqlite #251."""
    service = start_service(writer__retry_ms_max=50)
    eventually(service.database.exists)
    fleet = robots(4)
    with locked_by_another_process(service.database):
        told(service, fleet, seed, count=50)
        eventually(lambda: failures(service) >= 1, timeout_s=30)
    rest = balanced(service)
    assert rest.records().parts["dead"] == 0
    assert not lost_or_changed(fleet, service.database)


def test_one_key_five_times_is_one_answer_one_record_and_one_row(
    start_service: StartService, seed: int
) -> None:
    """Case W08, feast #2483: within the window, also while the first is still on its way."""
    values = readings(random.Random(seed))
    service = start_service()
    eventually(service.database.exists)
    with labeler.Client(service.address, timeout_ms=5000) as client:
        with write_locked(service.database):
            answers = [client.label("robot-1", 7, values) for _ in range(2)]
            for result in client.label_batch([labeler.LabelQuery("robot-1", 7, values)] * 3):
                assert isinstance(result, labeler.Label), result
                answers.append(result)
        answers.append(client.label("robot-1", 7, values))
    assert {(answer.label, answer.confidence) for answer in answers} == {
        (answers[0].label, answers[0].confidence)
    }
    assert balanced(service).records().entered == 1
    assert list(stored(service.database)) == [("robot-1", 7)]


def test_of_one_key_beyond_the_window_the_last_record_stays_and_the_others_are_superseded(
    start_service: StartService, seed: int
) -> None:
    """Cases W08, W34, RisingWave #25985: an older record never lands on a newer one.

    The first may be in a write by then: two writes of the key at most.
    """
    rng = random.Random(seed)
    service = start_service(path__dedupe_rows_max=1)
    eventually(service.database.exists)
    with labeler.Client(service.address, timeout_ms=5000) as client:
        with write_locked(service.database):
            answers = []
            for other in range(5):
                answers.append(client.label("robot-1", 7, readings(rng)))
                client.label("robot-2", other + 1, readings(rng))
        rest = balanced(service)
        last = client.get("robot-1", 7)
    assert rest.records().parts["superseded"] in (3, 4)
    assert rest.records().parts["stored"] == 10 - rest.records().parts["superseded"]
    assert stored(service.database)["robot-1", 7] == answers[-1].label == last.label


@pytest.mark.parametrize("restart", [False, True], ids=["one life", "restart in between"])
def test_the_later_write_of_a_key_stays_though_the_clock_went_back(
    start_service: StartService, disk: FaultyDisk, seed: int, restart: bool
) -> None:
    """Case W32, ravel #1307: order comes from the journal; the step back is counted."""
    rng = random.Random(seed)
    settings = {"path__dedupe_rows_max": 1, "prefix": disk.prefix}
    service = start_service(**settings)
    with labeler.Client(service.address, timeout_ms=5000) as client:
        client.label("robot-1", 7, readings(rng))
        client.label("robot-2", 1, readings(rng))
    eventually(lambda: ("robot-1", 7) in stored(service.database))
    before = client_row(service)
    if restart:
        service.kill()
    disk.breaks("clock_back", "-", 600)
    if restart:
        service = start_service(**settings)
    with labeler.Client(service.address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        later = client.label("robot-1", 7, readings(rng))
        client.label("robot-2", 2, readings(rng))
    rest = balanced(service)
    after = client_row(service)
    assert after.label == later.label
    assert after.labeled_at_unix_us < before.labeled_at_unix_us
    assert after.journal_number > before.journal_number
    assert rest.sum(names.CLOCK_REGRESSIONS.name) == 1


def client_row(service: Service) -> labeler.StoredLabel:
    """What the client reads back of the key that these tests write twice."""
    with labeler.Client(service.address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        return client.get("robot-1", 7)


@counts("labels", quick=300, full=6000, full_timeout_s=300)
def test_clients_that_retry_through_an_outage_and_a_kill_leave_one_row_a_key(
    start_service: StartService, seed: int, labels: int
) -> None:
    """Case W36, ros2_data_collection #309: rows = distinct keys."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    fleet = robots(4)
    service = start_service(transport__grpc_address=address, writer__retry_ms_max=50)
    eventually(service.database.exists)
    with Retrying(address, fleet, seed) as sending:
        with write_locked(service.database):
            eventually(lambda: sending.acknowledged() >= labels // 3, timeout_s=120)
            service.kill()
            service = start_service(
                transport__grpc_address=address, writer__retry_ms_max=50, ready=False
            )
            # The store is checked before the port opens; the outage ends while the clients retry.
        service.wait_ready()
        eventually(lambda: sending.acknowledged() >= labels, timeout_s=120)
    balanced(service)
    assert not [error for robot in fleet for error in robot.refused]
    assert not lost_or_changed(fleet, service.database)
    sent = {(robot.robot_id, n) for robot in fleet for n in range(1, robot.sent + 1)}
    assert stored(service.database).keys() == sent


class Retrying(Fleet):
    """Robots that send a label again until they are told."""

    def __init__(self, address: str, fleet: list[Robot], seed: int) -> None:
        """As a fleet, with a client that does not give up."""
        super().__init__(address, fleet, seed)
        self._client.close()
        self._client = labeler.Client(address, timeout_ms=60_000, attempts_max=10)

    def _run(self, robot: Robot, rng: random.Random) -> None:
        while not self._stop.is_set():
            robot.sent += 1
            values = readings(rng)
            robot.acknowledged[robot.sent] = self._label(robot, values)

    def _label(self, robot: Robot, values: np.ndarray[Any, Any]) -> str:
        while True:
            try:
                return self._client.label(robot.robot_id, robot.sent, values).label
            except labeler.UnavailableError:
                self._stop.wait(0.05)


def store_health(service: Service) -> str:
    """What the health service says of the store, and of readiness."""
    with grpc.insecure_channel(service.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        states = [
            stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status
            for name in ("labeler.store", "", "labeler.live")
        ]
    return " ".join(health_pb2.HealthCheckResponse.ServingStatus.Name(state) for state in states)


def test_a_wedged_store_is_seen_in_metrics_and_health_while_labels_go_on(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    """Case W56, vector #22946: a call of the store that does not return, and no error to count."""
    service = start_service(prefix=disk.prefix, path__store_stalled_ms=300)
    fleet = robots(4)
    told(service, fleet, seed, count=20)
    balanced(service)
    assert store_health(service) == "SERVING SERVING SERVING"
    disk.breaks("sync_takes", DATABASE, 600_000)
    told(service, fleet, seed + 1, count=20)
    eventually(lambda: store_health(service) == "NOT_SERVING SERVING SERVING")
    first = service.metrics()
    eventually(
        lambda: (
            service.metrics().sum(names.JOURNAL_UNCONFIRMED.name)
            > first.sum(names.JOURNAL_UNCONFIRMED.name)
        )
    )
    later = service.metrics()
    assert later.sum(names.WRITER_FAILURES.name) == 0, "it does not fail, it hangs"
    assert later.sum(names.JOURNAL_AGE.name) > first.sum(names.JOURNAL_AGE.name) > 300_000
    assert later.sum(names.WRITER_HELD.name) > 0
    assert service.logged("the store has confirmed nothing although labels wait")
    told(service, fleet, seed + 2, count=20)
    disk.heals("sync_takes")
    rest = balanced(service)
    assert rest.sum(names.JOURNAL_UNCONFIRMED.name) == 0
    eventually(lambda: store_health(service) == "SERVING SERVING SERVING")
    assert not lost_or_changed(fleet, service.database)


def test_sigterm_in_the_longest_back_off_tries_the_store_at_once(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    """Case W58, fluent-bit #5960: a retry time far away holds up no drain."""
    ten_minutes = {"writer__retry_ms_min": 600_000, "writer__retry_ms_max": 600_000}
    service = start_service(prefix=disk.prefix, drain__budget_ms=60_000, **ten_minutes)
    disk.breaks("sync_fails", DATABASE)
    fleet = robots(4)
    told(service, fleet, seed, count=20)
    eventually(lambda: failures(service) == 1)
    disk.heals("sync_fails")
    assert service.metrics().records().parts["pending"] > 0, "it waits in its back-off"
    assert service.stop() == 0
    assert [(line["pending"], line["complete"]) for line in service.logged("stopped")] == [
        (0, True)
    ]
    assert not lost_or_changed(fleet, service.database)


def test_a_store_that_comes_back_during_the_drain_is_used_at_once(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    ten_minutes = {"writer__retry_ms_min": 600_000, "writer__retry_ms_max": 600_000}
    service = start_service(prefix=disk.prefix, drain__budget_ms=60_000, **ten_minutes)
    disk.breaks("sync_fails", DATABASE)
    fleet = robots(4)
    told(service, fleet, seed, count=20)
    eventually(lambda: failures(service) == 1)
    service.terminate()
    eventually(lambda: failures(service) >= 4)
    disk.heals("sync_fails")
    assert service.wait() == 0
    assert [line["pending"] for line in service.logged("stopped")] == [0]
    assert not lost_or_changed(fleet, service.database)


@pytest.mark.parametrize("how", ["the budget ends", "a second signal"])
def test_the_last_line_says_how_many_labels_wait_in_the_journal(
    start_service: StartService, seed: int, how: str
) -> None:
    """Case W58: whoever reads the log knows what is left and where."""
    second = how == "a second signal"
    service = start_service(drain__budget_ms=60_000 if second else 400)
    eventually(service.database.exists)
    fleet = robots(4)
    with write_locked(service.database):
        told(service, fleet, seed, count=50)
        service.terminate()
        if second:
            eventually(lambda: service.logged("draining"))
            service.terminate()
        assert service.wait() == 0
    left = int(journal_stat(str(service.state_dir / "journal"))["pending"])
    assert left >= 50
    said = [line for line in service.stderr if f"{left} labels wait in the journal" in line]
    said += [line for line in service.stderr if f'"pending":{left}' in line.replace(" ", "")]
    assert said, "\n".join(service.stderr[-5:])
    last = start_service()
    balanced(last)
    assert not lost_or_changed(fleet, last.database)
