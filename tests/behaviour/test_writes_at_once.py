"""However long the backlog is: no more writes at once than the limit, and one probe in an outage.

The store counts and keeps nothing. What the limit should be is asked of the pure gate elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from labeler.loop import LoopThread
from labeler.stores.base import (
    STORED,
    Outcome,
    Page,
    Query,
    StoredRow,
    StoreLimits,
    StoreUnavailableError,
)
from labeler.writer import Writer
from tests.support.journaled import Journaled, stored_row, writer_limits

ROWS = 2000
LIMITS = writer_limits(rows_max=10, held_rows_max=ROWS, concurrency_max=4)


class Counting:
    """A store whose writes take some turns of the loop; the first `outage` of them fail."""

    limits = StoreLimits(rows_max=10, concurrency_max=64)

    def __init__(self, outage: int) -> None:
        self.outage = outage
        self.under_way = 0
        self.at_once: list[int] = []

    async def ensure(self) -> None:
        pass

    async def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        self.under_way += 1
        self.at_once.append(self.under_way)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            if len(self.at_once) <= self.outage:
                raise StoreUnavailableError("not now")
            return [STORED] * len(rows)
        finally:
            self.under_way -= 1

    async def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        raise NotImplementedError

    async def list(self, query: Query) -> Page:
        raise NotImplementedError

    async def write_if_newer(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        raise NotImplementedError

    async def confirm_refusal(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class NoGraves:
    def known(self) -> set[tuple[str, int]]:
        return set()

    async def bury(self, row: StoredRow, reason: str) -> None:
        raise AssertionError(f"{row.key} is refused: {reason}")


Deliver = Callable[[int], Counting]


@pytest.fixture
def deliver() -> Iterator[Deliver]:
    """Writes a whole backlog to a store with an outage of so many writes."""
    loop = LoopThread()

    def run(outage: int) -> Counting:
        core, store = Journaled([stored_row(n) for n in range(1, ROWS + 1)]), Counting(outage)
        writer = Writer(core, store, NoGraves(), loop, LIMITS, random.Random(7))
        writer.start()
        core.wait_until(lambda: len(core.confirmed) == ROWS)
        assert writer.stop(20)
        return store

    yield run
    assert loop.stop(20)


def test_a_long_backlog_goes_in_as_many_writes_at_once_as_the_limit_says(deliver: Deliver) -> None:
    store = deliver(0)
    assert max(store.at_once) == LIMITS.concurrency_max
    assert store.at_once[:3] == [1, 1, 2], "it rises by one for each write that succeeds"


def test_an_outage_with_a_long_backlog_is_probed_by_one_write_at_a_time(deliver: Deliver) -> None:
    store = deliver(20)
    assert store.at_once[:21] == [1] * 21
    assert max(store.at_once) == LIMITS.concurrency_max
