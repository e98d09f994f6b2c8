"""DynamoDB fails in every way beside a real service: labels wait, and arrive once.

Cases W02, W04, W06, W10, W12, W16, W18, W34 and W66, through the server, its writer and the fault
proxy before a real server of DynamoDB's API. Full counts: about 4 minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import labeler
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.audit import at_dynamodb, nothing_lost, through
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
    Reset,
    ServerError,
    Slow,
    Throttle,
    Unprocessed,
)
from tests.support.load import Robot, readings, robots
from tests.support.place import Place, placed
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

FAULTS: dict[str, Fault] = {
    "a third unprocessed": Unprocessed(share=0.3),
    "all unprocessed, five times": Unprocessed(calls=5),
    "done, without the field": CompleteAs("absent"),
    "done, with an empty map": CompleteAs("map"),
    "done, with an empty list": CompleteAs("list"),
    **{
        f"throttled: {reason}": Throttle(reason, calls=4)
        for reason in ("table", "on_demand", "key_range", "account", "request_limit", "bare")
    },
    "throttled, with a time to wait": Throttle("table", retry_after_s=0.2, calls=2),
    "500 before the write": ServerError(calls=4),
    "500 after the write": ServerError(applied=True, calls=4),
    "503": ServerError(code="ServiceUnavailable", status=503, probability=0.5),
    "hangs before the write": Hang(calls=2),
    "hangs after the write": Hang(applied=True, calls=2),
    "slow": Slow(0.3, probability=0.5),
    "reset before the write": Reset("before", probability=0.4),
    "reset after the write": Reset("after", probability=0.4),
    "closed after the write": Reset("after", "fin", calls=4),
    **{
        f"an answer that is {form}": Broken(form, applied=form == "crc", calls=3)
        for form in ("truncated", "head", "json", "crc", "html", "empty", "garbage")
    },
    "closed while idle": Idle(0.05, "fin", calls=3),
    "reset while idle": Idle(0.05, "rst", calls=3),
    "ended as it is used again": Idle(0.05, "on_request", calls=2),
    **{
        f"credentials {kind}": Credentials(kind, calls=4)
        for kind in ("expired", "unrecognized", "denied", "forbidden", "signature", "missing")
    },
    "a clock 20 minutes ahead": Skew(1200.0, calls=4),
    "a clock 20 minutes behind": Skew(-1200.0, calls=4),
    "no table": TableMissing(calls=4),
    "another key schema": WrongSchema(calls=6),
}
CHANGE_NOTHING = {
    name for name in FAULTS if name.startswith(("done", "closed while", "reset while"))
}


@pytest.fixture(scope="module")
def place(
    dynamodb_servers: DynamoServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One service for all faults: each leaves it well."""
    table = dynamodb_servers.get("ministack").table().create()
    with placed(table, tmp_path_factory.mktemp("faults"), 11) as found:
        yield found


def failed(service: Service) -> float:
    scrape = service.metrics()
    return scrape.sum(names.WRITER_PROBLEMS.name) + scrape.sum(names.WRITER_UNPROCESSED.name)


@counts("labels", quick=30, full=1500, full_timeout_s=120)
@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_of_the_store_loses_doubles_or_kills_a_label(
    place: Place, name: str, labels: int, seed: int
) -> None:
    """W02, W04, W12, W16, W18, W66: an outage of any kind makes no dead letter."""
    before = failed(place.service)
    with place.proxy.on(FAULTS[name]) as rule:
        place.tell(labels, seed)
        if name not in CHANGE_NOTHING:
            hits = FAULTS[name].calls or 2
            eventually(lambda: rule.hits >= hits or _more(place, seed), timeout_s=60)
    place.audited()
    if name not in CHANGE_NOTHING and name not in ("slow", "ended as it is used again"):
        assert failed(place.service) > before, "it was counted"


def _more(place: Place, seed: int) -> bool:
    place.tell(3, seed)
    return False


def test_what_the_store_gives_back_is_sent_again_and_counted_and_nothing_else_is(
    place: Place, seed: int
) -> None:
    """Case W04: the counter of what was given back is the store's."""
    place.proxy.record.clear()
    before = place.service.metrics().sum(names.WRITER_UNPROCESSED.name)
    with place.proxy.on(Unprocessed(share=0.3)):
        place.tell(200, seed)
        balanced(place.service, 60)
    counted = place.service.metrics().sum(names.WRITER_UNPROCESSED.name) - before
    assert counted == place.proxy.record.unprocessed > 0
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


def test_an_outage_is_probed_by_one_call_at_a_time_and_ends_by_itself(
    place: Place, seed: int
) -> None:
    """Case W12: the herd stays away; the reason is shown, and gone when it is over."""
    place.tell(10, seed)
    balanced(place.service)
    with place.proxy.on(ServerError()) as rule:
        place.tell(60, seed)
        eventually(lambda: rule.hits >= 5)
        scrape = place.service.metrics()
        assert scrape.sum(names.WRITER_PROBLEM.name, kind="outage") == 1
        assert scrape.sum(names.WRITER_LIMIT.name) == 1
        assert "InternalServerError" in str(place.service.status()["writer"]["problem"])
    place.audited()
    eventually(lambda: place.service.metrics().sum(names.WRITER_PROBLEM.name) == 0)


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


@pytest.mark.parametrize("applied", [False, True], ids=["before the write", "after the write"])
def test_a_drain_in_the_longest_back_off_delivers_what_waits(
    dynamodb_servers: DynamoServers, start_service: StartService, seed: int, applied: bool
) -> None:
    """Case W58, at DynamoDB."""
    table = dynamodb_servers.get("ministack").table().create()
    with FaultProxy(table.server.url, seed) as proxy:
        hours = {"writer__retry_ms_min": 600_000, "writer__retry_ms_max": 600_000}
        service = start_service(**at_dynamodb(table, proxy.url, drain__budget_ms=30_000, **hours))
        mine = Place(service, table, proxy, robots(2))
        with proxy.on(replace(ServerError(), applied=applied)) as rule:
            mine.tell(20, seed)
            eventually(lambda: rule.hits >= 1)
        service.terminate()
        assert service.wait() == 0
        assert [line["pending"] for line in service.logged("stopped")] == [0]
        found = nothing_lost(mine.fleet, table, service.state_dir)
        assert found.stored == found.acknowledged
        through(proxy)
