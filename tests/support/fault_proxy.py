"""A seeded fault proxy before a server of DynamoDB's API: breaks calls on demand, and counts them.

    with FaultProxy(dynamodb.url, seed) as proxy:           # clients speak to proxy.url
        with proxy.on(Unprocessed(share=0.3)) as rule:      # switched on and off at any moment
            ...
        assert rule.hits and not proxy.record.overlaps and proxy.record.sent(("robot-1", 7)) <= 2

It also refuses what the real store refuses and the server beneath does not (`faults/rules.py`), and
records each call: keys, outcome, what reached the store. It runs on a thread and a loop of its own,
on loopback. It never says of an item that it is stored which it did not forward.

By hand, before any server; each hit is printed, `--list` prints the rules with their options:

    python -m tests.support.fault_proxy --serve ministack --port 8001 --seed 7 \
        --rule unprocessed=0.3 --rule throttle=key_range,probability=0.1 --rule hot_key,robots=r17
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import io
import itertools
import json
import random
import re
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiohttp

from tests.support.dynamodb import KINDS, dynamo_server
from tests.support.faults import account, kinds
from tests.support.faults.exchange import WRITES, Exchange, Key, keys_in
from tests.support.faults.kinds import Active, Fault
from tests.support.faults.record import Call, Record
from tests.support.faults.rules import refusal
from tests.support.faults.wire import CUT, Connection, Reply, Request

T = TypeVar("T")
TICK_S = 0.005
_DROPPED = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
_RULES = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind
    for module in (kinds, account)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Fault)
    if kind not in (Fault, account.Described)  # has no form as a text
}


class FaultProxy:
    """Listens from `start` (or the context) to `close`; safe to use from any thread but its own."""

    def __init__(
        self,
        upstream: str,
        seed: int = 0,
        port: int = 0,
        strict: bool = True,
        heard: Callable[[Call], None] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """`strict`: refuse what the real store refuses. `heard`: gets each call when it is over."""
        self.upstream = upstream
        self.host = host
        self.seed = seed
        self.port = port
        self.record = Record()
        self._strict = strict
        self._heard = heard
        self.errors: list[Exception] = []
        """What went wrong in the proxy itself; `close` raises the first."""
        self._numbers = itertools.count(1)
        self._rules = itertools.count(1)
        self._active: tuple[Active, ...] = ()
        self._connections: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        """Where clients find it; the same from `start` to `close`."""
        return f"http://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients' connections are open."""
        return len(self._connections)

    def start(self) -> FaultProxy:
        """Listens."""
        self._thread.start()
        self._call(self._open())
        return self

    def close(self) -> None:
        """Ends every call that hangs, every connection, and the thread."""
        for active in self._active:
            active.off()
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self.errors:
            raise self.errors[0]

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(self, fault: Fault) -> Active:
        """Switches a fault on, behind those that are on; calls under way don't meet it."""
        return self._call(self._switch_on(fault))

    def off(self, *actives: Active) -> None:
        """Switches these off, or all."""
        for active in actives or self._active:
            self._call(self._switch_off(active))

    # --- on the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        await self._listen()
        self._tick()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            lambda: Connection(self._serve, self._connections),
            self.host,
            self.port,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _vanish(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            await connection.close()

    async def _shut(self) -> None:
        await self._vanish()
        await self._session.close()

    def _tick(self) -> None:
        for active in self._active:
            active.fault.tick(active, self._connections)
        if not self._session.closed:
            self._loop.call_later(TICK_S, self._tick)

    async def _switch_on(self, fault: Fault) -> Active:
        drawn = random.Random(f"{self.seed} {next(self._rules)} {type(fault).__name__}")
        active = Active(fault, drawn, self._loop.time(), self.off)
        self._active = (*self._active, active)
        if isinstance(fault, kinds.Gone):
            await self._vanish()
        return active

    async def _switch_off(self, active: Active) -> None:
        if active not in self._active:
            return
        self._active = tuple(other for other in self._active if other is not active)
        active.released.set()
        if isinstance(active.fault, kinds.Gone) and self._server is None:
            await self._listen()

    async def _serve(self, request: Request, connection: Connection) -> Reply:
        exchange = Exchange(request, connection, next(self._numbers))
        call = self.record.begin(exchange)
        watch = self._loop.create_task(self._watch(connection, call))
        try:
            reply = await self._answer(exchange, call)
            call.outcome = _outcome(reply, call)
            heard = not (exchange.spoiled or connection.gone.is_set() or reply.sent is not None)
            told = call.stored if heard else frozenset[Key]()
            self.record.end(call, call.outcome, told)
            return reply
        except asyncio.CancelledError:
            self.record.end(call, "gone", frozenset())
            raise
        except Exception as error:
            self.errors.append(error)
            return CUT
        finally:
            watch.cancel()
            self.record.over(call, connection.gone.is_set())
            if self._heard is not None:
                self._heard(call)

    async def _watch(self, connection: Connection, call: Call) -> None:
        await connection.gone.wait()
        self.record.over(call, left=True)

    async def _answer(self, exchange: Exchange, call: Call) -> Reply:
        if self._strict:
            shifted = any(isinstance(active.fault, account.Skew) for active in self._active)
            exchange.refusal = await refusal(exchange, self._ask, clock=not shifted)
        chosen: list[Active] = []
        reply: Reply | None = None
        for active in self._active:
            if active.draws(exchange):
                reply = await active.fault.before(exchange, active)
                if reply is not None:
                    call.faults += (type(active.fault).__name__,)
                    break
                chosen.append(active)
        if reply is None:
            reply = exchange.refusal or await self._store(exchange, call)
        for active in reversed(chosen):
            call.faults += (type(active.fault).__name__,)
            reply = await active.fault.after(exchange, active, reply)
        return reply

    async def _store(self, exchange: Exchange, call: Call) -> Reply:
        back = {table: many for table, many in exchange.withheld.items() if many}
        asked = set(exchange.keys)
        if back and len(keys_in(back)) == len(exchange.keys):
            call.unprocessed = tuple(keys_in(back))
            return exchange.answer({"UnprocessedItems": back})
        call.reached = True
        try:
            reply = await self._forward(exchange)
        except aiohttp.ClientError:
            exchange.spoiled = True
            return CUT
        if exchange.operation not in WRITES or reply.status != 200:
            return reply
        answer = json.loads(reply.body)
        for table, many in answer.get("UnprocessedItems", {}).items():
            back.setdefault(table, []).extend(many)
        call.unprocessed = tuple(keys_in(back))
        stored = frozenset(asked - set(call.unprocessed))
        self.record.took(call, stored, exchange.connection.gone.is_set())
        if not exchange.withheld or not back:
            return reply
        return exchange.answer({**answer, "UnprocessedItems": back})

    async def _forward(self, exchange: Exchange) -> Reply:
        request = exchange.request
        headers = {name: text for name, text in request.headers.items() if name not in _DROPPED}
        async with self._session.request(
            request.method,
            self.upstream + request.path,
            data=io.BytesIO(exchange.kept_body()),
            headers={**headers, "Accept-Encoding": "identity"},
        ) as reply:
            body = await reply.read()
            kept = {k: v for k, v in reply.headers.items() if k.lower() not in _DROPPED}
            return exchange.sealed(Reply(reply.status, body, kept))

    async def _ask(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": "AWS4-HMAC-SHA256 Credential=AKIATESTONLY/20260101/eu-central-1/"
            "dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature=0",
            "X-Amz-Date": "20260101T000000Z",
        }
        async with self._session.post(
            self.upstream, data=json.dumps(body), headers=headers
        ) as reply:
            answer = json.loads(await reply.read())
            return answer if isinstance(answer, dict) else {}


def _outcome(reply: Reply, call: Call) -> str:
    if reply.sent is not None:
        return "reset" if reply.end == "rst" else "cut"
    if reply.status == 200:
        return "partial" if call.unprocessed else "ok"
    try:
        return str(json.loads(reply.body)["__type"]).rpartition("#")[2]
    except (ValueError, KeyError, TypeError):
        return str(reply.status)


# --- by hand


def fault_of(text: str) -> Fault:
    """A rule as the command line has it: `name=value,option=value,…`; a list's parts joined by `+`.

    Errors: `ValueError` with the names that there are.
    """
    name, _, value = text.partition(",")[0].partition("=")
    if name not in _RULES:
        raise ValueError(f"no rule {name!r}; there are: {', '.join(sorted(_RULES))}")
    fields = {one.name: one for one in dataclasses.fields(_RULES[name])}
    own = [one.name for one in dataclasses.fields(_RULES[name]) if not one.kw_only]
    options = dict(part.split("=", 1) for part in text.split(",")[1:])
    if value:
        options = {own[0]: value} | options
    unknown = sorted(set(options) - set(fields))
    if unknown:
        raise ValueError(f"{name} has no {', '.join(unknown)}; it has: {', '.join(fields)}")
    return _RULES[name](**{key: _read(fields[key], text) for key, text in options.items()})


def _read(field: dataclasses.Field[Any], text: str) -> Any:
    kind = str(field.type)
    if kind.startswith("Collection[Key]"):
        pairs = (part.rsplit("/", 1) for part in text.split("+"))
        return tuple((robot, int(sequence)) for robot, sequence in pairs)
    if kind.startswith("Collection"):
        return tuple(text.split("+"))
    if kind.startswith(("float", "int", "bool", "dict")):
        return json.loads(text)
    return text


def _print(call: Call) -> None:
    if call.faults or call.outcome != "ok":
        keys = " ".join(f"{robot}/{sequence}" for robot, sequence in call.keys[:3])
        more = f" (+{len(call.keys) - 3})" if len(call.keys) > 3 else ""
        faults = ",".join(call.faults) or "-"
        print(
            f"{call.number} {call.operation} {faults} -> {call.outcome}; stored {len(call.stored)} "
            f"of {len(call.keys)}: {keys}{more}",
            flush=True,
        )


def _main() -> None:
    parser = argparse.ArgumentParser(prog="fault_proxy", description=__doc__.partition("\n")[0])
    parser.add_argument("--upstream", metavar="URL", help="the server behind it")
    parser.add_argument("--serve", choices=KINDS, help="start this server behind it")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rule", action="append", default=[], help="NAME=VALUE,OPTION=VALUE,…")
    parser.add_argument("--list", action="store_true", help="print the rules, and end")
    given = parser.parse_args()
    if given.list:
        _list()
        return
    try:
        faults = [fault_of(rule) for rule in given.rule]
    except ValueError as error:
        parser.error(str(error))
    if bool(given.upstream) == bool(given.serve):
        parser.error("either --upstream or --serve is needed")
    if given.serve:
        with dynamo_server(given.serve) as server:
            _stay(server.url, given.port, given.seed, faults)
    else:
        _stay(given.upstream, given.port, given.seed, faults)


def _list() -> None:
    for name, kind in sorted(_RULES.items()):
        own = [one for one in dataclasses.fields(kind) if not one.kw_only]
        options = ", ".join(f"{one.name}={one.default}" for one in own)
        print(f"{name}: {(kind.__doc__ or '').partition(chr(10))[0]}\n    {options}")
    shared = ", ".join(f"{one.name}={one.default}" for one in dataclasses.fields(Fault))
    print(f"each: {shared}")


def _stay(upstream: str, port: int, seed: int, faults: list[Fault]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with FaultProxy(upstream, seed, port, heard=_print) as proxy:
        for fault in faults:
            proxy.on(fault)
        print(f"{proxy.url} before {upstream}, seed {seed}; Ctrl-C ends it", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        print(dict(proxy.record.outcomes), f"overlaps {len(proxy.record.overlaps)}", flush=True)


if __name__ == "__main__":
    _main()
