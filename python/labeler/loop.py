"""The control side's event loop: one thread, one loop for life, shared by the writer and the store.

Nothing of the label path ever waits for it. It knows no store and no writer. What blocks is called
on a `Worker`'s thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import logging
import os
import platform
import queue
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from labeler.errors import StoppedError

__all__ = ["Lag", "LoopThread", "Worker", "step_back"]

_log = logging.getLogger(__name__)

_LAG_STEP_S = 0.05
_LAG_MISSED_MAX = 10_000
"""Ticks of one stall that count: beyond some minutes more of them would tell nothing more."""
_TURN_NS = 100_000_000
"""The longest that the kernel takes; it is no bound on how long others wait."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the call, which libraries before glibc 2.41 have no name for."""
_Result = TypeVar("_Result")


def step_back(nice: int) -> None:
    """The calling thread, and those that it starts, leave the CPU to the label path.

    `nice`: 0 to 19. Only Linux knows it by thread; elsewhere nothing is done. From Linux 6.12 on
    its turns are long too, so that a thread that wakes need not wait for the end of one: the
    scheduler lets a shorter turn go first (EEVDF, sched_setattr(2)).
    """
    if sys.platform != "linux" or not nice:
        return
    os.nice(nice)
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, mine, 0, _TURN_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0):
        _log.info("a thread that steps back has short turns: %s", os.strerror(ctypes.get_errno()))


class Lag:
    """How late ticks of a fixed schedule are: a histogram in the core's form, within 1 %. Pure.

    A stall counts with each tick that it has missed, by how late that one is: a percentile is so of
    all moments, not of those at which the loop was free to look. Time is passed in, in s.
    """

    def __init__(self, step_s: float, now_s: float) -> None:
        """The first tick is a step from now."""
        self._step_s, self._due_s = step_s, now_s + step_s
        self._counts: dict[int, int] = {}
        self.sum_us = 0

    def tick(self, now_s: float) -> float:
        """Counts the tick that is due and those missed; how long until the next, above 0.

        A timer that is early, since its own clock has coarser steps, is not late.
        """
        for _ in range(_LAG_MISSED_MAX):
            self._record(max(0, int((now_s - self._due_s) * 1_000_000)))
            self._due_s += self._step_s
            if self._due_s > now_s:
                return self._due_s - now_s
        self._due_s = now_s + self._step_s
        return self._step_s

    def counts(self) -> list[tuple[int, int]]:
        """(Upper bound in µs, count), ascending. Of any thread."""
        return sorted(self._counts.copy().items())

    def _record(self, lag_us: int) -> None:
        shift = max(0, lag_us.bit_length() - 8)
        upper = (((lag_us >> shift) + 1) << shift) - 1
        self._counts[upper] = self._counts.get(upper, 0) + 1
        self.sum_us += lag_us


class LoopThread:
    """A running loop: uvloop's, or asyncio's own where that is not installed."""

    def __init__(self, name: str = "labeler-loop", nice: int = 0) -> None:
        """Starts the thread, which steps back by `nice`."""
        self._nice, self._loop = nice, _new_loop()
        self._stopping = False
        self.lag = Lag(_LAG_STEP_S, time.monotonic())
        """How late a timer was, each 50 ms since the start; the loop's own has steps of 1 ms."""
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
        step_back(self._nice)
        asyncio.set_event_loop(self._loop)
        self._loop.call_later(_LAG_STEP_S, self._watch_lag)
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

    def _watch_lag(self) -> None:
        # Not by the loop's clock: uvloop's stands still while a callback runs.
        self._loop.call_later(self.lag.tick(time.monotonic()), self._watch_lag)


class Worker:
    """One thread that makes calls, a daemon: unlike a pool's, a call that hangs delays no exit.

    The first call starts it: it has so the priority of the loop, whose thread makes the calls.
    """

    def __init__(self, name: str) -> None:
        """Starts nothing yet."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def call(self, function: Callable[[], _Result]) -> _Result:
        """What it returns or raises. Errors: `StoppedError` after `close`."""
        if self._closed:
            raise StoppedError("what is called is closed")
        if self._thread.ident is None:
            self._thread.start()
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
