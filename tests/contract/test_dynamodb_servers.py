"""The rules of DynamoDB that labels could break, on both servers of its API, and in the proxy.

Each rule is refused by at least one server; `LENIENT` says what a server wrongly accepts, and there
the fault proxy refuses in its place. A row that is no longer true fails too. Case W78.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import botocore.exceptions  # type: ignore[import-untyped]
import pytest

from tests.support.dynamodb import KINDS, DynamoServers, DynamoTable, Kind
from tests.support.fault_proxy import FaultProxy

ITEM_BYTES_MAX = 409_600
NAMES_BYTES = len("robot_id") + len("r") + len("sequence") + 2 + len("a")
INVALID = "ValidationException"
Call = tuple[str, dict[str, Any]]


def item(robot: str = "r", sequence: str = "1", **more: Any) -> dict[str, Any]:
    return {"robot_id": {"S": robot}, "sequence": {"N": sequence}, **more}


def put(value: dict[str, Any]) -> Call:
    return "put_item", {"Item": value}


def batch(*requests: Any) -> Call:
    return "batch_write_item", {"requests": list(requests)}


def puts(*items: dict[str, Any]) -> Call:
    return batch(*({"PutRequest": {"Item": one}} for one in items))


def text(size: int) -> dict[str, Any]:
    """An item of this size, in DynamoDB's sizing."""
    return item(a={"S": "x" * (size - NAMES_BYTES)})


def number(digits: str) -> dict[str, Any]:
    return item(a={"N": digits})


def query(**more: Any) -> Call:
    known: dict[str, Any] = {
        "KeyConditionExpression": "robot_id = :r",
        "ExpressionAttributeValues": {":r": {"S": "r"}},
    }
    return "query", known | more


def ttl(name: str = "expires_at_unix_s", enabled: bool = True) -> Call:
    wanted = {"Enabled": enabled, "AttributeName": name}
    return "update_time_to_live", {"TimeToLiveSpecification": wanted}


def nested(depth: int) -> dict[str, Any]:
    return functools.reduce(lambda inner, _: {"L": [inner]}, range(depth), {"S": "x"})


# What an item may not be; each one is tried alone and as the second of a batch.
ITEMS: dict[str, dict[str, Any]] = {
    "400 KB and one byte": text(ITEM_BYTES_MAX + 1),
    "empty robot": item(""),
    "no sequence": {"robot_id": {"S": "r"}},
    "no robot": {"sequence": {"N": "1"}},
    "sequence as a text": {"robot_id": {"S": "r"}, "sequence": {"S": "1"}},
    "robot as a number": {"robot_id": {"N": "1"}, "sequence": {"N": "1"}},
    "robot of 2,049 bytes": item("k" * 2049),
    "robot of 2,049 bytes in 683 letters": item("\u20ac" * 683),
    "39 digits": number("1" * 39),
    "39 digits in the key": item(sequence="1" * 39),
    "1e126": number("1e126"),
    "1e-131": number("1e-131"),
    "NaN": number("NaN"),
    "infinite": number("Infinity"),
    "empty number": number(""),
    "number with a space": number(" 1"),
    "number in hexadecimal": number("0x10"),
    "number with an underscore": number("1_0"),
    "number in Arabic digits": number("\u0661"),
    "no value": item(a={}),
    "two values": item(a={"S": "x", "N": "1"}),
    "a null that is false": item(a={"NULL": False}),
    "empty set": item(a={"SS": []}),
    "set with a value twice": item(a={"SS": ["a", "a"]}),
    "attribute without a name": item() | {"": {"S": "x"}},
    "name of 65,536 bytes": item() | {"n" * 65_536: {"S": "x"}},
    "33 levels": item(a=nested(33)),
    "lone surrogate": item(a={"S": "\ud800"}),
    "index key of 2,049 bytes": item(sku={"S": "k" * 2049}),
    "empty index key": item(sku={"S": ""}),
    "index key as a number": item(sku={"N": "1"}),
}

# What a call may not be.
CALLS: dict[str, Call] = {
    "a key twice": puts(item(), item(a={"S": "x"})),
    "a key twice, in other digits": puts(item(sequence="7"), item(sequence="7.0")),
    "26 items": puts(*(item(sequence=str(n)) for n in range(26))),
    "no items": batch(),
    "no tables": ("batch_write_item", {}),
    "a request for nothing": batch({}),
    "a request for two": batch(
        {"PutRequest": {"Item": item()}, "DeleteRequest": {"Key": item("q")}}
    ),
    "more than 16 MB": puts(*(item(str(n), a={"S": "\x01" * 130_000}) for n in range(25))),
    "another table": ("put_item", {"Item": item(), "TableName": "no-such-table"}),
    "TTL on again": ttl(),
    "TTL by another attribute": ttl("other"),
    "TTL of another table": ("update_time_to_live", {**ttl()[1], "TableName": "no-such-table"}),
    "TTL without a name": ttl(""),
    "a key of half": ("get_item", {"Key": {"robot_id": {"S": "r"}}}),
    "reserved word": ("get_item", {"Key": item(), "ProjectionExpression": "source"}),
    "limit 0": query(Limit=0),
    "a value for nothing": query(
        ExpressionAttributeValues={":r": {"S": "r"}, ":unused": {"S": "r"}}
    ),
    "a filter by a key": query(
        FilterExpression="#s > :n",
        ExpressionAttributeNames={"#s": "sequence"},
        ExpressionAttributeValues={":r": {"S": "r"}, ":n": {"N": "1"}},
    ),
    "another index": query(IndexName="none"),
    "a strong read of an index": query(
        IndexName="sku", KeyConditionExpression="sku = :r", ConsistentRead=True
    ),
    "a page of another robot": query(ExclusiveStartKey=item("q")),
    "a table that exists": ("create_table", {"BillingMode": "PAY_PER_REQUEST"}),
    "a table without capacity": ("create_table", {"TableName": "no-capacity"}),
    "capacity and on demand": (
        "create_table",
        {
            "TableName": "both-modes",
            "BillingMode": "PAY_PER_REQUEST",
            "ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
        },
    ),
    "a table with a short name": (
        "create_table",
        {"TableName": "ab", "BillingMode": "PAY_PER_REQUEST"},
    ),
}

RULES: dict[str, Call] = {
    **{f"{name}, alone": put(value) for name, value in ITEMS.items()},
    **{f"{name}, in a batch": puts(item("good"), value) for name, value in ITEMS.items()},
    **CALLS,
}
# What is exactly at the limit, and must be taken.
ALLOWED: dict[str, Call] = {
    "400 KB": puts(text(ITEM_BYTES_MAX)),
    "25 items": puts(*(item(sequence=str(n)) for n in range(25))),
    "robot of 2,048 bytes": puts(item("k" * 2048)),
    "robot with a NUL": puts(item("a\0b")),
    "robot of blanks": puts(item("  ")),
    "38 digits": puts(number("1" * 38)),
    "9e125": puts(number("9" * 38 + "e88")),
    "1e-130": puts(number("1e-130")),
    "64-bit sequence": puts(item(sequence=str(2**64 - 1))),
    "empty text": puts(item(a={"S": ""})),
    "index key of 2,048 bytes": puts(item(sku={"S": "k" * 2048})),
    "no index key": puts(item()),
    "12 MB": puts(*(item(str(n), a={"S": "\x01" * 80_000}) for n in range(25))),
}

BOTH = frozenset(KINDS)
MINISTACK: frozenset[Kind] = frozenset({"ministack"})
DYNOXIDE: frozenset[Kind] = frozenset({"dynoxide"})
# Who takes what the real store refuses; a rule that neither refuses is refused by the proxy alone.
LENIENT: dict[str, frozenset[Kind]] = {
    "number in Arabic digits": MINISTACK,
    "attribute without a name": BOTH,
    "name of 65,536 bytes": BOTH,
    "index key of 2,049 bytes": BOTH,
    "no items": MINISTACK,
    "a request for nothing": MINISTACK,
    "a request for two": BOTH,
    "more than 16 MB": MINISTACK,
    "TTL on again": BOTH,
    "TTL by another attribute": MINISTACK,
    "a filter by a key": MINISTACK,
    "a page of another robot": DYNOXIDE,
    "a table without capacity": DYNOXIDE,
}
# Refused, but as if the server had failed: a writer would try again for ever.
FAILING: dict[str, frozenset[Kind]] = {"lone surrogate": MINISTACK}


@pytest.fixture(scope="module")
def places(dynamodb_servers: DynamoServers) -> dict[Kind, DynamoTable]:
    """A table with an index by SKU and with TTL, on each server."""
    made = {}
    for kind in KINDS:
        table = dynamodb_servers.get(kind).table()
        index = {
            "IndexName": "sku",
            "KeySchema": [
                {"AttributeName": "sku", "KeyType": "HASH"},
                {"AttributeName": "sequence", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
        table.create(
            AttributeDefinitions=[
                {"AttributeName": "robot_id", "AttributeType": "S"},
                {"AttributeName": "sequence", "AttributeType": "N"},
                {"AttributeName": "sku", "AttributeType": "S"},
            ],
            GlobalSecondaryIndexes=[index],
        )
        assert told(table, table.server.url, ttl()) == "ok"
        made[kind] = table
    return made


@pytest.fixture(scope="module")
def proxies(dynamodb_servers: DynamoServers) -> Iterator[dict[Kind, FaultProxy]]:
    """A proxy without faults before each server."""
    made = {kind: FaultProxy(dynamodb_servers.get(kind).url).start() for kind in KINDS}
    yield made
    for proxy in made.values():
        proxy.close()


def told(table: DynamoTable, url: str, call: Call) -> str:
    """`ok`, or the code of the refusal."""
    name, given = call
    parameters: dict[str, Any] = {"TableName": table.name} | given
    if name == "batch_write_item":
        requests = given.get("requests")
        parameters = {"RequestItems": {} if requests is None else {table.name: requests}}
    elif name == "create_table":
        parameters = {
            "KeySchema": [{"AttributeName": "robot_id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "robot_id", "AttributeType": "S"}],
        } | parameters
    try:
        reply = getattr(table.server.client(url), name)(**parameters)
    except botocore.exceptions.ClientError as error:
        return str(error.response["Error"]["Code"])
    assert not reply.get("UnprocessedItems"), json.dumps(reply["UnprocessedItems"])
    return "ok"


def lenient(rule: str, table: dict[str, frozenset[Kind]]) -> frozenset[Kind]:
    return table.get(rule.rpartition(", ")[0], frozenset()) | table.get(rule, frozenset())


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_refused_by_a_server_or_by_the_proxy_in_its_place(
    rule: str, places: dict[Kind, DynamoTable], proxies: dict[Kind, FaultProxy]
) -> None:
    for kind, table in places.items():
        answer = told(table, table.server.url, RULES[rule])
        assert (answer == "ok") == (kind in lenient(rule, LENIENT)), f"{kind} says {answer}"
        assert (answer == "InternalError") == (kind in lenient(rule, FAILING)), f"{kind}: {answer}"
    answers = {kind: told(places[kind], proxies[kind].url, RULES[rule]) for kind in KINDS}
    assert len(set(answers.values())) == 1, answers
    assert not {"ok", "InternalError"} & set(answers.values())


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_at_the_limit_is_taken(
    case: str, places: dict[Kind, DynamoTable], proxies: dict[Kind, FaultProxy]
) -> None:
    for kind, table in places.items():
        assert told(table, table.server.url, ALLOWED[case]) == "ok"
        assert told(table, proxies[kind].url, ALLOWED[case]) == "ok"


def test_a_refused_batch_writes_none_of_its_items(
    places: dict[Kind, DynamoTable], proxies: dict[Kind, FaultProxy]
) -> None:
    for kind, table in places.items():
        for place in (table.server.url, proxies[kind].url):
            told(table, place, puts(item("by-itself"), item("")))
            told(table, place, puts(item("by-itself"), item() | {"": {"S": "x"}}, item("")))
        assert ("by-itself", 1) not in table.rows()


def test_every_lenient_row_names_a_rule() -> None:
    names = {rule.rpartition(", ")[0] if rule not in CALLS else rule for rule in RULES}
    assert {*LENIENT, *FAILING} <= names
