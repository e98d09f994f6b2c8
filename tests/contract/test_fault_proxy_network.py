"""The fault proxy's faults of connections, bytes, time, credentials, clock and table.

As `test_fault_proxy.py`: each one seen through a plain client, before both servers.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.counts import counts
from tests.support.dynamodb import ENVIRONMENT, DynamoTable
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import (
    Credentials,
    Described,
    Skew,
    TableCreating,
    TableMissing,
    WrongSchema,
)
from tests.support.faults.exchange import Key, keys_in
from tests.support.faults.kinds import (
    Broken,
    Fault,
    Gone,
    Hang,
    HotKey,
    Idle,
    Poison,
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
    Timeout,
    Unreachable,
    code,
    connected,
    item,
    put,
    raw,
)
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


@pytest.fixture
def hasty(labels_table: DynamoTable, proxy: FaultProxy) -> Client:
    """A client that gives up soon."""
    return Client(labels_table, proxy, read_timeout=0.2)


@pytest.mark.parametrize("applied", [False, True])
def test_a_call_hangs_until_its_client_leaves(
    hasty: Client, proxy: FaultProxy, labels_table: DynamoTable, applied: bool
) -> None:
    proxy.on(Hang(applied=applied))
    with pytest.raises(Timeout):
        hasty.batch(ALL)
    [call] = proxy.record.calls
    assert eventually(lambda: call.left and call.outcome == "cut")
    assert len(labels_table.rows()) == (25 if applied else 0)
    assert proxy.record.in_flight() == set()


def test_what_hangs_is_cut_when_the_fault_ends(client: Client, proxy: FaultProxy) -> None:
    rule = proxy.on(Hang())
    ended: list[bool] = []

    def write() -> None:
        with pytest.raises(Closed):
            client.put(ONE)
        ended.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    assert eventually(lambda: proxy.record.in_flight() == {ONE})
    rule.off()
    thread.join()
    assert ended == [True]
    client.put(ONE)


def test_a_slow_reply_is_of_a_write_that_was_applied(
    hasty: Client, proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    proxy.on(Slow(60, "reply"))
    with pytest.raises(Timeout):
        hasty.put(ONE)
    assert set(labels_table.rows()) == {ONE}
    assert proxy.record.late == 0


def test_a_slow_request_is_applied_after_its_client_has_left(
    hasty: Client, proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    rule = proxy.on(Slow(60, "request"))
    with pytest.raises(Timeout):
        hasty.put(ONE)
    assert eventually(lambda: proxy.record.calls[0].left)
    assert labels_table.rows() == {}
    rule.off()
    assert eventually(lambda: proxy.record.late == 1)
    assert set(labels_table.rows()) == {ONE}


@pytest.mark.parametrize("how", ["rst", "fin"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_ends_before_or_after_the_write_was_applied(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable, when: Any, how: Any
) -> None:
    proxy.on(Reset(when, how))
    with pytest.raises(Closed):
        client.batch(ALL)
    assert len(labels_table.rows()) == (25 if when == "after" else 0)
    assert proxy.record.keys[ONE].told == 0


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("form", ["truncated", "head", "json", "html", "empty", "garbage"])
def test_a_broken_answer_can_not_be_read(
    labels_table: DynamoTable, proxy: FaultProxy, form: Any, applied: bool
) -> None:
    proxy.on(Broken(form, applied, status=502 if form == "html" else 200))
    with pytest.raises((ValueError, http.client.HTTPException, ConnectionError)):
        _, _, body = raw(proxy, "PutItem", {"TableName": labels_table.name, **item(ONE)})
        json.loads(body)
    assert len(labels_table.rows()) == applied
    assert proxy.record.keys[ONE].told == 0


def test_a_wrong_checksum_stands_over_a_whole_answer(
    labels_table: DynamoTable, proxy: FaultProxy
) -> None:
    write = {"TableName": labels_table.name, **item(ONE)}
    good = raw(proxy, "PutItem", write)
    proxy.on(Broken("crc"))
    bad = raw(proxy, "PutItem", write)
    assert (good[0], good[2]) == (bad[0], bad[2])
    assert good[1]["x-amz-crc32"] != bad[1]["x-amz-crc32"]
    with pytest.raises(ValueError, match="applied"):
        Broken("crc", applied=False)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_an_idle_connection_is_closed(
    labels_table: DynamoTable, proxy: FaultProxy, how: Any
) -> None:
    line = connected(proxy)
    raw(line, "PutItem", {"TableName": labels_table.name, **item(ONE)})
    assert proxy.connections == 1
    proxy.on(Idle(after_s=0.05, how=how))
    assert eventually(lambda: proxy.connections == 0)
    sock = line.sock
    assert isinstance(sock, socket.socket)
    if how == "fin":
        assert sock.recv(1) == b""
    else:
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    line.close()


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"])
def test_a_connection_whose_client_is_frozen_before_its_request_is_idle_too(
    proxy: FaultProxy, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as line:
        line.sendall(sent)
        assert eventually(lambda: proxy.connections == 1)
        proxy.on(Idle(after_s=0.05))
        assert eventually(lambda: proxy.connections == 0)


def test_an_idle_connection_is_closed_after_it_has_read_a_request(
    labels_table: DynamoTable, proxy: FaultProxy
) -> None:
    proxy.on(Idle(after_s=0.0, how="on_request"))
    line = connected(proxy)
    write = {"TableName": labels_table.name, **item(ONE)}
    raw(line, "PutItem", write)
    with pytest.raises(ConnectionError):
        raw(line, "PutItem", write)
    assert [call.reached for call in proxy.record.calls] == [True, False]
    line.close()


def test_a_store_that_is_gone_refuses_connections_and_is_back_at_the_same_place(
    client: Client, proxy: FaultProxy
) -> None:
    url = proxy.url
    client.put(ONE)
    with proxy.on(Gone()):
        with pytest.raises(Unreachable):
            client.put(ONE)
        assert proxy.connections == 0
    client.put(ONE)
    assert proxy.url == url


# --- credentials, clock, table


@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        ("expired", "ExpiredTokenException"),
        ("unrecognized", "UnrecognizedClientException"),
        ("denied", "AccessDeniedException"),
        ("forbidden", "AccessDeniedException"),
        ("signature", "InvalidSignatureException"),
        ("missing", "MissingAuthenticationTokenException"),
    ],
)
def test_credentials_are_refused_until_they_are_good(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable, kind: Any, exception: str
) -> None:
    with proxy.on(Credentials(kind, unless_key="AKIAROTATED")):
        answer = client.refused(ALL)
        assert code(answer) == exception
        assert (answer["ResponseMetadata"]["HTTPStatusCode"] == 403) == (kind == "forbidden")
    assert labels_table.rows() == {}
    with proxy.on(Credentials(kind, unless_key=ENVIRONMENT["AWS_ACCESS_KEY_ID"])) as rule:
        assert client.batch(ALL) == []
    assert rule.hits == 0


@pytest.mark.parametrize("ahead_s", [-1200, 1200])
def test_a_skewed_clock_is_refused_with_the_stores_date_and_heeded_is_served(
    client: Client, proxy: FaultProxy, labels_table: DynamoTable, ahead_s: int
) -> None:
    proxy.on(Skew(ahead_s))
    answer = client.refused(ONE)
    assert code(answer) == "InvalidSignatureException"
    assert ("expired" if ahead_s > 0 else "not yet current") in answer["Error"]["Message"]
    date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
    told = datetime.strptime(date, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    assert abs((told - datetime.now(UTC)).total_seconds() - ahead_s) < 60
    write = {"TableName": labels_table.name, **item(ONE)}
    assert raw(proxy, "PutItem", write, signed=told)[0] == 200


def test_a_signature_of_long_ago_is_refused_without_any_fault(
    labels_table: DynamoTable, proxy: FaultProxy
) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=20)
    write = {"TableName": labels_table.name, **item(ONE)}
    status, _, body = raw(proxy, "PutItem", write, signed=long_ago)
    assert status == 400
    assert b"InvalidSignatureException" in body


def test_a_missing_table_is_missing_for_all(client: Client, proxy: FaultProxy) -> None:
    with proxy.on(TableMissing()):
        assert code(client.refused(ALL)) == "ResourceNotFoundException"
        with pytest.raises(Refused, match="ResourceNotFound"):
            client.raw.describe_table(TableName=client.table)
    assert client.batch(ALL) == []


def test_a_table_is_being_created_then_active_but_not_found_then_there(
    client: Client, proxy: FaultProxy
) -> None:
    def status() -> str:
        return str(client.raw.describe_table(TableName=client.table)["Table"]["TableStatus"])

    with proxy.on(TableCreating(60)):
        assert status() == "CREATING"
        assert code(client.refused(ALL)) == "ResourceNotFoundException"
    with proxy.on(TableCreating(0, then_missing_s=60)):
        assert status() == "ACTIVE"
        assert code(client.refused(ALL)) == "ResourceNotFoundException"
    with proxy.on(TableCreating(0.1, then_missing_s=0.1)):
        assert eventually(lambda: status() == "ACTIVE")
        assert eventually(lambda: client.batch(ALL) == [])


def test_a_table_of_other_keys_says_so_and_refuses_ours(client: Client, proxy: FaultProxy) -> None:
    proxy.on(WrongSchema(("robot", "S"), ("at", "N")))
    table = client.raw.describe_table(TableName=client.table)["Table"]
    assert [key["AttributeName"] for key in table["KeySchema"]] == ["robot", "at"]
    assert code(client.refused(ALL)) == "ValidationException"


def test_a_tables_description_can_be_another(client: Client, proxy: FaultProxy) -> None:
    proxy.on(Described({"TableStatus": "ARCHIVED"}))
    table = client.raw.describe_table(TableName=client.table)["Table"]
    assert table["TableStatus"] == "ARCHIVED"
    assert client.batch(ALL) == []


# --- all of it at once

MIX: list[Fault] = [
    Unprocessed(0.2, probability=0.3),
    Throttle("table", probability=0.1),
    HotKey(robots=["r2"], probability=0.2),
    ServerError(probability=0.05),
    ServerError(applied=True, probability=0.05),
    Poison(share=0.02),
    Slow(0.3, "request", probability=0.02),
    Slow(0.3, "reply", probability=0.02),
    Reset("before", probability=0.05),
    Reset("after", probability=0.05),
    Broken("json", probability=0.05),
    Broken("truncated", applied=False, probability=0.05),
    Credentials("expired", probability=0.03),
    Idle(after_s=0.02, how="fin"),
]


@counts("batches", quick=40, full=1000, full_timeout_s=300)
def test_under_all_faults_at_once_the_record_agrees_with_the_store_and_the_client(
    labels_table: DynamoTable, seed: int, batches: int
) -> None:
    told: set[Key] = set()

    def write(proxy: FaultProxy, lane: int) -> None:
        line = connected(proxy, 0.2)
        for number in range(batches):
            keys = [(f"r{n % 3}", lane * 1_000_000 + number * 10 + n) for n in range(10)]
            try:
                told.update(set(keys) - set(unprocessed(line, labels_table.name, keys)))
            except (http.client.HTTPException, OSError, ValueError):
                line.close()
        line.close()

    with FaultProxy(labels_table.server.url, seed) as proxy:
        for fault in MIX:
            proxy.on(fault)
        lanes = [threading.Thread(target=write, args=(proxy, lane)) for lane in range(4)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        proxy.off()
        record = proxy.record
        assert eventually(lambda: not record.in_flight())
        assert eventually(lambda: all(call.outcome for call in record.calls))
        assert set(labels_table.rows()) == {key for key, one in record.keys.items() if one.stored}
        assert told <= {key for key, one in record.keys.items() if one.told}
        assert record.overlaps == []
        assert sum(record.outcomes.values()) == len(record.calls) <= 4 * batches


def unprocessed(line: http.client.HTTPConnection, table: str, keys: list[Key]) -> list[Key]:
    """Writes these; the keys that came back. Errors: `ValueError` for what is no good answer."""
    body = {"RequestItems": {table: [put(key) for key in keys]}}
    status, _, answer = raw(line, "BatchWriteItem", body)
    if status != 200:
        raise ValueError(answer)
    return keys_in(json.loads(answer)["UnprocessedItems"])
