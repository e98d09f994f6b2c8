"""Synthetic robots for the demo: streams and single calls at a planned rate, timed here.

Each request has a planned time, and its latency counts from it, so that a client or a server that
falls behind shows it. Never retries: what fails is counted by kind.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from labeler.client import AsyncClient, AsyncLabelStream
from labeler.errors import LabelerError, UnavailableError

__all__ = ["Load", "Outcome", "run"]

_TIMEOUT_MS = 2000
_RANGE_M = (0.34, 5.0)


@dataclass(frozen=True)
class Load:
    """`streams` share `rate_per_s` less `unary_per_s`, which single calls take."""

    address: str
    rate_per_s: int
    unary_per_s: int
    streams: int
    duration_s: float
    seed: int


@dataclass
class Outcome:
    """What the robots saw; latencies in µs from the planned time of each request."""

    sent: int = 0
    stream_us: list[int] = field(default_factory=list)
    unary_us: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    began_s: float = 0.0
    took_s: float = 0.0
    """From the first request sent to the last."""

    @property
    def answered(self) -> int:
        """Labels received."""
        return len(self.stream_us) + len(self.unary_us)


async def run(load: Load) -> Outcome:
    """Sends the load and waits for the last reply."""
    outcome = Outcome()
    # Above every sequence of an earlier run on the same state directory.
    first = time.time_ns() // 1_000_000 << 20
    async with AsyncClient(load.address, timeout_ms=_TIMEOUT_MS, attempts_max=1) as client:
        await client.wait_ready()
        width = next((m.width for m in await client.models() if m.serving), 24)
        outcome.began_s = time.monotonic()
        per_stream = (load.rate_per_s - load.unary_per_s) / load.streams
        async with asyncio.TaskGroup() as tasks:
            for number in range(load.streams):
                robot = _Robot(f"demo-{number:02}", first, width, random.Random(load.seed + number))
                tasks.create_task(_stream(client, robot, per_stream, load.duration_s, outcome))
            robot = _Robot("demo-unary", first, width, random.Random(load.seed - 1))
            tasks.create_task(_unary(client, robot, load, outcome))
    return outcome


class _Robot:
    """One robot: its id, its next sequence, and payloads of its own."""

    def __init__(self, robot_id: str, first: int, width: int, rng: random.Random) -> None:
        self.robot_id, self.sequence = robot_id, first
        self._width, self._rng = width, rng

    def next_payload(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        self.sequence += 1
        values = [self._rng.uniform(*_RANGE_M) for _ in range(self._width)]
        return np.array(values, dtype=np.float32)


async def _paced(
    rate_per_s: float, duration_s: float, send: Callable[[float], Awaitable[None]]
) -> None:
    """Calls `send(planned time)` by schedule; one that is late is sent at once, never left out."""
    began = time.monotonic()
    for index in range(int(rate_per_s * duration_s)):
        planned = began + index / rate_per_s
        wait_s = planned - time.monotonic()
        # Under a millisecond the loop's own timer is no finer: go on.
        if wait_s > 0.001:
            await asyncio.sleep(wait_s)
        await send(planned)


async def _stream(
    client: AsyncClient, robot: _Robot, rate_per_s: float, duration_s: float, outcome: Outcome
) -> None:
    planned_by_sequence: dict[int, float] = {}
    async with client.stream() as stream:

        async def send(planned: float) -> None:
            values = robot.next_payload()
            planned_by_sequence[robot.sequence] = planned
            _note_sent(outcome)
            await stream.send(robot.robot_id, robot.sequence, values)

        count = int(rate_per_s * duration_s)
        receiver = asyncio.create_task(_receive(stream, planned_by_sequence, count, outcome))
        try:
            await _paced(rate_per_s, duration_s, send)
            await receiver
        except LabelerError as error:
            outcome.errors[type(error).__name__] += 1
        finally:
            receiver.cancel()


async def _receive(
    stream: AsyncLabelStream, planned: dict[int, float], count: int, outcome: Outcome
) -> None:
    for _ in range(count):
        try:
            result = await stream.receive()
        except UnavailableError as error:
            outcome.errors[type(error).__name__] += max(1, len(error.unanswered))
            return
        now = time.monotonic()
        if isinstance(result, LabelerError):
            outcome.errors[type(result).__name__] += 1
        else:
            outcome.stream_us.append(_us(now - planned.pop(result.sequence)))


async def _unary(client: AsyncClient, robot: _Robot, load: Load, outcome: Outcome) -> None:
    calls: set[asyncio.Task[None]] = set()

    async def call(planned: float) -> None:
        _note_sent(outcome)
        values = robot.next_payload()
        try:
            await client.label(robot.robot_id, robot.sequence, values)
        except LabelerError as error:
            outcome.errors[type(error).__name__] += 1
        else:
            outcome.unary_us.append(_us(time.monotonic() - planned))

    async def send(planned: float) -> None:
        task = asyncio.create_task(call(planned))
        calls.add(task)
        task.add_done_callback(calls.discard)

    await _paced(load.unary_per_s, load.duration_s, send)
    if calls:
        await asyncio.wait(calls)


def _note_sent(outcome: Outcome) -> None:
    outcome.sent += 1
    outcome.took_s = time.monotonic() - outcome.began_s


def _us(seconds: float) -> int:
    return max(0, int(seconds * 1_000_000))
