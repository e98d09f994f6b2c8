"""Labels that a removed process left behind: its journal, delivered by a writer of its own.

The same writer, window and dead letters as a service's, those of the directory that was left. It
ends with the last label, by a stop, or when the store takes nothing for too long; whenever it ends,
what is left is in that journal, and the next delivery goes on. The directory is never deleted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from labeler import state_dir
from labeler.errors import DiskError, LabelerError
from labeler.loop import LoopThread
from labeler.plan import WriterLimits
from labeler.stores.base import Store, StoreUnavailableError
from labeler.writer import Records, Writer
from labeler.writer.dead_letters import DeadLetters
from labeler.writer.graveyard import Buried

__all__ = ["Adoptions", "Destination", "Journal", "Left", "deliver", "left_in", "ready"]

_log = logging.getLogger(__name__)

_STEP_S = 0.05
"""How often it is looked whether all is delivered."""
_CLOSE_MS = 5000
_AGAIN_S = 0.5


class Journal(Records, Protocol):
    """An open journal: where records come from, and how many are left."""

    def stats(self) -> Mapping[str, Any]:
        """`found` at the opening; `pending`, `stored`, … now. Errors: `DiskError`."""

    def close(self, timeout_ms: int) -> None:
        """Writes the last confirmations and gives the lock back. Errors: `DiskError`."""


@dataclass(frozen=True)
class Left:
    """What a process left behind: its state directory, and the journal in it."""

    state_dir: Path
    journal: Path


OpenJournal = Callable[[Left], Journal]
Told = Callable[[Mapping[str, Any], Callable[[], str]], None]


@dataclass(frozen=True)
class Destination:
    """Where labels go: a store that is ready, its name, its loop, and the writer's settings."""

    store: Store
    name: str
    loop: LoopThread
    limits: WriterLimits
    dead_letters_max: int
    drain_s: float


def left_in(directory: Path) -> Left:
    """A state directory, or the folder `journal` in one. Errors: `DiskError`."""
    directory = directory.absolute()
    inner = directory / "journal"
    left = Left(directory, inner) if directory.name != "journal" or inner.is_dir() else None
    left = left or Left(directory.parent, directory)
    if not left.journal.is_dir():
        raise DiskError(
            f"{directory} holds no journal; give the state directory of a service, or the folder "
            "`journal` in it"
        )
    state_dir.check(left.state_dir)
    return left


def deliver(
    left: Left,
    journal: Journal,
    to: Destination,
    stop: threading.Event,
    told: Told,
    timeout_s: float | None = None,
) -> Mapping[str, Any]:
    """The journal's last `stats`; it is open still. All is delivered where `pending` is 0.

    Ends early by `stop`, or after `timeout_s` in which the store confirmed nothing. `told` often
    gets the stats, and a function that says what is in the way. Errors: `DiskError` where the
    journal cannot be written.
    """
    letters = Buried(DeadLetters(left.state_dir), to.name, to.dead_letters_max)
    writer = Writer(journal, to.store, letters, to.loop, to.limits, random.Random())
    try:
        writer.start()
        while (stats := journal.stats())["pending"]:
            told(stats, lambda: writer.stats().problem)
            if timeout_s is not None and stats["unconfirmed_us"] > timeout_s * 1_000_000:
                break
            if stop.wait(_STEP_S):
                break
    finally:
        writer.stop(min(to.drain_s, to.limits.write_timeout_ms / 1000))
        letters.close()
    return journal.stats()


def ready(to: Destination, stop: threading.Event, timeout_s: float) -> bool:
    """Asks until the store is ready; False where it was stopped before.

    Errors: the store's, once it has failed for `timeout_s`; one that is not for the store's absence
    at once.
    """
    end_s = time.monotonic() + timeout_s
    while not stop.is_set():
        asked = to.loop.spawn(to.store.ensure())
        while not asked.done() and time.monotonic() < end_s and not stop.is_set():
            wait([asked], _STEP_S)
        if not asked.done():
            asked.cancel()
            if not stop.is_set():
                raise StoreUnavailableError(f"the store gave no answer in {timeout_s:.0f} s")
            continue
        try:
            asked.result()
        except StoreUnavailableError:
            if time.monotonic() >= end_s:
                raise
            stop.wait(min(_AGAIN_S, timeout_s))
        else:
            return True
    return False


class Adoptions:
    """Deliveries beside a service, each on a thread; none of them can end the service."""

    def __init__(
        self, directories: Sequence[str], open_journal: OpenJournal, to: Destination
    ) -> None:
        """Opens nothing yet: a long journal must not delay the start."""
        self._open, self._to = open_journal, to
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pending: dict[str, int] = {}
        self._threads = [
            threading.Thread(
                target=self._adopt, args=(directory,), name="labeler-adopt", daemon=True
            )
            for directory in directories
        ]

    def start(self) -> None:
        """Begins all deliveries."""
        for thread in self._threads:
            thread.start()

    def stats(self) -> Mapping[str, int]:
        """How many journals are being delivered, and how many labels they hold."""
        with self._lock:
            return {"journals": len(self._pending), "pending": sum(self._pending.values())}

    def end(self) -> None:
        """No further label is taken up; returns at once."""
        self._stop.set()

    def stop(self, timeout_s: float) -> None:
        """Ends them after the writes under way."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)

    def _adopt(self, directory: str) -> None:
        try:
            stats = self._deliver(directory)
        except Exception as error:
            reason = error.message if isinstance(error, LabelerError) else repr(error)
            fields = {"directory": directory, "reason": reason}
            _log.error("an adopted journal is not delivered", extra={"fields": fields})
            return
        finally:
            with self._lock:
                self._pending.pop(directory, None)
        message = "an adopted journal is delivered"
        if stats["pending"]:
            message = "an adopted journal is delivered in part; it keeps the rest"
        wanted = ("found", "stored", "superseded", "dead", "pending", "damage")
        fields = {"directory": directory, **{name: stats[name] for name in wanted}}
        _log.info(message, extra={"fields": fields})

    def _deliver(self, directory: str) -> Mapping[str, Any]:
        left = left_in(Path(directory))
        journal = self._open(left)

        def told(stats: Mapping[str, Any], _: Callable[[], str]) -> None:
            with self._lock:
                self._pending[directory] = stats["pending"]

        try:
            stats = deliver(left, journal, self._to, self._stop, told)
        except BaseException:
            with suppress(LabelerError):  # the first error is the one to tell
                journal.close(_CLOSE_MS)
            raise
        journal.close(_CLOSE_MS)
        return stats
