"""The faults that a store, its network and its credentials have, each one a value.

A fault is switched on and off by `FaultProxy.on` and `off`. It meets a call twice: `before` it goes
to the store, where it may answer in its place, and `after`, where it may change the answer. It
keeps no state of its own: that is in `Active`, one for each time it is switched on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.support.faults.exchange import WRITES, Exchange, Key, item_of, key_of
from tests.support.faults.wire import CUT, RESET, Connection, Reply, first_of


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What all share: which calls it meets, and how many of those."""

    probability: float = 1.0
    """The share of the calls, drawn from the proxy's seed."""
    calls: int | None = None
    """How many calls at most, the first ones; None: all."""
    skip: int = 0
    """So many calls go by first."""
    operations: Collection[str] = WRITES
    """Which operations; empty: all of them."""
    robots: Collection[str] = ()
    """Only what holds one of these robots; empty, as `keys` too: everything."""
    keys: Collection[Key] = ()

    def meets(self, exchange: Exchange) -> bool:
        """Whether a call is of the kind that it is for."""
        if self.operations and exchange.operation not in self.operations:
            return False
        return not (self.robots or self.keys) or any(map(self.selects, exchange.keys))

    def selects(self, key: Key) -> bool:
        """Whether an item is of the kind that it is for."""
        return not (self.robots or self.keys) or key[0] in self.robots or key in self.keys

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        """An answer in the store's place, or None: it goes on."""
        return None

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        """What the client gets of the answer."""
        return reply

    def tick(self, active: Active, connections: Iterable[Connection]) -> None:
        """Called every few milliseconds while it is on."""


@dataclass(eq=False)
class Active:
    """A fault that is switched on, with its count of hits; leaving its context switches it off."""

    fault: Fault
    random: random.Random
    since: float
    """The loop's time when it was switched on."""
    switch_off: Callable[[Active], None]
    hits: int = 0
    met: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def draws(self, exchange: Exchange) -> bool:
        """Whether it hits this call; counts it."""
        fault = self.fault
        if not fault.meets(exchange) or (fault.calls is not None and self.hits >= fault.calls):
            return False
        self.met += 1
        if self.met <= fault.skip:
            return False
        if fault.probability < 1.0 and self.random.random() >= fault.probability:
            return False
        self.hits += 1
        return True

    def spares(self) -> None:
        """The call that was just drawn had nothing to hit."""
        self.hits -= 1

    def off(self) -> None:
        """Switches it off; what hangs by it goes on."""
        self.switch_off(self)

    def __enter__(self) -> Active:
        return self

    def __exit__(self, *_: object) -> None:
        self.off()


# --- items and throttles


@dataclass(frozen=True)
class Unprocessed(Fault):
    """Hands items back as `UnprocessedItems`: of those selected a share, drawn item by item."""

    share: float = 1.0

    def meets(self, exchange: Exchange) -> bool:
        batch = exchange.operation == "BatchWriteItem" and exchange.refusal is None
        return batch and super().meets(exchange)

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        if not self.withhold(exchange, active):
            active.spares()
        return None

    def withhold(self, exchange: Exchange, active: Active) -> bool:
        """Takes the drawn items out of the call; whether there are any."""
        some = False
        for table, many in exchange.requests.items():
            gone = exchange.withheld.setdefault(table, [])
            before = len(gone)
            gone += [
                one
                for one in many
                if self.selects(key_of(item_of(one)))
                and not any(one is other for other in gone)
                and (self.share >= 1.0 or active.random.random() < self.share)
            ]
            some = some or len(gone) > before
        return some


@dataclass(frozen=True)
class CompleteAs(Fault):
    """Says "all done" in one of three ways: no field, an empty map, a table with an empty list."""

    form: Literal["absent", "map", "list"] = "absent"

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        answer = _object(reply)
        if exchange.operation != "BatchWriteItem" or answer is None:
            return reply
        if any(answer.get("UnprocessedItems", {}).values()):
            return reply
        answer.pop("UnprocessedItems", None)
        if self.form != "absent":
            answer["UnprocessedItems"] = {exchange.table: []} if self.form == "list" else {}
        return exchange.answer(answer)


Reason = Literal["table", "on_demand", "key_range", "account", "request_limit", "bare"]
_PROVISIONED = "ProvisionedThroughputExceededException"
_REASONS: dict[str, tuple[str, str]] = {
    "table": (_PROVISIONED, "ProvisionedThroughputExceeded"),
    "on_demand": ("ThrottlingException", "MaxOnDemandThroughputExceeded"),
    "key_range": ("ThrottlingException", "KeyRangeThroughputExceeded"),
    "account": ("ThrottlingException", "AccountLimitExceeded"),
    "request_limit": ("RequestLimitExceeded", "AccountLimitExceeded"),
    "bare": ("ThrottlingException", ""),
}


@dataclass(frozen=True)
class Throttle(Fault):
    """Refuses the whole call for its rate; `code` overrides the exception that `reason` brings."""

    reason: Reason = "table"
    code: str = ""
    retry_after_s: float | None = None

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return self.throttled(exchange)

    def throttled(self, exchange: Exchange) -> Reply:
        """The refusal."""
        code, limit = _REASONS[self.reason]
        code = self.code or code
        kind = "Write" if exchange.operation in WRITES else "Read"
        place = f"arn:aws:dynamodb:eu-central-1:000000000000:table/{exchange.table}"
        reasons = [{"reason": f"Table{kind}{limit}", "resource": place}] if limit else []
        name = "throttlingReasons" if code == "ThrottlingException" else "ThrottlingReasons"
        headers = {} if self.retry_after_s is None else {"Retry-After": f"{self.retry_after_s:g}"}
        more = {name: reasons} if reasons else {}
        return exchange.error(
            code, f"Throughput exceeds the limit: {self.reason}", 400, more, headers
        )


@dataclass(frozen=True)
class HotKey(Unprocessed):
    """A partition beyond its throughput: its items come back; a call of no others is refused."""

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        if exchange.operation == "BatchWriteItem" and not all(map(self.selects, exchange.keys)):
            return await super().before(exchange, active)
        return Throttle(reason="key_range", code=_PROVISIONED).throttled(exchange)

    def meets(self, exchange: Exchange) -> bool:
        return exchange.refusal is None and Fault.meets(self, exchange)


@dataclass(frozen=True)
class Poison(Fault):
    """Refuses each call that holds a marked item, batch or single, and writes nothing of it.

    Marked are those selected, or a share of all keys: the same ones each time, by the seed.
    """

    share: float = 0.0
    seed: int = 0
    message: str = "One or more parameter values were invalid: a marked item"

    def selects(self, key: Key) -> bool:
        drawn = random.Random(f"{self.seed} {key}").random() < self.share
        return drawn or ((bool(self.robots) or bool(self.keys)) and super().selects(key))

    def meets(self, exchange: Exchange) -> bool:
        of_these = not self.operations or exchange.operation in self.operations
        return of_these and any(map(self.selects, exchange.keys))

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return exchange.error("ValidationException", self.message)


@dataclass(frozen=True)
class ServerError(Fault):
    """The store fails by itself. `applied`: after it has written."""

    code: str = "InternalServerError"
    status: int = 500
    applied: bool = False

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return None if self.applied else self._error(exchange)

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        exchange.spoiled = True
        return self._error(exchange)

    def _error(self, exchange: Exchange) -> Reply:
        return exchange.error(self.code, "The store had an internal error", self.status)


# --- time, connections, bytes


@dataclass(frozen=True)
class Hang(Fault):
    """Never answers: until the client leaves, `seconds` have passed or it is switched off.

    Then the connection is cut. `applied`: the store has written before.
    """

    seconds: float | None = None
    applied: bool = False

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return None if self.applied else await self._hang(exchange, active)

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        return await self._hang(exchange, active)

    async def _hang(self, exchange: Exchange, active: Active) -> Reply:
        await first_of(exchange.connection.gone, active.released, timeout_s=self.seconds)
        return CUT


@dataclass(frozen=True)
class Slow(Fault):
    """Takes its time: with the `reply`, or with the `request`, which is applied though late.

    Switching it off ends the wait, the client's leaving does not: a late write is applied.
    """

    seconds: float = 5.0
    when: Literal["reply", "request"] = "reply"

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        if self.when == "request":
            await first_of(active.released, timeout_s=self.seconds)
        return None

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        if self.when == "reply":
            await first_of(active.released, exchange.connection.gone, timeout_s=self.seconds)
        return reply


@dataclass(frozen=True)
class Reset(Fault):
    """Ends the connection before the write reached the store, or after it was applied."""

    when: Literal["before", "after"] = "before"
    how: Literal["rst", "fin"] = "rst"

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return self._cut() if self.when == "before" else None

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        return self._cut()

    def _cut(self) -> Reply:
        return RESET if self.how == "rst" else CUT


@dataclass(frozen=True)
class Broken(Fault):
    """An answer that is none. `applied`: the store has written before."""

    form: Literal["truncated", "head", "json", "crc", "html", "empty", "garbage"] = "truncated"
    applied: bool = True
    status: int = 200

    def __post_init__(self) -> None:
        """Errors: `ValueError` for a whole answer to a write that was not applied."""
        if self.form == "crc" and not self.applied:
            raise ValueError("a good answer with a wrong checksum says that the write was applied")

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        if self.applied:
            return None
        return await self.after(exchange, active, exchange.answer({"UnprocessedItems": {}}))

    async def after(self, exchange: Exchange, active: Active, reply: Reply) -> Reply:
        exchange.spoiled = True
        whole = len(reply.bytes())
        page = {"Content-Type": "text/html"}
        forms = {
            "truncated": lambda: replace(reply, sent=whole - len(reply.body) // 2 - 1, end="fin"),
            "head": lambda: replace(reply, sent=20, end="fin"),
            "json": lambda: exchange.sealed(replace(reply, body=b'{"UnprocessedItems": {')),
            "crc": lambda: replace(reply, headers={**reply.headers, "x-amz-crc32": "1"}),
            "html": lambda: Reply(self.status, b"<html><body>Bad gateway</body></html>", page),
            "empty": lambda: Reply(self.status),
            "garbage": lambda: exchange.sealed(
                Reply(self.status, active.random.randbytes(200), reply.headers)
            ),
        }
        return forms[self.form]()


@dataclass(frozen=True)
class Idle(Fault):
    """Closes connections that have lain idle: by FIN, by RST, or right after reading a request.

    One on which no request came, or half of one, lies idle too: its client may be frozen.
    `probability` and `skip` hold for requests only.
    """

    after_s: float = 5.0
    how: Literal["fin", "rst", "on_request"] = "fin"
    operations: Collection[str] = field(default=(), kw_only=True)

    def meets(self, exchange: Exchange) -> bool:
        connection = exchange.connection
        idle = connection.requests > 1 and connection.idle_s >= self.after_s
        return self.how == "on_request" and idle and super().meets(exchange)

    async def before(self, exchange: Exchange, active: Active) -> Reply | None:
        return CUT

    def tick(self, active: Active, connections: Iterable[Connection]) -> None:
        if self.how == "on_request":
            return
        for connection in list(connections):
            if connection.idle_for() >= self.after_s:
                if self.calls is None or active.hits < self.calls:
                    active.hits += 1
                    connection.end(self.how)


@dataclass(frozen=True)
class Gone(Fault):
    """Nobody is there: connections are reset and new ones refused, as the proxy closes its port."""

    def meets(self, exchange: Exchange) -> bool:
        return False


def _object(reply: Reply) -> dict[str, Any] | None:
    """A good reply's content."""
    if reply.status != 200 or reply.sent is not None:
        return None
    try:
        read = json.loads(reply.body)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None
