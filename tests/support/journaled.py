"""Journal records made up for tests of the writer and of the stores, and limits of a writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from labeler.errors import StoppedError
from labeler.plan import WriterLimits
from labeler.stores.base import StoredRow

Record = tuple[Any, ...]

_LIMITS = WriterLimits(
    rows_max=50,
    linger_ms=0,
    retry_ms_min=1,
    retry_ms_max=4,
    write_timeout_ms=10_000,
    held_rows_max=10_000,
    concurrency_max=16,
    nice=0,
)


def writer_limits(**different: int) -> WriterLimits:
    """Those of a writer that waits for nothing but what a test makes it wait for."""
    return replace(_LIMITS, **different)


def stored_row(number: int, sequence: int | None = None, robot_id: str = "robot-1") -> StoredRow:
    """A row whose label tells its number."""
    return StoredRow(
        robot_id=robot_id,
        sequence=number if sequence is None else sequence,
        label=f"label-{number}",
        index=0,
        confidence=0.5,
        model="wall-following",
        version="1",
        source=1,
        labeled_at_unix_us=1_700_000_000_000_000 + number,
        captured_at_unix_us=0,
        sku="",
        instance_id="instance",
        journal_id="journal",
        journal_number=number,
    )


class Journaled:
    """The core's border: records are given once, in order; confirmations are collected."""

    def __init__(self, rows: Sequence[StoredRow]) -> None:
        """`rows` in the order of their numbers."""
        self._records: list[Record] = [tuple(row) for row in rows]
        self._changed = threading.Condition()
        self.confirmed: dict[int, str] = {}
        self.stopped = False
        self.takes: list[int] = []

    def take_records(self, rows_max: int, bytes_max: int, timeout_ms: int) -> Sequence[Record]:
        """As the core's."""
        with self._changed:
            if self.stopped:
                raise StoppedError("the engine is stopped")
            if not self._records:
                self._changed.wait(timeout_ms / 1000)
            taken, self._records = self._records[:rows_max], self._records[rows_max:]
            self.takes.append(len(taken))
            return taken

    def confirm(self, numbers: Sequence[int], outcome: str) -> None:
        """As the core's."""
        with self._changed:
            assert not self.confirmed.keys() & set(numbers), "each record is confirmed once"
            self.confirmed.update(dict.fromkeys(numbers, outcome))
            self._changed.notify_all()

    def add(self, *late: StoredRow) -> None:
        """More of them."""
        with self._changed:
            self._records += [tuple(row) for row in late]
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Errors: `AssertionError` after a long time."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout=20), self.confirmed
