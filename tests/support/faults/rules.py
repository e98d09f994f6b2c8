"""What DynamoDB refuses and a server beneath takes: refused here, so that no test is fooled.

Only that: what both servers refuse is left to them. `tests/contract/test_dynamodb_servers.py` says
for each rule who lacks it, and tries each one through the proxy.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from tests.support.faults.account import skewed
from tests.support.faults.exchange import WRITES, Exchange, item_of
from tests.support.faults.wire import Reply

REQUEST_BYTES_MAX = 16 << 20
NAME_BYTES_MAX = 65_535
HASH_BYTES_MAX = 2048
RANGE_BYTES_MAX = 1024
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INVALID = "ValidationException"
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


async def refusal(exchange: Exchange, ask: Ask, clock: bool = True) -> Reply | None:
    """What the real store answers where a server would say yes; None: the server may judge.

    `ask`: another operation on the server beneath, whose answer it returns. `clock`: whether the
    time of the signature counts.
    """
    if not exchange.operation:
        return None
    if len(exchange.request.body) > REQUEST_BYTES_MAX:
        return exchange.error("RequestEntityTooLargeException", "Request entity too large", 413)
    if "authorization" not in exchange.request.headers:
        text = "Request is missing Authentication Token"
        return exchange.error("MissingAuthenticationTokenException", text)
    late = skewed(exchange) if clock else None
    if late is not None:
        return late
    if not exchange.body and exchange.request.body.strip() != b"{}":
        return exchange.error("SerializationException", "")
    problem = None
    if exchange.operation in WRITES:
        problem = _write(exchange) or await _index_keys(exchange, ask)
    elif exchange.operation == "UpdateTimeToLive":
        problem = await _time_to_live(exchange.body, ask)
    elif exchange.operation == "Query":
        problem = _start_key(exchange.body) or await _filter(exchange.body, ask)
    elif exchange.operation == "CreateTable":
        problem = _throughput(exchange.body)
    if problem == "SerializationException":
        return exchange.error(problem, "")
    return None if problem is None else exchange.error(_INVALID, problem)


def _write(exchange: Exchange) -> str | None:
    if exchange.operation == "BatchWriteItem":
        for table, many in exchange.requests.items():
            if many == []:
                return (
                    f"1 validation error detected: Value '{{{table}=[]}}' at 'requestItems' failed "
                    "to satisfy constraint: Member must have length greater than or equal to 1"
                )
            for one in many if isinstance(many, list) else []:
                if not isinstance(one, dict) or len([name for name in one if one[name]]) != 1:
                    return (
                        "Supplied AttributeValue has more than one datatypes set, "
                        "must contain exactly one of the supported datatypes"
                    )
    return next(filter(None, map(_item, exchange.items)), None)


def _item(item: Mapping[str, Any]) -> str | None:
    for name, value in item.items():
        if not name:
            return "One or more parameter values were invalid: empty attribute name"
        for kind, text in [(None, name), *_values(value)]:
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                return "SerializationException"
            if kind is None and size > NAME_BYTES_MAX:
                return "One or more parameter values were invalid: attribute name too long"
            if kind == "N" and not _NUMBER.fullmatch(text):
                return f"The parameter cannot be converted to a numeric value: {text}"
    return None


def _values(value: Any) -> Iterator[tuple[str | None, str]]:
    """All texts of an attribute's value with their kinds, whatever is nested in it."""
    if not isinstance(value, dict):
        return
    for kind, inner in value.items():
        if isinstance(inner, str):
            yield kind, inner
        elif kind == "L":
            for one in inner:
                yield from _values(one)
        elif kind == "M" and isinstance(inner, dict):
            for name, one in inner.items():
                yield None, name
                yield from _values(one)
        elif kind in ("SS", "NS"):
            for one in inner:
                yield kind[0], one


async def _index_keys(exchange: Exchange, ask: Ask) -> str | None:
    """Keys of secondary indexes are bounded in bytes as the table's are."""
    tables = exchange.requests or {exchange.table: [{"PutRequest": exchange.body}]}
    for table, many in tables.items():
        if all(len(text) <= RANGE_BYTES_MAX for one in many for text in _texts(item_of(one))):
            continue
        described = (await ask("DescribeTable", {"TableName": table})).get("Table", {})
        for index in described.get("GlobalSecondaryIndexes", []):
            for key in index["KeySchema"]:
                limit = HASH_BYTES_MAX if key["KeyType"] == "HASH" else RANGE_BYTES_MAX
                for one in many:
                    text = item_of(one).get(key["AttributeName"], {}).get("S", "")
                    if len(text.encode()) > limit:
                        return (
                            "One or more parameter values were invalid: Size of "
                            f"{'hash' if limit == HASH_BYTES_MAX else 'range'}key has exceeded the "
                            f"maximum size limit of {limit} bytes: {key['AttributeName']}"
                        )
    return None


def _texts(item: Mapping[str, Any]) -> Iterator[str]:
    for value in item.values():
        if isinstance(value, dict) and isinstance(value.get("S"), str):
            yield value["S"]


async def _time_to_live(body: dict[str, Any], ask: Ask) -> str | None:
    wanted = body.get("TimeToLiveSpecification", {})
    answer = await ask("DescribeTimeToLive", {"TableName": body.get("TableName", "")})
    found = answer.get("TimeToLiveDescription", {})
    on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if wanted.get("Enabled") and on:
        other = found.get("AttributeName") != wanted.get("AttributeName")
        return f"TimeToLive is already enabled{' on a different attribute' if other else ''}"
    if wanted.get("Enabled") is False and not on and "TimeToLiveDescription" in answer:
        return "TimeToLive is already disabled"
    return None


def _start_key(body: dict[str, Any]) -> str | None:
    names = body.get("ExpressionAttributeNames", {})
    values = body.get("ExpressionAttributeValues", {})
    start = body.get("ExclusiveStartKey", {})
    for word, value in re.findall(r"(#?\w+)\s*=\s*(:\w+)", body.get("KeyConditionExpression", "")):
        if start and start.get(names.get(word, word)) != values.get(value):
            return "The provided starting key is outside query boundaries"
    return None


async def _filter(body: dict[str, Any], ask: Ask) -> str | None:
    names = body.get("ExpressionAttributeNames", {})
    if "FilterExpression" not in body:
        return None
    words = re.findall(r"(?<![:\w#])#?[A-Za-z_]\w*", body["FilterExpression"])
    used = {names.get(word, word) for word in words}
    table = await ask("DescribeTable", {"TableName": body.get("TableName", "")})
    described = table.get("Table", {})
    for index in described.get("GlobalSecondaryIndexes", []):
        if index["IndexName"] == body.get("IndexName"):
            described = index
    for key in described.get("KeySchema", []):
        if key["AttributeName"] in used:
            return (
                "Filter Expression can only contain non-primary key attributes: "
                f"Primary key attribute: {key['AttributeName']}"
            )
    return None


def _throughput(body: dict[str, Any]) -> str | None:
    if body.get("BillingMode", "PROVISIONED") == "PROVISIONED":
        if not body.get("ProvisionedThroughput"):
            return (
                "One or more parameter values were invalid: ReadCapacityUnits and "
                "WriteCapacityUnits must both be specified when BillingMode is PROVISIONED"
            )
    return None
