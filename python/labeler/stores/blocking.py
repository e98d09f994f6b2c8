"""A store whose calls block, on threads of its own: one writes, one reads.

So the event loop goes on while SQLite waits for a disk. A call that hangs holds its thread, and those
behind it; the loop and the other thread go on.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from labeler.errors import StoppedError
from labeler.stores.base import BlockingStore, Outcome, Page, Query, StoredRow, StoreLimits

__all__ = ["Threaded"]

_Result = TypeVar("_Result")


class _Worker:
    """One thread that makes calls, a daemon: unlike a pool's, a call that hangs delays no exit."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], _Result]) -> _Result:
        if self._closed:
            raise StoppedError("the store is closed")
        future: Future[_Result] = Future()
        self._calls.put((future, function))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # whatever it is, who waits must learn of it
                future.set_exception(error)


class Threaded:
    """The `Store` that calls a `BlockingStore`."""

    def __init__(self, store: BlockingStore) -> None:
        """Starts the threads."""
        self.inner = store
        self._writes, self._reads = _Worker("labeler-store-w"), _Worker("labeler-store-r")

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
        await self._writes.call(self.inner.close)
        self._writes.close()
        self._reads.close()
