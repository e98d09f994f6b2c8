"""A store whose calls block, on threads of its own: one writes, one reads.

So the event loop goes on while SQLite waits for a disk. A call that hangs holds its thread, and
those behind it; the loop and the other thread go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from labeler.loop import Worker
from labeler.stores.base import BlockingStore, Outcome, Page, Query, StoredRow, StoreLimits

__all__ = ["Threaded"]


class Threaded:
    """The `Store` that calls a `BlockingStore`."""

    def __init__(self, store: BlockingStore) -> None:
        """Starts the threads."""
        self.inner = store
        self._writes, self._reads = Worker("labeler-store-w"), Worker("labeler-store-r")
        self._closed = False

    @property
    def limits(self) -> StoreLimits:
        """The store's own."""
        return self.inner.limits

    async def ensure(self) -> None:
        """Once, before all else."""
        await self._writes.call(self.inner.ensure)

    async def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """One call; what is cancelled goes on, and its rows are written again: it is idempotent."""
        return await self._writes.call(lambda: self.inner.write(rows))

    async def write_if_newer(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """What a `BlockingStore`'s write does anyway."""
        return await self.write(rows)

    async def confirm_refusal(self) -> None:
        """What blocks names the row that it refuses, for a reason of the row's."""

    async def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        """The row of a key."""
        return await self._reads.call(lambda: self.inner.get(robot_id, sequence))

    async def list(self, query: Query) -> Page:
        """One page."""
        return await self._reads.call(lambda: self.inner.list(query))

    async def close(self) -> None:
        """Closes the store after the calls under way; a call that hangs is left behind."""
        if self._closed:
            return
        self._closed = True
        await self._writes.call(self.inner.close)
        self._writes.close()
        self._reads.close()
