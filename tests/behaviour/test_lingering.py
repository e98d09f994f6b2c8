"""The writer gathers records for a while, in one place, and what it has gathered is never lost.

The store is a real SQLite file; the core's border is a small double.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from labeler.loop import LoopThread
from labeler.stores.base import Outcome, StoredRow
from labeler.stores.blocking import Threaded
from labeler.stores.sqlite import SqliteStore
from labeler.writer import Writer
from labeler.writer.dead_letters import DeadLetters
from labeler.writer.graveyard import Buried
from labeler.writer.linger import Linger
from tests.support.journaled import Journaled, stored_row, writer_limits
from tests.support.waiting import eventually

LIMITS = writer_limits(linger_ms=500)


class Sized(SqliteStore):
    """Notes how many rows each write had."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sizes: list[int] = []

    def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        self.sizes.append(len(rows))
        return super().write(rows)


Deliver = Callable[[Journaled], Sized]


@pytest.fixture
def deliver(tmp_path: Path) -> Iterator[Deliver]:
    """Starts a writer of the journal's records."""
    loop = LoopThread()
    store = Sized(tmp_path / "labels.sqlite3")
    threaded = Threaded(store)
    letters = Buried(DeadLetters(tmp_path), "sqlite", 10)
    loop.call(threaded.ensure(), 20)
    writers = []

    def run(core: Journaled) -> Sized:
        writer = Writer(core, threaded, letters, loop, LIMITS, random.Random(7))
        writer.start()
        writers.append(writer)
        return store

    yield run
    assert all(writer.stop(20) for writer in writers)
    letters.close()
    loop.call(threaded.close(), 20)
    assert loop.stop(20)


def test_records_that_come_while_a_write_fills_go_with_it(deliver: Deliver) -> None:
    core = Journaled([stored_row(1)])
    store = deliver(core)
    eventually(lambda: core.takes == [1])
    core.add(stored_row(2))
    core.wait_until(lambda: core.confirmed.keys() == {1, 2})
    assert store.sizes == [2]


class CorePanicError(BaseException):
    """As the core's panics come up: no `Exception`."""


def test_what_was_taken_is_delivered_though_the_next_look_fails(deliver: Deliver) -> None:
    """A record is given once: what a panic made the writer forget would wait for the next start."""
    core = Journaled([stored_row(1)])
    real, panics = core.take_records, [CorePanicError("a panic")]

    def panicking(rows_max: int, bytes_max: int, timeout_ms: int) -> Sequence[Any]:
        if timeout_ms == 0 and panics:
            raise panics.pop()
        return real(rows_max, bytes_max, timeout_ms)

    core.take_records = panicking  # type: ignore[method-assign]
    deliver(core)
    core.wait_until(lambda: core.confirmed == {1: "stored"})
    assert not panics


def test_a_busy_hour_is_looked_at_as_often_as_a_write_is_full() -> None:
    linger = Linger(full=25, most_s=0.1)
    linger.gathered(250)
    assert linger.wait_s == pytest.approx(0.01)
    linger.gathered(25)
    assert linger.wait_s == pytest.approx(0.01)
    linger.gathered(1)
    assert linger.wait_s == 0.1
    for _ in range(100):
        linger.gathered(2500)
    assert linger.wait_s == 0.001, "it could not grow again"
    never = Linger(full=25, most_s=0.0)
    never.gathered(1)
    assert never.wait_s == 0.0
