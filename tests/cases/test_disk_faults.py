"""A disk that reads wrong, writes short, is slow or full under a running service and at its start.

Nobody hangs: a caller gets its deadline or the level reached; what was acknowledged arrives.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from labeler.fleet.audit import read_acks
from labeler.telemetry import names
from labeler.v1 import types_pb2
from tests.support.accounting import balanced
from tests.support.database import lost_or_changed, stored, write_locked
from tests.support.faulty_disk import DATABASE, JOURNAL, Fault, FaultyDisk
from tests.support.load import Fleet, robots
from tests.support.sending import sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, error_of, floats, request, wire

SECOND_US = 1_000_000


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    """Faults for the services of this test."""
    return FaultyDisk(tmp_path / "disk")


def label_some(service: Service, seed: int, count: int = 100, before: Fleet | None = None) -> Fleet:
    """A fleet that has been told `count` labels, and no error; it goes on from one before."""
    with Fleet(service.address, before.robots if before else robots(8), seed) as fleet:
        goal = fleet.acknowledged() + count
        eventually(lambda: fleet.acknowledged() >= goal, timeout_s=60)
    assert not [error for robot in fleet.robots for error in robot.refused]
    return fleet


def test_a_disk_whose_sync_takes_2_s_answers_at_the_deadline_with_the_level_reached(
    start_service: StartService, disk: FaultyDisk
) -> None:
    service = start_service(prefix=disk.prefix)
    with wire(service.address) as calls:
        calls.labels.Label(request("robot-0", 1, floats([1.0] * WIDTH)))
        disk.breaks("sync_takes", JOURNAL, 2000)
        asked = request("robot-1", 1, floats([1.0] * WIDTH), timeout_us=SECOND_US // 2)
        pending = [calls.labels.Label.future(asked)]
        asked = request("robot-2", 1, floats([1.0] * WIDTH), timeout_us=SECOND_US // 2)
        asked.durability = types_pb2.DURABILITY_JOURNALED
        asked.durability_required = True
        pending.append(calls.labels.Label.future(asked))
        told = pending[0].result(timeout=20)
        assert told.durability == types_pb2.DURABILITY_BUFFERED
        with pytest.raises(grpc.RpcError) as refused:
            pending[1].result(timeout=20)
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert error_of(refused.value).label_exists
    disk.heals("sync_takes")
    rest = balanced(service)
    assert rest.records().parts["stored"] == 3, "a label that was made is journaled and delivered"


def test_reads_that_fail_in_the_middle_of_a_group_lose_none_of_it(
    start_service: StartService, disk: FaultyDisk, tmp_path: Path
) -> None:
    """Case W02 below the journal: what was read before the failure is handed out, and once."""
    service = start_service(
        prefix=disk.prefix,
        writer__retry_ms_min=1,
        writer__retry_ms_max=5,
        writer__rows_max=70,
        writer__held_rows_max=100,
    )
    eventually(service.database.exists)
    with write_locked(service.database):
        backlog(service, tmp_path / "acks.csv", rows=6000)
    for _ in range(3):
        disk.breaks("read_fails", JOURNAL, "once")
        eventually(lambda: disk.broke("read_fails"), timeout_s=30)
    rest = balanced(service)
    assert rest.sum(names.WRITER_FAILURES.name) == 3, "each is told, whenever it happened"
    acks = read_acks(tmp_path / "acks.csv")
    told = {(robot, number) for robot, labels in acks.items() for number in labels}
    assert len(told) >= 6000
    assert not told - stored(service.database).keys()


def backlog(service: Service, acks: Path, rows: int) -> None:
    """Labels that wait in the journal, over several of the pieces that it is read in."""
    made = sender(
        service.address,
        rpc="label_batch",
        batch_rows=100,
        robot_prefix="a-robot-with-a-long-name-" * 4,
        duration_s=60,
        timeout_ms=5000,
        acks_file=str(acks),
        schedule={"shape": "constant", "rate_per_s": 100},
    )
    made.connect()
    made.fire()
    eventually(lambda: made.snapshot()["answered"] >= rows, timeout_s=60)
    made.stop()
    assert made.wait(30_000), made.snapshot()


def test_an_unreadable_journal_leaves_the_label_path_as_it_is_and_is_seen(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    service = start_service(prefix=disk.prefix, writer__retry_ms_max=50)
    disk.breaks("read_fails", JOURNAL)
    fleet = label_some(service, seed)
    eventually(lambda: service.metrics().sum(names.WRITER_FAILURES.name) >= 2)
    scrape = service.metrics()
    assert scrape.sum(names.JOURNAL_AGE.name) > 0
    assert scrape.records().parts["pending"] > 0
    assert any("read" in line and "segment-" in line for line in service.stderr)
    disk.heals("read_fails")
    balanced(service)
    assert not lost_or_changed(fleet.robots, service.database)


def test_a_journal_that_cannot_be_read_at_the_start_ends_it_with_74_and_the_path(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    service = start_service()
    fleet = label_some(service, seed)
    service.kill()
    disk.breaks("read_fails", JOURNAL)
    broken = start_service(ready=False, prefix=disk.prefix)
    assert broken.wait() == 74
    assert "segment-" in "\n".join(broken.stderr)
    last = start_service()
    balanced(last)
    assert not lost_or_changed(fleet.robots, last.database)


def test_writes_that_take_half_of_the_bytes_are_gone_on_with(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    disk.breaks("write_short", JOURNAL)
    service = start_service(prefix=disk.prefix, journal__segment_bytes="1MiB")
    fleet = label_some(service, seed)
    service.kill()
    last = start_service()
    balanced(last)
    assert not lost_or_changed(fleet.robots, last.database)


def test_a_group_that_finds_no_space_in_an_allocated_segment_ends_the_process_with_74(
    start_service: StartService, disk: FaultyDisk, seed: int
) -> None:
    """A disk that copies on write can be full even where a segment stands already."""
    service = start_service(prefix=disk.prefix)
    with Fleet(service.address, robots(8), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 50, timeout_s=30)
        disk.breaks("write_fails", JOURNAL)
        assert service.wait() == 74, "\n".join(service.stderr)
    last = start_service()
    balanced(last)
    assert not lost_or_changed(fleet.robots, last.database)


@pytest.mark.parametrize("fault", ["write_fails", "sync_fails"])
def test_any_fault_of_the_stores_disk_is_a_wait(
    start_service: StartService, disk: FaultyDisk, seed: int, fault: Fault
) -> None:
    service = start_service(prefix=disk.prefix, writer__retry_ms_max=50)
    first = label_some(service, seed, count=20)
    disk.breaks(fault, DATABASE)
    fleet = label_some(service, seed + 1, count=50, before=first)
    eventually(lambda: service.metrics().sum(names.WRITER_FAILURES.name) >= 2)
    disk.heals(fault)
    rest = balanced(service)
    assert rest.records().parts["dead"] == 0
    assert not lost_or_changed(fleet.robots, service.database)
