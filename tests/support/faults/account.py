"""Faults of credentials, clock and table: what no retry of the same call can mend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tests.support.faults.exchange import WRITES, Exchange
from tests.support.faults.kinds import Active, Fault
from tests.support.faults.wire import Reply

SKEW_MAX_S = 300
_DATA = (*WRITES, "GetItem", "Query", "Scan", "BatchGetItem", "UpdateItem", "DeleteItem")
_REFUSALS = {
    "expired": (
        "ExpiredTokenException",
        400,
        "The security token included in the request is expired",
    ),
    "unrecognized": (
        "UnrecognizedClientException",
        400,
        "The security token included in the request is invalid.",
    ),
    "denied": (
        "AccessDeniedException",
        400,
        "User: arn:aws:sts::000000000000:assumed-role/labeler/pod is not authorized to perform: "
        "dynamodb:{operation} on resource: table/{table}",
    ),
    "forbidden": ("AccessDeniedException", 403, "Forbidden"),
    "signature": (
        "InvalidSignatureException",
        400,
        "The request signature we calculated does not match the signature you provided.",
    ),
    "missing": (
        "MissingAuthenticationTokenException",
        400,
        "Request is missing Authentication Token",
    ),
}


@dataclass(frozen=True)
class Credentials(Fault):
    """Refuses who asks. `unless_key`: calls signed with this access key's id go through."""

    kind: Literal["expired", "unrecognized", "denied", "forbidden", "signature", "missing"] = (
        "expired"
    )
    unless_key: str = ""
    operations: Collection[str] = field(default=(), kw_only=True)

    def meets(self, exchange: Exchange) -> bool:
        good = bool(self.unless_key) and exchange.access_key == self.unless_key
        return not good and super().meets(exchange)

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        code, status, message = _REFUSALS[self.kind]
        filled = message.format(operation=exchange.operation, table=exchange.table)
        return exchange.error(code, filled, status)


@dataclass(frozen=True)
class Skew(Fault):
    """The store's clock is `seconds` ahead of ours, in its `Date` header and in what it accepts.

    A client that signs with the store's time is served.
    """

    seconds: float = 1200.0
    operations: Collection[str] = field(default=(), kw_only=True)

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        exchange.clock_shift_s = self.seconds
        refused = skewed(exchange, self.seconds)
        if refused is None:
            active.spares()
        return refused

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        names = {name: text for name, text in reply.headers.items() if name.lower() != "date"}
        return exchange.sealed(Reply(reply.status, reply.body, names, reply.sent, reply.end))


def skewed(exchange: Exchange, ahead_s: float = 0.0) -> Reply | None:
    """The refusal of a call that was signed more than five minutes off the store's time."""
    text = exchange.request.headers.get("x-amz-date", "")
    form = "%Y%m%dT%H%M%SZ"
    try:
        signed = datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None
    now = datetime.now(UTC) + timedelta(seconds=ahead_s)
    least, most = now - timedelta(seconds=SKEW_MAX_S), now + timedelta(seconds=SKEW_MAX_S)
    if least <= signed <= most:
        return None
    edge, word, sign = (least, "expired", "-") if signed < least else (most, "not yet current", "+")
    than = "is now earlier than" if signed < least else "is still later than"
    limits = f"{edge.strftime(form)} ({now.strftime(form)} {sign} 5 min.)"
    message = f"Signature {word}: {text} {than} {limits}"
    return exchange.error("InvalidSignatureException", message)


@dataclass(frozen=True)
class TableMissing(Fault):
    """There is no such table, whoever asks; it may be created, which changes nothing."""

    operations: Collection[str] = field(
        default=(*_DATA, "DescribeTable", "UpdateTimeToLive", "DescribeTimeToLive"), kw_only=True
    )

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return _missing(exchange)


@dataclass(frozen=True)
class TableCreating(Fault):
    """The table is CREATING for `seconds`, from its creation or from the switch.

    Then it is ACTIVE and yet not found for `then_missing_s`, as happens in the real store.
    """

    seconds: float = 20.0
    then_missing_s: float = 0.0
    operations: Collection[str] = field(
        default=(*_DATA, "CreateTable", "DescribeTable", "UpdateTimeToLive"), kw_only=True
    )

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        loop = asyncio.get_running_loop()
        if exchange.operation == "CreateTable":
            active.since = loop.time()
        age_s = loop.time() - active.since
        if exchange.operation in _DATA and age_s < self.seconds + self.then_missing_s:
            return _missing(exchange)
        if exchange.operation == "UpdateTimeToLive" and age_s < self.seconds:
            message = f"Table is being created: {exchange.table}"
            return exchange.error("ResourceInUseException", message)
        if exchange.operation not in ("CreateTable", "DescribeTable") or age_s >= self.seconds:
            active.spares()
        return None

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        if asyncio.get_running_loop().time() - active.since < self.seconds:
            return _described(exchange, reply, {"TableStatus": "CREATING"})
        return reply


@dataclass(frozen=True)
class WrongSchema(Fault):
    """The table has other keys than ours: in its description, and in what it accepts."""

    hash_key: tuple[str, str] = ("robot", "S")
    range_key: tuple[str, str] | None = ("at", "N")
    operations: Collection[str] = field(default=(*_DATA, "DescribeTable"), kw_only=True)

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        if exchange.operation == "DescribeTable":
            return None
        message = "The provided key element does not match the schema"
        return exchange.error("ValidationException", message)

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        keys = [("HASH", self.hash_key)] + ([("RANGE", self.range_key)] if self.range_key else [])
        schema = [{"AttributeName": name, "KeyType": kind} for kind, (name, _) in keys]
        types = [{"AttributeName": name, "AttributeType": type_} for _, (name, type_) in keys]
        return _described(exchange, reply, {"KeySchema": schema, "AttributeDefinitions": types})


@dataclass(frozen=True)
class Described(Fault):
    """The table's description has other values: such as another billing mode or status."""

    values: dict[str, Any] = field(default_factory=dict)
    operations: Collection[str] = field(default=("DescribeTable",), kw_only=True)

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        return _described(exchange, reply, self.values)


def _missing(exchange: Exchange) -> Reply:
    message = f"Requested resource not found: Table: {exchange.table} not found"
    return exchange.error("ResourceNotFoundException", message)


def _described(exchange: Exchange, reply: Reply, values: dict[str, Any]) -> Reply:
    """A description of the table with these values in it."""
    try:
        answer = json.loads(reply.body)
    except ValueError:
        return reply
    for name in ("Table", "TableDescription"):
        if name in answer:
            answer[name].update(values)
            return exchange.answer(answer, reply.status)
    return reply
