"""Stores opened for a test: their coroutines as plain calls, on a loop of their own."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from labeler.config.schema import Dynamodb
from labeler.loop import LoopThread
from labeler.stores.base import Difference, Outcome, Page, Query, StoreContext, StoredRow
from labeler.stores.prepare import check, create
from labeler.stores.registry import open_store
from tests.support.dynamodb import DynamoServer, DynamoTable

__all__ = ["OpenStore", "aws_variables", "dynamodb_settings", "opened", "row"]

CALL_S = 60.0
_Result = TypeVar("_Result")


def row(sequence: int, **changes: object) -> StoredRow:
    """A row that differs from others only where a test says so."""
    base = StoredRow(
        robot_id="robot-1",
        sequence=sequence,
        label="Move-Forward",
        index=0,
        confidence=0.75,
        model="wall-following",
        version="1",
        source=1,
        labeled_at_unix_us=1_000_000 * sequence,
        captured_at_unix_us=5,
        sku="SKU-1",
        instance_id="instance",
        journal_id="journal",
        journal_number=sequence,
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def dynamodb_settings(table: DynamoTable, url: str = "", **changes: Any) -> dict[str, Any]:
    """The section `[dynamodb]` for a table of a server, or of the proxy at `url`."""
    place: dict[str, Any] = {
        "table": table.name,
        "region": table.server.region,
        "endpoint_url": url or table.server.url,
        "connect_timeout_ms": 10_000,  # a busy machine is no fault of the store
    }
    return Dynamodb(**(place | changes)).model_dump()


def aws_variables(monkeypatch: pytest.MonkeyPatch, server: DynamoServer) -> None:
    """The server's credentials, and none of AWS's other variables of this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


class OpenStore:
    """A store by name, whose calls return when they are done."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        self._loop = LoopThread("test-store")
        self.store = open_store(name, StoreContext(folder, settings))

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """What it returns or raises."""
        return self._loop.call(coroutine, CALL_S)

    def ensure(self) -> None:
        self.call(self.store.ensure())

    def create(self) -> None:
        self.call(create(self.store))

    def check(self) -> Sequence[Difference]:
        return self.call(check(self.store))

    def write(self, *rows: StoredRow) -> Sequence[Outcome]:
        return self.call(self._write(rows))

    def statuses(self, *rows: StoredRow) -> list[str]:
        return [outcome.status.value for outcome in self.write(*rows)]

    def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        return self.call(self.store.get(robot_id, sequence))

    def list(self, query: Query) -> Page:
        return self.call(self.store.list(query))

    def rewritten(self, *rows: StoredRow) -> Sequence[str]:
        """Statuses of `write_if_newer`."""
        return [item.status.value for item in self.call(self.store.write_if_newer(rows))]

    def confirm_refusal(self) -> None:
        self.call(self.store.confirm_refusal())

    def close(self) -> None:
        self.call(self.store.close())
        assert self._loop.stop(CALL_S)

    async def _write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """In writes of the size that the store takes."""
        most = self.store.limits.rows_max
        outcomes: list[Outcome] = []
        for start in range(0, len(rows), most):
            outcomes += await self.store.write(rows[start : start + most])
        return outcomes


@contextmanager
def opened(
    name: str, settings: Mapping[str, Any], folder: Path, *, ensure: bool = True
) -> Iterator[OpenStore]:
    """The store, `ensure`d unless a test does that."""
    store = OpenStore(name, settings, folder)
    try:
        if ensure:
            store.ensure()
        yield store
    finally:
        store.close()
