"""What to write, and what a write has settled: pure decisions, without a clock, thread or store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from labeler.stores.base import STORED, Outcome, Status, StoredRow

__all__ = ["Plan", "Settlement", "plan", "settle"]

_KEY = itemgetter(*map(StoredRow._fields.index, ("robot_id", "sequence")))
_NUMBER = itemgetter(StoredRow._fields.index("journal_number"))


@dataclass(frozen=True)
class Plan:
    """Rows with distinct keys, in journal order, and the rows each of them makes obsolete."""

    rows: Sequence[StoredRow]
    obsolete: dict[int, tuple[StoredRow, ...]]


@dataclass(frozen=True)
class Settlement:
    """Journal numbers to confirm, and rows refused, each with those it would replace."""

    stored: list[int] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)
    refused: list[tuple[list[StoredRow], str]] = field(default_factory=list)


def plan(rows: Iterable[StoredRow]) -> Plan:
    """One row a key: the one with the later number. All rows are of one journal."""
    rows = list(rows)
    if len(set(map(_KEY, rows))) == len(rows):
        return Plan(rows, {})
    winners: dict[tuple[str, int], StoredRow] = {}
    losers: dict[tuple[str, int], list[StoredRow]] = {}
    for row in sorted(rows, key=lambda row: row.journal_number):
        earlier = winners.pop(row.key, None)
        if earlier is not None and earlier.journal_number != row.journal_number:
            losers.setdefault(row.key, []).append(earlier)
        winners[row.key] = row
    kept = list(winners.values())
    obsolete = {row.journal_number: tuple(losers[row.key]) for row in kept if row.key in losers}
    return Plan(kept, obsolete)


def settle(planned: Plan, outcomes: Sequence[Outcome]) -> Settlement:
    """What may be confirmed now. Obsolete records are confirmed with the row that replaces them.

    A refused row settles nothing: what it would have replaced stays with it.
    """
    assert len(outcomes) == len(planned.rows), "a store answers each row of a write"
    if not planned.obsolete and outcomes.count(STORED) == len(outcomes):
        return Settlement(list(map(_NUMBER, planned.rows)))
    settlement = Settlement()
    for row, outcome in zip(planned.rows, outcomes, strict=True):
        replaced = planned.obsolete.get(row.journal_number, ())
        if outcome.status is Status.REFUSED:
            settlement.refused.append(([*replaced, row], outcome.reason))
            continue
        numbers = settlement.stored if outcome.status is Status.STORED else settlement.superseded
        numbers.append(row.journal_number)
        settlement.superseded.extend(earlier.journal_number for earlier in replaced)
    return settlement
