"""The fleet: robots on a floor, tick by tick, with what they sense and what is right.

The same seeds give the same bits on every machine. Knows no service: robots act on the right label,
whatever anybody answers, so that a wrong answer shows and does not spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labeler.errors import InvalidRequestError
from labeler.fleet.controller import WIDTH, label_of
from labeler.fleet.draws import Draws
from labeler.fleet.faults import Faults, FaultState
from labeler.fleet.floor import Floor, make_floor
from labeler.fleet.motion import STEP_S_MAX, Motion, places
from labeler.fleet.sensors import RANGE_MAX_M, RANGE_MIN_M, TURN, look, neighbours_of
from labeler.fleet.skus import SKUS, draw_skus

__all__ = ["NOISE_M", "Fleet", "Readings", "Work", "sample"]

Array = np.ndarray[Any, Any]

NOISE_M = 0.01
"""Standard deviation of a sensor's noise."""

_ROBOTS_MAX = 100_000
_SETTLE_TICKS = 20  # until what `places` arranged is forgotten
_SAMPLE_ROBOTS = 250


@dataclass(frozen=True, eq=False)
class Readings:
    """What all robots sense at one moment; row i is robot i.

    `ranges`: float32 [robots, 24], m, with noise and faults. `true_ranges`: the same without.
    `truths`: int16 [robots], indices into `LABELS`. `skus`: int16 [robots], indices into
    `Fleet.skus`. `positions`: float32 [robots, 2], m. `headings`: float32 [robots], radians from x
    to the left. `sends`: int16 [robots], payloads that the robot sends in this tick; 0: silent.
    """

    tick: int
    ranges: Array
    true_ranges: Array
    truths: Array
    skus: Array
    positions: Array
    headings: Array
    sends: Array

    @property
    def connected(self) -> Array:
        """Who has a link in this tick: bool [robots]."""
        connected: Array = self.sends > 0
        return connected

    @property
    def rows(self) -> Array:
        """Robots in the order they send, those in a burst several times in a row: int64 [sent]."""
        return np.repeat(np.arange(len(self.sends)), self.sends)


@dataclass
class Work:
    """What a fleet has computed, counted: ticks, cells entered by rays, rays x neighbours."""

    ticks: int = 0
    ray_steps: int = 0
    disc_tests: int = 0


class Fleet:
    """Robots that move on the floor of `floor_seed`; `seed` draws all else.

    `step_s`: seconds between two ticks, up to 2. `skus`: names that `Readings.skus` point to.
    Errors: `InvalidRequestError` names the argument. Cost, measured with 2,300 robots on one busy
    core: 37,000 to 43,000 payloads a CPU second, 15 MB.
    """

    skus: Sequence[str] = SKUS

    def __init__(
        self,
        floor_seed: int = 7,
        robots: int = 2300,
        seed: int = 1,
        step_s: float = 1.0,
        faults: Faults | None = None,
    ) -> None:
        _check("robots", robots, 1 <= robots <= _ROBOTS_MAX, f"1 to {_ROBOTS_MAX}")
        _check("step_s", step_s, 0 < step_s <= STEP_S_MAX, f"seconds above 0, up to {STEP_S_MAX}")
        _check("floor_seed", floor_seed, floor_seed >= 0, "0 or more")
        _check("seed", seed, seed >= 0, "0 or more")
        self.floor: Floor = make_floor(floor_seed, robots)
        self.robots = robots
        self.step_s = step_s
        self.work = Work()
        start = places(self.floor, Draws("places", floor_seed, seed), robots)
        _check("robots", robots, len(start) == robots, f"at most {len(start)} on this floor")
        self._motion = Motion(self.floor, start, Draws("motion", floor_seed, seed))
        self._noise = Draws("noise", floor_seed, seed)
        self._skus = Draws("skus", floor_seed, seed)
        self.faults = FaultState(faults or Faults(), robots, seed)

    def step(self) -> Readings:
        """What all robots sense now; then they act on the right label for `step_s`."""
        motion, tick = self._motion, self.work.ticks
        near = neighbours_of(motion.positions)
        sight = look(self.floor, motion.positions, motion.headings, near)
        truths = label_of(sight.ranges)
        ranges = self._sense(sight.ranges)
        self.faults.sense(tick, ranges)
        readings = Readings(
            tick=tick,
            ranges=ranges,
            true_ranges=sight.ranges,
            truths=truths,
            skus=draw_skus(self._skus, self.robots),
            positions=motion.positions.astype(np.float32),
            headings=(motion.headings * (2 * math.pi / TURN)).astype(np.float32),
            sends=self.faults.sends(tick),
        )
        motion.act(truths, near, self.step_s)
        self.work.ticks += 1
        self.work.ray_steps += sight.steps
        self.work.disc_tests += sight.discs
        return readings

    def _sense(self, true_ranges: Array) -> Array:
        """Ranges with noise; "nothing there" has none."""
        noise = self._noise.bell(*true_ranges.shape) * np.float32(NOISE_M)
        noisy = np.where(true_ranges < np.float32(RANGE_MAX_M), true_ranges + noise, true_ranges)
        return np.clip(noisy, np.float32(RANGE_MIN_M), np.float32(RANGE_MAX_M), out=noisy)


def sample(
    floor_seeds: Sequence[int], rows: int, robots: int = _SAMPLE_ROBOTS, seed: int = 1
) -> tuple[Array, Array]:
    """Payloads of many floors: sensed ranges float32 [rows, 24], truths int16 [rows].

    Of each floor as many: a fleet of `robots` runs on it, all ticks after the first twenty.
    Rows are in order of floor, tick and robot. Errors: `InvalidRequestError` names the argument.
    """
    _check("floor_seeds", len(floor_seeds), len(floor_seeds) > 0, "at least one")
    _check("rows", rows, rows > 0, "at least 1")
    ranges = np.empty((rows, WIDTH), dtype=np.float32)
    truths = np.empty(rows, dtype=np.int16)
    for place, floor_seed in enumerate(floor_seeds):
        row, end = (rows * part // len(floor_seeds) for part in (place, place + 1))
        fleet = Fleet(floor_seed, robots, seed)
        for _ in range(_SETTLE_TICKS if row < end else 0):
            fleet.step()
        while row < end:
            readings = fleet.step()
            taken = min(robots, end - row)
            ranges[row : row + taken] = readings.ranges[:taken]
            truths[row : row + taken] = readings.truths[:taken]
            row += taken
    return ranges, truths


def _check(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        message = f"{name} = {value}: expected {expected}"
        raise InvalidRequestError(message, field=name, value=str(value), expected=expected)
