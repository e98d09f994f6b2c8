"""The writer delivers each record once a key, confirms only what is durable, and never gives up.

The store is a real SQLite file; the core's border is a small double (the tests through the whole
server are elsewhere).
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from labeler.loop import LoopThread
from labeler.stores.base import (
    Outcome,
    Problem,
    Query,
    Status,
    StoredRow,
    StoreLimits,
    StoreRefusedError,
    StoreUnavailableError,
)
from labeler.stores.blocking import Threaded
from labeler.stores.sqlite import SqliteStore
from labeler.writer import Writer
from tests.support.journaled import Journaled, stored_row, writer_limits


class Letters:
    """A graveyard in memory that can be full."""

    def __init__(self) -> None:
        self.letters: dict[int, str] = {}
        self.full = False
        self.before: set[tuple[str, int]] = set()

    def known(self) -> set[tuple[str, int]]:
        return self.before

    async def bury(self, row: StoredRow, reason: str) -> None:
        if self.full:
            raise StoreUnavailableError("no room for dead letters", kind="disk")
        self.letters[row.journal_number] = reason


class Flaky:
    """A store that fails as told before it lets the real one work."""

    limits = StoreLimits(rows_max=50)

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.failures: list[BaseException] = []
        self.fail_after_commit: list[BaseException] = []
        self.refuse: set[int] = set()
        self.poison: set[int] = set()
        self.give_back: set[str] = set()
        self.too_busy: set[str] = set()
        self.hang: threading.Event | None = None
        self.sizes: list[int] = []
        self.written: Counter[int] = Counter()

    def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        self.sizes.append(len(rows))
        assert len({item.key for item in rows}) == len(rows), "keys of a write are distinct"
        if self.failures:
            raise self.failures.pop(0)
        if self.hang:
            self.hang.wait(20)
        if {item.robot_id for item in rows} <= self.too_busy:
            raise StoreUnavailableError("a part is too busy", kind="throttled_key")
        if any(item.journal_number in self.poison for item in rows):
            raise StoreRefusedError("one of them is not right")
        good = [
            item
            for item in rows
            if item.journal_number not in self.refuse
            if item.robot_id not in self.give_back | self.too_busy
        ]
        done = dict(zip([item.key for item in good], self.store.write(good), strict=True))
        self.written.update(item.journal_number for item in good)
        if self.fail_after_commit:
            raise self.fail_after_commit.pop()
        return [done.get(item.key) or self._told(item) for item in rows]

    def _told(self, row: StoredRow) -> Outcome:
        if row.robot_id in self.give_back | self.too_busy:
            return Outcome(Status.UNPROCESSED)
        return Outcome(Status.REFUSED, "not today")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition that nobody announces, up to a deadline."""
    for _ in range(4000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the condition did not come true in time")


@pytest.fixture
def flaky(tmp_path: Path) -> Iterator[Flaky]:
    """A real SQLite store that can be made to fail."""
    store = SqliteStore(tmp_path / "labels.sqlite3")
    store.ensure()
    yield Flaky(store)
    store.close()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    assert thread.stop(20)


@pytest.fixture
def letters() -> Letters:
    return Letters()


class Delivery:
    """Writers of one store, stopped at the end of the test."""

    def __init__(self, store: Flaky, letters: Letters, loop: LoopThread) -> None:
        self._store, self._letters, self._loop = store, letters, loop
        self.writers: list[Writer] = []

    def __call__(self, core: Journaled, **limits: int) -> Writer:
        """A writer that runs."""
        mine = writer_limits(**limits)
        store = Threaded(self._store)
        writer = Writer(core, store, self._letters, self._loop, mine, random.Random(7))
        writer.start()
        self.writers.append(writer)
        return writer

    def of_all(self, core: Journaled, numbers: set[int], **limits: int) -> Writer:
        """One that has run until exactly these records were confirmed."""
        writer = self(core, **limits)
        core.wait_until(lambda: core.confirmed.keys() >= numbers)
        assert writer.stop(20)
        assert core.confirmed.keys() == numbers
        return writer


@pytest.fixture
def deliver(flaky: Flaky, letters: Letters, loop: LoopThread) -> Iterator[Delivery]:
    delivery = Delivery(flaky, letters, loop)
    yield delivery
    assert all(writer.stop(20) for writer in delivery.writers)


def rows(count: int) -> list[StoredRow]:
    return [stored_row(n) for n in range(1, count + 1)]


def test_every_record_is_stored_and_confirmed_in_writes_of_at_most_rows_max(
    flaky: Flaky, deliver: Delivery
) -> None:
    core = Journaled(rows(175))
    writer = deliver.of_all(core, set(range(1, 176)))
    assert len(flaky.list(Query("robot-1", page_size=1000)).rows) == 175
    assert max(flaky.sizes) <= 50
    assert writer.stats().rows_total == 175
    assert writer.stats().batches_total == len(flaky.sizes)


def test_of_one_key_the_later_record_is_stored_and_the_others_are_superseded(
    flaky: Flaky, deliver: Delivery
) -> None:
    core = Journaled([stored_row(n, sequence) for n, sequence in enumerate((7, 7, 8, 7), start=1)])
    deliver.of_all(core, {1, 2, 3, 4})
    assert core.confirmed == {1: "superseded", 2: "superseded", 3: "stored", 4: "stored"}
    found = flaky.get("robot-1", 7)
    assert found.journal_number == 4
    assert (found.instance_id, found.journal_id) == ("instance", "journal")


@pytest.mark.parametrize("end", ["stored", "dead"])
def test_a_record_ends_after_those_that_it_replaces(
    flaky: Flaky, deliver: Delivery, end: str
) -> None:
    """Cut off in between, the other way round, the next start would write the earlier one over it.

    Whether the end of those can be told at once or is told again.
    """
    flaky.refuse = {4} if end == "dead" else set()
    core = Journaled([stored_row(n, 7) for n in range(1, 5)])
    real, failures = core.confirm, [MemoryError()]

    def confirm(numbers: Sequence[int], outcome: str) -> None:
        if outcome == "superseded" and failures:
            raise failures.pop()
        real(numbers, outcome)

    core.confirm = confirm  # type: ignore[method-assign]
    deliver.of_all(core, {1, 2, 3, 4})
    assert list(core.confirmed.items())[-1] == (4, end)


def test_an_outage_loses_nothing_and_is_counted_by_its_kind(
    flaky: Flaky, deliver: Delivery
) -> None:
    kinds: list[Problem] = ["credentials", "clock", "table", "outage", "disk"]
    flaky.failures = [StoreUnavailableError("down", kind=kind) for kind in kinds]
    core = Journaled(rows(60))
    writer = deliver.of_all(core, set(range(1, 61)))
    stats = writer.stats()
    assert (stats.failures_total, stats.crashes_total) == (5, 0)
    assert stats.retries_total >= 5
    assert {kind: stats.problems[kind] for kind in kinds} == dict.fromkeys(kinds, 1)
    assert (stats.problem, stats.failing_us, stats.dead_total) == ("", 0, 0)


def test_a_fault_in_the_store_does_not_end_the_writer(flaky: Flaky, deliver: Delivery) -> None:
    # `threading` lets a thread end by `SystemExit` without a word, and an event loop ends by it.
    flaky.failures = [ZeroDivisionError("a fault"), MemoryError(), SystemExit(3)]
    writer = deliver.of_all(Journaled(rows(10)), set(range(1, 11)))
    assert writer.stats().crashes_total == 3


class CorePanicError(BaseException):
    """As the core's panics come up: no `Exception`."""


@pytest.mark.parametrize("where", ["write", "take_records", "confirm"])
def test_a_panic_does_not_end_the_writer_in_silence(
    flaky: Flaky, deliver: Delivery, where: str
) -> None:
    """Case W56: a thread that ended would deliver nothing more, and nobody would know."""
    core = Journaled(rows(10))
    panics: list[BaseException] = [CorePanicError("a panic"), SystemExit(1)]
    if where == "write":
        flaky.failures = panics
    else:
        real = getattr(core, where)

        def panicking(*arguments: Any) -> Any:
            if panics:
                raise panics.pop()
            return real(*arguments)

        setattr(core, where, panicking)
    writer = deliver(core)
    until(lambda: writer.stats().crashes_total >= 1)
    core.add(stored_row(11))
    until(lambda: not panics)
    core.add(stored_row(12))
    core.wait_until(lambda: len(core.confirmed) == 12)
    assert writer.stats().crashes_total == 2


def test_a_drain_ends_the_back_off_that_is_under_way(flaky: Flaky, deliver: Delivery) -> None:
    """Case W58: the store may be back by now."""
    flaky.failures = [StoreUnavailableError("down") for _ in range(3)]
    core = Journaled(rows(10))
    writer = deliver(core, retry_ms_min=3_600_000, retry_ms_max=3_600_000)
    until(lambda: writer.stats().failures_total == 1)
    assert writer.drain(20, lambda: len(core.confirmed) == 10)


def test_a_lost_reply_of_the_store_is_written_again_to_the_same_rows(
    flaky: Flaky, deliver: Delivery
) -> None:
    flaky.fail_after_commit = [StoreUnavailableError("the reply was lost")]
    core = Journaled(rows(10))
    deliver.of_all(core, set(range(1, 11)))
    assert set(core.confirmed.values()) == {"stored"}
    assert len(flaky.list(Query("robot-1")).rows) == 10


def test_a_refused_row_is_a_dead_letter_and_the_others_go_on(
    flaky: Flaky, deliver: Delivery, letters: Letters
) -> None:
    flaky.refuse = {5}
    core = Journaled(rows(10))
    writer = deliver.of_all(core, set(range(1, 11)))
    assert letters.letters == {5: "not today"}
    assert [n for n in core.confirmed if core.confirmed[n] != "stored"] == [5]
    assert core.confirmed[5] == "dead"
    assert writer.stats().dead_total == 1


def test_what_became_a_dead_letter_before_a_crash_is_not_delivered_too(
    flaky: Flaky, letters: Letters, deliver: Delivery
) -> None:
    all_rows = rows(100)
    mine = all_rows[0].journal_id
    letters.before = {(mine, 1), (mine, 60), (mine, 700), ("another", 7)}
    core = Journaled(all_rows)
    deliver.of_all(core, set(range(1, 101)))
    assert {n for n, outcome in core.confirmed.items() if outcome == "dead"} == {1, 60}
    assert flaky.written.keys() == set(range(1, 101)) - {1, 60}


@pytest.mark.parametrize(
    "culprits", [{1}, {13}, {25}, {1, 25}, {12, 13}, set(range(1, 26))], ids=str
)
def test_a_refused_batch_is_halved_until_its_culprits_stand_alone(
    flaky: Flaky, deliver: Delivery, letters: Letters, culprits: set[int]
) -> None:
    """Case W06, at each place of a batch: at most about ten more calls for each bad record."""
    flaky.poison = culprits
    core = Journaled(rows(100))
    writer = deliver.of_all(core, set(range(1, 101)), rows_max=25)
    assert letters.letters.keys() == culprits
    assert {n for n, outcome in core.confirmed.items() if outcome == "dead"} == culprits
    assert len(flaky.list(Query("robot-1", page_size=1000)).rows) == 100 - len(culprits)
    assert writer.stats().writes_total <= 4 + 10 * len(culprits)


def test_a_refused_row_without_room_for_dead_letters_waits_and_loses_nothing(
    flaky: Flaky, deliver: Delivery, letters: Letters, caplog: pytest.LogCaptureFixture
) -> None:
    """The problem is told once and shown while it lasts, though all others are stored."""
    flaky.refuse, letters.full = {5}, True
    core = Journaled(rows(10))
    writer = deliver(core)
    core.wait_until(lambda: len(core.confirmed) == 9)
    until(lambda: writer.stats().problems["disk"] >= 2)
    core.add(stored_row(11, 11, "robot-2"))
    core.wait_until(lambda: 11 in core.confirmed)
    until(lambda: writer.stats().batches_total >= 4)
    assert writer.stats().problem_kind == "disk"
    assert len([line for line in caplog.records if "wait in the journal" in line.message]) == 1
    assert 5 not in core.confirmed
    letters.full = False
    core.wait_until(lambda: core.confirmed.get(5) == "dead")
    assert letters.letters == {5: "not today"}
    until(lambda: not writer.stats().problem_kind)


def test_a_row_that_the_store_gives_back_waits_with_its_robot_and_nobody_else_does(
    flaky: Flaky, deliver: Delivery
) -> None:
    """Case W10: a hot key; what was written is never written again."""
    flaky.give_back = {"hot"}
    cool = rows(100)
    hot = [stored_row(n, n, "hot") for n in range(101, 121)]
    core = Journaled([*cool, *hot])
    writer = deliver(core)
    core.wait_until(lambda: len(core.confirmed) == 100)
    until(lambda: writer.stats().unprocessed_total >= 30)
    stats = writer.stats()
    assert (stats.waiting_robots, stats.waiting_rows + stats.writes_under_way >= 20) == (1, True)
    core.add(stored_row(121), stored_row(122, 122, "hot"))
    core.wait_until(lambda: 121 in core.confirmed)
    flaky.give_back = set()
    core.wait_until(lambda: len(core.confirmed) == 122)
    until(lambda: not writer.stats().waiting_robots)
    assert max(flaky.written.values()) == 1


def test_a_write_refused_for_one_busy_robot_holds_up_nobody_else(
    flaky: Flaky, deliver: Delivery
) -> None:
    """Case W10: a call that holds nothing but a hot key's rows is refused as a whole."""
    flaky.too_busy = {"hot"}
    core = Journaled([stored_row(1, 1, "hot")])
    hours = 3_600_000
    writer = deliver(core, retry_ms_min=hours, retry_ms_max=hours)
    until(lambda: writer.stats().problems["throttled_key"] == 1)
    core.add(*rows(101)[1:])
    core.wait_until(lambda: len(core.confirmed) == 100)
    stats = writer.stats()
    assert (stats.waiting_robots, stats.waiting_rows, stats.failures_total) == (1, 1, 1)
    assert not stats.problem_kind, "labels are stored"
    assert not flaky.written[1]


def test_a_few_busy_robots_hold_up_nobody_else_however_small_the_writes(
    flaky: Flaky, deliver: Delivery
) -> None:
    """Case W10: a write of nothing but busy robots' rows comes back whole, from several robots."""
    busy = [stored_row(n, n, f"busy-{n}") for n in range(1, 8)]
    flaky.give_back = {item.robot_id for item in busy}
    core = Journaled(busy)
    hours = 3_600_000
    writer = deliver(core, retry_ms_min=hours, retry_ms_max=hours)
    until(lambda: writer.stats().waiting_robots == 7)
    core.add(*rows(107)[7:])
    core.wait_until(lambda: len(core.confirmed) == 100)
    stats = writer.stats()
    assert (stats.waiting_rows, stats.failures_total, stats.problem_kind) == (7, 0, "")


def test_a_table_that_gives_back_any_robot_s_rows_is_left_alone_for_a_while(
    flaky: Flaky, deliver: Delivery, loop: LoopThread
) -> None:
    """Case W10: not a part of the store has too much to do but all of it, though it says not so."""
    all_robots = [stored_row(n, n, f"robot-{n}") for n in range(1, 21)]
    flaky.give_back = {item.robot_id for item in all_robots}
    core = Journaled(all_robots)
    hours = 3_600_000
    writer = deliver(core, retry_ms_min=hours, retry_ms_max=hours)
    until(lambda: writer.stats().problem_kind == "throttled_table")
    core.add(stored_row(21, 21, "robot-21"))
    until(lambda: writer.stats().held_rows == 21)
    loop.call(asyncio.sleep(0), 20)
    assert flaky.sizes == [20], "nobody's row is sent meanwhile"
    flaky.give_back = set()
    assert writer.drain(20, lambda: len(core.confirmed) == 21)
    until(lambda: not writer.stats().problem_kind)


def test_a_later_record_supersedes_one_that_waits(flaky: Flaky, deliver: Delivery) -> None:
    """Case W34: v1 held back while v2 of the key arrives; two writes of the key at most."""
    flaky.give_back = {"robot-1"}
    core = Journaled([stored_row(1, 7)])
    writer = deliver(core, retry_ms_min=3_600_000, retry_ms_max=3_600_000)
    until(lambda: writer.stats().waiting_rows == 1)
    core.add(stored_row(2, 7))
    until(lambda: writer.stats().held_rows == 2)
    flaky.give_back = set()
    assert writer.drain(20, lambda: len(core.confirmed) == 2)
    assert core.confirmed == {1: "superseded", 2: "stored"}
    assert flaky.written == {2: 1}


def test_held_rows_are_bounded_by_taking_no_more(flaky: Flaky, deliver: Delivery) -> None:
    flaky.give_back = {"robot-1"}
    core = Journaled(rows(1000))
    writer = deliver(core, held_rows_max=100)
    until(lambda: writer.stats().unprocessed_total >= 60)
    assert writer.stats().held_rows <= 100
    flaky.give_back = set()
    core.wait_until(lambda: len(core.confirmed) == 1000)


def test_a_write_that_hangs_is_given_up_and_tried_again(flaky: Flaky, deliver: Delivery) -> None:
    """Case W56: an await that never returns holds no other writer for ever."""
    release = threading.Event()
    flaky.hang = release
    core = Journaled(rows(10))
    writer = deliver(core, write_timeout_ms=20)
    until(lambda: writer.stats().failures_total >= 2)
    assert "did not end within 20 ms" in writer.stats().problem
    release.set()
    core.wait_until(lambda: len(core.confirmed) == 10)


def test_a_drain_ends_when_all_is_delivered_and_else_with_its_budget(deliver: Delivery) -> None:
    core = Journaled(rows(100))
    writer = deliver(core)
    assert writer.drain(20, lambda: len(core.confirmed) == 100)
    assert not writer.drain(0.05, lambda: False)


def test_the_writer_ends_with_the_engine(deliver: Delivery) -> None:
    core = Journaled([])
    writer = deliver(core)
    core.stopped = True
    until(lambda: not writer.is_alive())
