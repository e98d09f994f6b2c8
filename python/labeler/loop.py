"""The control side's event loop: one thread, one loop for life, shared by the writer and the store.

Nothing of the label path ever waits for it. It knows no store and no writer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread"]

_LAG_STEP_S = 0.05
_Result = TypeVar("_Result")


class LoopThread:
    """A running loop: uvloop's, or asyncio's own where that is not installed."""

    def __init__(self, name: str = "labeler-loop") -> None:
        """Starts the thread."""
        self._loop = _new_loop()
        self._lag_us_max = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, _Result], timeout_s: float) -> _Result:
        """What it returns or raises, for another thread. Errors: `TimeoutError`; it is cancelled."""
        future = self.spawn(coroutine)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> concurrent.futures.Future[_Result]:
        """Runs it beside the others."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls it on the loop; does nothing once that is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return

    def take_lag_us(self) -> int:
        """The longest that a timer was late since the last reading, in µs."""
        taken, self._lag_us_max = self._lag_us_max, 0
        return taken

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop and cancels what still runs; False if a callback did not end in time."""
        self.soon(self._loop.stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._watch_lag(self._loop.time())
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _watch_lag(self, due_s: float) -> None:
        now_s = self._loop.time()
        self._lag_us_max = max(self._lag_us_max, int((now_s - due_s) * 1_000_000))
        due_s = now_s + _LAG_STEP_S
        self._loop.call_at(due_s, self._watch_lag, due_s)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
