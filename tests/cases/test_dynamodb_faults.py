"""DynamoDB fails in every way beside a real service: labels wait, and arrive once.

Cases W02, W04, W06, W10, W12, W16, W18, W34 and W66, through the server, its writer and the fault
proxy before a real server of DynamoDB's API. Full counts: about 4 minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import labeler
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.audit import at_dynamodb
from tests.support.counts import counts
from tests.support.dynamodb import DynamoServers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials, Skew, TableMissing, WrongSchema
from tests.support.faults.kinds import (
    Broken,
    CompleteAs,
    Fault,
    Gone,
    Hang,
    HotKey,
    Idle,
    Reason,
    Reset,
    ServerError,
    Slow,
    Throttle,
    Unprocessed,
)
from tests.support.load import Robot, readings, robots
from tests.support.place import Place, placed
from tests.support.service import StartService
from tests.support.waiting import eventually

THROTTLES: dict[Reason, str] = {
    "table": "throttled_table",
    "on_demand": "throttled_table",
    "bare": "throttled_table",
    "account": "throttled_account",
    "request_limit": "throttled_account",
    "key_range": "throttled_key",
}
FAULTS: dict[str, tuple[Fault, str]] = {
    "a third unprocessed": (Unprocessed(share=0.3), "unprocessed"),
    "all unprocessed, five times": (Unprocessed(calls=5), "unprocessed"),
    "done, without the field": (CompleteAs("absent"), ""),
    "done, with an empty map": (CompleteAs("map"), ""),
    "done, with an empty list": (CompleteAs("list"), ""),
    **{f"throttled: {one}": (Throttle(one, calls=4), kind) for one, kind in THROTTLES.items()},
    "throttled, with a time to wait": (
        Throttle("table", retry_after_s=0.2, calls=2),
        "throttled_table",
    ),
    "500 before the write": (ServerError(calls=4), "outage"),
    "500 after the write": (ServerError(applied=True, calls=4), "outage"),
    "503": (ServerError(code="ServiceUnavailable", status=503, probability=0.5), "outage"),
    "hangs before the write": (Hang(calls=2), "outage"),
    "hangs after the write": (Hang(applied=True, calls=2), "outage"),
    "slow": (Slow(0.3, probability=0.5), ""),
    "takes five seconds, longer than we wait": (Slow(5.0, calls=2), "outage"),
    "takes five seconds before it is applied": (Slow(5.0, "request", calls=2), "outage"),
    "reset before the write": (Reset("before", probability=0.4), "outage"),
    "reset after the write": (Reset("after", probability=0.4), "outage"),
    "closed after the write": (Reset("after", "fin", calls=4), "outage"),
    **{
        f"an answer that is {form}": (Broken(form, applied=form == "crc", calls=3), "outage")
        for form in ("truncated", "head", "json", "crc", "html", "empty", "garbage")
    },
    "closed while idle": (Idle(0.05, "fin", calls=3), ""),
    "reset while idle": (Idle(0.05, "rst", calls=3), ""),
    "ended as it is used again": (Idle(0.05, "on_request", calls=2), "outage"),
    **{
        f"credentials {kind}": (Credentials(kind, calls=4), "credentials")
        for kind in ("expired", "unrecognized", "denied", "forbidden", "signature", "missing")
    },
    "a clock 20 minutes ahead": (Skew(1200.0, calls=4), "clock"),
    "a clock 20 minutes behind": (Skew(-1200.0, calls=4), "clock"),
    "no table": (TableMissing(calls=4), "table"),
    "another key schema": (WrongSchema(calls=6), "table"),
}
"""Each with the kind of problem that it is counted as; none for what nobody need notice."""


@pytest.fixture(scope="module")
def place(
    dynamodb_servers: DynamoServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One service for all faults: each leaves it well."""
    table = dynamodb_servers.get("ministack").table().create()
    with placed(table, tmp_path_factory.mktemp("faults"), 11) as found:
        yield found


def met(place: Place, kind: str) -> float:
    """How often the writer has met it."""
    if kind == "unprocessed":
        return place.count(names.WRITER_UNPROCESSED)
    return place.count(names.WRITER_PROBLEMS, kind=kind)


@counts("labels", quick=30, full=1500, full_timeout_s=120)
@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_of_the_store_loses_doubles_or_kills_a_label(
    place: Place, name: str, labels: int, seed: int
) -> None:
    """W02, W04, W12, W16, W18, W66: an outage of any kind makes no dead letter."""
    fault, kind = FAULTS[name]
    before = met(place, kind)
    with place.proxy.on(fault) as rule:
        place.tell(labels, seed)
        if kind:
            hits = fault.calls or 2
            eventually(lambda: rule.hits >= hits or _more(place, seed), timeout_s=60)
            eventually(lambda: met(place, kind) > before)
    place.audited()
    assert place.count(names.WRITER_PROBLEM) == 0, "it is over"


def _more(place: Place, seed: int) -> bool:
    place.tell(3, seed)
    return False


@pytest.mark.parametrize(
    "fault", [Unprocessed(share=0.3), Unprocessed(calls=3)], ids=["a third", "all of it"]
)
def test_what_the_store_gives_back_is_sent_again_and_counted_and_nothing_else_is(
    place: Place, fault: Unprocessed, seed: int
) -> None:
    """Case W04: the counter of what was given back is the store's."""
    place.proxy.record.clear()
    before = place.count(names.WRITER_UNPROCESSED)
    with place.proxy.on(ServerError()):
        place.tell_at_once(200, seed)
        place.proxy.record.clear()
        back = place.proxy.on(fault)
    balanced(place.service, 60)
    back.off()
    counted = place.count(names.WRITER_UNPROCESSED) - before
    assert counted == place.proxy.record.unprocessed > 0
    given_back = [call for call in place.proxy.record.writes() if call.unprocessed]
    whole = all(len(call.unprocessed) == len(call.keys) for call in given_back)
    assert whole == (fault.share == 1.0)
    assert not place.proxy.record.sent_again(), "what is stored is not sent again"
    place.audited()


def test_one_hot_robot_waits_alone_and_nothing_of_the_others_is_sent_twice(
    place: Place, seed: int
) -> None:
    """Case W10, on the product's own clock: only the hot robot's rows repeat."""
    place.proxy.record.clear()
    place.fleet[:] = [Robot(f"hot-{seed}-{n}") for n in range(3)]
    hot = place.fleet[0].robot_id
    refusals = place.count(names.WRITER_PROBLEMS, kind="throttled_key")
    with place.proxy.on(HotKey(robots=[hot])):
        place.tell(150, seed)
        others = {
            (robot.robot_id, sequence)
            for robot in place.fleet[1:]
            for sequence in robot.acknowledged
        }
        eventually(lambda: others <= place.table.rows().keys(), timeout_s=30)
        refused = names.WRITER_PROBLEMS
        eventually(lambda: place.count(refused, kind="throttled_key") > refusals)
        assert place.count(names.WRITER_PROBLEM) == 0, "a call of the hot robot alone is its own"
        scrape = place.service.metrics()
        assert scrape.sum(names.WRITER_WAITING_ROBOTS.name) == 1
        waiting = scrape.sum(names.WRITER_WAITING_ROWS.name)
        assert 0 <= len(place.fleet[0].acknowledged) - waiting <= 25, "those in a write"
        assert not [key for key in place.table.rows() if key[0] == hot]
    place.audited()
    again = [key for key, what in place.proxy.record.keys.items() if what.sent > 1]
    assert {robot for robot, _ in again} <= {hot}
    assert not place.proxy.record.sent_again()


def test_a_table_that_is_deleted_and_made_again_loses_what_it_held_and_nothing_else(
    place: Place, dynamodb_servers: DynamoServers, start_service: StartService, seed: int
) -> None:
    """Case W66: no table is a wait, whoever took it away."""
    table = dynamodb_servers.get("ministack").table()
    with FaultProxy(table.server.url, seed) as proxy:
        service = start_service(**at_dynamodb(table, proxy.url))
        mine = Place(service, table, proxy, robots(2))
        mine.tell(20, seed)  # before there is a table
        problem = names.WRITER_PROBLEM.name
        eventually(lambda: service.metrics().sum(problem, kind="table") == 1)
        table.create()
        mine.audited()
        table.delete()
        mine.fleet[:] = [Robot(f"later-{n}") for n in range(2)]
        mine.tell(20, seed)
        eventually(lambda: service.metrics().sum(problem, kind="table") == 1)
        table.create()
        mine.audited()


def test_a_server_that_is_gone_for_a_while_is_found_again(place: Place, seed: int) -> None:
    with place.proxy.on(Gone()):
        place.tell(30, seed)
        eventually(lambda: place.service.metrics().sum(names.WRITER_PROBLEM.name, kind="outage"))
    place.audited()


def test_two_services_that_answer_one_key_leave_one_of_their_answers(
    dynamodb_servers: DynamoServers, start_service: StartService, tmp_path: Any
) -> None:
    table = dynamodb_servers.get("ministack").table().create()
    settings = at_dynamodb(table, table.server.url)
    told: dict[tuple[str, int], set[tuple[str, str]]] = {}
    ids = set()
    for number in range(2):
        service = start_service(state_dir=tmp_path / f"pod-{number}", **settings)
        with labeler.Client(service.address, timeout_ms=5000) as client:
            client.wait_ready(10_000)
            mine = service.status()["instance_id"]
            for sequence in range(1, 31):
                rng = random.Random(f"{number} {sequence}")
                reply = client.label("robot", sequence, readings(rng))
                told.setdefault(("robot", sequence), set()).add((mine, reply.label))
        ids.add(mine)
        balanced(service)
    rows = table.rows()
    assert rows.keys() == told.keys()
    assert len(ids) == 2
    for key, row in rows.items():
        assert (row["instance_id"], row["label"]) in told[key]
