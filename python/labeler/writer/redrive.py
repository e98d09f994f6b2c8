"""Writes dead letters to the store again, without the harm that an old row can do.

A later record of the same key may have been stored since. Of one journal the later number stays, as
everywhere; another journal's row gives way, since no order is known between two. Nothing here reads
or removes a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from labeler.stores.base import Outcome, Status, Store, StoredRow, StoreRefusedError
from labeler.writer.dead_letters import DeadLetter

__all__ = ["GROUP_ROWS_MAX", "groups", "write_again"]

GROUP_ROWS_MAX = 25
"""A redrive shares the store with the service: small writes."""


def groups(letters: Iterable[DeadLetter], rows_max: int) -> Iterator[list[DeadLetter]]:
    """The letters in their order, as many in a group as one write takes, with distinct keys."""
    group: list[DeadLetter] = []
    keys: set[tuple[str, int]] = set()
    for letter in letters:
        if group and (len(group) >= min(rows_max, GROUP_ROWS_MAX) or letter.row.key in keys):
            yield group
            group, keys = [], set()
        group.append(letter)
        keys.add(letter.row.key)
    if group:
        yield group


async def write_again(store: Store, rows: Sequence[StoredRow]) -> list[Outcome]:
    """One outcome a row, in their order. Errors: `StoreUnavailableError`: try all of them again."""
    held = await asyncio.gather(*(store.get(*row.key) for row in rows))
    outcomes = [
        Outcome(Status.SUPERSEDED) if there is not None and _is_later(there, row) else None
        for row, there in zip(rows, held, strict=True)
    ]
    wanted = [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is None]
    written = iter(await _write(store, wanted) if wanted else ())
    return [outcome or next(written) for outcome in outcomes]


def _is_later(there: StoredRow, row: StoredRow) -> bool:
    return there.journal_id == row.journal_id and there.journal_number > row.journal_number


async def _write(store: Store, rows: Sequence[StoredRow]) -> list[Outcome]:
    """Halves what the store refuses as a whole until the culprit stands alone."""
    try:
        return list(await store.write(rows))
    except StoreRefusedError as error:
        if len(rows) == 1:
            await store.confirm_refusal()
            return [Outcome(Status.REFUSED, error.message)]
    half = len(rows) // 2
    return [*await _write(store, rows[:half]), *await _write(store, rows[half:])]
