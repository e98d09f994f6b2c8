"""Whether every acknowledged label is where it must be: the end of each test of faults at DynamoDB.

In the store once, with the value that was told; or a dead letter with a reason; or, while the
service cannot deliver, still in its journal. What a client was not told may be there or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from labeler._core import journal_dump
from labeler.writer.dead_letters import DeadLetters
from tests.support.database import Key, acknowledged
from tests.support.dynamodb import DynamoTable, Row
from tests.support.fault_proxy import FaultProxy
from tests.support.load import Robot
from tests.support.preload import prefix

Settings = dict[str, object]
Held = tuple[Key, str]
"""A key and a label for it, as one place holds them."""
_DUMP_ROWS = 10_000


@dataclass(frozen=True)
class Audit:
    """Counts of acknowledged labels by where they are; what is wrong by key, with the reason."""

    acknowledged: int
    stored: int
    dead: int
    pending: int
    lost: dict[Key, str]
    doubled: dict[Key, str]

    @property
    def line(self) -> str:
        """All of it in one line."""
        return (
            f"acknowledged {self.acknowledged} stored {self.stored} dead {self.dead} "
            f"pending {self.pending} lost {len(self.lost)} doubled {len(self.doubled)}"
        )


def audit(robots: Iterable[Robot], table: DynamoTable, *state_dirs: Path) -> Audit:
    """Compares what was told with what is kept, by all services that ever had one of these states.

    Doubled is what is there beside the one place of its own: a key whose row or letter is none of
    its answers, a record both stored and dead, a label that nobody asked for.
    """
    fleet = list(robots)
    told = acknowledged(fleet)
    rows, records = table.rows(), {}
    dead: dict[Key, str] = {}
    doubled: dict[Key, str] = {}
    for state_dir in state_dirs:
        with closing(DeadLetters(state_dir)) as letters:
            for letter in letters.list(100_000):
                assert letter.reason, "a dead letter has a reason"
                dead[letter.row.key] = letter.row.label
                records[letter.row.journal_id, letter.row.journal_number] = letter.row.key
    waiting = {key: label for each in state_dirs for key, label in pending(each).items()}
    stored = {key: str(row["label"]) for key, row in rows.items()}
    for key, row in rows.items():
        if _record(row) in records:
            doubled[key] = "a record that is stored, and dead or stored elsewhere"
        records[_record(row)] = key
    doubled |= dict(_changed(told, stored, dead, waiting))
    doubled |= dict(_unasked(fleet, stored, dead, waiting))
    return Audit(
        acknowledged=len(told),
        stored=len(told.keys() & rows.keys()),
        dead=len(told.keys() & dead.keys() - rows.keys()),
        pending=len(told.keys() & waiting.keys() - rows.keys() - dead.keys()),
        lost={
            key: f"was told {label!r}"
            for key, label in told.items()
            if not any(key in kept for kept in (stored, dead, waiting))
        },
        doubled=doubled,
    )


def _record(row: Row) -> tuple[str, int]:
    return str(row["journal_id"]), int(row["journal_number"])


def pending(state_dir: Path) -> dict[Key, str]:
    """The labels that its journal has yet to deliver, of a service that runs or does not."""
    journal, first, found = state_dir / "journal", 0, {}
    while journal.exists() and (records := journal_dump(str(journal), first, _DUMP_ROWS)):
        for record in records:
            if record["pending"]:  # type: ignore[typeddict-item]
                found[record["robot_id"], record["sequence"]] = record["label"]
        first = records[-1]["number"] + 1
    return found


def _changed(told: Mapping[Key, str], *places: Mapping[Key, str]) -> Iterator[Held]:
    for place in places:
        for key in told.keys() & place.keys():
            if told[key] != place[key]:
                yield key, f"was told {told[key]!r}, is {place[key]!r}"


def _unasked(fleet: list[Robot], *places: Mapping[Key, str]) -> Iterator[Held]:
    """Robots beside the fleet are another test's."""
    sent = {robot.robot_id: max([robot.sent, *robot.acknowledged]) for robot in fleet}
    for robot_id, sequence in {key for place in places for key in place}:
        if robot_id in sent and not 1 <= sequence <= sent[robot_id]:
            yield (robot_id, sequence), "nobody asked for it"


def nothing_lost(robots: Iterable[Robot], table: DynamoTable, *state_dirs: Path) -> Audit:
    """The audit. Errors: `AssertionError` for a label that is lost, or there twice or changed."""
    found = audit(robots, table, *state_dirs)
    print(found.line)
    assert not found.lost, found.lost
    assert not found.doubled, found.doubled
    return found


def at_dynamodb(table: DynamoTable, url: str, **more: object) -> Settings:
    """How a service is started that writes to the table through `url`, with little patience."""
    return {
        "prefix": prefix(**table.server.environment),
        "writer__store": "dynamodb",
        "dynamodb__table": table.name,
        "dynamodb__region": table.server.region,
        "dynamodb__endpoint_url": url,
        "dynamodb__connect_timeout_ms": 500,
        "dynamodb__read_timeout_ms": 400,
        "writer__linger_ms": 5,
        "writer__retry_ms_min": 5,
        "writer__retry_ms_max": 50,
    } | more


def through(proxy: FaultProxy) -> None:
    """What holds of all writes that went through the proxy, whatever broke.

    A write that its client has given up is over for the client. The store may apply it later, after
    a newer record of the key; no DynamoDB client can take that back (`proxy.record.late`).
    """
    overlaps = proxy.record.overlaps
    told = {call.number: call for call in proxy.record.writes()} if overlaps else {}
    assert not overlaps, (
        "never two writes of one key in flight",
        *[(one.key, told.get(one.earlier), told.get(one.later)) for one in overlaps[:3]],
    )
