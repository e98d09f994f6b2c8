"""The controller: which label is right, from the true ranges of one ring of sensors.

A pure function of the 24 ranges, so that whoever sees the payload can know the label. Never looks
at positions, at other robots or at the past.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = [
    "AHEAD",
    "FRONT",
    "LABELS",
    "LEFT",
    "MOVE_FORWARD",
    "RIGHT",
    "SLOW_DOWN",
    "SLOW_NEAR_M",
    "STOP",
    "STOP_NEAR_M",
    "TURN_LEFT",
    "TURN_NEAR_M",
    "TURN_RIGHT",
    "WIDTH",
    "label_of",
]

Array = np.ndarray[Any, Any]

WIDTH: Final = 24
"""Sensors in the ring, 15° apart: 0 looks ahead, 6 to the left, 12 behind, 18 to the right."""

LABELS: Final = ("move-forward", "slow-down", "stop", "turn-left", "turn-right")
MOVE_FORWARD, SLOW_DOWN, STOP, TURN_LEFT, TURN_RIGHT = range(5)

AHEAD: Final = (23, 0, 1)
"""Within 15° of the way ahead."""
FRONT: Final = (22, 23, 0, 1, 2)
"""Within 30° of the way ahead."""
LEFT: Final = (1, 2, 3, 4, 5, 6, 7)
RIGHT: Final = (23, 22, 21, 20, 19, 18, 17)

STOP_NEAR_M: Final = np.float32(0.4)
TURN_NEAR_M: Final = np.float32(1.1)
SLOW_NEAR_M: Final = np.float32(2.2)


def label_of(true_ranges: Array) -> Array:
    """The right label of each row of `true_ranges` (float32 [n, 24], m): int16 [n] into `LABELS`.

    The first rule that holds decides; near means strictly less than, so that a range equal to a
    threshold falls to the next rule:

    1. stop: anything in FRONT nearer than 0.4 m.
    2. turn: anything AHEAD nearer than 1.1 m. It turns to where there is more room: left when the
       sum of the ranges LEFT is at least the sum RIGHT (added in float32 from front to back).
    3. slow-down: anything AHEAD nearer than 2.2 m.
    4. move-forward: otherwise.
    """
    front = _nearest(true_ranges, FRONT)
    ahead = _nearest(true_ranges, AHEAD)
    left = _room(true_ranges, LEFT) >= _room(true_ranges, RIGHT)
    labels = np.where(ahead < SLOW_NEAR_M, SLOW_DOWN, MOVE_FORWARD)
    labels = np.where(ahead < TURN_NEAR_M, np.where(left, TURN_LEFT, TURN_RIGHT), labels)
    labels = np.where(front < STOP_NEAR_M, STOP, labels)
    return labels.astype(np.int16)


def _nearest(ranges: Array, sensors: tuple[int, ...]) -> Array:
    nearest = ranges[:, sensors[0]]
    for sensor in sensors[1:]:
        nearest = np.minimum(nearest, ranges[:, sensor])
    return nearest


def _room(ranges: Array, sensors: tuple[int, ...]) -> Array:
    """The sum of these sensors' ranges, added one after the other: the same bits everywhere."""
    room = ranges[:, sensors[0]]
    for sensor in sensors[1:]:
        room = room + ranges[:, sensor]
    return room
