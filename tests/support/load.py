"""Robots that send labels from threads of their own, and remember what was acknowledged."""

import random
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

import labeler

WIDTH = 24  # of the packaged model `kiva-floor`


def readings(rng: random.Random, width: int = WIDTH) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One payload: distances in metres, as ultrasonic sensors give them."""
    return np.array([rng.uniform(0.3, 5.0) for _ in range(width)], dtype=np.float32)


@dataclass
class Robot:
    """What one robot sent (in order) and what it was told: label by sequence."""

    robot_id: str
    sent: int = 0
    acknowledged: dict[int, str] = field(default_factory=dict)
    refused: list[labeler.LabelerError] = field(default_factory=list)


class Fleet:
    """Threads that each label for one robot until they are stopped or the service is gone.

    A sequence is sent once and never again by a later fleet: robots are handed on with their count.
    """

    def __init__(self, address: str, robots: list[Robot], seed: int, **fields: Any) -> None:
        """`fields`: further arguments of `Client.label`, the same for every request."""
        self.robots = robots
        self._fields = fields
        self._stop = threading.Event()
        self._client = labeler.Client(address, timeout_ms=5000, attempts_max=1)
        self._client.wait_ready(10_000)
        self._threads = [
            threading.Thread(
                target=self._run, args=(robot, random.Random(f"{seed}:{robot.robot_id}"))
            )
            for robot in robots
        ]

    def __enter__(self) -> Self:
        """Starts all robots."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops all robots and waits for their last replies."""
        self.stop()

    def stop(self) -> None:
        """Lets each robot finish the call it is in."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)
        self._client.close()

    def acknowledged(self) -> int:
        """Labels acknowledged to all robots so far."""
        return sum(len(robot.acknowledged) for robot in self.robots)

    def _run(self, robot: Robot, rng: random.Random) -> None:
        while not self._stop.is_set():
            robot.sent += 1
            try:
                reply = self._client.label(
                    robot.robot_id, robot.sent, readings(rng), **self._fields
                )
            except labeler.LabelerError as error:
                robot.refused.append(error)
                if isinstance(error, labeler.UnavailableError):
                    return
            else:
                robot.acknowledged[robot.sent] = reply.label


def robots(count: int) -> list[Robot]:
    """Fresh robots, none of which has sent anything."""
    return [Robot(f"robot-{number:03}") for number in range(count)]
