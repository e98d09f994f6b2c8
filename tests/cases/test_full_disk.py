"""A disk that is full: labels are refused, what was admitted arrives, and it heals by itself.

Cases W46, OpenTelemetry Collector #7198, on a real file system that is full.
"""

from __future__ import annotations

from pathlib import Path

from labeler._core import loadgen
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.database import Key, stored, write_locked
from tests.support.faulty_disk import fill, free_bytes, small_disk
from tests.support.sending import refused, sender, stopped
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

MIB = 1 << 20
DISK_BYTES = 24 * MIB
SETTINGS = {
    "journal__segment_bytes": "1MiB",
    "journal__disk_bytes_max": "64MiB",
    "journal__reserve_bytes": "64KiB",
    "journal__memory_bytes_max": "1MiB",
    "writer__retry_ms_max": 100,
}


def load(service: Service, acks: Path, robots: str) -> loadgen.Sender:
    """Batches, until they are stopped; every acknowledged label is in `acks`."""
    made = sender(
        service.address,
        rpc="label_batch",
        batch_rows=100,
        robot_prefix=robots,
        robots=20,
        duration_s=60,
        timeout_ms=2000,
        acks_file=str(acks),
        schedule={"shape": "constant", "rate_per_s": 60},
    )
    made.connect()
    made.fire()
    return made


def ended(made: loadgen.Sender) -> loadgen.Result:
    """Ends a load, in which nothing but refusals may have gone wrong."""
    result = stopped(made)
    assert set(result["errors"]) <= {"RESOURCE_EXHAUSTED"}, result["errors"]
    return result


def lost(acks: Path, database: Path) -> set[Key]:
    """Acknowledged labels that the store does not hold."""
    from labeler.fleet.audit import read_acks

    held = stored(database)
    told = {(robot, n) for robot, labels in read_acks(acks).items() for n in labels}
    assert told
    return told - held.keys()


def accepted(service: Service, acks: Path) -> bool:
    """Whether labels are taken again, and none is refused."""
    made = load(service, acks, "after-")
    eventually(lambda: made.snapshot()["answered"] >= 500)
    return not ended(made)["errors"]


def test_a_full_disk_refuses_labels_and_delivers_what_it_has_until_there_is_space_again(
    start_service: StartService, tmp_path: Path
) -> None:
    database = tmp_path / "labels.sqlite3"
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        service = start_service(disk / "state", sqlite__path=str(database), **SETTINGS)
        eventually(database.exists)
        ballast = fill(disk)
        with write_locked(database):
            made = load(service, tmp_path / "acks.csv", "full-")
            eventually(lambda: refused(made) > 0, timeout_s=60)
            ended(made)
            assert service.metrics().records().parts["pending"] > 0
        # Deletion and confirmations need space too: the disk is still as full as it can be.
        fill(disk)
        balanced(service, timeout_s=60)
        assert not lost(tmp_path / "acks.csv", database)
        ballast.unlink()
        eventually(lambda: accepted(service, tmp_path / "after.csv"), timeout_s=30)
        balanced(service, timeout_s=60)
        assert not lost(tmp_path / "after.csv", database)
        assert service.stop() == 0


def test_a_store_on_the_full_disk_is_waited_for_and_no_label_is_dead(
    start_service: StartService, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        service = start_service(disk / "state", **SETTINGS)
        eventually(service.database.exists)
        ballast = fill(disk)
        made = load(service, tmp_path / "acks.csv", "full-")
        eventually(lambda: service.metrics().sum(names.WRITER_FAILURES.name) > 1, timeout_s=60)
        eventually(lambda: refused(made) > 0, timeout_s=60)
        ended(made)
        at_bound = service.metrics().records()
        assert at_bound.parts["pending"] > 0
        assert at_bound.parts["dead"] == 0
        ballast.unlink()
        balanced(service, timeout_s=60)
        assert not lost(tmp_path / "acks.csv", service.database)
        eventually(lambda: accepted(service, tmp_path / "after.csv"), timeout_s=30)
        balanced(service, timeout_s=60)
        assert service.stop() == 0


def test_a_disk_full_from_the_start_ends_it_with_74_and_leaves_nothing_that_fills_it(
    start_service: StartService, tmp_path: Path
) -> None:
    database = str(tmp_path / "labels.sqlite3")
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        ballast = fill(disk, left_bytes=MIB // 2)
        before = free_bytes(disk)
        service = start_service(disk / "state", ready=False, sqlite__path=database, **SETTINGS)
        assert service.wait() == 74
        log = "\n".join(service.stderr)
        assert str(disk / "state") in log
        assert "space" in log.lower()
        assert free_bytes(disk) > before - MIB // 8, "what was begun is removed"
        ballast.unlink()
        healed = start_service(disk / "state", sqlite__path=database, **SETTINGS)
        balanced(healed)
        assert healed.stop() == 0
