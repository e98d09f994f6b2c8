"""Rows to send: payloads with their truths, in the order of the schedule, a batch at a time.

`Feeder` keeps the sender supplied from a thread of its own, with the sender's bound as the only
buffer. That thread yields to the sender and to a service on the same machine: what it computes is
needed later, what they do is needed now.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from labeler.errors import InvalidRequestError

if TYPE_CHECKING:
    from labeler.fleet import Faults

__all__ = ["Batch", "Crew", "Feeder", "FloorRows", "PlainRows", "Rows", "Sink"]

_NICENESS = 5
"""Of the feeding thread; a thread's own on Linux, the process's elsewhere, so only there."""


@dataclass(frozen=True)
class Batch:
    """`n` rows: float32 [n, width], int16 [n] truths (-1: unknown), int16 [n] or [0] SKUs."""

    values: np.ndarray[Any, np.dtype[np.float32]]
    truths: np.ndarray[Any, np.dtype[np.int16]]
    skus: np.ndarray[Any, np.dtype[np.int16]]


class Rows(Protocol):
    """Where rows come from. Truths and SKUs are indices into `labels` and `skus`."""

    @property
    def about(self) -> str:
        """What they are, for messages: `the floor`, a file's name."""

    @property
    def width(self) -> int:
        """Values in a row."""

    @property
    def labels(self) -> Sequence[str]:
        """Names of the truths; empty where no truth is known."""

    @property
    def skus(self) -> Sequence[str]:
        """Names of the SKUs; empty where none is."""

    def take(self) -> Batch | None:
        """The next rows, None after the last."""


class Sink(Protocol):
    """What takes rows: the sender. `feed` waits while it holds enough."""

    def feed(self, values: bytes, truths: bytes, skus: bytes) -> None:
        """Adds rows."""

    def end_feed(self) -> None:
        """Says that there are no more."""


@dataclass(frozen=True)
class Crew:
    """Which robots, on which floor, asking how often each; and what is broken."""

    robots: int
    rate_per_s: float
    floor_seed: int
    seed: int
    faults: Faults | None = None


class FloorRows:
    """What the robots of a simulated floor sense, a tick of all of them at a time; endless.

    `fleet`: the robots, which each `take` moves on.
    """

    about = "the floor"

    def __init__(self, crew: Crew) -> None:
        """A tick is the time between two labels of a robot. Errors: `InvalidRequestError`."""
        from labeler.fleet import LABELS, WIDTH, Fleet
        from labeler.fleet.motion import STEP_S_MAX

        if not crew.rate_per_s > 0:
            raise InvalidRequestError(
                f"rate_per_s = {crew.rate_per_s}: expected labels per second and robot, above 0",
                field="rate_per_s",
                value=str(crew.rate_per_s),
                expected="more than 0",
            )
        self._tick_s = 1 / crew.rate_per_s
        self._steps = math.ceil(self._tick_s / STEP_S_MAX)  # robots move in short steps
        self.fleet = Fleet(
            floor_seed=crew.floor_seed,
            robots=crew.robots,
            seed=crew.seed,
            step_s=self._tick_s / self._steps,
            faults=crew.faults,
        )
        self.width: int = WIDTH
        self.labels: Sequence[str] = tuple(LABELS)
        self.skus: Sequence[str] = tuple(self.fleet.skus)

    def take(self) -> Batch:
        """The next tick: robot 0 first, the last robot last; a silent one is left out."""
        readings = self.fleet.step()
        for _ in range(self._steps - 1):
            self.fleet.step()
        at = readings.rows
        return Batch(readings.ranges[at], readings.truths[at], readings.skus[at])

    def arrivals_us(self, lasts_s: float) -> list[int]:
        """When each row is due, µs from the start: each robot at its own part of a tick.

        Of a fleet that has not moved yet. With no fault of the link it is a constant rate; a burst
        comes all at once, and a silent robot has no row.
        """
        robots, due = self.fleet.robots, []
        for number in range(math.ceil(lasts_s / self._tick_s)):
            sends = self.fleet.faults.sends(number * self._steps)
            at = np.repeat(np.arange(robots), sends) / robots
            due.append(np.floor((number + at) * (self._tick_s * 1e6)).astype(np.int64))
        all_due = np.concatenate(due)
        return [int(at) for at in all_due[all_due < lasts_s * 1e6]]


class PlainRows:
    """Made-up values in a range's limits (0.4 to 5), of any width and without a truth; endless."""

    about = "made-up values"
    labels: Sequence[str] = ()
    skus: Sequence[str] = ()

    def __init__(self, width: int, robots: int, seed: int) -> None:
        """`width` values a row; a `take` brings a row for each robot."""
        self.width = width
        self._robots = robots
        self._random = np.random.default_rng(seed)

    def take(self) -> Batch:
        """The next rows."""
        values = self._random.uniform(0.4, 5.0, (self._robots, self.width)).astype(np.float32)
        return Batch(values, np.full(self._robots, -1, np.int16), np.zeros(0, np.int16))


class Feeder:
    """Moves rows to the sender until there are no more, or it is stopped."""

    def __init__(self, rows: Rows, sink: Sink, rows_ahead: int) -> None:
        """`primed` is set once `rows_ahead` are fed, or all, or the first fault has come."""
        self.fed = 0
        self.primed = threading.Event()
        self.error: Exception | None = None
        self._rows, self._sink = rows, sink
        self._rows_ahead = rows_ahead
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-feeder", daemon=True)

    def start(self) -> None:
        """Begins to feed."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends after the batch at hand, which the sender drops once it is over. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            _yield_to_others()
            while not self._stop.is_set() and (batch := self._rows.take()) is not None:
                self._feed(batch)
            self._sink.end_feed()
        except Exception as error:  # told by whoever waits for the run
            self.error = error
        finally:
            self.primed.set()

    def _feed(self, batch: Batch) -> None:
        self._sink.feed(
            np.asarray(batch.values, dtype="<f4").tobytes(),
            np.asarray(batch.truths, dtype="<i2").tobytes(),
            np.asarray(batch.skus, dtype="<i2").tobytes(),
        )
        self.fed += len(batch.values)
        if self.fed >= self._rows_ahead:
            self.primed.set()


def _yield_to_others() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
