"""Judges a change by its pairs: the median of their ratios with an interval, beside equal sides'.

Pure: runs in, verdicts out. The interval is a bootstrap's over the pairs; equal sides' is that of
the base's runs, each over the one before it. Where equal sides differ by more than what would be a
regression, one is told only if it goes beyond that difference too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.suite.compare import PAIRS_MIN, Pair
from bench.suite.metrics import Figures

__all__ = [
    "CONFIDENCE",
    "LIMITS",
    "Changed",
    "Interval",
    "changed",
    "interval",
    "line",
    "metrics_of",
]

CONFIDENCE = 0.95
_RESAMPLES = 9999
_SEED = 7

LIMITS = {"server_cpu_us_per_label": 1.05, "client_latency_us_p99": 1.25, "labels_per_s": 1.05}
"""The ratio of a metric from which on it is a regression: by how much head is worse than base."""
_MORE_IS_BETTER = ("labels_per_s",)
"""Of these the ratio is base/head, so that above 1 is worse for each."""


@dataclass(frozen=True)
class Interval:
    """A median of ratios, and where it lies with a confidence of 95 %."""

    median: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """As it is shown."""
        return f"{self.median:.3f} [{self.low:.3f}..{self.high:.3f}]"


@dataclass(frozen=True)
class Changed:
    """What became of a metric, `over` of the two sides, beside base over base."""

    metric: str
    over: str
    limit: float
    ratio: Interval | None
    aa: Interval | None
    verdict: str


def metrics_of(closed: bool) -> tuple[str, ...]:
    """What is compared of a case.

    An open loop's throughput is its schedule's; a closed loop's latencies are of its own making.
    """
    return ("server_cpu_us_per_label", "labels_per_s" if closed else "client_latency_us_p99")


def changed(metric: str, pairs: Sequence[Pair]) -> Changed:
    """Of the valid ones among pairs with the sides `base` and `head`."""
    runs = [pair.runs for pair in pairs if not pair.invalid_because]
    base, head = ([run[side].figures for run in runs] for side in ("base", "head"))
    over, above, below = "head/base", head, base
    if metric in _MORE_IS_BETTER:
        over, above, below = "base/head", base, head
    ratio = interval(_ratios(metric, above, below))
    aa = interval(_ratios(metric, base[1:], base[:-1]))
    limit = LIMITS[metric]
    return Changed(metric, over, limit, ratio, aa, _verdict(ratio, aa, limit, len(runs)))


def interval(ratios: Sequence[float]) -> Interval | None:
    """Of at least two ratios."""
    if len(ratios) < 2:
        return None
    if len(set(ratios)) == 1:
        return Interval(ratios[0], ratios[0], ratios[0])
    found = stats.bootstrap(
        (np.array(ratios),),
        np.median,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Interval(float(np.median(ratios)), float(found.low), float(found.high))


def line(found: Changed) -> str:
    """A metric in a line."""
    ratio, aa = (shown.text if shown else "-" for shown in (found.ratio, found.aa))
    return f"{found.metric} {found.over} {ratio}   base/base {aa}   {found.verdict}"


def _ratios(metric: str, above: Sequence[Figures], below: Sequence[Figures]) -> list[float]:
    both = [(a.get(metric, 0.0), b.get(metric, 0.0)) for a, b in zip(above, below, strict=True)]
    return [a / b for a, b in both if a > 0 and b > 0]


def _verdict(ratio: Interval | None, aa: Interval | None, limit: float, pairs: int) -> str:
    if ratio is None or aa is None or pairs < PAIRS_MIN:
        return "not measurable here: too few valid pairs"
    spread = max(aa.high, 1 / aa.low)
    if spread >= limit and ratio.low <= limit * spread:
        return f"not measurable here: A/A spreads wider than {limit:g}"
    if ratio.median > limit and ratio.low > 1:
        return f"REGRESSION, beyond {limit:g}"
    if ratio.high <= limit:
        return f"no regression beyond {limit:g}"
    return f"undecided: the interval goes beyond {limit:g}, measure more pairs"
