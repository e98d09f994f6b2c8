"""The fault proxy does what its rules say, seen through a plain client, before both servers.

What a test of the writer believes of a fault is claimed here: what reached the store, what the
client was told, and that the record of it is right. `test_fault_proxy_network.py` has the faults of
connections, bytes, credentials, clock and table.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.dynamodb import DynamoTable, servers
from tests.support.fault_proxy import FaultProxy, fault_of
from tests.support.faults.account import (
    Skew,
)
from tests.support.faults.kinds import (
    Broken,
    CompleteAs,
    Fault,
    HotKey,
    Poison,
    Reason,
    Reset,
    ServerError,
    Slow,
    Throttle,
    Unprocessed,
)
from tests.support.plain_client import (
    Client,
    Closed,
    Refused,
    code,
    item,
    put,
)
from tests.support.repo import ROOT
from tests.support.waiting import eventually

ALL = [("r1", n) for n in range(20)] + [("r2", n) for n in range(5)]
ONE = ("r1", 7)


@pytest.fixture
def proxy(labels_table: DynamoTable) -> Iterator[FaultProxy]:
    """A proxy before each server."""
    with FaultProxy(labels_table.server.url, seed=1) as made:
        yield made


@pytest.fixture
def client(labels_table: DynamoTable, proxy: FaultProxy) -> Client:
    return Client(labels_table, proxy)


def test_unprocessed_items_come_back_and_are_not_stored(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    with proxy.on(Unprocessed(share=0.3)) as rule:
        back = client.batch(ALL)
    assert 0 < len(back) < 25
    assert set(labels_table.rows()) == set(ALL) - set(back)
    assert proxy.record.unprocessed == len(back)
    assert (rule.hits, proxy.record.outcomes) == (1, {"partial": 1})
    assert client.batch(ALL) == []


def test_the_same_seed_hands_back_the_same_items(labels_table: DynamoTable) -> None:
    drawn = []
    for seed in (7, 7, 8):
        with FaultProxy(labels_table.server.url, seed) as proxy:
            proxy.on(Unprocessed(share=0.3))
            drawn.append([tuple(Client(labels_table, proxy).batch(ALL)) for _ in range(3)])
    assert drawn[0] == drawn[1] != drawn[2]


def test_all_items_may_come_back_and_nothing_reaches_the_store(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    proxy.on(Unprocessed())
    assert sorted(client.batch(ALL)) == ALL
    assert labels_table.rows() == {}
    assert [call.reached for call in proxy.record.calls] == [False]


def test_one_key_or_one_robot_comes_back_for_ever(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    proxy.on(Unprocessed(keys=[ONE]))
    proxy.on(Unprocessed(robots=["r2"]))
    stuck = {ONE, *(key for key in ALL if key[0] == "r2")}
    assert [set(client.batch(ALL)) for _ in range(3)] == [stuck] * 3
    assert set(labels_table.rows()) == set(ALL) - stuck
    assert proxy.record.sent(ONE) == 3
    assert proxy.record.keys[ONE].stored == 0


@pytest.mark.parametrize("form", ["absent", "map", "list"])
def test_a_complete_answer_has_three_forms(client: Client, proxy: FaultProxy, form: Any) -> None:
    proxy.on(CompleteAs(form))
    answer = client.raw.batch_write_item(RequestItems={client.table: [put(ONE)]})
    forms: dict[str, Any] = {"absent": None, "map": {}, "list": {client.table: []}}
    assert answer.get("UnprocessedItems") == forms[form]
    proxy.on(Unprocessed(keys=[ONE]))
    assert client.batch([ONE, ("r1", 8)]) == [ONE]


@pytest.mark.parametrize(
    ("reason", "exception", "limit"),
    [
        ("table", "ProvisionedThroughputExceededException", "TableWriteProvisionedThroughput"),
        ("on_demand", "ThrottlingException", "TableWriteMaxOnDemandThroughputExceeded"),
        ("key_range", "ThrottlingException", "TableWriteKeyRangeThroughputExceeded"),
        ("account", "ThrottlingException", "TableWriteAccountLimitExceeded"),
        ("request_limit", "RequestLimitExceeded", "TableWriteAccountLimitExceeded"),
        ("bare", "ThrottlingException", ""),
    ],
)
def test_a_throttle_says_its_reason(
    client: Client,
    proxy: FaultProxy,
    labels_table: DynamoTable,
    reason: Reason,
    exception: str,
    limit: str,
) -> None:
    with proxy.on(Throttle(reason, retry_after_s=2)):
        answer = client.refused(ALL)
        assert code(client.refused(ONE)) == exception
    assert code(answer) == exception
    assert limit in json.dumps(answer)
    assert answer["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "2"
    assert labels_table.rows() == {}
    assert client.batch(ALL) == []


def test_a_hot_robot_is_throttled_alone(client: Client, proxy: FaultProxy) -> None:
    hot = [key for key in ALL if key[0] == "r2"]
    proxy.on(HotKey(robots=["r2"]))
    assert sorted(client.batch(ALL)) == hot
    assert code(client.refused(hot)) == "ProvisionedThroughputExceededException"
    assert "KeyRange" in json.dumps(client.refused(hot[0]))
    client.put(ONE)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("status", [500, 503])
def test_a_servers_error_comes_before_or_after_the_write(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable, status: int, applied: bool
) -> None:
    proxy.on(ServerError("ServiceUnavailable", status, applied))
    answer = client.refused(ALL)
    assert code(answer) == "ServiceUnavailable"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == status
    assert len(labels_table.rows()) == (25 if applied else 0)
    assert proxy.record.keys[ONE].told == 0


def test_a_poisoned_item_takes_its_batch_along_and_nothing_else(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    proxy.on(Poison(keys=[ONE]))
    assert code(client.refused(ALL)) == "ValidationException"
    assert code(client.refused(ONE)) == "ValidationException"
    assert labels_table.rows() == {}
    assert client.batch([key for key in ALL if key != ONE]) == []


def test_a_share_of_the_keys_is_poisoned_the_same_ones_each_time(
    client: Client, proxy: FaultProxy
) -> None:
    rule = Poison(share=0.2, seed=3)
    proxy.on(rule)
    marked = [key for key in ALL if rule.selects(key)]
    assert 0 < len(marked) < 25
    assert all(code(client.refused(key)) == "ValidationException" for key in marked)
    assert client.batch([key for key in ALL if key not in marked]) == []


# --- which calls


@pytest.mark.parametrize(
    ("rule", "hit"),
    [
        (Throttle(calls=3), [True] * 3 + [False] * 3),
        (Throttle(skip=4), [False] * 4 + [True] * 2),
        (Throttle(skip=1, calls=2), [False, True, True, False, False, False]),
        (Throttle(operations=["BatchWriteItem"]), [False] * 6),
        (Throttle(robots=["r2"]), [False] * 6),
    ],
)
def test_a_fault_meets_the_calls_that_it_is_for(
    client: Client, proxy: FaultProxy, rule: Fault, hit: list[bool]
) -> None:
    active = proxy.on(rule)
    assert [fails(client) for _ in hit] == hit
    assert active.hits == sum(hit)


def test_a_probability_is_drawn_from_the_seed(labels_table: DynamoTable) -> None:
    drawn = []
    for seed in (5, 5, 6):
        with FaultProxy(labels_table.server.url, seed) as proxy:
            proxy.on(Throttle(probability=0.5))
            made = Client(labels_table, proxy)
            drawn.append([fails(made) for _ in range(20)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert {True, False} == set(drawn[0])


def test_of_two_faults_the_one_that_was_first_answers(client: Client, proxy: FaultProxy) -> None:
    first, second = proxy.on(Throttle()), proxy.on(ServerError())
    assert code(client.refused(ONE)) == "ProvisionedThroughputExceededException"
    first.off()
    assert code(client.refused(ONE)) == "InternalServerError"
    assert (first.hits, second.hits) == (1, 1)
    proxy.off()
    client.put(ONE)


def fails(client: Client) -> bool:
    try:
        client.put(ONE)
    except Refused:
        return True
    return False


# --- the record


def test_two_writes_of_a_key_at_once_are_found(client: Client, proxy: FaultProxy) -> None:
    for _ in range(3):
        client.batch(ALL)
    assert proxy.record.overlaps == []
    rule = proxy.on(Slow(60))
    threads = [
        threading.Thread(target=client.batch, args=(keys,))
        for keys in ([ONE, ("a", 1)], [("b", 1), ONE])
    ]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(proxy.record.overlaps) == 1)
    rule.off()
    for thread in threads:
        thread.join()
    [overlap] = proxy.record.overlaps
    assert (overlap.key, overlap.earlier, overlap.later) == (ONE, 4, 5)
    assert proxy.record.in_flight() == set()


def test_what_is_sent_again_though_the_client_knew_it_stored_is_found(
    client: Client, proxy: FaultProxy
) -> None:
    with proxy.on(Reset("after")), pytest.raises(Closed):
        client.put(ONE)
    client.put(ONE)
    assert proxy.record.sent_again() == {}
    client.put(ONE)
    assert proxy.record.sent_again() == {ONE: 1}
    assert [call.outcome for call in proxy.record.writes(ONE)] == ["reset", "ok", "ok"]
    known = proxy.record.keys[ONE]
    assert (known.sent, known.stored, known.told) == (3, 3, 2)
    proxy.record.clear()
    assert proxy.record.sent(ONE) == 0


# --- by hand


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("unprocessed=0.3", Unprocessed(0.3)),
        ("unprocessed", Unprocessed()),
        (
            "throttle=key_range,probability=0.1,calls=3",
            Throttle("key_range", probability=0.1, calls=3),
        ),
        ("hot_key,robots=r1+r2", HotKey(robots=("r1", "r2"))),
        ("poison,keys=r1/7+r2/8", Poison(keys=(("r1", 7), ("r2", 8)))),
        ("broken=json,applied=false", Broken("json", applied=False)),
        ("skew=-60", Skew(-60)),
    ],
)
def test_a_rule_can_be_written_as_a_text(text: str, fault: Fault) -> None:
    assert fault_of(text) == fault


@pytest.mark.parametrize("text", ["no_such", "throttle,no_such=1"])
def test_a_rule_that_does_not_exist_is_told_with_those_that_do(text: str) -> None:
    with pytest.raises(ValueError, match=r"unprocessed|retry_after_s"):
        fault_of(text)


@servers("ministack")
def test_by_hand_it_prints_each_hit(labels_table: DynamoTable) -> None:
    command = [sys.executable, "-m", "tests.support.fault_proxy", "--seed", "7"]
    command += ["--upstream", labels_table.server.url, "--rule", "throttle=key_range,calls=1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[0]
            made = labels_table.server.client(url)
            for _ in range(2):
                fails_at(made, labels_table.name)
            hit = process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
        summary = process.stdout.read()
    assert hit == "1 PutItem Throttle -> ThrottlingException; stored 0 of 1: r1/7\n"
    assert summary == "{'ThrottlingException': 1, 'ok': 1} overlaps 0\n"
    assert process.returncode == 0


def fails_at(made: Any, table: str) -> bool:
    try:
        made.put_item(TableName=table, **item(ONE))
    except Refused:
        return True
    return False
