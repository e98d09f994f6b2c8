"""Dead letters written again at DynamoDB, beside a writer and beside each other: the later stays.

And what becomes of a write that the network delivers long after it was given up (docs/dynamodb.md,
"A write that comes late"). `labeler dlq redrive` itself is in `test_dead_letter_commands.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labeler.stores.base import Status, StoredRow, StoreUnavailableError
from labeler.stores.dynamodb import DynamoStore
from labeler.stores.dynamodb.items import item_of
from labeler.writer.dead_letters import DeadLetter, DeadLetters
from labeler.writer.redrive import write_again
from tests.support.dynamodb import DynamoTable, servers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.kinds import Poison, Reset, ServerError, Slow, Throttle
from tests.support.faults.record import Call
from tests.support.service import run_labeler
from tests.support.stores import OpenStore, aws_variables, dynamodb_settings, opened, row
from tests.support.waiting import eventually


@pytest.fixture
def proxied(
    labels_table: DynamoTable,
    fault_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[OpenStore]:
    aws_variables(monkeypatch, labels_table.server)
    with opened("dynamodb", dynamodb_settings(labels_table, fault_proxy.url), tmp_path) as found:
        yield found


@dataclass(frozen=True)
class Late:
    """A store, the proxy before it, and the calls that are over."""

    store: OpenStore
    proxy: FaultProxy
    heard: list[Call]


def rewritten(store: OpenStore, *rows: StoredRow) -> list[str]:
    """What a redrive is told."""
    return [outcome.status.value for outcome in store.call(write_again(store.store, rows))]


def numbers(table: DynamoTable) -> dict[int, int]:
    """The journal number that stands under each sequence."""
    return {sequence: item["journal_number"] for (_, sequence), item in table.rows().items()}


def test_a_record_that_comes_in_between_stays(
    proxied: OpenStore, labels_table: DynamoTable, tmp_path: Path
) -> None:
    """At the last moment before the redrive's own write another client stores a later record."""
    assert isinstance(proxied.store, DynamoStore)
    client: Any = proxied.store._client
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path) as service:

        def meanwhile(**_: object) -> None:
            if not labels_table.rows():
                assert service.statuses(row(1, journal_number=9)) == ["stored"]

        for operation in ("PutItem", "BatchWriteItem"):
            client.meta.events.register_first(f"before-call.dynamodb.{operation}", meanwhile)
        assert rewritten(proxied, row(1, journal_number=5)) == ["superseded"]
    assert numbers(labels_table) == {1: 9}


def test_two_redrives_and_a_writer_leave_the_latest_record_of_every_key(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each writes its records of all keys, in an order of its own, all at the same time."""
    aws_variables(monkeypatch, labels_table.server)
    rng, settings = random.Random(seed), dynamodb_settings(labels_table)
    keys = range(1, 26)
    with (
        opened("dynamodb", settings, tmp_path) as one,
        opened("dynamodb", settings, tmp_path) as other,
        opened("dynamodb", settings, tmp_path) as service,
    ):

        async def redrive(store: OpenStore, letters: list[int]) -> None:
            for number in letters:
                rows = [row(key, journal_number=number) for key in rng.sample(keys, len(keys))]
                for outcome in await write_again(store.store, rows):
                    assert outcome.status in (Status.STORED, Status.SUPERSEDED)

        async def write() -> None:
            await asyncio.sleep(0)
            for key in rng.sample(keys, len(keys)):
                await service.store.write([row(key, journal_number=9)])

        running = [
            one._loop.spawn(redrive(one, [5, 8, 3])),
            other._loop.spawn(redrive(other, [8, 2, 7])),
            service._loop.spawn(write()),
        ]
        for task in running:
            task.result(60)
    assert numbers(labels_table) == dict.fromkeys(keys, 9)


def test_a_reply_that_is_lost_is_stored_at_the_next_try(
    proxied: OpenStore, fault_proxy: FaultProxy, labels_table: DynamoTable
) -> None:
    """The condition holds for the record itself: written twice it is no later one's."""
    with fault_proxy.on(Reset("after", operations=("PutItem",), calls=1)):
        with pytest.raises(StoreUnavailableError):
            rewritten(proxied, row(1), row(2))
    assert rewritten(proxied, row(1), row(2)) == ["stored", "stored"]
    assert numbers(labels_table) == {1: 1, 2: 2}


@pytest.fixture
def late(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Late]:
    """A store that soon gives up a write, and the proxy that delivers it late."""
    aws_variables(monkeypatch, labels_table.server)
    heard: list[Call] = []
    with FaultProxy(labels_table.server.url, heard=heard.append) as proxy:
        settings = dynamodb_settings(labels_table, proxy.url, read_timeout_ms=500)
        with opened("dynamodb", settings, tmp_path) as found:
            yield Late(found, proxy, heard)


EARLIER = row(1, journal_number=3, label="earlier", sku="")
LATER = row(1, journal_number=5, label="later")


def test_a_redrive_that_comes_late_leaves_a_later_record(
    late: Late, labels_table: DynamoTable
) -> None:
    """Its condition travels with it, so that it holds whenever it arrives."""
    with late.proxy.on(Slow(60, when="request", operations=("PutItem",), calls=1)):
        with pytest.raises(StoreUnavailableError):
            rewritten(late.store, EARLIER)
        eventually(lambda: late.store.statuses(LATER) == ["stored"])
    unmet = "ConditionalCheckFailedException"
    eventually(lambda: [call for call in late.heard if call.outcome == unmet])
    assert labels_table.items() == [item_of(LATER)]


def test_a_plain_write_that_comes_late_leaves_a_row_that_was_acknowledged_whole(
    late: Late, labels_table: DynamoTable
) -> None:
    """The writer's calls have no condition: the row is the earlier record's then, all of it."""
    with late.proxy.on(Slow(60, when="request", calls=1)):
        with pytest.raises(StoreUnavailableError):
            late.store.write(EARLIER)
        eventually(lambda: late.store.statuses(LATER) == ["stored"])
        assert labels_table.items() == [item_of(LATER)]
    eventually(lambda: labels_table.items() == [item_of(EARLIER)])


@servers("ministack")
def test_of_rows_that_fail_each_is_told_for_itself_or_nothing_counts(
    proxied: OpenStore, fault_proxy: FaultProxy
) -> None:
    put: dict[str, Any] = {"operations": ("PutItem",)}
    bad = ("robot-1", 2)
    with fault_proxy.on(Poison(keys=[bad], message="a marked item", **put)):
        assert rewritten(proxied, row(1), row(2), row(3)) == ["stored", "refused", "stored"]
    with fault_proxy.on(Throttle("key_range", keys=[bad], **put)):
        assert rewritten(proxied, row(1), row(2), row(3)) == ["stored", "unprocessed", "stored"]
    for fault in (Throttle("table", keys=[bad], **put), ServerError(keys=[bad], **put)):
        with fault_proxy.on(fault), pytest.raises(StoreUnavailableError):
            rewritten(proxied, row(1), row(2), row(3))


def test_the_command_stores_what_is_newer_and_tells_what_is_superseded(
    labels_table: DynamoTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_variables(monkeypatch, labels_table.server)
    with opened("dynamodb", dynamodb_settings(labels_table), tmp_path) as service:
        service.write(row(1, journal_number=9), row(2, journal_number=3))
    with closing(DeadLetters(tmp_path)) as letters:
        rows = [row(n, journal_number=4 + n) for n in (1, 2, 3)]
        letters.add([DeadLetter(item, "refused", "dynamodb", 1) for item in rows])
    done = run_labeler(
        *("dlq", "redrive", "--all", "--json"),
        state_dir=str(tmp_path),
        writer__store="dynamodb",
        dynamodb__table=labels_table.name,
        dynamodb__region=labels_table.server.region,
        dynamodb__endpoint_url=labels_table.server.url,
    )
    assert done.returncode == 0, done.stderr
    told = {"stored": 2, "superseded": 1, "refused": 0, "left": 0}
    assert json.loads(done.stdout) == told
    assert numbers(labels_table) == {1: 9, 2: 6, 3: 7}
