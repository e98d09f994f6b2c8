"""DynamoDB cannot be reached or is not what it should be: a real service waits, says why, delivers.

Cases W12, W16, W46, W50, W58 and W66. What each fault alone does is in `test_dynamodb_faults.py`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.audit import at_dynamodb, nothing_lost, through
from tests.support.dynamodb import DynamoServer, DynamoServers, DynamoTable, servers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Skew, TableCreating, WrongSchema
from tests.support.faults.kinds import Hang, Idle, Poison, Reset, ServerError, Slow, Throttle
from tests.support.faulty_disk import FaultyDisk, fill, small_disk
from tests.support.hosts import Hosts
from tests.support.load import Fleet, Robot, robots
from tests.support.place import Place, placed
from tests.support.service import StartService
from tests.support.waiting import eventually

BATCH_ROWS = 25
ID_BYTES, SKU_BYTES = 128, 64
OTHER_KEYS: dict[str, Any] = {
    "KeySchema": [
        {"AttributeName": "robot", "KeyType": "HASH"},
        {"AttributeName": "sequence", "KeyType": "RANGE"},
    ],
    "AttributeDefinitions": [
        {"AttributeName": "robot", "AttributeType": "S"},
        {"AttributeName": "sequence", "AttributeType": "N"},
    ],
}


@pytest.fixture(scope="module")
def one_service(
    dynamodb_servers: DynamoServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """For the faults that leave it well."""
    table = dynamodb_servers.get("ministack").table().create()
    with placed(table, tmp_path_factory.mktemp("outages"), 17) as found:
        yield found


@pytest.fixture
def place(one_service: Place, seed: int) -> Iterator[Place]:
    """The same service, with a clean record and robots of the test's own."""
    one_service.proxy.record.clear()
    one_service.new_robots(seed)
    yield one_service
    one_service.proxy.off()


@pytest.fixture
def table(dynamodb_servers: DynamoServers) -> DynamoTable:
    """An empty table of the test's own."""
    return dynamodb_servers.get("ministack").table().create()


@servers("dynoxide")
def test_in_an_outage_one_probe_is_out_at_a_time_and_a_thousand_labels_wait(
    dynamodb: DynamoServer, tmp_path: Path, seed: int
) -> None:
    """Case W12, Agendia #322: so long as it lasts no label is dead, and no herd comes back."""
    with placed(dynamodb.table().create(), tmp_path, seed) as place:
        with place.proxy.on(Hang()) as rule:
            place.tell_at_once(1000, seed)
            tries = names.WRITER_PROBLEMS
            eventually(lambda: place.count(tries, kind="outage") >= 2)
            seen = rule.hits
            out = [len(place.proxy.record.in_flight())]
            eventually(lambda: _more(out, place) or rule.hits >= seen + 4, timeout_s=30)
            assert max(out) <= BATCH_ROWS, "of one write"
            assert place.problem("outage")
            assert place.count(names.WRITER_LIMIT) == 1
            assert "Read timeout" in str(place.service.status()["writer"]["problem"])
            assert place.count(names.RECORDS_PENDING) == 1000
            assert rule.hits <= place.count(tries, kind="outage") + 1
        assert place.audited().stored == 1000


def _more(out: list[int], place: Place) -> bool:
    out.append(len(place.proxy.record.in_flight()))
    return False


def test_a_store_that_asks_to_be_left_alone_is_and_a_drain_asks_it_at_once(
    table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Retry-After of five minutes, and W58: the drain does not sit it out."""
    with placed(table, tmp_path, seed) as place:
        with place.proxy.on(Throttle("table", retry_after_s=300.0, calls=1)) as rule:
            place.tell_at_once(50, seed)
            eventually(lambda: rule.hits == 1)
            eventually(lambda: place.problem("throttled_table"))
            place.tell(50, seed)
        assert len(place.proxy.record.writes()) == 1
        drained(place)


def drained(place: Place) -> None:
    """It ends with nothing left, and all is stored."""
    assert place.service.stop() == 0
    assert [line["pending"] for line in place.service.logged("stopped")] == [0]
    found = nothing_lost(place.fleet, place.table, place.service.state_dir)
    assert found.stored == found.acknowledged
    through(place.proxy)


def test_a_stop_in_mid_flush_waits_for_what_is_under_way_and_sends_nothing_twice(
    table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Case W58, fluent-bit #5960: the answer comes when the drain has begun."""
    with placed(table, tmp_path, seed, dynamodb__read_timeout_ms=30_000) as place:
        with place.proxy.on(Slow(600.0, calls=2)) as rule:
            place.tell_at_once(300, seed)
            eventually(lambda: rule.hits >= 1)
            place.service.terminate()
            eventually(lambda: place.service.logged("draining"))
        assert place.service.wait() == 0
        assert [line["pending"] for line in place.service.logged("stopped")] == [0]
        found = nothing_lost(place.fleet, table, place.service.state_dir)
        assert found.stored == found.acknowledged
        assert not place.proxy.record.sent_again()
        through(place.proxy)


def test_a_clock_that_stays_wrong_is_told_in_seconds(place: Place, seed: int) -> None:
    """Case W16, aws-sdk-js-v3 #7605."""
    with place.proxy.on(Skew(-1200.0)) as rule:
        place.tell(20, seed)
        eventually(lambda: rule.hits >= 3)
        assert place.problem("clock")
        text = str(place.service.status()["writer"]["problem"])
        assert re.search(r"this machine's clock is 1[12]\d\d s ahead", text), text
    place.audited()


def test_a_process_that_was_frozen_in_a_write_goes_on(place: Place, seed: int) -> None:
    """Case W16: meanwhile its write was cut off and all its connections were closed."""
    with place.proxy.on(Hang(seconds=1.0)) as rule, place.proxy.on(Idle(0.2)):
        place.tell_at_once(60, seed)
        eventually(lambda: rule.hits >= 1)
        place.service.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: place.proxy.connections == 0)
        finally:
            place.service.process.send_signal(signal.SIGCONT)
    place.tell(20, seed + 1)
    assert place.audited().stored == sum(len(robot.acknowledged) for robot in place.fleet)


HOST = "store.labels.internal"


@pytest.fixture
def named(
    start_service: StartService, table: DynamoTable, tmp_path: Path, seed: int
) -> Iterator[tuple[Place, Hosts]]:
    """A service that reaches the proxy by a name, which has no address yet."""
    hosts = Hosts(tmp_path / "names")
    with FaultProxy(table.server.url, seed) as proxy:
        settings: dict[str, Any] = at_dynamodb(table, f"http://{HOST}:{proxy.port}")
        settings["prefix"] = (*hosts.prefix, *settings["prefix"])
        service = start_service(**settings)
        yield Place(service, table, proxy, robots(3)), hosts


def test_a_name_without_an_address_is_an_outage_until_it_has_one(
    named: tuple[Place, Hosts], seed: int
) -> None:
    """DNS is gone at the start: it serves all the same, and delivers when the name is back."""
    place, hosts = named
    place.tell(20, seed)
    eventually(lambda: place.count(names.WRITER_PROBLEMS, kind="outage") >= 2, timeout_s=60)
    assert HOST in str(place.service.status()["writer"]["problem"])
    assert not place.proxy.record.calls
    hosts.knows(HOST)
    assert place.audited().stored >= 20


@pytest.mark.slow
def test_a_name_that_loses_its_address_is_an_outage_and_may_come_back_with_another(
    named: tuple[Place, Hosts], seed: int
) -> None:
    """An answer is kept for 10 s; then who has moved is found at the new place. About 30 s."""
    place, hosts = named
    hosts.knows(HOST)
    place.tell(20, seed)
    place.audited()
    hosts.forgets()
    with place.proxy.on(Reset("before")):
        place.tell(20, seed + 1)
        eventually(lambda: tried_in_vain(place), timeout_s=60)
    assert tried_in_vain(place)
    with FaultProxy(place.table.server.url, seed, place.proxy.port, host="127.0.0.2") as moved:
        hosts.knows(HOST, "127.0.0.2")
        place.audited()
        assert moved.record.writes()


def tried_in_vain(place: Place) -> bool:
    """Whether tries fail of which none arrives."""
    calls, failures = len(place.proxy.record.calls), names.WRITER_PROBLEMS
    seen = place.count(failures, kind="outage")
    eventually(lambda: place.count(failures, kind="outage") >= seen + 3)
    return len(place.proxy.record.calls) == calls


def test_labels_are_taken_while_the_table_is_made_and_arrive_when_it_is_found(
    place: Place, seed: int
) -> None:
    """Case W66, dynamolock #120: in creation, then active and yet not found."""
    making = place.proxy.on(TableCreating(600.0))
    place.tell(30, seed)
    eventually(lambda: place.problem("table"))
    missing = place.proxy.on(TableCreating(0.0, then_missing_s=600.0))
    making.off()
    eventually(lambda: missing.hits >= 2)
    assert place.problem("table")
    missing.off()
    place.audited()


def test_a_second_process_on_the_journal_ends_at_once_and_the_first_delivers_on(
    start_service: StartService, place: Place, seed: int
) -> None:
    """Case W50, beside a store that fails: who came second delivers nothing of the first's."""
    with place.proxy.on(ServerError()) as rule:
        place.tell(20, seed)
        table, at = place.table, place.proxy.url
        second: Any = at_dynamodb(table, at)
        other = start_service(place.service.state_dir, ready=False, **second)
        assert other.wait() not in (0, -signal.SIGKILL)
        said = "\n".join(other.stderr)
        assert f"process {place.service.pid} holds its lock" in said, said
        eventually(lambda: rule.hits >= 2)
    place.tell(20, seed + 1)
    place.audited()
    assert not place.proxy.record.sent_again()


def test_other_keys_stop_a_start_and_make_no_dead_letter_later(
    start_service: StartService, place: Place, seed: int
) -> None:
    """Case W66; the keys change while a row is refused: who says it is the row's fault?"""
    table = place.table.server.table().create(**OTHER_KEYS)
    wrong: Any = at_dynamodb(table, table.server.url)
    refused = start_service(ready=False, **wrong)
    assert refused.wait() == 64
    said = "\n".join(refused.stderr)
    assert "expected partition key robot_id (S), sort key sequence (N)" in said
    assert "partition key robot (S)" in said
    changed, bad = WrongSchema(operations=("DescribeTable",)), place.fleet[1].robot_id
    dead = place.count(names.WRITER_DEAD)
    with place.proxy.on(changed):
        with place.proxy.on(Poison(robots=[bad])):
            place.tell(30, seed)
            eventually(lambda: place.problem("table"))
        balanced(place.service)  # a refusal that is being looked into is looked into to its end
        assert place.count(names.WRITER_DEAD) == dead
    place.audited()


def test_a_clock_set_back_under_the_service_holds_labels_up_until_it_is_right(
    start_service: StartService, table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Cases W16, W32: signatures of ten minutes ago are refused; nothing is dead."""
    disk = FaultyDisk(tmp_path / "disk")
    with FaultProxy(table.server.url, seed) as proxy:
        settings: dict[str, Any] = at_dynamodb(table, proxy.url)
        settings["prefix"] = (*disk.prefix, *settings["prefix"])
        place = Place(start_service(**settings), table, proxy, robots(3))
        place.tell(20, seed)
        balanced(place.service)
        disk.breaks("clock_back", "-", 600)
        place.tell(20, seed + 1)
        eventually(lambda: place.problem("clock"))
        disk.heals("clock_back")
        place.audited()


@pytest.mark.slow
def test_a_disk_full_in_an_outage_refuses_labels_and_confirms_when_the_store_is_back(
    start_service: StartService, table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Case W46, OpenTelemetry Collector #7198: the disk stays full while all is delivered.

    About 10 s; `test_full_disk.py` tries the same beside SQLite, always.
    """
    with (
        small_disk(tmp_path / "disk", 24 << 20) as disk,
        FaultProxy(table.server.url, seed) as proxy,
    ):
        settings: Any = at_dynamodb(
            table,
            proxy.url,
            journal__segment_bytes="1MiB",
            journal__disk_bytes_max="64MiB",
            journal__reserve_bytes="64KiB",
            journal__memory_bytes_max="1MiB",
        )
        service = start_service(disk / "state", **settings)
        # Long names fill the disk by few labels.
        long = [Robot(f"{number}".ljust(ID_BYTES, "r")) for number in range(3)]
        place = Place(service, table, proxy, long)
        with proxy.on(ServerError()):
            place.tell(20, seed)
            ballast = fill(disk)
            place.tell_at_once(1000, seed + 3)
            with Fleet(service.address, place.fleet, seed + 1, sku="s" * SKU_BYTES):
                eventually(lambda: all(robot.refused for robot in place.fleet), timeout_s=60)
            fill(disk)
        place.audited()
        ballast.unlink()
        for robot in place.fleet:
            assert {type(error).__name__ for error in robot.refused} == {"OverloadedError"}
            robot.refused.clear()
        eventually(lambda: _taken(place, seed + 2), timeout_s=30)
        place.audited()
        assert service.stop() == 0


def _taken(place: Place, seed: int) -> bool:
    for robot in place.fleet:
        robot.refused.clear()
    place.tell(20, seed)
    return True
