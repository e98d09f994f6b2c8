"""Invariant 9: a failed fsync of the journal is terminal, since a retried one can falsely succeed.

Every waiter fails, nothing later is acknowledged, health says so, the process exits with 74, and
the next start recovers only what was durable. Cases W48, NATS #7564, cockroach #37109.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from labeler.telemetry import names
from labeler.v1 import label_pb2
from tests.support.accounting import balanced
from tests.support.database import lost_or_changed, stored
from tests.support.faulty_disk import DATABASE, JOURNAL, FaultyDisk
from tests.support.health import HealthWatch
from tests.support.load import Fleet, robots
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, Wire, error_of, floats, request, wire

WAITERS = 24
JOURNALED = 2
"""`labeler.v1.Durability`."""


def ends_with_74(service: Service) -> None:
    """Checks the exit, and that the last words name the call and the file."""
    assert service.wait() == 74, "\n".join(service.stderr)
    log = "\n".join(service.stderr[-8:])
    assert "the process exits, recovery decides at the next start" in log or (
        "the label path failed" in log
    ), log
    assert "fdatasync" in "\n".join(service.stderr)
    assert "segment-" in "\n".join(service.stderr)


def test_every_waiter_fails_health_turns_not_serving_and_the_process_exits_with_74(
    start_service: StartService, tmp_path: Path
) -> None:
    disk = FaultyDisk(tmp_path / "disk")
    service = start_service(prefix=disk.prefix)
    with wire(service.address) as calls, HealthWatch(service.address) as health:
        eventually(lambda: health.states == ["SERVING"])
        disk.breaks("sync_fails", JOURNAL, "once")

        def ask(number: int) -> grpc.RpcError | None:
            asked = request(f"robot-{number}", 1, floats([1.0] * WIDTH), durability=JOURNALED)
            try:
                calls.labels.Label(asked)
            except grpc.RpcError as error:
                return error
            return None

        with ThreadPoolExecutor(WAITERS) as pool:
            failures = list(pool.map(ask, range(WAITERS)))
        eventually(lambda: "NOT_SERVING" in health.states or health.states[-1] == "ENDED")
    assert disk.broke("sync_fails")
    codes = {failure.code() for failure in failures if failure}
    assert all(failures), "nobody is told that a label is durable"
    assert grpc.StatusCode.INTERNAL in codes, codes
    assert codes <= {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}, codes
    internal = next(f for f in failures if f and f.code() == grpc.StatusCode.INTERNAL)
    assert "fdatasync" in error_of(internal).message
    assert "NOT_SERVING" in health.states
    ends_with_74(service)


def test_no_later_group_is_acknowledged_and_the_next_start_has_what_was_durable(
    start_service: StartService, tmp_path: Path, seed: int
) -> None:
    root = (tmp_path / "state").resolve()
    disk = FaultyDisk(tmp_path / "disk", root=root)
    service = start_service(prefix=disk.prefix, journal__segment_bytes="1MiB")
    with Fleet(service.address, robots(8), seed, durability="JOURNALED") as fleet:
        eventually(lambda: fleet.acknowledged() >= 100, timeout_s=30)
        disk.breaks("sync_fails", JOURNAL, "once")  # a sync after it would succeed
        eventually(lambda: all(robot.refused for robot in fleet.robots), timeout_s=30)
    ends_with_74(service)
    # What the disk refused is not there: the page cache of before is gone.
    last = start_service(disk.mirror)
    balanced(last)
    assert not lost_or_changed(fleet.robots, last.database)
    sent = {robot.robot_id: robot.sent for robot in fleet.robots}
    assert all(sequence <= sent[robot] for robot, sequence in stored(last.database))


def test_a_batch_and_a_stream_fail_as_a_call_does(
    start_service: StartService, tmp_path: Path
) -> None:
    disk = FaultyDisk(tmp_path / "disk")
    service = start_service(prefix=disk.prefix)
    with wire(service.address) as calls:
        disk.breaks("sync_fails", JOURNAL, "once")
        streamed, batched = (
            [request(f"robot-{n}", sequence, floats([1.0] * WIDTH)) for sequence in range(1, 9)]
            for n in (1, 2)
        )
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(codes_of_stream, calls, streamed)
            batch = calls.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=batched))
            codes = {row.error.code for row in batch.results} | stream.result(timeout=20)
    assert codes <= {grpc.StatusCode.INTERNAL.value[0], grpc.StatusCode.UNAVAILABLE.value[0]}
    ends_with_74(service)


def codes_of_stream(calls: Wire, requests: list[label_pb2.LabelRequest]) -> set[int]:
    """Codes of the replies of a stream, and of its end; 0 for a label."""
    codes = set()
    try:
        for reply in calls.labels.LabelStream(iter(requests)):
            codes.add(reply.error.code)
    except grpc.RpcError as error:
        codes.add(error.code().value[0])
    return codes


def test_a_failed_fsync_of_the_store_is_a_wait_and_loses_nothing(
    start_service: StartService, tmp_path: Path, seed: int
) -> None:
    disk = FaultyDisk(tmp_path / "disk")
    service = start_service(prefix=disk.prefix, writer__retry_ms_max=50)
    disk.breaks("sync_fails", DATABASE)
    with Fleet(service.address, robots(4), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 50, timeout_s=30)
        eventually(lambda: service.metrics().sum(names.WRITER_FAILURES.name) >= 3)
    refused = [error for robot in fleet.robots for error in robot.refused]
    assert not refused
    assert service.metrics().records().parts["dead"] == 0
    disk.heals("sync_fails")
    balanced(service)
    assert not lost_or_changed(fleet.robots, service.database)
