"""Which article a robot's payload is about: a popularity curve as skewed as a real shop's.

The curve is our own formula, fitted to published figures of a shop's 4,070 articles (slope of log
count over log rank −0.27 for ranks 1–100 and −0.51 for 1–1,000; the first 1 % of them have 9.6 %,
10 % have 45.5 %, 20 % have 65.4 % of all lines); no data is in it. Far milder than Zipf's 1.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labeler.fleet.draws import Draws

__all__ = ["SKUS", "draw_skus", "popularity"]

Array = np.ndarray[Any, Any]

_COUNT = 4000

SKUS = tuple(f"sku-{rank:04d}" for rank in range(1, _COUNT + 1))
"""Names, the most popular first."""


def popularity() -> Array:
    """Whole-number weights by rank: int64 [SKUs], the sum below 2^24."""
    ranks = np.arange(1, _COUNT + 1, dtype=np.float64)
    weights = ranks**-0.22 * np.exp(-((ranks / 800) ** 0.8))
    # Whole numbers, since the last bit of a power is not the same on every machine.
    return np.maximum(1, np.rint(weights * 60_000)).astype(np.int64)


_ENDS = np.cumsum(popularity())


def draw_skus(draws: Draws, count: int) -> Array:
    """Indices into `SKUS`, each drawn for itself: int16 [count]."""
    places = draws.below(count, int(_ENDS[-1]))
    return np.searchsorted(_ENDS, places, side="right").astype(np.int16)
