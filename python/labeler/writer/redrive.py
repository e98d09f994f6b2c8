"""Writes dead letters to the store again, without the harm that an old row can do.

A later record of the same key may have been stored since, or is being written by the service at
this moment: the store decides in one step. Of one journal the later number stays, as everywhere;
another journal's row gives way, since no order is known between two. Nothing here reads or removes
a dead letter.
"""

from __future__ import annotations

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
    """One outcome a row, in their order; what is refused as a whole is halved.

    Errors: `StoreUnavailableError`: try all of them again.
    """
    try:
        return list(await store.write_if_newer(rows))
    except StoreRefusedError as error:
        if len(rows) == 1:
            await store.confirm_refusal()
            return [Outcome(Status.REFUSED, error.message)]
    half = len(rows) // 2
    return [*await write_again(store, rows[:half]), *await write_again(store, rows[half:])]
