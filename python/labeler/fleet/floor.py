"""The floor: a hall of racks, aisles, stations, chargers and obstacles, on a grid of 0.5 m cells.

A layout follows from its seed and the number of robots it is for, and from nothing else. Knows no
robot and no sensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labeler.errors import InvalidRequestError
from labeler.fleet.draws import Draws

__all__ = [
    "CELL_M",
    "CHARGER",
    "FREE",
    "OBSTACLE",
    "RACK",
    "STATION",
    "WALL",
    "Floor",
    "make_floor",
]

Array = np.ndarray[Any, Any]

CELL_M = 0.5
"""Side of a cell, m. A pod, one place of a rack, is two cells wide and two deep."""

FREE, WALL, RACK, STATION, CHARGER, OBSTACLE = range(6)
"""What stands in a cell."""

_POD = 2
_CELLS_LEAST = 40  # 20 m: one block of racks with roads around it
_WALL_CLEAR = 3  # cells that stay free between a corner and the first station or charger


@dataclass(frozen=True, eq=False)
class Floor:
    """A hall. `cells`: uint8 [rows, columns], kinds of what stands there, walled in all round.

    Cell [row, column] covers x from `column` to `column + 1` and y from `row` to `row + 1`, times
    `CELL_M`. `blocked`: bool [rows x columns], flat, true where no robot can be.
    """

    seed: int
    cells: Array
    blocked: Array = field(init=False)

    def __post_init__(self) -> None:
        rim = (self.cells[0], self.cells[-1], self.cells[:, 0], self.cells[:, -1])
        if not all((line != FREE).all() for line in rim):
            raise InvalidRequestError(
                "cells: the rim is open; expected a hall that is walled in all round",
                field="cells",
                expected="no free cell on the rim",
            )
        object.__setattr__(self, "blocked", np.ascontiguousarray(self.cells != FREE).ravel())

    @property
    def width_m(self) -> float:
        """Extent along x, m."""
        return float(self.cells.shape[1]) * CELL_M

    @property
    def height_m(self) -> float:
        """Extent along y, m."""
        return float(self.cells.shape[0]) * CELL_M


def make_floor(floor_seed: int, robots: int = 2300) -> Floor:
    """A hall with room for `robots`: 9 to 14 m² for each, never less than 20 m by 20 m.

    Drawn from the seed: proportions, length and depth of the blocks of racks, width of aisles (1.5
    to 3 m), cross-aisles (2 to 4 m) and roads along the walls, share of missing pods and blocks,
    stations along the south wall, chargers along the north wall, and obstacles in wide places.
    No place is shut in: an aisle passes each pod, and obstacles leave 1 m all round.
    """
    draws = Draws("floor", floor_seed, robots)
    area = robots * (draws.one(90, 140) / 10) / CELL_M**2
    width = max(_CELLS_LEAST, round(math.sqrt(area * draws.one(100, 200) / 100)))
    height = max(_CELLS_LEAST, round(area / width))
    cells = np.zeros((height, width), dtype=np.uint8)
    road = draws.one(4, 8)
    _racks(cells, draws, road)
    _along_walls(cells, draws)
    cells[0] = cells[-1] = WALL
    cells[:, 0] = cells[:, -1] = WALL
    _obstacles(cells, draws)
    return Floor(floor_seed, cells)


def _racks(cells: Array, draws: Draws, road: int) -> None:
    """Fill the hall with blocks of pods between roads, aisles and cross-aisles."""
    height, width = cells.shape
    long, deep = _POD * draws.one(4, 10), 2 * _POD  # two deep: an aisle passes each pod
    aisle, cross = draws.one(4, 8), draws.one(5, 10)
    missing, missing_blocks = draws.one(3, 15) / 100, draws.one(0, 6) / 100
    strip = 6  # more room where stations and chargers are
    for south in range(1 + road + strip, height - road - strip - deep, deep + aisle):
        for west in range(1 + road, width - road - long, long + cross):
            pods = draws.uniform(1 + (long // _POD) * (deep // _POD))
            if pods[0] < missing_blocks:
                continue
            stands = (pods[1:] >= missing).reshape(deep // _POD, long // _POD)
            block = np.repeat(np.repeat(stands, _POD, axis=0), _POD, axis=1)
            cells[south : south + deep, west : west + long] = np.where(block, RACK, FREE)


def _along_walls(cells: Array, draws: Draws) -> None:
    """Stations stand out from the south wall, chargers from the north wall."""
    height, width = cells.shape
    every, wide = draws.one(9, 14), draws.one(2, 4)
    for west in range(1 + _WALL_CLEAR, width - wide - _WALL_CLEAR, every):
        cells[1:3, west : west + wide] = STATION
    every = draws.one(4, 7)
    for west in range(1 + _WALL_CLEAR, width - 1 - _WALL_CLEAR, every):
        cells[height - 2, west] = CHARGER


def _obstacles(cells: Array, draws: Draws) -> None:
    """Put single things down where 1 m stays free all round, about one on each 40 to 120 m²."""
    height, width = cells.shape
    wanted = max(1, height * width // (4 * draws.one(40, 120)))
    rows = 2 + draws.below(wanted, height - 4)
    columns = 2 + draws.below(wanted, width - 4)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        around = cells[row - 2 : row + 3, column - 2 : column + 3]
        if not around.any():
            cells[row, column] = OBSTACLE
