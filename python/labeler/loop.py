"""The control side's event loop: one thread, one loop for life, shared by the writer and the store.

Nothing of the label path ever waits for it. It knows no store and no writer. What blocks is called
on a `Worker`'s thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from labeler.errors import StoppedError

__all__ = ["LoopThread", "Worker"]

_log = logging.getLogger(__name__)

_LAG_STEP_S = 0.05
_Result = TypeVar("_Result")


class LoopThread:
    """A running loop: uvloop's, or asyncio's own where that is not installed."""

    def __init__(self, name: str = "labeler-loop") -> None:
        """Starts the thread."""
        self._loop = _new_loop()
        self._stopping = False
        self.lag_us_max = 0
        """The longest that a timer was late since the start, in µs."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, _Result], timeout_s: float) -> _Result:
        """What it returns or raises, for another thread. Errors: `TimeoutError`, then cancelled."""
        future = self.spawn(coroutine)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Runs it beside the others."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls it on the loop; does nothing once that is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop and cancels what still runs; False if a callback did not end in time."""
        self._stopping = True
        self.soon(self._loop.stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._watch_lag(self._loop.time())
        try:
            while not self._stopping:
                try:
                    self._loop.run_forever()
                except BaseException as error:  # a task's `SystemExit` comes out here
                    _log.error("the event loop goes on after %r", error, exc_info=error)
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _watch_lag(self, due_s: float) -> None:
        now_s = self._loop.time()
        self.lag_us_max = max(self.lag_us_max, int((now_s - due_s) * 1_000_000))
        due_s = now_s + _LAG_STEP_S
        self._loop.call_at(due_s, self._watch_lag, due_s)


class Worker:
    """One thread that makes calls, a daemon: unlike a pool's, a call that hangs delays no exit."""

    def __init__(self, name: str) -> None:
        """Starts the thread."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], _Result]) -> _Result:
        """What it returns or raises. Errors: `StoppedError` after `close`."""
        if self._closed:
            raise StoppedError("what is called is closed")
        future: Future[_Result] = Future()
        self._calls.put((future, function))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Ends it after the calls before; waits for none."""
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


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
