"""Seeded draws that are the same to the bit on every machine.

Takes only the raw 64-bit words of PCG64, whose stream numpy promises to keep, and turns them into
numbers by exact arithmetic. Never calls a function (normal, exp, sin) whose last bit may differ
from one platform or release to the next.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

__all__ = ["Draws"]

Array = np.ndarray[Any, Any]

# Four 16-bit lanes summed: mean 131,070, standard deviation sqrt((2^32 - 1) / 3).
_LANES_MEAN = 131_070
_LANES_DEVIATION = 37_837.2


class Draws:
    """One stream of draws. Another `purpose`, or other seeds, is an independent stream."""

    def __init__(self, purpose: str, *seeds: int) -> None:
        words = int.from_bytes(sha256(purpose.encode()).digest()[:8], "big")
        self._bits = np.random.PCG64(np.random.SeedSequence([words, *seeds]))

    def words(self, count: int) -> Array:
        """`count` raw words: uint64 [count]."""
        drawn: Array = self._bits.random_raw(count)
        return drawn

    def uniform(self, count: int) -> Array:
        """In [0, 1), multiples of 2^-24 and so exact in float32: float32 [count]."""
        scaled: Array = (self.words(count) >> np.uint64(40)).astype(np.float32)
        return scaled * np.float32(2**-24)

    def below(self, count: int, end: int) -> Array:
        """Whole numbers in [0, end), `end` up to 2^24: int64 [count]."""
        high: Array = (self.words(count) >> np.uint64(40)).astype(np.int64) * end
        return high >> 24

    def bell(self, *shape: int) -> Array:
        """Bell-shaped: mean 0, deviation 1, never beyond 3.47: float32 [shape].

        The sum of four uniform numbers: within 1 % of the normal distribution up to 2 deviations.
        """
        count = int(np.prod(shape))
        lanes = self.words(count).view(np.uint16).reshape(count, 4).astype(np.int32)
        total = lanes[:, 0] + lanes[:, 1] + lanes[:, 2] + lanes[:, 3] - _LANES_MEAN
        scaled: Array = total.astype(np.float32) * np.float32(1 / _LANES_DEVIATION)
        return scaled.reshape(shape)

    def order(self, count: int) -> Array:
        """A permutation of 0 … count - 1: int64 [count]."""
        ranks: Array = np.argsort(self.words(count), kind="stable")
        return ranks

    def one(self, first: int, last: int) -> int:
        """One whole number from `first` to `last`, both included."""
        return first + int(self.below(1, last - first + 1)[0])
