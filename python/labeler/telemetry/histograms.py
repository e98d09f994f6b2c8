"""Reads the core's sparse histograms: percentiles, differences, Prometheus buckets. Pure.

A histogram is a list of (upper bound, count), ascending; its bounds are within 1 % of the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Counts", "buckets", "minus", "percentile", "plus"]

Counts = Sequence[tuple[int, int]]


def percentile(counts: Counts, share: float) -> int:
    """The smallest bound that at least `share` (0 to 1) of the values do not exceed; 0 if empty."""
    total = sum(count for _, count in counts)
    wanted = max(1, math.ceil(total * share))
    seen = 0
    for upper, count in counts:
        seen += count
        if seen >= wanted:
            return upper
    return 0


def minus(newer: Counts, older: Counts) -> list[tuple[int, int]]:
    """What was added since `older`, an earlier reading of the same histogram."""
    before = dict(older)
    left = ((upper, count - before.get(upper, 0)) for upper, count in newer)
    return [(upper, count) for upper, count in left if count > 0]


def plus(histograms: Iterable[Counts]) -> list[tuple[int, int]]:
    """Several histograms as one."""
    total: dict[int, int] = {}
    for counts in histograms:
        for upper, count in counts:
            total[upper] = total.get(upper, 0) + count
    return sorted(total.items())


def buckets(counts: Counts, bounds: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative Prometheus buckets; the last is `+Inf` and holds everything.

    A value counts into a bucket when its (at most 1 % too high) upper bound fits.
    """
    result: list[tuple[str, float]] = []
    index = total = 0
    for bound in bounds:
        while index < len(counts) and counts[index][0] <= bound:
            total += counts[index][1]
            index += 1
        result.append((str(float(bound)), float(total)))
    total += sum(count for _, count in counts[index:])
    return [*result, ("+Inf", float(total))]


def summary(counts: Counts) -> Mapping[str, int]:
    """The percentiles that people look at, in the histogram's unit."""
    return {
        "p50": percentile(counts, 0.5),
        "p99": percentile(counts, 0.99),
        "p999": percentile(counts, 0.999),
    }
