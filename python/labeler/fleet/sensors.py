"""What the ring of sensors would read without noise: rays against the floor and against robots.

Vectorised over all robots and rays; uses sums, products, quotients and roots only, which every
machine rounds alike, and a table of directions. Never draws a number, never moves a robot.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from labeler.fleet.controller import WIDTH
from labeler.fleet.floor import CELL_M, Floor

__all__ = [
    "DIRECTIONS",
    "RADIUS_M",
    "RANGE_MAX_M",
    "RANGE_MIN_M",
    "REACH_M",
    "SIGHT_M",
    "TURN",
    "Neighbours",
    "Sight",
    "look",
    "neighbours_of",
]

Array = np.ndarray[Any, Any]

RADIUS_M = 0.3
"""Radius of a robot; a range is counted from its rim."""
RANGE_MIN_M = 0.02
RANGE_MAX_M = 5.0
REACH_M = RANGE_MAX_M + RADIUS_M
"""How far a ray goes, from the robot's middle."""
SIGHT_M = REACH_M + RADIUS_M
"""Two robots whose middles are further apart can't see each other."""

TURN = 3600
"""Steps of a whole turn: headings are whole numbers of 0.1°, counted to the left from x."""


def _table() -> Array:
    """Cosine and sine of each heading: float32 [TURN, 2], the same bits whatever the C library."""
    angles = [2 * math.pi * step / TURN for step in range(TURN)]
    return np.array(
        [[round(math.cos(angle), 12), round(math.sin(angle), 12)] for angle in angles],
        dtype=np.float32,
    )


DIRECTIONS = _table()
_COSINES, _SINES = np.ascontiguousarray(DIRECTIONS.T)
# m along the ray from one cell border to the next; along a border: so far that it never comes.
_PACE_X, _PACE_Y = np.float32(CELL_M) / np.maximum(np.abs(DIRECTIONS.T), np.float32(1e-9))
_RING = np.arange(WIDTH) * (TURN // WIDTH)


class Neighbours(NamedTuple):
    """Pairs of robots in sight of each other, each pair both ways: `other` as `robot` sees it.

    `robot`, `other`: int64 [pairs]; `ways`: float32 [pairs, 2], from robot to other, m.
    """

    robot: Array
    other: Array
    ways: Array


class Sight(NamedTuple):
    """`ranges`: float32 [robots, 24], m; `steps`: cells entered by rays; `discs`: pairs x rays."""

    ranges: Array
    steps: int
    discs: int


def look(floor: Floor, positions: Array, headings: Array, near: Neighbours) -> Sight:
    """True ranges of all robots, between `RANGE_MIN_M` and `RANGE_MAX_M`, which is "nothing there".

    `positions`: float64 [robots, 2], m; `headings`: integers [robots], steps of `TURN`.
    """
    rays = (headings[:, np.newaxis] + _RING) % TURN
    reached, steps = _to_cells(floor, positions, rays)
    _to_robots(reached, rays, near)
    ranges = reached - np.float32(RADIUS_M)
    np.clip(ranges, np.float32(RANGE_MIN_M), np.float32(RANGE_MAX_M), out=ranges)
    return Sight(ranges, steps, len(near.robot) * WIDTH)


def _to_cells(floor: Floor, positions: Array, rays: Array) -> tuple[Array, int]:
    """Distance from each middle to the first blocked cell, at most `REACH_M`; cells entered.

    Each ray goes from cell to cell (Amanatides and Woo 1987); those that ended are left out of the
    next step. A ray enters at most 10.6 x √2 + 2, so 17 cells.
    """
    stride = floor.cells.shape[1]
    scaled = positions / CELL_M
    whole = np.floor(scaled)
    inside = (scaled - whole).astype(np.float32)
    start = whole[:, 1].astype(np.int32) * stride + whole[:, 0].astype(np.int32)
    east, north = _COSINES[rays] >= 0, _SINES[rays] >= 0
    pace_x, pace_y = _PACE_X[rays].ravel(), _PACE_Y[rays].ravel()
    next_x = np.where(east, 1 - inside[:, :1], inside[:, :1]).ravel() * pace_x
    next_y = np.where(north, 1 - inside[:, 1:], inside[:, 1:]).ravel() * pace_y
    step_x = np.where(east, np.int32(1), np.int32(-1)).ravel()
    step_y = np.where(north, np.int32(stride), np.int32(-stride)).ravel()
    cell = np.broadcast_to(start[:, np.newaxis], rays.shape).ravel()
    reached = np.full(rays.size, REACH_M, dtype=np.float32)
    ray = np.arange(rays.size, dtype=np.int32)
    steps = 0
    while ray.size:
        steps += ray.size
        sideways = next_x < next_y
        at = np.where(sideways, next_x, next_y)
        cell = cell + np.where(sideways, step_x, step_y)
        hit = floor.blocked[cell]
        within = at < np.float32(REACH_M)
        ended = np.flatnonzero(hit & within)
        reached[ray[ended]] = at[ended]
        next_x = np.where(sideways, next_x + pace_x, next_x)
        next_y = np.where(sideways, next_y, next_y + pace_y)
        on = np.flatnonzero(within & ~hit)
        cell, ray = cell[on], ray[on]
        next_x, next_y, pace_x, pace_y = next_x[on], next_y[on], pace_x[on], pace_y[on]
        step_x, step_y = step_x[on], step_y[on]
    return reached.reshape(rays.shape), steps


def _to_robots(reached: Array, rays: Array, near: Neighbours) -> None:
    """Shorten `reached` where another robot stands in the way. In place."""
    cosines, sines = _COSINES[rays], _SINES[rays]
    aside = near.ways[:, :1] * sines[near.robot] - near.ways[:, 1:] * cosines[near.robot]
    pair, ray = np.nonzero(np.abs(aside) < np.float32(RADIUS_M))
    robot, off = near.robot[pair], aside[pair, ray]
    along = near.ways[pair, 0] * cosines[robot, ray] + near.ways[pair, 1] * sines[robot, ray]
    at = along - np.sqrt(np.float32(RADIUS_M**2) - off * off)
    ahead = along > 0
    np.minimum.at(reached.reshape(-1), (robot * WIDTH + ray)[ahead], at[ahead])


def neighbours_of(positions: Array, within_m: float = SIGHT_M) -> Neighbours:
    """All pairs of robots nearer than `within_m`. `positions`: float64 [robots, 2], not negative.

    Robots are sorted into squares of that side, so that a robot is compared with those of nine
    squares only: three runs in the sorted order.
    """
    squares = (positions / within_m).astype(np.int64) + 1
    stride = int(squares[:, 0].max()) + 2
    square = squares[:, 1] * stride + squares[:, 0]
    order = np.argsort(square, kind="stable")
    sorted_squares = square[order]
    robots, others = [], []
    for row in (-stride, 0, stride):
        first = np.searchsorted(sorted_squares, square + (row - 1), side="left")
        end = np.searchsorted(sorted_squares, square + (row + 1), side="right")
        count = end - first
        robot = np.repeat(np.arange(len(square)), count)
        ordinal = np.arange(len(robot)) - np.repeat(np.cumsum(count) - count, count)
        robots.append(robot)
        others.append(order[first[robot] + ordinal])
    robot, other = np.concatenate(robots), np.concatenate(others)
    ways = positions[other] - positions[robot]
    squared = ways[:, 0] * ways[:, 0] + ways[:, 1] * ways[:, 1]
    seen = np.flatnonzero((squared < within_m**2) & (robot != other))
    return Neighbours(robot[seen], other[seen], ways[seen].astype(np.float32))
