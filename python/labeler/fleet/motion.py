"""How robots move: each acts on its label, and none enters a rack or another robot.

Robots go where their label lets them; a dispatcher sends those that stand, and now and then one
that drives, another way, so that no label lasts. Never looks at what the sensors report.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from labeler.fleet.controller import LABELS, MOVE_FORWARD, SLOW_DOWN, STOP, TURN_LEFT, TURN_RIGHT
from labeler.fleet.draws import Draws
from labeler.fleet.floor import CELL_M, Floor
from labeler.fleet.sensors import DIRECTIONS, RADIUS_M, TURN, Neighbours

__all__ = ["SPEEDS_M_S", "STEP_S_MAX", "Motion", "blocked_at", "places"]

Array = np.ndarray[Any, Any]

SPEEDS_M_S = np.zeros(len(LABELS), dtype=np.float64)
SPEEDS_M_S[MOVE_FORWARD] = 1.0
SPEEDS_M_S[SLOW_DOWN] = 0.4
SPEEDS_M_S[[TURN_LEFT, TURN_RIGHT]] = 0.1

STEP_S_MAX = 2.0
"""The longest step, so that robots that meet within it saw each other when it began."""

_HOP_M = 0.25  # a move is checked each so far; shorter than a cell, so that none is jumped over
_TURN_S = (300, 700)  # a robot that turns: 30° to 70° a second
_LANE_S = 100  # a robot that drives comes back to the direction of its aisle by 10° a second
_DRIFT = 20  # and strays by 2°
_STANDS_S = 0.3  # a standing robot is sent elsewhere with this probability a second
_CALLED_S = 0.02  # a driving one too: a quarter turn


def places(floor: Floor, draws: Draws, robots: int) -> Array:
    """Where robots stand at first, on a lattice of 1 m so that none touch: float64 [robots, 2].

    Fewer than asked for where the floor has no room.
    """
    rows, columns = floor.cells.shape
    middle_y, middle_x = np.mgrid[1 : rows - 1 : 2, 1 : columns - 1 : 2].reshape(2, -1)
    lattice = (np.stack([middle_x, middle_y], axis=1) + 0.5) * CELL_M
    lattice = lattice[~blocked_at(floor, lattice)]
    chosen: Array = lattice[draws.order(len(lattice))[:robots]]
    return chosen


def blocked_at(floor: Floor, positions: Array) -> Array:
    """Whether a robot there would overlap something of the floor: bool [n].

    The exact distance from the middle to the nine cells around; `RADIUS_M` is less than a cell.
    """
    stride = floor.cells.shape[1]
    scaled = positions / CELL_M
    whole = np.floor(scaled)
    low = (scaled - whole) * CELL_M  # to the cell's lower borders, m
    high = CELL_M - low
    cell = whole[:, 1].astype(np.int64) * stride + whole[:, 0].astype(np.int64)
    none = np.zeros(len(positions))
    overlaps: Array = floor.blocked[cell]
    for row, away_y in ((-1, low[:, 1]), (0, none), (1, high[:, 1])):
        for column, away_x in ((-1, low[:, 0]), (0, none), (1, high[:, 0])):
            near = away_x * away_x + away_y * away_y < RADIUS_M**2
            overlaps = overlaps | (near & floor.blocked[cell + row * stride + column])
    return overlaps


class Motion:
    """Poses of all robots. `positions`: float64 [robots, 2], m; `headings`: int64, of `TURN`."""

    def __init__(self, floor: Floor, positions: Array, draws: Draws) -> None:
        self._floor = floor
        self._draws = draws
        self.positions = positions
        self.headings = draws.below(len(positions), TURN)

    def act(self, labels: Array, near: Neighbours, step_s: float) -> None:
        """Let `step_s` pass: each robot does what its label says. `near`: of the present poses."""
        before = self.positions
        self._steer(labels, step_s)
        far = SPEEDS_M_S[labels] * step_s
        reach = 2 * RADIUS_M + 2 * float(SPEEDS_M_S.max()) * step_s
        close = np.flatnonzero((near.ways * near.ways).sum(axis=1) < reach**2)
        robot, other = near.robot[close], near.other[close]
        hops = max(1, math.ceil(float(SPEEDS_M_S.max()) * step_s / _HOP_M))
        ways = DIRECTIONS[self.headings].astype(np.float64) * (far / hops)[:, np.newaxis]
        for _ in range(hops):
            self._hop(ways, robot, other)
        stands = (self.positions == before).all(axis=1)
        self._dispatch(stands, step_s)

    def _steer(self, labels: Array, step_s: float) -> None:
        """Turn those that turn, and keep those that drive in the direction of their aisle."""
        count = len(labels)
        slowest, fastest = _TURN_S
        turns = slowest + self._draws.below(count, fastest - slowest)
        sideways = np.where(labels == TURN_LEFT, turns, 0) - np.where(
            labels == TURN_RIGHT, turns, 0
        )
        quarter = TURN // 4
        off = (self.headings + quarter // 2) % quarter - quarter // 2
        drift = np.rint(self._draws.bell(count) * np.float32(_DRIFT)).astype(np.int64)
        drives = np.where(labels == STOP, 0, drift - np.clip(off, -_LANE_S, _LANE_S))
        turned = np.where(sideways != 0, sideways, drives) * step_s
        self.headings = (self.headings + np.rint(turned).astype(np.int64)) % TURN

    def _hop(self, ways: Array, robot: Array, other: Array) -> None:
        """Move all by `ways`, but those who would overlap the floor, or where another is or goes.

        Who would meet the old or the new place of another stays: so no two ever overlap, whoever
        of them moves.
        """
        there = self.positions + ways
        stays = blocked_at(self._floor, there)
        for places_of_others in (self.positions, there):
            gap = there[robot] - places_of_others[other]
            meets = gap[:, 0] * gap[:, 0] + gap[:, 1] * gap[:, 1] < (2 * RADIUS_M) ** 2
            stays[robot[meets]] = True
        self.positions = np.where(stays[:, np.newaxis], self.positions, there)

    def _dispatch(self, stands: Array, step_s: float) -> None:
        """Send some another way: standing robots anywhere, driving ones round a corner."""
        count = len(stands)
        chance = self._draws.uniform(count)
        anywhere = self._draws.below(count, TURN)
        corner = np.where(anywhere < TURN // 2, TURN // 4, -TURN // 4)
        headings = np.where(stands, anywhere, (self.headings + corner) % TURN)
        sent = chance < np.where(stands, _STANDS_S, _CALLED_S) * step_s
        self.headings = np.where(sent, headings, self.headings)
