"""Load of every kind at once, and what was promised to it: calls, streams, batches, each level.

Beside senders that keep to a schedule, robots that ask one after the other for labels in memory
only: of those what a crash loses must be the last ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from labeler._core import loadgen
from labeler.errors import DiskError
from labeler.fleet.audit import Acknowledged, read_acks
from tests.support.database import Key, stored
from tests.support.load import Fleet, Robot
from tests.support.sending import sender

KINDS: dict[str, dict[str, Any]] = {
    "call": {"rpc": "label", "durability": "JOURNALED"},
    "stream": {"rpc": "label_stream", "durability": "JOURNALED"},
    "batch": {"rpc": "label_batch", "batch_rows": 8, "durability": "STORED"},
    "memory": {"rpc": "label_stream", "durability": "BUFFERED"},
}
RATE_PER_S = 300
BUFFERED_ROBOTS = 4


@dataclass
class Told:
    """Everything that was acknowledged so far, over all lives of a service."""

    labels: dict[Key, Acknowledged] = field(default_factory=dict)
    one_by_one: list[Robot] = field(default_factory=list)

    def of(self, *levels: str) -> dict[Key, str]:
        """Labels that were acknowledged at one of these levels."""
        return {key: told.label for key, told in self.labels.items() if told.durability in levels}

    def broken(self, database: Path) -> dict[Key, str]:
        """Promises that the store does not keep: durable ones that are lost, any that differ."""
        held = stored(database)
        told = self.of("JOURNALED", "STORED")
        wrong = {key: label for key, label in told.items() if held.get(key) != label}
        buffered = self.of("BUFFERED")
        changed = {k: label for k, label in buffered.items() if held.get(k, label) != label}
        return wrong | changed

    def torn(self, database: Path) -> list[str]:
        """Robots of whom a label in memory was lost, but not the later ones."""
        held = stored(database)
        return [
            robot.robot_id
            for robot in self.one_by_one
            if (kept := [(robot.robot_id, number) in held for number in robot.acknowledged])
            != sorted(kept, reverse=True)
        ]


class MixedLoad(AbstractContextManager["MixedLoad"]):
    """Runs from the entry to the exit of a `with`; then `told` has what was acknowledged."""

    def __init__(self, address: str, folder: Path, life: int, seed: int) -> None:
        """`life`: names the robots, so that no two loads share a key."""
        self._files = {kind: folder / f"acks-{life}-{kind}.csv" for kind in KINDS}
        self._senders = [
            self._sender(address, kind, f"{kind}-{life}-", seed + place)
            for place, kind in enumerate(KINDS)
        ]
        self.robots = [Robot(f"alone-{life}-{number}") for number in range(BUFFERED_ROBOTS)]
        self._fleet = Fleet(address, self.robots, seed, durability="BUFFERED")

    def _sender(self, address: str, kind: str, prefix: str, seed: int) -> loadgen.Sender:
        return sender(
            address,
            robot_prefix=prefix,
            seed=seed,
            duration_s=60,
            timeout_ms=2000,
            acks_file=str(self._files[kind]),
            schedule={"shape": "constant", "rate_per_s": RATE_PER_S},
            **KINDS[kind],
        )

    def __enter__(self) -> Self:
        """Connects everything, then starts it."""
        for one in self._senders:
            one.connect()
        for one in self._senders:
            one.fire()
        self._fleet.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it; a service that is gone by then is what was tested."""
        for one in self._senders:
            one.stop()
        self._fleet.stop()
        for one in self._senders:
            assert one.wait(30_000), one.snapshot()

    def acknowledged(self) -> int:
        """Labels acknowledged so far."""
        sent = sum(one.snapshot()["answered"] for one in self._senders)
        return sent + self._fleet.acknowledged()

    def add_to(self, told: Told) -> None:
        """After the end: what was acknowledged. Errors: `AssertionError` where it is not known."""
        for one, file in zip(self._senders, self._files.values(), strict=True):
            try:
                total = one.result()["acknowledged_total"]
            except DiskError as error:
                raise AssertionError(error.message) from error
            found = read_acks(file)
            assert sum(map(len, found.values())) == total, "each acknowledged label is in the file"
            for robot_id, labels in found.items():
                told.labels |= {(robot_id, number): label for number, label in labels.items()}
        told.one_by_one += self.robots
        for robot in self.robots:
            for number, label in robot.acknowledged.items():
                told.labels[robot.robot_id, number] = Acknowledged(label, "BUFFERED")
