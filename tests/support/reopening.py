"""A robot that keeps its stream: when the service ends it, it opens another one and goes on.

It sends again what is unanswered, and only that. It remembers every answer, so that none can be
lost or doubled unseen.
"""

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import numpy as np

import labeler
from labeler.client import AsyncLabelStream
from tests.support.load import readings

BURST = 3

Answer = labeler.Label | labeler.LabelerError
Values = np.ndarray[Any, np.dtype[np.float32]]


class ReopeningRobot:
    """Sends bursts and waits for their answers, until it is told to stop."""

    def __init__(self, client: labeler.AsyncClient, robot_id: str, seed: int) -> None:
        """`client`: whose streams it opens. Nothing is sent before `run`."""
        self.client, self.robot_id = client, robot_id
        self.answers: defaultdict[int, list[Answer]] = defaultdict(list)
        self.ends: list[labeler.UnavailableError] = []
        self.sent = 0
        self.resent = 0
        self._open: dict[int, Values] = {}
        self._rng = random.Random(f"{seed}:{robot_id}")

    async def run(self, stop: asyncio.Event, pause_s: float = 0.05) -> None:
        """Sends until `stop`, then until everything is answered."""
        while not stop.is_set() or self._open:
            try:
                async with self.client.stream() as stream:
                    await self._resend(stream)
                    await self._talk(stream, stop, pause_s)
            except labeler.UnavailableError as over:
                self.ends.append(over)

    @property
    def wrong(self) -> dict[int, list[Answer]]:
        """Sequences that have not exactly one answer, which is a label."""
        return {
            sequence: self.answers[sequence]
            for sequence in range(1, self.sent + 1)
            if [type(found) for found in self.answers[sequence]] != [labeler.Label]
        }

    async def _resend(self, stream: AsyncLabelStream) -> None:
        for sequence, values in self._open.items():
            await stream.send(self.robot_id, sequence, values)
            self.resent += 1

    async def _talk(self, stream: AsyncLabelStream, stop: asyncio.Event, pause_s: float) -> None:
        while True:
            async for result in stream:
                assert result.sequence is not None
                self.answers[result.sequence].append(result)
                if isinstance(result, labeler.Label):
                    self._open.pop(result.sequence, None)
            if stop.is_set():
                return
            for _ in range(BURST):
                self.sent += 1
                self._open[self.sent] = readings(self._rng)
                await stream.send(self.robot_id, self.sent, self._open[self.sent])
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)
