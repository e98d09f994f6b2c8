"""Whether every acknowledged label is where it must be: the end of each test of faults at DynamoDB.

In the store once, with the value that was told; or a dead letter with a reason; or, while the
service cannot deliver, still in its journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from labeler.writer.dead_letters import DeadLetters
from tests.support.database import Key, acknowledged
from tests.support.dynamodb import DynamoTable
from tests.support.fault_proxy import FaultProxy
from tests.support.load import Robot
from tests.support.preload import prefix

Settings = dict[str, object]


@dataclass(frozen=True)
class Audit:
    """Counts of acknowledged labels by where they are; `lost` and `changed` by key."""

    acknowledged: int
    stored: int
    dead: int
    lost: dict[Key, str]
    changed: dict[Key, tuple[str, str]]


def audit(robots: Iterable[Robot], table: DynamoTable, state_dir: Path) -> Audit:
    """Compares what was told with what is kept. A key that stands twice fails in `table.rows`."""
    told = acknowledged(robots)
    rows = {key: str(row["label"]) for key, row in table.rows().items()}
    with closing(DeadLetters(state_dir)) as letters:
        dead = {letter.row.key: letter.reason for letter in letters.list(100_000)}
    assert all(dead.values()), "a dead letter has a reason"
    return Audit(
        acknowledged=len(told),
        stored=len(told.keys() & rows.keys()),
        dead=len(told.keys() & dead.keys()),
        lost={key: label for key, label in told.items() if key not in rows and key not in dead},
        changed={
            key: (label, rows[key])
            for key, label in told.items()
            if key in rows and rows[key] != label
        },
    )


def nothing_lost(robots: Iterable[Robot], table: DynamoTable, state_dir: Path) -> Audit:
    """The audit. Errors: `AssertionError` for a label that is lost or that has changed."""
    found = audit(robots, table, state_dir)
    print(
        f"acknowledged {found.acknowledged} stored {found.stored} dead {found.dead} "
        f"lost {len(found.lost)} changed {len(found.changed)}"
    )
    assert not found.lost, found.lost
    assert not found.changed, found.changed
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
    """What holds of all writes that went through the proxy, whatever broke."""
    assert not proxy.record.overlaps, "never two writes of one key in flight"
