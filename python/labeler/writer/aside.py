"""Rows that the store refused, each waiting for its next try. Pure: time is passed in.

Until there are dead letters a refused row is tried again for ever, beside the others and never
before them. Their number is bounded by whoever adds them: see `full`.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from labeler.stores.base import StoredRow
from labeler.writer.backoff import Backoff

__all__ = ["Aside"]


@dataclass
class _Waiting:
    rows: list[StoredRow]
    due_s: float
    backoff: Backoff


class Aside:
    """Refused rows by key; earlier records of the key that the row replaces wait with it."""

    def __init__(self, least_s: float, most_s: float, rows_max: int, rng: random.Random) -> None:
        """Waits grow from `least_s` to `most_s`, for each key on its own."""
        self._least_s, self._most_s, self._rows_max, self._rng = least_s, most_s, rows_max, rng
        self._waiting: dict[tuple[str, int], _Waiting] = {}

    def __len__(self) -> int:
        """Rows, not keys."""
        return sum(len(waiting.rows) for waiting in list(self._waiting.values()))

    @property
    def full(self) -> bool:
        """No more may be taken: the journal keeps the rest, its bound becomes back-pressure."""
        return len(self) >= self._rows_max

    def add(self, rows: list[StoredRow], now_s: float) -> None:
        """Rows of one key that were refused (again)."""
        assert rows
        key = rows[0].key
        before = self._waiting.pop(key, None)
        backoff = before.backoff if before else Backoff(self._least_s, self._most_s, self._rng)
        self._waiting[key] = _Waiting(rows, now_s + backoff.next_s(), backoff)

    def take_due(
        self, now_s: float, keys: Collection[tuple[str, int]], rows_max: int
    ) -> list[StoredRow]:
        """Rows of at most `rows_max` keys whose time has come, and of keys being written anyway.

        They stay here until `forget`, so that nothing is lost if the write fails.
        """
        taken: list[StoredRow] = []
        due = 0
        for key, waiting in self._waiting.items():
            if key in keys:
                taken.extend(waiting.rows)
            elif waiting.due_s <= now_s and due < rows_max:
                taken.extend(waiting.rows)
                due += 1
        return taken

    def forget(self, key: tuple[str, int]) -> None:
        """The key was settled."""
        self._waiting.pop(key, None)

    def next_due_s(self) -> float | None:
        """When the earliest is due; None without any."""
        return min((waiting.due_s for waiting in self._waiting.values()), default=None)
