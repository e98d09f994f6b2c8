"""Moves journaled labels to the store: takes groups, writes them, confirms what is durable.

Runs on a thread of its own and never ends by itself: whatever is raised is logged, counted and
tried again after a back-off. It never drops a record: what it has taken it holds until the store
has it, and what it holds when the process dies is still in the journal.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from labeler.errors import ForkedError, StoppedError
from labeler.stores.base import Store, StoredRow, StoreUnavailableError
from labeler.writer.aside import Aside
from labeler.writer.backoff import Backoff
from labeler.writer.plan import Plan, Settlement, plan, settle

__all__ = ["Records", "Writer", "WriterLimits", "WriterStats"]

_log = logging.getLogger(__name__)

_TAKE_BYTES_MAX = 4 << 20
_IDLE_MS = 200
"""The longest wait for records: how late a stop can be noticed."""
_ASIDE_WRITES_MAX = 4
"""Refused rows are held up to this many full writes."""
_HURRY_WAIT_S = 0.2
"""The longest back-off of a drain: a store that comes back is used while there is time."""


class Records(Protocol):
    """The core's side: where records come from and where confirmations go."""

    def take_records(
        self, rows_max: int, bytes_max: int, timeout_ms: int
    ) -> Sequence[tuple[Any, ...]]:
        """The next records, oldest first, each given once: the fields of `StoredRow`."""

    def confirm(
        self, numbers: Sequence[int], outcome: Literal["stored", "superseded", "dead"]
    ) -> None:
        """These records need not be kept."""


@dataclass(frozen=True)
class WriterLimits:
    """Settings `writer.*`."""

    rows_max: int
    linger_ms: int
    retry_ms_min: int
    retry_ms_max: int


@dataclass(frozen=True)
class WriterStats:
    """Counters since the start and gauges of now; times in µs of the monotonic clock."""

    batches_total: int = 0
    rows_total: int = 0
    superseded_total: int = 0
    refused_total: int = 0
    failures_total: int = 0
    retries_total: int = 0
    crashes_total: int = 0
    write_us_sum: int = 0
    held_rows: int = 0
    aside_rows: int = 0
    lag_us: int = 0
    failing_us: int = 0


class Writer:
    """One thread between the journal and a store. `start` once, then `drain` and `stop`."""

    def __init__(
        self, records: Records, store: Store, limits: WriterLimits, rng: random.Random
    ) -> None:
        """Only stores what it is given; `rng` draws the back-off's jitter."""
        least_s, most_s = limits.retry_ms_min / 1000, limits.retry_ms_max / 1000
        self._records, self._store, self._limits = records, store, limits
        self._backoff = Backoff(least_s, most_s, rng)
        self._aside = Aside(least_s, most_s, _ASIDE_WRITES_MAX * limits.rows_max, rng)
        self._held: list[StoredRow] = []
        self._held_since_s: float | None = None
        self._failing_since_s: float | None = None
        self._stats = WriterStats()
        self._hurry, self._stop = threading.Event(), threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="labeler-writer", daemon=True)

    def start(self) -> None:
        """Begins to take records."""
        self._thread.start()

    def stats(self) -> WriterStats:
        """A reading for telemetry; costs nothing."""
        now = time.monotonic()
        return replace(
            self._stats,
            held_rows=len(self._held),
            aside_rows=len(self._aside),
            lag_us=_age_us(self._held_since_s, now),
            failing_us=_age_us(self._failing_since_s, now),
        )

    def drain(self, budget_s: float, is_empty: Callable[[], bool]) -> bool:
        """Writes without lingering until `is_empty` says so; False if the budget ended first.

        A back-off under way ends at once: the store may be back. An optimisation: what is left is
        in the journal, and delivered after the next start.
        """
        self._hurry.set()
        self._woken.set()
        end = time.monotonic() + budget_s
        while time.monotonic() < end:
            if is_empty() and not self._held:
                return True
            if self._stop.wait(min(0.02, budget_s)):
                break
        return False

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after its current write; False if that did not end in time."""
        self._hurry.set()
        self._stop.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Whether the thread runs: until `stop`, or until the engine stops."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._step()
            except (StoppedError, ForkedError):
                return
            except StoreUnavailableError as error:
                self._count(failures_total=1)
                self._wait_after(f"the store is unavailable: {error.message}", None)
            except BaseException as error:
                # A fault of ours, of a store or of the core (whose panics are no `Exception`): it
                # must not end deliveries in silence.
                self._count(failures_total=1, crashes_total=1)
                self._wait_after(f"the writer failed: {error!r}", error)

    def _step(self) -> None:
        """Takes what there is, unless something is held; writes it; confirms what is durable."""
        if not self._held:
            self._gather()
        if not self._held:
            return
        if self._held_since_s is None:
            self._held_since_s = time.monotonic()
        if self._backoff.attempts:
            self._count(retries_total=1)
        planned = plan(self._held)
        began = time.monotonic()
        outcomes = self._store.write(planned.rows)
        took_us = _age_us(began, time.monotonic())
        settlement = settle(planned, outcomes)
        self._confirm(settlement)
        self._set_aside(planned, settlement)
        self._held, self._held_since_s, self._failing_since_s = [], None, None
        self._backoff.reset()
        self._count(
            batches_total=1,
            rows_total=len(settlement.stored),
            superseded_total=len(settlement.superseded),
            refused_total=len(settlement.refused),
            write_us_sum=took_us,
        )

    def _gather(self) -> None:
        """Holds up to `rows_max` rows: new records, and refused ones whose time has come.

        What has been taken is held at once: a fault further down loses nothing.
        """
        limits, now = self._limits, time.monotonic()
        # One at least: with `rows_max` 1 refused rows would fill the aside and end all deliveries.
        due = self._aside.take_due(now, (), max(1, limits.rows_max // 2))
        room = max(0, limits.rows_max - len({row.key for row in due}))
        if self._aside.full:
            self._stop.wait(0 if due else _IDLE_MS / 1000)
        else:
            self._held = self._take(room, 0 if due else _IDLE_MS)
            lingers = limits.linger_ms > 0 and not self._hurry.is_set()
            if self._held and len(self._held) < room and lingers:
                self._hurry.wait(limits.linger_ms / 1000)
                self._held = [*self._held, *self._take(room - len(self._held), 0)]
        if len(self._aside):
            keys = {row.key for row in (*self._held, *due)}
            self._held = [*self._held, *self._aside.take_due(now, keys, 0)]

    def _take(self, rows_max: int, timeout_ms: int) -> list[StoredRow]:
        if rows_max == 0:
            return []
        records = self._records.take_records(rows_max, _TAKE_BYTES_MAX, timeout_ms)
        assert len(records) <= rows_max
        return list(map(StoredRow._make, records))

    def _confirm(self, settlement: Settlement) -> None:
        if settlement.stored:
            self._records.confirm(settlement.stored, "stored")
        if settlement.superseded:
            self._records.confirm(settlement.superseded, "superseded")

    def _set_aside(self, planned: Plan, settlement: Settlement) -> None:
        """Refused rows wait for their next try; what was settled no longer does."""
        if not settlement.refused and not len(self._aside):
            return
        now = time.monotonic()
        confirmed = {*settlement.stored, *settlement.superseded}
        for row in planned.rows:
            if row.journal_number in confirmed:
                self._aside.forget(row.key)
        for rows, reason in settlement.refused:
            self._aside.add(rows, now)
            key = f"robot {rows[-1].robot_id!r} sequence {rows[-1].sequence}"
            _log.error("the store refused the label of %s, it is tried again: %s", key, reason)

    def _wait_after(self, problem: str, error: BaseException | None) -> None:
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()
        wait_s = self._backoff.next_s()
        if self._hurry.is_set():
            wait_s = min(wait_s, _HURRY_WAIT_S)
        _log.error(
            "%s; %d rows are held, next try in %.0f ms",
            problem,
            len(self._held),
            wait_s * 1000,
            exc_info=error,
        )
        self._woken.wait(wait_s)
        if not self._stop.is_set():
            self._woken.clear()

    def _count(self, **added: int) -> None:
        """Only the writer's thread counts, so readers see each value whole."""
        sums = {name: getattr(self._stats, name) + value for name, value in added.items()}
        self._stats = replace(self._stats, **sums)


def _age_us(since_s: float | None, now_s: float) -> int:
    return 0 if since_s is None else max(0, int((now_s - since_s) * 1_000_000))
