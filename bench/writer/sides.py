"""One side as a process: `python -m bench.writer.sides KIND URL TABLE SEED`, commands on stdin.

Each line on stdin is a number of seconds; the answer is a line of JSON with what the run took. The
process writes the same rows again and again, so the table does not grow. It compares nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from decimal import Decimal
from typing import Any, Protocol

from bench.writer.rows import made_rows
from labeler.loop import LoopThread
from labeler.plan import WriterLimits
from labeler.stores.base import StoredRow
from labeler.stores.dynamodb import items
from labeler.stores.dynamodb.client import DynamoSettings
from labeler.stores.dynamodb.store import DynamoStore
from labeler.writer import Writer

__all__ = ["KINDS", "NoGraves", "main"]

_BATCH = items.REQUEST_ROWS_MAX
_LOOP_S = 600.0
_WARM_UP_S = 0.5


class Side(Protocol):
    """A way to write rows: until `end_s` of the monotonic clock, and then what is under way."""

    def run(self, end_s: float) -> int:
        """How many rows are stored."""


class Labeler:
    """The product's writer and its store, fed with records as fast as it takes them."""

    def __init__(self, url: str, table: str, rows: Sequence[StoredRow]) -> None:
        """Connects."""
        self._records = _Made(rows)
        loop = LoopThread()
        store = DynamoStore(_settings(url, table))
        loop.call(store.ensure(), _LOOP_S)
        limits = WriterLimits(
            rows_max=500,
            linger_ms=100,
            retry_ms_min=50,
            retry_ms_max=5000,
            write_timeout_ms=10_000,
            # Fewer than there are rows: no key is held twice.
            held_rows_max=len(rows) // 2,
            # As the loops of the other sides: client and server are never busy at the same time,
            # and hardware threads of one core slow each other down.
            concurrency_max=1,
            nice=0,
        )
        self._writer = Writer(self._records, store, NoGraves(), loop, limits, random.Random(7))
        self._writer.start()

    def run(self, end_s: float) -> int:
        """Gives records until the end, and waits for the last confirmation."""
        return self._records.give(end_s)


class _Made:
    """The journal's side: rows in a circle while a run goes on."""

    def __init__(self, rows: Sequence[StoredRow]) -> None:
        self._rows = [tuple(row) for row in rows]
        self._next = self._given = self._confirmed = 0
        self._end_s = 0.0
        self._begin, self._rest = threading.Event(), threading.Event()

    def give(self, end_s: float) -> int:
        before = self._confirmed
        self._rest.clear()
        self._end_s = end_s
        self._begin.set()
        self._rest.wait()
        while self._confirmed < self._given:
            time.sleep(0.01)  # waiting must not cost what is measured
        return self._confirmed - before

    def take_records(
        self, rows_max: int, bytes_max: int, timeout_ms: int
    ) -> Sequence[tuple[Any, ...]]:
        if not self._begin.wait(timeout_ms / 1000):
            return []
        if time.monotonic() >= self._end_s:
            self._begin.clear()
            self._rest.set()
            return []
        taken = self._rows[self._next : self._next + rows_max]
        self._next = (self._next + len(taken)) % len(self._rows)
        self._given += len(taken)
        return taken

    def confirm(self, numbers: Sequence[int], outcome: str) -> None:
        assert outcome == "stored", f"{len(numbers)} rows ended as {outcome}"
        self._confirmed += len(numbers)


class NoGraves:
    """A graveyard of a bench, where no row may be refused."""

    def known(self) -> set[tuple[str, int]]:
        """No letter of an earlier life."""
        return set()

    async def bury(self, row: StoredRow, reason: str) -> None:
        """Errors: `AssertionError`, always."""
        raise AssertionError(f"{row.key} is refused: {reason}")


class _Looping:
    """Batches of the rows, one after the other, on one event loop."""

    def __init__(self, url: str, table: str, rows: Sequence[StoredRow]) -> None:
        self._url, self._table = url, table
        self._rows = itertools.cycle(rows)
        self._loop = LoopThread()
        self._write = self._loop.call(self._open(), _LOOP_S)

    def run(self, end_s: float) -> int:
        return self._loop.call(self._go(end_s), _LOOP_S)

    async def _go(self, end_s: float) -> int:
        count = 0
        while time.monotonic() < end_s:
            await self._write(list(itertools.islice(self._rows, _BATCH)))
            count += _BATCH
        return count

    async def _open(self) -> Callable[[list[StoredRow]], Coroutine[Any, Any, None]]:
        raise NotImplementedError


class StoreAlone(_Looping):
    """The product's store without the writer around it."""

    async def _open(self) -> Callable[[list[StoredRow]], Coroutine[Any, Any, None]]:
        store = DynamoStore(_settings(self._url, self._table))
        await store.ensure()

        async def write(rows: list[StoredRow]) -> None:
            await store.write(rows)

        return write


class Aioboto3(_Looping):
    """How it is written by the library's examples: items as a dictionary each, on uvloop too."""

    async def _open(self) -> Callable[[list[StoredRow]], Coroutine[Any, Any, None]]:
        import aioboto3  # type: ignore[import-untyped]

        client = await aioboto3.Session().client("dynamodb", endpoint_url=self._url).__aenter__()

        async def write(rows: list[StoredRow]) -> None:
            puts = [{"PutRequest": {"Item": items.item_of(row)}} for row in rows]
            left = await client.batch_write_item(RequestItems={self._table: puts})
            assert not left["UnprocessedItems"]

        return write


class Floor(_Looping):
    """One bare POST of a ready-made body a batch: no items, no signature, no look at the answer."""

    async def _open(self) -> Callable[[list[StoredRow]], Coroutine[Any, Any, None]]:
        import aiohttp

        session = aiohttp.ClientSession()
        headers = {
            "X-Amz-Target": "DynamoDB_20120810.BatchWriteItem",
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Date": "20260101T000000Z",
            "Authorization": "AWS4-HMAC-SHA256 Credential=AKIATESTONLY/20260101/"
            f"{os.environ['AWS_REGION']}/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, "
            "Signature=0",
        }
        bodies: dict[str, bytes] = {}

        async def write(rows: list[StoredRow]) -> None:
            name = rows[0].robot_id
            if name not in bodies:
                bodies[name] = items.batch_body(self._table, rows)
            async with session.post(self._url, data=bodies[name], headers=headers) as answer:
                await answer.read()
                assert answer.status == 200

        return write


class Boto3:
    """`boto3`'s batch writer, which blocks, in a thread."""

    def __init__(self, url: str, table: str, rows: Sequence[StoredRow]) -> None:
        """Connects."""
        import boto3  # type: ignore[import-untyped]

        self._table = boto3.resource("dynamodb", endpoint_url=url).Table(table)
        self._rows = itertools.cycle(rows)

    def run(self, end_s: float) -> int:
        """In a thread of its own."""
        counts: list[int] = []
        thread = threading.Thread(target=lambda: counts.append(self._go(end_s)))
        thread.start()
        thread.join()
        return counts[0]

    def _go(self, end_s: float) -> int:
        count = 0
        with self._table.batch_writer() as batch:
            while time.monotonic() < end_s:
                for row in itertools.islice(self._rows, _BATCH):
                    batch.put_item(Item=_plain(row))
                count += _BATCH
        return count


def _plain(row: StoredRow) -> dict[str, Any]:
    """The item in Python's types, as the resource takes it."""
    fields = row._asdict()
    fields["label_index"] = fields.pop("index")
    fields["confidence"] = Decimal(items.item_of(row)["confidence"]["N"])
    return fields


KINDS: dict[str, Callable[[str, str, Sequence[StoredRow]], Side]] = {
    "labeler": Labeler,
    "store": StoreAlone,
    "aioboto3": Aioboto3,
    "boto3": Boto3,
    "floor": Floor,
}


def _settings(url: str, table: str) -> DynamoSettings:
    return DynamoSettings(
        table=table,
        region=os.environ["AWS_REGION"],
        endpoint_url=url,
        billing_mode="on_demand",
        read_capacity_units=0,
        write_capacity_units=0,
        retention_s=0,
        sku_index=False,
        create=False,
        connect_timeout_ms=10_000,
        read_timeout_ms=30_000,
        connections_max=16,
    )


def _run(side: Side, seconds: float) -> dict[str, float]:
    before, begin_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    count = side.run(begin_s + seconds)
    elapsed_s, after = time.monotonic() - begin_s, resource.getrusage(resource.RUSAGE_SELF)
    user_us = (after.ru_utime - before.ru_utime) * 1e6 / count
    system_us = (after.ru_stime - before.ru_stime) * 1e6 / count
    return {
        "labels_total": count,
        "labels_per_s": count / elapsed_s,
        "server_cpu_us_per_label": user_us + system_us,
        "server_cpu_user_us_per_label": user_us,
        "server_cpu_system_us_per_label": system_us,
        "server_rss_bytes_max": after.ru_maxrss * 1024,
    }


def _commands() -> Iterator[float]:
    yield _WARM_UP_S
    for line in sys.stdin:
        yield float(line)


def main(kind: str, url: str, table: str, seed: str) -> None:
    """Runs until stdin ends."""
    side = KINDS[kind](url, table, made_rows(int(seed)))
    for seconds in _commands():
        print(json.dumps(_run(side, seconds)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # the writer's threads wait for more
