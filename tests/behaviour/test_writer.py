"""The writer delivers each record once a key, confirms only what is durable, and never gives up.

The store is a real SQLite file; the core's border is a small double (the tests through the whole
server are elsewhere).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeler.errors import StoppedError
from labeler.stores.base import Outcome, Query, Status, StoredRow, StoreUnavailableError
from labeler.stores.sqlite import SqliteStore
from labeler.writer import Writer, WriterLimits
from labeler.writer.aside import Aside
from labeler.writer.backoff import Backoff
from labeler.writer.plan import plan, settle

Record = tuple[Any, ...]

LIMITS = WriterLimits(
    rows_max=50,
    linger_ms=0,
    retry_ms_min=1,
    retry_ms_max=4,
)


def row(number: int, sequence: int) -> StoredRow:
    return StoredRow(
        robot_id="robot-1",
        sequence=sequence,
        label=f"label-{number}",
        index=0,
        confidence=0.5,
        model="wall-following",
        version="1",
        source=1,
        labeled_at_unix_us=number,
        captured_at_unix_us=0,
        sku="",
        instance_id="instance",
        journal_id="journal",
        journal_number=number,
    )


def record(number: int, sequence: int | None = None) -> Record:
    """A journal record as the core hands it out."""
    return tuple(row(number, number if sequence is None else sequence))


class Core:
    """The border: records are given once, in order; confirmations are collected."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = list(records)
        self._changed = threading.Condition()
        self.confirmed: dict[int, str] = {}
        self.stopped = False
        self.takes: list[int] = []

    def take_records(self, rows_max: int, bytes_max: int, timeout_ms: int) -> Sequence[Record]:
        with self._changed:
            if self.stopped:
                raise StoppedError("the engine is stopped")
            if not self._records:
                self._changed.wait(timeout_ms / 1000)
            taken, self._records = self._records[:rows_max], self._records[rows_max:]
            self.takes.append(len(taken))
            return taken

    def confirm(self, numbers: Sequence[int], outcome: str) -> None:
        with self._changed:
            assert not self.confirmed.keys() & set(numbers), "each record is confirmed once"
            self.confirmed.update(dict.fromkeys(numbers, outcome))
            self._changed.notify_all()

    def add(self, late: Record) -> None:
        with self._changed:
            self._records.append(late)
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=20)


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that nobody announces, up to a deadline."""
    for _ in range(4000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the condition did not come true in time")


class Flaky:
    """A store that fails as told before it lets the real one work."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.failures: list[BaseException] = []
        self.fail_after_commit: list[BaseException] = []
        self.refuse: set[int] = set()
        self.writes = 0

    def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        self.writes += 1
        assert len({item.key for item in rows}) == len(rows), "keys of a write are distinct"
        if self.failures:
            raise self.failures.pop()
        good = [item for item in rows if item.journal_number not in self.refuse]
        done = dict(zip([item.key for item in good], self.store.write(good), strict=True))
        if self.fail_after_commit:
            raise self.fail_after_commit.pop()
        refusal = Outcome(Status.REFUSED, "not today")
        return [done.get(item.key, refusal) for item in rows]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.fixture
def flaky(tmp_path: Path) -> Iterator[Flaky]:
    """A real SQLite store that can be made to fail."""
    store = SqliteStore(tmp_path / "labels.sqlite3")
    store.ensure()
    yield Flaky(store)
    store.close()


def deliver(core: Core, store: Flaky, numbers: set[int], limits: WriterLimits = LIMITS) -> Writer:
    """Runs a writer until exactly these records are confirmed."""
    writer = Writer(core, store, limits, random.Random(7))
    writer.start()
    try:
        core.wait_until(lambda: core.confirmed.keys() >= numbers)
    finally:
        assert writer.stop(20)
    assert core.confirmed.keys() == numbers
    return writer


def test_every_record_is_stored_and_confirmed_in_writes_of_at_most_rows_max(flaky: Flaky) -> None:
    core = Core([record(n) for n in range(1, 176)])
    writer = deliver(core, flaky, set(range(1, 176)))
    assert max(core.takes) == 50
    assert len(flaky.list(Query("robot-1", page_size=1000)).rows) == 175
    assert writer.stats().rows_total == 175
    assert writer.stats().batches_total == 4


def test_of_one_key_the_later_record_is_stored_and_the_others_are_superseded(flaky: Flaky) -> None:
    core = Core([record(1, 7), record(2, 7), record(3, 8), record(4, 7)])
    deliver(core, flaky, {1, 2, 3, 4})
    assert core.confirmed == {1: "superseded", 2: "superseded", 3: "stored", 4: "stored"}
    found = flaky.get("robot-1", 7)
    assert found.journal_number == 4
    assert (found.instance_id, found.journal_id) == ("instance", "journal")


def test_an_outage_loses_nothing_and_is_counted(flaky: Flaky) -> None:
    flaky.failures = [StoreUnavailableError("down") for _ in range(5)]
    core = Core([record(n) for n in range(1, 61)])
    writer = deliver(core, flaky, set(range(1, 61)))
    assert writer.stats().failures_total == 5
    assert writer.stats().retries_total == 5
    assert writer.stats().crashes_total == 0


def test_a_fault_in_the_store_does_not_end_the_writer(flaky: Flaky) -> None:
    # `threading` lets a thread end by `SystemExit` without a word.
    flaky.failures = [ZeroDivisionError("a fault"), MemoryError(), SystemExit(3)]
    core = Core([record(n) for n in range(1, 11)])
    writer = deliver(core, flaky, set(range(1, 11)))
    assert writer.stats().crashes_total == 3


class CorePanicError(BaseException):
    """As the core's panics come up: no `Exception`."""


@pytest.mark.parametrize("where", ["store", "core"])
def test_a_panic_does_not_end_the_writer_in_silence(flaky: Flaky, where: str) -> None:
    """Case W56: a thread that ended would deliver nothing more, and nobody would know."""
    core = Core([record(n) for n in range(1, 11)])
    if where == "store":
        flaky.failures = [CorePanicError("a panic"), SystemExit(1)]
    else:
        take, panics = core.take_records, [CorePanicError("a panic"), SystemExit(1)]

        def panicking(rows_max: int, bytes_max: int, timeout_ms: int) -> Sequence[Record]:
            if panics:
                raise panics.pop()
            return take(rows_max, bytes_max, timeout_ms)

        core.take_records = panicking  # type: ignore[method-assign]
    writer = deliver(core, flaky, set(range(1, 11)))
    assert writer.stats().crashes_total == 2


def test_a_drain_ends_the_back_off_that_is_under_way(flaky: Flaky) -> None:
    """Case W58: the store may be back by now."""
    flaky.failures = [StoreUnavailableError("down")]
    core = Core([record(n) for n in range(1, 11)])
    hours = replace(LIMITS, retry_ms_min=3_600_000, retry_ms_max=3_600_000)
    writer = Writer(core, flaky, hours, random.Random(7))
    writer.start()
    until(lambda: writer.stats().failures_total == 1)
    assert writer.drain(20, lambda: len(core.confirmed) == 10)
    assert writer.stop(20)


def test_a_lost_reply_of_the_store_is_written_again_to_the_same_rows(flaky: Flaky) -> None:
    flaky.fail_after_commit = [StoreUnavailableError("the reply was lost")]
    core = Core([record(n) for n in range(1, 11)])
    deliver(core, flaky, set(range(1, 11)))
    assert set(core.confirmed.values()) == {"stored"}
    assert len(flaky.list(Query("robot-1")).rows) == 10


def test_a_refused_row_is_tried_again_while_the_others_go_on(flaky: Flaky) -> None:
    flaky.refuse = {5}
    core = Core([record(n) for n in range(1, 11)])
    writer = Writer(core, flaky, LIMITS, random.Random(7))
    writer.start()
    core.wait_until(lambda: len(core.confirmed) == 9)
    assert 5 not in core.confirmed
    flaky.refuse = set()
    core.wait_until(lambda: len(core.confirmed) == 10)
    assert writer.stop(20)
    assert core.confirmed[5] == "stored"
    assert writer.stats().refused_total >= 1
    assert writer.stats().aside_rows == 0


def test_a_later_record_supersedes_a_refused_one_of_its_key(flaky: Flaky) -> None:
    flaky.refuse = {1}
    core = Core([record(1, 7)])
    writer = Writer(core, flaky, LIMITS, random.Random(7))
    writer.start()
    until(lambda: writer.stats().aside_rows == 1)
    core.add(record(2, 7))
    core.wait_until(lambda: len(core.confirmed) == 2)
    assert writer.stop(20)
    assert core.confirmed == {1: "superseded", 2: "stored"}


def test_refused_rows_are_bounded_by_taking_no_more(flaky: Flaky) -> None:
    flaky.refuse = set(range(1, 1001))
    core = Core([record(n) for n in range(1, 1001)])
    writer = Writer(core, flaky, LIMITS, random.Random(7))
    writer.start()
    until(lambda: flaky.writes >= 40)
    assert writer.stop(20)
    assert writer.stats().aside_rows <= 5 * LIMITS.rows_max


def test_writes_of_one_row_try_refused_rows_again_and_deliver_the_others(flaky: Flaky) -> None:
    flaky.refuse = set(range(1, 5))
    core = Core([record(n) for n in range(1, 9)])
    writer = Writer(core, flaky, replace(LIMITS, rows_max=1), random.Random(7))
    writer.start()
    until(lambda: writer.stats().refused_total >= 8)
    flaky.refuse = set()
    core.wait_until(lambda: len(core.confirmed) == 8)
    assert writer.stop(20)
    assert set(core.confirmed.values()) == {"stored"}


def test_a_drain_ends_when_all_is_delivered_and_else_with_its_budget(flaky: Flaky) -> None:
    core = Core([record(n) for n in range(1, 101)])
    writer = Writer(core, flaky, LIMITS, random.Random(7))
    writer.start()
    assert writer.drain(20, lambda: len(core.confirmed) == 100)
    assert not writer.drain(0.05, lambda: False)
    assert writer.stop(20)


def test_the_writer_ends_with_the_engine(flaky: Flaky) -> None:
    core = Core([])
    writer = Writer(core, flaky, LIMITS, random.Random(7))
    writer.start()
    core.stopped = True
    until(lambda: not writer.is_alive())


@given(st.lists(st.integers(1, 6), max_size=40))
def test_a_plan_settles_every_record_once_and_keeps_the_latest(sequences: list[int]) -> None:
    rows = [row(number, sequence) for number, sequence in enumerate(sequences, start=1)]
    planned = plan(reversed(rows))
    done = settle(planned, [Outcome(Status.STORED)] * len(planned.rows))
    assert sorted([*done.stored, *done.superseded]) == list(range(1, len(rows) + 1))
    latest = {item.sequence: item.journal_number for item in rows}
    assert sorted(done.stored) == sorted(latest.values())


def test_a_refused_row_settles_nothing_of_its_key() -> None:
    planned = plan([row(1, 7), row(2, 7), row(3, 8)])
    done = settle(planned, [Outcome(Status.REFUSED, "no"), Outcome(Status.STORED)])
    assert (done.stored, done.superseded) == ([3], [])
    assert done.refused == [([row(1, 7), row(2, 7)], "no")]


def test_a_row_that_the_store_has_newer_is_superseded_with_what_it_replaces() -> None:
    done = settle(plan([row(1, 7), row(2, 7)]), [Outcome(Status.SUPERSEDED)])
    assert (done.stored, sorted(done.superseded)) == ([], [1, 2])


def test_the_back_off_doubles_to_its_bound_and_draws_from_zero() -> None:
    backoff = Backoff(0.05, 5.0, random.Random(1))
    bounds, draws = [], []
    for _ in range(2000):
        bounds.append(backoff.bound_s())
        draws.append(backoff.next_s())
    assert bounds[:4] == [0.05, 0.1, 0.2, 0.4]
    assert bounds[-1] == 5.0
    assert all(0 <= draw <= bound for draw, bound in zip(draws, bounds, strict=True))
    assert min(draws[100:]) < 0.5
    assert max(draws[100:]) > 4.5
    backoff.reset()
    assert backoff.bound_s() == 0.05


def test_a_refused_row_waits_longer_each_time() -> None:
    aside = Aside(0.05, 5.0, 100, random.Random(1))
    for _ in range(30):
        aside.add([row(1, 7)], now_s=0.0)
    assert len(aside) == 1
    assert aside.take_due(5.1, (), 10) == [row(1, 7)]
    assert len(aside) == 1, "it stays until it is settled"
    aside.forget(row(1, 7).key)
    assert aside.next_due_s() is None
