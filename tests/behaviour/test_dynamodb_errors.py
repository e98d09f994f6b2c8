"""What goes wrong at DynamoDB means one thing to the writer, and never a label lost.

Each answer comes from a real server through the fault proxy; what no server can be made to say is
in the table of exceptions below. Cases W02, W04, W14, W16, W18, W66.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions as boto  # type: ignore[import-untyped]

from labeler.stores.base import StoredRow, StoreRefusedError, StoreUnavailableError
from labeler.stores.dynamodb.errors import RETRY_AFTER_S_MAX, GarbledError, meaning_of
from tests.support.dynamodb import DynamoServer, DynamoTable, servers
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
    Poison,
    Reset,
    ServerError,
    Throttle,
    Unprocessed,
)
from tests.support.stores import OpenStore, aws_variables, dynamodb_settings, opened, row
from tests.support.waiting import eventually

FAST = {"connect_timeout_ms": 1_500, "read_timeout_ms": 1_500}


@pytest.fixture(params=["ministack"])
def dynamodb(request: pytest.FixtureRequest, dynamodb_servers: Any) -> DynamoServer:
    """One server is enough where it is the proxy that speaks; others are asked for by a mark."""
    found: DynamoServer = dynamodb_servers.get(request.param)
    return found


@pytest.fixture
def table(dynamodb: DynamoServer) -> DynamoTable:
    return dynamodb.table().create()


@pytest.fixture
def proxy(dynamodb: DynamoServer) -> Iterator[FaultProxy]:
    with FaultProxy(dynamodb.url, seed=7) as found:
        yield found


@pytest.fixture
def store(
    table: DynamoTable, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenStore]:
    """A store that speaks to the proxy."""
    aws_variables(monkeypatch, table.server)
    with opened("dynamodb", dynamodb_settings(table, proxy.url, **FAST), tmp_path) as found:
        yield found


BATCH = [row(n, robot_id=f"robot-{n % 3}") for n in range(1, 26)]

UNAVAILABLE: list[tuple[Fault, str]] = [
    *((Throttle(reason="table"), "throttled_table"), (Throttle("on_demand"), "throttled_table")),
    *((Throttle("bare"), "throttled_table"), (Throttle("account"), "throttled_account")),
    (Throttle("request_limit"), "throttled_account"),
    *((Throttle("key_range"), "throttled_key"), (HotKey(), "throttled_key")),
    *((ServerError(), "outage"), (ServerError("ServiceUnavailable", 503), "outage")),
    *((ServerError(applied=True), "outage"), (ServerError("ImATeapotException", 418), "outage")),
    (ServerError("NobodyKnowsThisException", 400), "outage"),
    (ServerError("ValidationException", 500), "outage"),
    (ServerError("ThrottlingException", 503), "throttled_table"),
    (ServerError("ReplicatedWriteConflictException", 400), "busy"),
    *((Reset("before"), "outage"), (Reset("after"), "outage")),
    *((Reset("before", "fin"), "outage"), (Reset("after", "fin"), "outage")),
    *((Hang(), "outage"), (Hang(applied=True), "outage"), (Gone(), "outage")),
    *((Broken(form), "outage") for form in ("truncated", "head", "json", "crc", "empty")),
    *((Broken(form), "outage") for form in ("html", "garbage")),
    *((Broken("html", applied=False, status=status), "outage") for status in (200, 204, 404, 502)),
    *((Broken("html", applied=False, status=status), "credentials") for status in (401, 403)),
    (Broken("html", applied=False, status=429), "throttled_table"),
    *((Credentials("expired"), "credentials"), (Credentials("unrecognized"), "credentials")),
    *((Credentials("denied"), "credentials"), (Credentials("forbidden"), "credentials")),
    *((Credentials("signature"), "credentials"), (Credentials("missing"), "credentials")),
    *((Skew(1200), "clock"), (Skew(-1200), "clock")),
    *((TableMissing(), "table"), (WrongSchema(), "table")),
    (ServerError("ResourceInUseException", 400), "table"),
    (
        Poison(1.0, message="Type mismatch for Index Key sku Expected: N Actual: S IndexName: x"),
        "table",
    ),
]


def test_what_is_no_row_s_fault_is_unavailable_and_the_same_write_works_after_it(
    store: OpenStore, proxy: FaultProxy, table: DynamoTable, subtests: pytest.Subtests
) -> None:
    for number, (fault, kind) in enumerate(UNAVAILABLE):
        batch = [item._replace(robot_id=f"{item.robot_id} {number}") for item in BATCH]
        with subtests.test(fault=fault):
            with proxy.on(fault):
                with pytest.raises(StoreUnavailableError) as caught:
                    store.write(*batch)
                assert caught.value.kind == kind
                assert len(str(caught.value).splitlines()) == 1
            assert store.statuses(*batch) == ["stored"] * 25
            # One attempt a call: whether and when it is tried again is the writer's.
            assert all(proxy.record.sent(item.key) <= 2 for item in batch)
    assert len(table.rows()) == 25 * len(UNAVAILABLE)


@pytest.mark.parametrize(
    "fault",
    [
        Poison(keys=[BATCH[3].key]),
        ServerError("SerializationException", 400),
        ServerError("ItemCollectionSizeLimitExceededException", 400),
        ServerError("RequestEntityTooLarge", 413),
        Broken("html", applied=False, status=413),
    ],
    ids=repr,
)
def test_what_the_call_holds_is_refused_as_a_whole_with_the_store_s_reason(
    store: OpenStore, proxy: FaultProxy, table: DynamoTable, fault: Fault
) -> None:
    with proxy.on(fault):
        with pytest.raises(StoreRefusedError) as caught:
            store.write(*BATCH)
        assert str(caught.value)
        store.confirm_refusal()
    assert table.rows() == {}


@pytest.mark.parametrize("form", ["absent", "map", "list"])
def test_the_three_empty_forms_of_unprocessed_items_are_done(
    store: OpenStore, proxy: FaultProxy, form: Any
) -> None:
    with proxy.on(CompleteAs(form)):
        assert store.statuses(*BATCH) == ["stored"] * 25
    assert proxy.record.sent(BATCH[0].key) == 1


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_exactly_what_came_back_is_unprocessed(
    store: OpenStore, proxy: FaultProxy, table: DynamoTable, share: float
) -> None:
    with proxy.on(Unprocessed(share=share)):
        found = store.write(*BATCH)
    there = table.rows()
    told = {row.key: outcome.status.value for row, outcome in zip(BATCH, found, strict=True)}
    assert told == {row.key: "stored" if row.key in there else "unprocessed" for row in BATCH}
    assert 0 < len(BATCH) - len(there) <= 25


def test_only_the_hot_robot_s_rows_come_back(store: OpenStore, proxy: FaultProxy) -> None:
    with proxy.on(HotKey(robots=["robot-1"])):
        found = store.write(*BATCH)
    for item, outcome in zip(BATCH, found, strict=True):
        expected = "unprocessed" if item.robot_id == "robot-1" else "stored"
        assert outcome.status.value == expected


@pytest.mark.parametrize(
    ("asked_s", "kept_s"), [(7, 7.0), (0.5, 0.5), (1e6, RETRY_AFTER_S_MAX), (None, 0.0)]
)
def test_a_server_that_says_when_to_come_again_is_heard(
    store: OpenStore, proxy: FaultProxy, asked_s: float | None, kept_s: float
) -> None:
    with proxy.on(Throttle(retry_after_s=asked_s)):
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(row(1))
    assert caught.value.retry_after_s == kept_s


@pytest.mark.parametrize(("ahead_s", "word"), [(1200, "behind"), (-1200, "ahead")])
def test_a_clock_that_is_wrong_is_told_in_seconds(
    store: OpenStore, proxy: FaultProxy, ahead_s: float, word: str
) -> None:
    with proxy.on(Skew(ahead_s)):
        with pytest.raises(StoreUnavailableError, match=rf"1(19\d|20\d) s {word}"):
            store.write(row(1))


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_connection_that_was_closed_while_idle_costs_no_call(
    store: OpenStore, proxy: FaultProxy, how: Any
) -> None:
    with proxy.on(Idle(0.05, how)) as idle:
        for n in range(1, 6):
            assert store.statuses(row(n)) == ["stored"]
            eventually(lambda: proxy.connections == 0)
        assert idle.hits >= 5
    assert all(proxy.record.sent(row(n).key) == 1 for n in range(1, 6))


def test_a_connection_that_ends_as_the_next_call_is_sent_is_an_outage_of_that_call(
    store: OpenStore, proxy: FaultProxy
) -> None:
    store.write(row(1))
    with proxy.on(Idle(0.0, "on_request", calls=1)):
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(row(2))
        assert caught.value.kind == "outage"
        assert store.statuses(row(2)) == ["stored"]


def test_reads_say_what_is_wrong_as_writes_do(store: OpenStore, proxy: FaultProxy) -> None:
    from labeler.stores.base import Query

    store.write(row(1))
    for fault, kind in (
        (Throttle(operations=()), "throttled_table"),
        (ServerError(operations=()), "outage"),
        (Broken("html", operations=()), "outage"),
        (Broken("crc", operations=()), "outage"),
        (Credentials("expired"), "credentials"),
        (TableMissing(), "table"),
    ):
        with proxy.on(fault):
            for read in (lambda: store.get("robot-1", 1), lambda: store.list(Query("robot-1"))):
                with pytest.raises(StoreUnavailableError) as caught:
                    read()
                assert caught.value.kind == kind


def test_a_search_that_takes_too_long_is_broken_off(store: OpenStore, proxy: FaultProxy) -> None:
    from labeler.stores.base import Query

    with proxy.on(Hang(operations=())):
        with pytest.raises(StoreUnavailableError, match="50 ms"):
            store.list(Query("robot-1", timeout_ms=50))


def test_a_write_that_is_cancelled_leaves_the_next_one_whole(
    store: OpenStore, proxy: FaultProxy, table: DynamoTable
) -> None:
    async def cancelled(rows: list[StoredRow]) -> None:
        async with asyncio.timeout(0.1):
            await store.store.write(rows)

    with proxy.on(Hang(applied=True)):
        for _ in range(20):
            with pytest.raises(TimeoutError):
                store.call(cancelled(BATCH))
    assert store.statuses(*BATCH) == ["stored"] * 25
    assert len(table.rows()) == 25
    eventually(lambda: proxy.connections <= 1)


def test_reads_go_on_beside_writes_that_hang(
    table: DynamoTable, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, table.server)
    settings = dynamodb_settings(table, proxy.url, connections_max=3, read_timeout_ms=30_000)

    async def beside(store: OpenStore) -> StoredRow | None:
        writes = [
            asyncio.create_task(store.store.write([row(n)]))
            for n in range(2, 2 + store.store.limits.concurrency_max)
        ]
        await asyncio.to_thread(eventually, lambda: hang.hits == len(writes))
        try:
            return await store.store.get("robot-1", 1)
        finally:
            assert not any(write.done() for write in writes)
            hang.off()
            await asyncio.gather(*writes, return_exceptions=True)

    with opened("dynamodb", settings, tmp_path) as store:
        store.write(row(1))
        hang = proxy.on(Hang())
        assert store.call(beside(store)) == row(1)


@servers("ministack", "dynoxide")
def test_what_a_server_refuses_is_refused_as_a_whole(
    dynamodb: DynamoServer, store: OpenStore
) -> None:
    """The table's rules as the server itself has them: one key twice in a call."""
    with pytest.raises(StoreRefusedError):
        store.write(row(1), row(1, label="Turn"))


def client_error(
    code: str, status: int = 400, message: str = "", operation: str = "BatchWriteItem", **more: Any
) -> boto.ClientError:
    headers = more.pop("headers", {})
    answer = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return boto.ClientError(answer | more, operation)


def reasons(*names: str) -> list[dict[str, str]]:
    return [{"reason": f"TableWrite{name}", "resource": "arn"} for name in names]


def throttled(*names: str) -> boto.ClientError:
    return client_error("ThrottlingException", throttlingReasons=reasons(*names))


EXCEPTIONS: list[tuple[BaseException, str]] = [
    (boto.NoCredentialsError(), "credentials"),
    (boto.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), "credentials"),
    (boto.CredentialRetrievalError(provider="p", error_msg="e"), "credentials"),
    (boto.TokenRetrievalError(provider="p", error_msg="e"), "credentials"),
    (boto.MetadataRetrievalError(error_msg="e"), "credentials"),
    (boto.UnauthorizedSSOTokenError(), "credentials"),
    (boto.ProfileNotFound(profile="p"), "credentials"),
    (boto.InvalidConfigError(error_msg="e"), "credentials"),
    (FileNotFoundError(2, "No such file", "/var/run/secrets/token"), "credentials"),
    (PermissionError(13, "Permission denied", "/var/run/secrets/token"), "credentials"),
    (RuntimeError("Credentials were refreshed, but … are still expired."), "credentials"),
    (client_error("InvalidIdentityToken", operation="AssumeRoleWithWebIdentity"), "credentials"),
    (client_error("ValidationError", operation="AssumeRoleWithWebIdentity"), "credentials"),
    (client_error("InternalFailure", 500, operation="AssumeRole"), "credentials"),
    (client_error("RequestExpired"), "clock"),
    (client_error("RequestTimeTooSkewed", 403), "clock"),
    (client_error("InvalidSignatureException", headers={"date": formatdate(1e9)}), "clock"),
    (client_error("InvalidSignatureException", headers={"date": "yesterday"}), "credentials"),
    (throttled("KeyRangeThroughputExceeded", "AccountLimitExceeded"), "throttled_account"),
    (throttled("KeyRangeThroughputExceeded", "ProvisionedThroughputExceeded"), "throttled_table"),
    (throttled("KeyRangeThroughputExceeded", "KeyRangeThroughputExceeded"), "throttled_key"),
    (throttled("SomethingNew"), "throttled_table"),
    (client_error("RequestLimitExceeded"), "throttled_account"),
    (client_error("IndexNotFoundException"), "table"),
    (client_error("ValidationException", message="Missing the key sequence in the item"), "table"),
    (client_error("", 0), "outage"),
    (boto.EndpointConnectionError(endpoint_url="https://dynamodb.x"), "outage"),
    (boto.ConnectTimeoutError(endpoint_url="https://dynamodb.x"), "outage"),
    (boto.ReadTimeoutError(endpoint_url="https://dynamodb.x"), "outage"),
    (boto.ConnectionClosedError(endpoint_url="https://dynamodb.x"), "outage"),
    (boto.SSLError(endpoint_url="https://dynamodb.x", error="certificate"), "outage"),
    (boto.HTTPClientError(error="any"), "outage"),
    (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), "outage"),
    (GarbledError("no JSON"), "outage"),
    (asyncio.IncompleteReadError(b"", 5), "outage"),
    (ssl.SSLError("handshake"), "outage"),
    (OSError(24, "Too many open files"), "outage"),
    (TimeoutError(), "outage"),
]


@pytest.mark.parametrize(("error", "kind"), EXCEPTIONS, ids=lambda value: repr(value)[:70])
def test_an_exception_has_one_meaning(error: BaseException, kind: str) -> None:
    meaning = meaning_of(error)
    assert isinstance(meaning, StoreUnavailableError)
    assert meaning.kind == kind


@pytest.mark.parametrize("error", [TypeError("a fault of ours"), KeyError("x"), ValueError("y")])
def test_a_fault_of_the_program_stays_what_it_is(error: Exception) -> None:
    assert meaning_of(error) is None


def test_every_error_that_the_service_s_own_description_names_is_no_unknown_one() -> None:
    """So that a newer client, with a newer description, shows what has joined."""
    import botocore.session  # type: ignore[import-untyped]

    model = botocore.session.Session().get_service_model("dynamodb")
    names = {
        shape.name
        for operation in ("BatchWriteItem", "GetItem", "Query", "DescribeTable", "CreateTable")
        for shape in model.operation_model(operation).error_shapes
    }
    unknown = {
        name
        for name in names - {"InternalServerError"}
        if isinstance(meaning := meaning_of(client_error(name)), StoreUnavailableError)
        and meaning.kind == "outage"
    }
    assert unknown == set()
