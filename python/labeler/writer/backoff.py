"""How long to wait after a failure: exponential with full jitter, without a clock or a sleep.

A library such as tenacity drives the call and sleeps itself; here the wait must end at once when
the service stops, and its state spans calls and faults of the loop. That leaves these few lines.
"""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Waits between `least_s` and `most_s`: uniform in [0, bound], the bound doubling each time."""

    def __init__(self, least_s: float, most_s: float, rng: random.Random) -> None:
        """`rng` is handed in, so that a test can seed it."""
        assert 0 < least_s <= most_s
        self._least_s, self._most_s, self._rng = least_s, most_s, rng
        self.attempts = 0

    def bound_s(self) -> float:
        """The longest that the next wait can be."""
        # 2**60 is past any bound; without the limit a year of outage would overflow a float.
        return float(min(self._most_s, self._least_s * 2 ** min(self.attempts, 60)))

    def next_s(self) -> float:
        """The next wait. Full jitter: a fleet of writers does not return in step."""
        bound = self.bound_s()
        self.attempts += 1
        return self._rng.uniform(0.0, bound)

    def reset(self) -> None:
        """After a success."""
        self.attempts = 0
