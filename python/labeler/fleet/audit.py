"""Reads back what a run was promised: every acknowledged key, and what the service holds under it.

A label acknowledged as JOURNALED or STORED must be there, as it was acknowledged. One that was only
BUFFERED may be lost by a crash, and is counted apart. Never writes; keeps the acknowledged keys of
one robot at a time beside the list of all.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labeler.client import Client
from labeler.errors import LabelNotFoundError

__all__ = ["Acknowledged", "Audit", "audit", "read_acks"]

_PROMISED = frozenset({"JOURNALED", "STORED"})
_SHOWN_MAX = 10
_PAGE_ROWS = 1000
_TIMEOUT_MS = 20_000


@dataclass(frozen=True)
class Acknowledged:
    """What a robot was told under one key."""

    label: str
    durability: str


@dataclass
class Audit:
    """How the acknowledged keys stand; `found` + `missing` + `missing_buffered` are all of them."""

    acknowledged: int = 0
    found: int = 0
    changed: int = 0
    """Of those found: held under another label than was acknowledged."""
    missing: int = 0
    missing_buffered: int = 0
    examples: list[str] = field(default_factory=list)
    """Some of the missing and changed, for people."""

    @property
    def lost(self) -> int:
        """Promises that were not kept."""
        return self.missing + self.changed

    def note(self, key: str, what: str) -> None:
        """Keeps an example."""
        if len(self.examples) < _SHOWN_MAX:
            self.examples.append(f"{key}: {what}")


def read_acks(path: Path) -> dict[str, dict[int, Acknowledged]]:
    """The sender's file of acknowledged labels, by robot and sequence."""
    found: dict[str, dict[int, Acknowledged]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kept = found.setdefault(row["robot_id"], {})
            kept[int(row["sequence"])] = Acknowledged(row["label"], row["durability"])
    return found


def audit(address: str, acks: Path) -> Audit:
    """Reads every acknowledged key back from the service at `address`.

    Errors: any of the client's, where the service can't be asked.
    """
    result = Audit()
    with Client(address, timeout_ms=_TIMEOUT_MS) as client:
        client.wait_ready(_TIMEOUT_MS)
        for robot_id, promised in read_acks(acks).items():
            _audit_robot(client, robot_id, promised, result)
    return result


def _audit_robot(
    client: Client, robot_id: str, promised: Mapping[int, Acknowledged], result: Audit
) -> None:
    held = _stored(client, robot_id, min(promised))
    for sequence, told in promised.items():
        label = held.get(sequence)
        if label is None:
            label = _one(client, robot_id, sequence)  # pending ones are in no list yet
        result.acknowledged += 1
        key = f"{robot_id} {sequence}"
        if label is not None:
            result.found += 1
            if label != told.label:
                result.changed += 1
                result.note(key, f"acknowledged {told.label}, held {label}")
        elif told.durability in _PROMISED:
            result.missing += 1
            result.note(key, f"acknowledged {told.label} as {told.durability}, not held")
        else:
            result.missing_buffered += 1


def _stored(client: Client, robot_id: str, first: int) -> dict[int, str]:
    """Labels that the store holds of a robot, by sequence, from `first` on."""
    found: dict[int, str] = {}
    for label in client.list(robot_id, page_size=_PAGE_ROWS):
        if label.sequence < first:
            break
        found[label.sequence] = label.label
    return found


def _one(client: Client, robot_id: str, sequence: int) -> str | None:
    try:
        return client.get(robot_id, sequence).label
    except LabelNotFoundError:
        return None
