"""Faults of sensors and links that can be switched on, each for a share of the robots.

Changes what is sensed and what is sent; never the floor, how robots move, or the truth. Each fault
has its own stream of draws and its own choice of robots, so that one does not move another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from labeler.errors import InvalidRequestError
from labeler.fleet.controller import WIDTH
from labeler.fleet.draws import Draws
from labeler.fleet.sensors import RANGE_MAX_M, RANGE_MIN_M

__all__ = ["KINDS", "FaultState", "Faults"]

Array = np.ndarray[Any, Any]

KINDS = ("bias", "dust", "dead", "burst", "flap")


@dataclass(frozen=True)
class Faults:
    """What is broken, in how many robots, and when. By default nothing is.

    `*_share`: share of the robots, 0 to 1. `bias_m` is added to each range. Dust: each reading is
    cut short with probability `dust_readings`, to between nothing and what it was. Dead: one sensor
    of the robot reads `dead_m` whatever is there. Burst: `burst_factor` payloads a tick in place of
    one. Flap: `flap_up_ticks` connected, then `flap_down_ticks` silent, each at its own phase.
    The faults hold in ticks `from_tick` to `until_tick`, the latter excluded.
    """

    bias_share: float = 0.0
    bias_m: float = 0.25
    dust_share: float = 0.0
    dust_readings: float = 0.1
    dead_share: float = 0.0
    dead_m: float = RANGE_MIN_M
    burst_share: float = 0.0
    burst_factor: int = 5
    flap_share: float = 0.0
    flap_up_ticks: int = 10
    flap_down_ticks: int = 3
    from_tick: int = 0
    until_tick: int = 1 << 62

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = item.name, getattr(self, item.name)
            least, most, expected = _expected(name)
            if not (math.isfinite(value) and least <= value <= most):
                raise InvalidRequestError(
                    f"faults.{name} = {value}: expected {expected}",
                    field=f"faults.{name}",
                    value=str(value),
                    expected=expected,
                )


def _expected(name: str) -> tuple[float, float, str]:
    if name.endswith("_share") or name == "dust_readings":
        return 0.0, 1.0, "a share from 0 to 1"
    if name == "bias_m":
        return -RANGE_MAX_M, RANGE_MAX_M, f"metres from -{RANGE_MAX_M} to {RANGE_MAX_M}"
    if name == "dead_m":
        return 0.0, RANGE_MAX_M, f"metres from 0 to {RANGE_MAX_M}"
    if name == "burst_factor":
        return 1, 1000, "a whole number from 1 to 1000"
    least = 0 if name.endswith("_tick") else 1
    return least, 1 << 62, f"a whole number from {least}"


class FaultState:
    """The faults of one fleet: who is affected, and what becomes of a tick."""

    def __init__(self, faults: Faults, robots: int, seed: int) -> None:
        self._faults = faults
        self.robots = {
            kind: _chosen(Draws(f"{kind} who", seed), robots, getattr(faults, f"{kind}_share"))
            for kind in KINDS
        }
        """By kind of fault, who is affected: bool [robots]."""
        self.dead_sensors = Draws("dead which", seed).below(robots, WIDTH)
        self._phases = Draws("flap when", seed).below(
            robots, faults.flap_up_ticks + faults.flap_down_ticks
        )
        self._dust = Draws("dust", seed)

    def _on(self, tick: int) -> bool:
        return self._faults.from_tick <= tick < self._faults.until_tick

    def sense(self, tick: int, ranges: Array) -> None:
        """Spoil `ranges` (float32 [robots, 24], m) in place, within what a sensor can read."""
        faults = self._faults
        if not self._on(tick):
            return
        biased = np.flatnonzero(self.robots["bias"])
        ranges[biased] += np.float32(faults.bias_m)
        dusty = np.flatnonzero(self.robots["dust"])
        count = len(dusty) * WIDTH
        struck = self._dust.uniform(count) < np.float32(faults.dust_readings)
        short = np.where(struck, self._dust.uniform(count), np.float32(1)).reshape(-1, WIDTH)
        ranges[dusty] *= short
        np.clip(ranges, np.float32(RANGE_MIN_M), np.float32(RANGE_MAX_M), out=ranges)
        dead = np.flatnonzero(self.robots["dead"])
        ranges[dead, self.dead_sensors[dead]] = np.float32(faults.dead_m)

    def sends(self, tick: int) -> Array:
        """How many payloads each robot sends in this tick, 0 while silent: int16 [robots]."""
        faults = self._faults
        sends = np.ones(len(self._phases), dtype=np.int16)
        if self._on(tick):
            sends[self.robots["burst"]] = faults.burst_factor
            at = (tick + self._phases) % (faults.flap_up_ticks + faults.flap_down_ticks)
            sends[self.robots["flap"] & (at >= faults.flap_up_ticks)] = 0
        return sends


def _chosen(draws: Draws, robots: int, share: float) -> Array:
    """A mask of `share` of the robots, rounded to whole robots; a larger share holds a smaller."""
    mask = np.zeros(robots, dtype=bool)
    mask[draws.order(robots)[: round(share * robots)]] = True
    return mask
