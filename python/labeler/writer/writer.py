"""Moves journaled labels to the store: takes records, writes them, confirms what is durable.

A thread takes records from the core; writes are tasks of the control side's event loop, as many as
the `Gate` lets through, of the rows that the `Window` hands out. It never ends by itself: whatever
is raised is logged, counted and tried again after a back-off. It never drops a record: what it has
taken it holds until the store has it, and what it holds when the process dies is still in the
journal.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from labeler.errors import ForkedError, StoppedError
from labeler.loop import LoopThread, step_back
from labeler.plan import WriterLimits
from labeler.stores.base import (
    STORED,
    Outcome,
    Status,
    Store,
    StoredRow,
    StoreRefusedError,
    StoreUnavailableError,
)
from labeler.writer.backoff import Backoff
from labeler.writer.gate import Gate, Spread
from labeler.writer.linger import Linger
from labeler.writer.stats import WriterStats
from labeler.writer.trouble import Trouble
from labeler.writer.window import Held, Window

__all__ = ["Graveyard", "Records", "Writer"]

_log = logging.getLogger(__name__)

_TAKE_BYTES_MAX = 4 << 20
_TAKE_ROWS_MAX = 2500
_IDLE_MS = 200
"""The longest wait for records: how late a stop can be noticed."""
_HURRY_WAIT_S = 0.2
"""The longest back-off of a drain: a store that comes back is used while there is time."""

_NOT_NOW = Outcome(Status.UNPROCESSED)
_GIVEN_BACK = "the store gives back rows of half of the robots and more"

Ended = Literal["stored", "superseded", "dead"]
Results = list[tuple[Held, Outcome]]


class Records(Protocol):
    """The journal's side: where records come from and where confirmations go."""

    def take_records(
        self, rows_max: int, bytes_max: int, timeout_ms: int
    ) -> Sequence[tuple[Any, ...]]:
        """The next records, oldest first, each given once: the fields of `StoredRow`."""

    def confirm(self, numbers: Sequence[int], outcome: Ended) -> None:
        """These records need not be kept."""


class Graveyard(Protocol):
    """Where rows that the store refuses for good are kept. `bury` is durable when it returns."""

    def known(self) -> set[tuple[str, int]]:
        """Id and number of the journal records that are kept already. Of any thread."""

    async def bury(self, row: StoredRow, reason: str) -> None:
        """Errors: `StoreUnavailableError`: the row is not kept, and must wait."""


class Writer:
    """Between one journal and a store. `start` once, then `drain` and `stop`."""

    def __init__(
        self,
        records: Records,
        store: Store,
        graveyard: Graveyard,
        loop: LoopThread,
        limits: WriterLimits,
        rng: random.Random,
    ) -> None:
        """Only stores what it is given; `rng` draws the back-offs' jitter."""
        self._records, self._store, self._graveyard = records, store, graveyard
        self._loop, self._limits = loop, limits
        least_s, most_s = limits.retry_ms_min / 1000, limits.retry_ms_max / 1000

        def backoff() -> Backoff:
            return Backoff(least_s, most_s, rng)

        self._rows_max = min(limits.rows_max, store.limits.rows_max)
        self._window = Window(limits.held_rows_max, backoff)
        self._gate = Gate(min(limits.concurrency_max, store.limits.concurrency_max), backoff())
        self._spread = Spread()
        self._linger = Linger(self._rows_max, limits.linger_ms / 1000)
        self._feeding = backoff()
        self._trouble = Trouble()
        self._stats = WriterStats()
        self._known: set[tuple[str, int]] | None = None  # dead letters of earlier lives
        # Records given by the thread, and come to the loop: each is counted where that happens.
        self._fed = self._received = 0
        self._hurry, self._stop = threading.Event(), threading.Event()
        self._room = threading.Event()
        self._hurried = False
        # In this order: a crash in between must not leave an earlier record of a key alone, which
        # the next start would write over the later one.
        self._unconfirmed: dict[Ended, list[int]] = {"superseded": [], "stored": [], "dead": []}
        self._unburied: set[int] = set()  # refused, while no dead letter can be kept
        self._changed: asyncio.Event | None = None
        self._lanes: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._feed, name="labeler-writer", daemon=True)

    def start(self) -> None:
        """Begins to take records."""
        self._dispatching = self._loop.spawn(self._dispatch())
        self._thread.start()

    def stats(self) -> WriterStats:
        """A reading for telemetry; costs nothing."""
        now = time.monotonic()
        oldest_s, failing_s = self._window.oldest_since_s(), self._trouble.since_s
        return self._stats.read(
            held_rows=self._window.held_rows,
            waiting_rows=self._window.waiting_rows,
            waiting_robots=self._window.waiting_robots,
            writes_under_way=self._gate.under_way,
            concurrency_limit=self._gate.limit,
            lag_us=_age_us(oldest_s, now),
            failing_us=_age_us(failing_s, now),
            loop_lag_us=self._loop.lag.counts(),
            loop_lag_us_sum=self._loop.lag.sum_us,
            problems=self._trouble.counts(),
            problem=self._trouble.text,
            problem_kind=self._trouble.kind,
        )

    def drain(self, budget_s: float, is_empty: Callable[[], bool]) -> bool:
        """Writes without lingering until `is_empty` says so; False if the budget ended first.

        A back-off under way ends at once: the store may be back. An optimisation: what is left is
        in the journal, and delivered after the next start.
        """
        self._hurry.set()
        self._wake()
        end = time.monotonic() + budget_s
        while time.monotonic() < end:
            if is_empty() and not self._window.held_rows and self._fed == self._received:
                return True
            if self._stop.wait(min(0.02, budget_s)):
                break
        return False

    def stop(self, timeout_s: float) -> bool:
        """Ends it after the writes under way; False if those did not end in time."""
        end = time.monotonic() + timeout_s
        self._hurry.set()
        self._stop.set()
        self._wake()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        concurrent.futures.wait([self._dispatching], max(0.0, end - time.monotonic()))
        ended = self._dispatching.done() and not self._thread.is_alive()
        self._dispatching.cancel()
        return ended

    def is_alive(self) -> bool:
        """Whether records are taken: until `stop`, or until the engine stops."""
        return self._thread.is_alive()

    # ---- the thread

    def _feed(self) -> None:
        step_back(self._limits.nice)
        while not self._stop.is_set():
            try:
                self._feed_once()
                self._feeding.reset()
            except (StoppedError, ForkedError):
                self._stop.set()
                self._wake()
                return
            except BaseException as error:  # of the core too, whose panics are no `Exception`
                self._stats.add(failures_total=1)
                self._crashed("records could not be taken", error)
                self._stop.wait(self._feeding.next_s())

    def _feed_once(self) -> None:
        """Takes what there is and, if that is little, what comes within a while."""
        self._room.clear()
        room = min(self._window.room - (self._fed - self._received), _TAKE_ROWS_MAX)
        if room <= 0:
            self._room.wait(_IDLE_MS / 1000)
            return
        taken = list(self._records.take_records(room, _TAKE_BYTES_MAX, _IDLE_MS))
        if not taken:
            return
        since_s = time.monotonic()
        try:
            if len(taken) < min(room, self._rows_max) and not self._hurry.is_set():
                self._hurry.wait(self._linger.wait_s)
                taken += self._records.take_records(room - len(taken), _TAKE_BYTES_MAX, 0)
                self._linger.gathered(len(taken))
        finally:  # whatever was raised: a record is given once
            rows, buried = self._apart([StoredRow._make(row) for row in taken])
            self._fed += len(taken)
            self._loop.soon(self._receive, rows, buried, since_s)

    def _apart(self, rows: list[StoredRow]) -> tuple[list[StoredRow], list[int]]:
        """Those to deliver, and the numbers of those that became dead letters before a crash.

        Their confirmation was lost with the process. Delivered, they would be in both places.
        """
        if self._known is None:  # not sooner: a start with nothing to deliver reads no letters
            self._known = self._graveyard.known()
        if not self._known:
            return rows, []
        known, last = self._known, rows[-1]
        buried = {n for row in rows if (row.journal_id, n := row.journal_number) in known}
        # Records come in order: what is behind them is met no more.
        self._known = {
            (journal_id, number)
            for journal_id, number in known
            if journal_id == last.journal_id and number > last.journal_number
        }
        return [row for row in rows if row.journal_number not in buried], sorted(buried)

    # ---- the loop

    def _receive(self, rows: list[StoredRow], buried: list[int], since_s: float) -> None:
        """Taken from the journal, the first of them at `since_s`: none lingers longer than it."""
        self._confirm(dead=buried)
        self._window.add(rows, since_s)
        self._received += len(rows) + len(buried)
        self._wake_here()

    def _wake(self) -> None:
        self._room.set()
        self._loop.soon(self._wake_here)

    def _wake_here(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _dispatch(self) -> None:
        """Starts a write whenever one may begin and rows are due; ends with `stop`."""
        self._changed = asyncio.Event()
        while not self._stop.is_set():
            try:
                wait_s = self._start_writes()
                self._changed.clear()
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
            except Exception as error:
                self._crashed("the writer failed", error)
                await asyncio.sleep(_HURRY_WAIT_S)
        if self._lanes:
            await asyncio.wait(self._lanes)

    def _start_writes(self) -> float | None:
        """Begins what can begin; how long until more can, None until something changes."""
        self._confirm_all()
        linger_s = self._limits.linger_ms / 1000
        if self._hurry.is_set():
            linger_s = 0.0
            self._hurry_up()
        while True:
            now = time.monotonic()
            if not self._gate.is_open(now):
                return self._gate.opens_in_s(now)
            if not self._window.is_due(self._rows_max, linger_s, now):
                due_s = self._window.due_s(linger_s)
                return None if due_s is None else max(0.0, due_s - now)
            batch = self._window.take(self._rows_max, now)
            if not batch:
                continue
            if self._gate.tries:
                self._stats.add(retries_total=1)
            # Here, not in the task, which begins after the next look at the gate.
            epoch = self._gate.begin()
            task = asyncio.get_running_loop().create_task(self._lane(batch, epoch))
            self._lanes.add(task)
            task.add_done_callback(self._lanes.discard)

    def _hurry_up(self) -> None:
        """Ends the waits under way, once; those that begin later are short."""
        until_s = time.monotonic() + (_HURRY_WAIT_S if self._hurried else 0.0)
        self._hurried = True
        self._gate.hurry(until_s)
        self._window.hurry(until_s)

    async def _lane(self, batch: list[Held], epoch: int) -> None:
        """One write to its confirmations; the gate counts it already, by `epoch`."""
        began_s, results = time.monotonic(), Results()
        error = await self._attempt(batch, results)
        await self._settle(batch, results)
        if error:
            self._failed(epoch, error)
        else:
            self._succeeded(epoch, results, began_s)
        self._room.set()
        self._wake_here()

    async def _attempt(self, batch: list[Held], results: Results) -> StoreUnavailableError | None:
        """Why the store took nothing more; None when all of the batch was answered."""
        try:
            await self._write(batch, results)
        except StoreUnavailableError as error:
            return error
        except TimeoutError:
            limit = f"{self._limits.write_timeout_ms} ms"
            return StoreUnavailableError(f"a write did not end within {limit}")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A fault of ours or of a store, `SystemExit` too: it must not end deliveries.
            self._crashed("a write failed", error)
            return StoreUnavailableError(f"a write failed: {error!r}")
        return None

    async def _write(self, batch: Sequence[Held], results: Results) -> None:
        """Writes, in halves where the call is refused; `results` has what came of it so far."""
        rows = [held.row for held in batch]
        self._stats.add(writes_total=1)
        try:
            async with asyncio.timeout(self._limits.write_timeout_ms / 1000):
                outcomes = await self._store.write(rows)
        except StoreUnavailableError as error:
            if error.kind != "throttled_key" or error.retry_after_s:
                raise
            # The parts of the store that these rows are in: their robots wait, and nobody else.
            self._stats.add(failures_total=1)
            self._trouble.count(error)
            results.extend((held, _NOT_NOW) for held in batch)
            return
        except StoreRefusedError as error:
            if len(batch) == 1:
                results.append((batch[0], Outcome(Status.REFUSED, error.message)))
                return
            half = len(batch) // 2
            await self._write(batch[:half], results)
            await self._write(batch[half:], results)
            return
        assert len(outcomes) == len(rows), "a store answers each row of a write"
        results.extend(zip(batch, outcomes, strict=True))

    async def _settle(self, batch: Sequence[Held], results: Results) -> None:
        """Confirms what is durable, buries what is refused; the rest goes back."""
        other = [pair for pair in results if pair[1] is not STORED]
        refused = [pair for pair in other if pair[1].status is Status.REFUSED]
        good = results
        if refused:
            good = [pair for pair in results if pair[1].status is not Status.REFUSED]
        now = time.monotonic()
        if len(results) < len(batch):
            told = {id(held) for held, _ in results}
            self._window.give_back([held for held in batch if id(held) not in told], now)
        settled = self._window.settle(good, now)
        self._stats.add(
            rows_total=len(settled.stored),
            superseded_total=len(settled.superseded),
            unprocessed_total=settled.unprocessed,
        )
        self._unburied.difference_update(settled.stored, settled.superseded)
        self._confirm(superseded=settled.superseded, stored=settled.stored)
        for held, outcome in refused:
            await self._bury(held, outcome.reason)

    async def _bury(self, held: Held, reason: str) -> None:
        """A dead letter is durable before its record is confirmed. Where it can't be, it waits."""
        try:
            await self._store.confirm_refusal()
            await self._graveyard.bury(held.row, reason)
        except Exception as error:
            if not isinstance(error, StoreUnavailableError):
                error = StoreUnavailableError(f"no dead letter: {error!r}", kind="disk")
            self._trouble.met(error)
            self._unburied.add(held.row.journal_number)
            self._window.postpone(held, time.monotonic())
            return
        obsolete = held.obsolete
        self._unburied.difference_update((held.row.journal_number, *obsolete))
        self._window.forget(held, time.monotonic())
        self._stats.add(dead_total=1, superseded_total=len(obsolete))
        row = held.row
        _log.error(
            "the store refuses a label for good; it is a dead letter",
            extra={
                "fields": {
                    "robot_id": row.robot_id,
                    "sequence": row.sequence,
                    "number": row.journal_number,
                    "reason": reason,
                }
            },
        )
        self._confirm(superseded=obsolete, dead=[row.journal_number])

    def _confirm(
        self,
        superseded: Sequence[int] = (),
        stored: Sequence[int] = (),
        dead: Sequence[int] = (),
    ) -> None:
        self._unconfirmed["superseded"] += superseded
        self._unconfirmed["stored"] += stored
        self._unconfirmed["dead"] += dead
        self._confirm_all()

    def _confirm_all(self) -> None:
        """What could not be confirmed is kept, and told again soon."""
        for outcome, kept in self._unconfirmed.items():
            if not kept:
                continue
            try:
                self._records.confirm(kept[:], outcome)
                kept.clear()
            except (StoppedError, ForkedError):
                self._stop.set()
            except BaseException as error:  # a panic of the core is no `Exception`
                self._crashed("labels are stored but could not be confirmed", error)
                asyncio.get_running_loop().call_later(_HURRY_WAIT_S, self._wake_here)
                return

    def _crashed(self, what: str, error: BaseException) -> None:
        self._stats.add(crashes_total=1)
        self._trouble.crashed(what, error)

    def _failed(self, epoch: int, error: StoreUnavailableError) -> None:
        """The gate shuts; throttled, more than one may try again."""
        now = time.monotonic()
        self._stats.add(failures_total=1)
        self._trouble.met(error)
        if error.kind.startswith("throttled"):
            self._gate.throttle(epoch, now, error.retry_after_s)
        else:
            self._gate.fail(epoch, now, error.retry_after_s)

    def _succeeded(self, epoch: int, results: Results, began_s: float) -> None:
        """The store answered for each row; where it gives back too many, all must slow down."""
        now = time.monotonic()
        self._stats.add(batches_total=1, write_us_sum=_age_us(began_s, now))
        other = [pair for pair in results if pair[1] is not STORED]
        back = {held.key[0] for held, out in other if out.status is Status.UNPROCESSED}
        taken = {held.key[0] for held, _ in results} - back
        if self._spread.is_wide(taken, back):
            told = StoreUnavailableError(_GIVEN_BACK, kind="throttled_table")
            (self._trouble.count if taken else self._trouble.met)(told)
            self._gate.throttle(epoch, now, 0.0)
            return
        self._gate.succeed(epoch)
        if not self._unburied:
            self._trouble.over()


def _age_us(since_s: float | None, now_s: float) -> int:
    return 0 if since_s is None else max(0, int((now_s - since_s) * 1_000_000))
