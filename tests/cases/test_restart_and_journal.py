"""What a start finds in its journal, and what may happen meanwhile: tails, records, locks, kills.

Full counts: about 30 s.
"""

from __future__ import annotations

import json
import random
import socket
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from labeler._core import journal_stat
from labeler.telemetry import names
from labeler.writer.undecodable import undecodable
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import acknowledged, lost_or_changed, stored, write_locked
from tests.support.faulty_disk import JOURNAL, FaultyDisk
from tests.support.journal_bytes import change, field, records, segments
from tests.support.load import Fleet, Robot, robots
from tests.support.service import Service, StartService, run_labeler
from tests.support.waiting import eventually

SMALL = {"journal__segment_bytes": "1MiB"}


def label(service: Service, fleet: list[Robot], seed: int, count: int) -> None:
    """`count` more labels for a fleet."""
    with Fleet(service.address, fleet, seed) as sending:
        goal = sending.acknowledged() + count
        eventually(lambda: sending.acknowledged() >= goal, timeout_s=60)


def killed_with_pending(start: StartService, fleet: list[Robot], seed: int, count: int) -> Service:
    """A service that was killed with all of `count` labels in its journal and none in the store."""
    service = start(**SMALL)
    eventually(service.database.exists)
    with write_locked(service.database):
        label(service, fleet, seed, count)
        service.kill()
    return service


def end_of_log(state_dir: Path) -> tuple[Path, int]:
    """The last segment with anything in it, and where that ends."""
    journal = state_dir / "journal"
    used = [one for one in journal_stat(str(journal))["segments"] if one["used_bytes"] > 4096]
    return journal / used[-1]["file"], used[-1]["used_bytes"]


@counts("rounds", quick=2, full=5, full_timeout_s=300)
def test_labels_of_all_rounds_survive_a_torn_tail_before_each_start(
    start_service: StartService, seed: int, rounds: int
) -> None:
    """Case W38, dittofs #2230: what is appended behind a torn tail is found at the next start."""
    rng, fleet = random.Random(seed), robots(4)
    for number in range(rounds):
        service = killed_with_pending(start_service, fleet, seed + number, count=200)
        segment, end = end_of_log(service.state_dir)
        with segment.open("r+b") as file:
            file.seek(4096)
            torn = file.read(rng.randrange(64, 4000))  # a group that begins well and does not end
            file.seek(end)
            file.write(torn)
    last = start_service(**SMALL)
    assert last.logged("journal recovered")[0]["cut_bytes"] > 0
    balanced(last)
    assert not lost_or_changed(fleet, last.database)


def test_records_that_mean_nothing_to_us_are_dead_with_reason_and_bytes_and_the_others_arrive(
    start_service: StartService, seed: int
) -> None:
    """Case W40, vector #26231: one without sense, one whose field a newer version has changed.

    A newer version's record that only has further fields is read as one of ours.
    """
    fleet = robots(2)
    service = killed_with_pending(start_service, fleet, seed, count=30)
    segment = segments(service.state_dir / "journal")[0]
    found = list(records(segment))
    change(segment, found[3], lambda body: b"\xff" * len(body))
    change(segment, found[7], newer_field)
    change(segment, found[11], further_field)
    dumped = run_labeler("journal", "dump", str(service.state_dir), "--json")
    lines = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert dumped.returncode == 0, dumped.stderr
    assert [line["number"] for line in lines] == [record.number for record in found]
    assert [n for n, line in enumerate(lines) if "undecodable" in line] == [3, 7]
    assert "is no label" in run_labeler("journal", "dump", str(service.state_dir)).stdout
    last = start_service(**SMALL)
    rest = balanced(last)
    assert rest.records().parts["dead"] == 2
    told = last.logged("a journal record could not be decoded; it counts as dead")
    assert [line["number"] for line in told] == [found[3].number, found[7].number]
    for line, record in zip(told, (found[3], found[7]), strict=True):
        assert line["error"]
        assert line["bytes"] == record.body.stop - record.body.start
        kept = last.state_dir / "journal" / line["kept_as"]
        assert kept.read_bytes() == segment.read_bytes()[record.body]
    reasons = {item.number: item.reason() for item in undecodable(last.state_dir)}
    assert reasons == {
        found[3].number: "its bytes are no label: a number between two fields does not end",
        found[7].number: "its bytes are no label: field 2 (sequence) is a text, expected a number",
    }
    told_labels = acknowledged(fleet)
    missing = lost_or_changed(fleet, last.database)
    assert len(missing) == 2
    assert len(stored(last.database).keys() & told_labels.keys()) == len(told_labels) - 2


def newer_field(body: bytes) -> bytes:
    """`sequence` (field 2) is bytes now: of this version nobody can tell which label it is."""
    at = 2 + body[1]  # after robot_id, the first field
    assert body[at] == 0x10
    rest = len(body) - at - 2
    length = min(rest, 100)
    return body[:at] + bytes([0x12, length]) + body[at + 2 :]


def further_field(body: bytes) -> bytes:
    """The wall time of the label gives way to a field that we do not know, number 100."""
    old = field(body, 11)
    length = len(old) - 3
    new = bytes([0xA2, 0x06, length]) + bytes(length)
    return body[: old.start] + new + body[old.stop :]


def test_numbers_and_ids_go_on_after_kill_9_of_an_emptied_journal(
    start_service: StartService, seed: int
) -> None:
    """Case W42, nats-server #2068: a late confirmation never hits a new record."""
    fleet, given = robots(2), [0.0]
    for life in range(3):
        service = start_service()
        assert service.metrics().sum(names.JOURNAL_NEXT.name) > given[-1]
        label(service, fleet, seed + life, count=20)
        rest = balanced(service)
        given.append(rest.sum(names.JOURNAL_NEXT.name) - 1)
        service.kill()
    last = start_service()
    assert balanced(last).sum(names.JOURNAL_NEXT.name) > given[-1]
    assert not lost_or_changed(fleet, last.database)


def test_a_second_server_is_told_path_and_holder_and_changes_no_inode_or_byte(
    start_service: StartService, seed: int
) -> None:
    """Case W50, scarb #1712; the tools read beside the service and change as little."""
    fleet = robots(2)
    first = start_service()
    label(first, fleet, seed, count=20)
    balanced(first)
    journal = first.state_dir / "journal"
    eventually(lambda: journal_stat(str(journal))["pending"] == 0)  # confirmations are on disk
    before = contents(journal)
    second = start_service(first.state_dir, ready=False)
    assert second.wait() == 69
    log = "\n".join(second.stderr)
    assert str(journal) in log
    assert f"process {first.pid} holds its lock" in log
    for tool in ("verify", "stat", "dump"):
        looked = run_labeler("journal", tool, str(journal))
        assert looked.returncode == 0, looked.stderr
    assert contents(journal) == before
    label(first, fleet, seed + 1, count=20)
    balanced(first)
    assert not lost_or_changed(fleet, first.database)


def contents(journal: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time of the last change, and bytes of each file."""
    files = [path for path in sorted(journal.rglob("*")) if path.is_file()]
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in files
    }


@dataclass
class Recovering:
    """A service in the middle of a recovery whose every read takes 2 s."""

    service: Service
    address: str
    fleet: list[Robot]


@pytest.fixture
def recovering(start_service: StartService, tmp_path: Path, seed: int) -> Recovering:
    """A service that has just begun to read what another one left."""
    fleet = robots(4)
    killed_with_pending(start_service, fleet, seed, count=600)
    disk = FaultyDisk(tmp_path / "disk")
    disk.breaks("read_takes", JOURNAL, 2_000_000)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    service = start_service(
        ready=False, prefix=disk.prefix, transport__grpc_address=address, **SMALL
    )
    eventually(lambda: service.logged("ONNX Runtime"), timeout_s=30)
    return Recovering(service, address, fleet)


def health(address: str) -> str:
    """What a probe of the gRPC health service learns."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def test_a_kill_in_mid_recovery_does_no_harm_and_nobody_is_told_that_it_serves(
    start_service: StartService, recovering: Recovering
) -> None:
    """Case W54, ord #2256, redb #639."""
    service = recovering.service
    assert health(recovering.address) == "UNAVAILABLE"
    assert service.process.poll() is None
    service.kill()
    last = start_service(**SMALL)
    balanced(last)
    assert not lost_or_changed(recovering.fleet, last.database)


def test_a_signal_in_mid_recovery_ends_it_with_exit_code_0(
    start_service: StartService, recovering: Recovering
) -> None:
    """Case Vector #17644: a stop is not put off until the recovery is over."""
    service = recovering.service
    assert service.stop() == 0
    assert not service.logged("journal recovered")
    assert service.logged("a signal during the start: the process exits, nothing was accepted")
    last = start_service(**SMALL)
    balanced(last)
    assert not lost_or_changed(recovering.fleet, last.database)


@pytest.mark.slow
def test_a_long_recovery_says_every_5_s_how_far_it_is(
    start_service: StartService, recovering: Recovering
) -> None:
    """Case W54: a start that takes long is not taken for a hang. About 15 s."""
    service = recovering.service
    eventually(lambda: len(service.logged("starting")) >= 2, timeout_s=60)
    first, second = service.logged("starting")[:2]
    assert first["phase"] == "journal recovery"
    assert 0 <= first["read_bytes"] < second["read_bytes"]
    assert first["journal_bytes"] > 1 << 20
    service.kill()
    last = start_service(**SMALL)
    balanced(last)
    assert not lost_or_changed(recovering.fleet, last.database)
