"""DynamoDB cannot be reached or is not what it should be: a real service waits, says why, delivers.

Cases W12, W14, W16, W46, W58 and W66. What each fault alone does is in `test_dynamodb_faults.py`.
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
from tests.support.agent import Agent
from tests.support.audit import at_dynamodb, nothing_lost, through
from tests.support.dynamodb import DynamoServer, DynamoServers, DynamoTable, servers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials, Skew, TableCreating, WrongSchema
from tests.support.faults.kinds import Hang, Poison, ServerError, Slow, Throttle
from tests.support.faulty_disk import FaultyDisk, fill, small_disk
from tests.support.load import Fleet, robots
from tests.support.place import Place, placed
from tests.support.preload import prefix
from tests.support.service import StartService
from tests.support.waiting import eventually

BATCH_ROWS = 25
HOURS_MS = 600_000
OTHER_KEYS = {
    "KeySchema": [
        {"AttributeName": "robot", "KeyType": "HASH"},
        {"AttributeName": "sequence", "KeyType": "RANGE"},
    ],
    "AttributeDefinitions": [
        {"AttributeName": "robot", "AttributeType": "S"},
        {"AttributeName": "sequence", "AttributeType": "N"},
    ],
}


@pytest.fixture
def table(dynamodb_servers: DynamoServers) -> DynamoTable:
    """An empty table of the test's own."""
    return dynamodb_servers.get("ministack").table().create()


@pytest.fixture
def place(table: DynamoTable, tmp_path: Path, seed: int) -> Iterator[Place]:
    """A service of the test's own."""
    with placed(table, tmp_path, seed) as found:
        yield found


@servers("ministack", "dynoxide")
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
            assert place.count(names.RECORDS_PENDING) == 1000
            assert rule.hits <= place.count(tries, kind="outage") + 1
        assert place.audited().stored == 1000
        assert not place.proxy.record.sent_again()


def _more(out: list[int], place: Place) -> bool:
    out.append(len(place.proxy.record.in_flight()))
    return False


def test_a_store_that_asks_to_be_left_alone_is_and_a_drain_asks_it_at_once(
    place: Place, seed: int
) -> None:
    """Retry-After of five minutes, and W58: the drain does not sit it out."""
    with place.proxy.on(Throttle("table", retry_after_s=300.0, calls=1)) as rule:
        place.tell_at_once(50, seed)
        eventually(lambda: rule.hits == 1)
        place.tell(50, seed)
    assert len(place.proxy.record.writes()) == 1
    assert place.problem("throttled_table")
    assert place.service.stop() == 0
    assert [line["pending"] for line in place.service.logged("stopped")] == [0]
    found = nothing_lost(place.fleet, place.table, place.service.state_dir)
    assert found.stored == found.acknowledged
    through(place.proxy)


def test_a_stop_in_mid_flush_waits_for_what_is_under_way_and_sends_nothing_twice(
    table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Case W58, fluent-bit #5960."""
    with placed(table, tmp_path, seed, dynamodb__read_timeout_ms=30_000) as place:
        with place.proxy.on(Slow(0.2)) as rule:
            place.tell_at_once(300, seed)
            eventually(lambda: rule.hits >= 2)
            assert place.service.stop() == 0
        assert [line["pending"] for line in place.service.logged("stopped")] == [0]
        found = nothing_lost(place.fleet, table, place.service.state_dir)
        assert found.stored == found.acknowledged
        assert not place.proxy.record.sent_again()
        through(place.proxy)


def test_a_clock_that_stays_wrong_is_told_in_seconds_and_a_frozen_process_goes_on(
    place: Place, seed: int
) -> None:
    """Case W16, aws-sdk-js-v3 #7605."""
    with place.proxy.on(Skew(-1200.0)) as rule:
        place.tell(20, seed)
        eventually(lambda: rule.hits >= 3)
        assert place.problem("clock")
        text = str(place.service.status()["writer"]["problem"])
        assert re.search(r"this machine's clock is 1[12]\d\d s ahead", text), text
    place.audited()
    with place.proxy.on(Hang()) as rule:
        place.tell(20, seed + 1)
        eventually(lambda: rule.hits >= 1)
        place.service.process.send_signal(signal.SIGSTOP)
    place.service.process.send_signal(signal.SIGCONT)
    place.tell(20, seed + 2)
    place.audited()


def test_a_host_that_has_no_address_is_an_outage_until_it_has_one(
    start_service: StartService, table: DynamoTable, seed: int
) -> None:
    """DNS is gone at the start: it serves, and delivers in its next life."""
    nowhere: Any = at_dynamodb(table, "http://labels.invalid:8000")
    service = start_service(**nowhere)
    fleet = robots(2)
    with Fleet(service.address, fleet, seed) as sending:
        eventually(lambda: sending.acknowledged() >= 20, timeout_s=30)
    outages = names.WRITER_PROBLEMS.name
    eventually(lambda: service.metrics().sum(outages, kind="outage") >= 2, timeout_s=60)
    assert service.metrics().records().parts["dead"] == 0
    service.kill()
    waiting = nothing_lost(fleet, table, service.state_dir)
    assert waiting.pending == waiting.acknowledged
    there: Any = at_dynamodb(table, table.server.url)
    service = start_service(**there)
    balanced(service, 60)
    found = nothing_lost(fleet, table, service.state_dir)
    assert found.stored == found.acknowledged


def test_labels_are_taken_while_the_table_is_made_and_arrive_when_it_is_found(
    dynamodb_servers: DynamoServers, start_service: StartService, seed: int
) -> None:
    """Case W66, dynamolock #120: in creation, then active and yet not found."""
    table = dynamodb_servers.get("ministack").table().create()
    with FaultProxy(table.server.url, seed) as proxy:
        making = proxy.on(TableCreating(600.0))
        settings: Any = at_dynamodb(table, proxy.url)
        place = Place(start_service(**settings), table, proxy, robots(3))
        place.tell(30, seed)
        eventually(lambda: place.problem("table"))
        missing = proxy.on(TableCreating(0.0, then_missing_s=600.0))
        making.off()
        eventually(lambda: missing.hits >= 2)
        assert place.problem("table")
        missing.off()
        place.audited()


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
    changed = WrongSchema(operations=("DescribeTable",))
    with place.proxy.on(changed), place.proxy.on(Poison(robots=["robot-001"])):
        place.tell(30, seed)
        eventually(lambda: place.problem("table"))
        assert place.count(names.WRITER_DEAD) == 0
    place.audited()


def test_credentials_that_are_renewed_cost_one_write_at_most_while_labels_flow(
    start_service: StartService, table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Case W14, botocore #3134: the token file is replaced, and the old key is over at once."""
    agent, token = Agent(valid_s=15), tmp_path / "token"
    token.write_text("first")
    keys = {name: text for name, text in table.server.environment.items() if "KEY" not in name}
    variables = prefix(
        **keys,
        AWS_CONTAINER_CREDENTIALS_FULL_URI=agent.url,
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token),
    )
    with FaultProxy(table.server.url, seed) as proxy:
        settings: Any = at_dynamodb(table, proxy.url) | {"prefix": variables}
        place = Place(start_service(**settings), table, proxy, robots(3))
        place.tell(30, seed)
        balanced(place.service)
        token.write_text("second")
        with proxy.on(Credentials("expired", unless_key="AKIA-second")) as rule:
            place.tell(60, seed + 1)
            place.audited()
        assert rule.hits <= place.count(names.WRITER_LIMIT), "those that were under way"
        assert {call.access_key for call in proxy.record.writes()} == {"AKIA-first", "AKIA-second"}
    agent.shutdown()
    agent.server_close()


def test_a_clock_set_back_under_the_service_holds_labels_up_until_it_is_right(
    start_service: StartService, table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Cases W16, W32: signatures of ten minutes ago are refused; nothing is dead."""
    disk = FaultyDisk(tmp_path / "disk")
    with FaultProxy(table.server.url, seed) as proxy:
        settings: Any = at_dynamodb(table, proxy.url)
        settings["prefix"] = (*disk.prefix, *settings["prefix"])
        place = Place(start_service(**settings), table, proxy, robots(3))
        place.tell(20, seed)
        balanced(place.service)
        disk.breaks("clock_back", "-", 600)
        place.tell(20, seed + 1)
        eventually(lambda: place.problem("clock"))
        disk.heals("clock_back")
        place.audited()


def test_a_disk_full_in_an_outage_refuses_labels_and_confirms_when_the_store_is_back(
    start_service: StartService, table: DynamoTable, tmp_path: Path, seed: int
) -> None:
    """Case W46, OpenTelemetry Collector #7198: the disk stays full while all is delivered."""
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
        place = Place(service, table, proxy, robots(3))
        with proxy.on(ServerError()):
            place.tell(20, seed)
            ballast = fill(disk)
            with Fleet(service.address, place.fleet, seed + 1):
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
