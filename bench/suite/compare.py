"""Judges: ratios of runs that lay side by side, the same of equal sides, verdicts, guards.

Pure: runs in, findings out. Knows no server, file or clock, so that the rules are tested with
planted figures.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.suite.case import Goal, Guard
from bench.suite.metrics import METRICS, Figures, over_runs

__all__ = [
    "PAIRS_MIN",
    "SECONDS_MIN",
    "Checked",
    "Judgeable",
    "Judged",
    "Pair",
    "Ratio",
    "Report",
    "Run",
    "judge",
    "order",
    "ratio_between",
]

PAIRS_MIN = 8
SECONDS_MIN = 5.0

_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class Judgeable(Protocol):
    """What is judged of a case, whatever its sides are."""

    @property
    def erratic(self) -> bool:
        """Goals and guards are shown, and fail nothing."""

    @property
    def sides(self) -> Mapping[str, object]:
        """By name; the first is what the others are shown against."""

    @property
    def goals(self) -> Sequence[Goal]:
        """Demands on ratios."""

    @property
    def guards(self) -> Sequence[Guard]:
        """Bounds."""


@dataclass(frozen=True)
class Run:
    """One run of one side. `invalid_because`: why the sender does not vouch for it."""

    figures: Figures
    invalid_because: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """One run of every side, right after one another; left out whole if one of them is invalid."""

    runs: Mapping[str, Run]

    @property
    def invalid_because(self) -> list[str]:
        """Side and reason; empty if all runs are valid."""
        return [f"{side}: {why}" for side, run in self.runs.items() for why in run.invalid_because]


@dataclass(frozen=True)
class Ratio:
    """Per-pair ratios: their median and how far they spread."""

    median: float
    min: float
    max: float

    @classmethod
    def over(cls, ratios: Sequence[float]) -> Ratio:
        """Of at least one ratio."""
        return cls(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True)
class Judged:
    """A ratio of two sides beside that of one side with itself (A/A), and the word on a demand.

    `goal` is None where nothing is demanded. `aa` is None where there are fewer than two pairs.
    """

    metric: str
    side: str
    against: str
    ratio: Ratio | None
    aa: Ratio | None
    goal: Goal | None
    verdict: str


@dataclass(frozen=True)
class Checked:
    """A guard at one side: the figure that it is about, and whether it holds.

    `holds` is None where no valid run could show it; a valid run without the figure breaks it.
    """

    guard: Guard
    side: str
    value: float | None
    holds: bool | None


@dataclass(frozen=True)
class Report:
    """All that is said of a case. `measurement`: long and often enough, else it is a quick look."""

    measurement: bool
    erratic: bool
    pairs: int
    left_out: Sequence[str]
    sides: Mapping[str, dict[str, float]]
    judged: Sequence[Judged] = field(default_factory=list)
    guards: Sequence[Checked] = field(default_factory=list)

    def failures(self) -> list[str]:
        """Guards that do not hold and goals that are missed, where the case may fail by them."""
        if self.erratic or not self.measurement:
            return []
        found = [f"guard {c.guard.text} ({c.side})" for c in self.guards if c.holds is False]
        goals = [j for j in self.judged if j.verdict.startswith("missed")]
        return found + [f"goal {j.metric} of {j.side} against {j.against}" for j in goals]


def order(pair: int, sides: Sequence[str]) -> list[str]:
    """In which order a pair's sides run: A B, B A, A B …, so that a drift favours neither."""
    return list(sides) if pair % 2 == 0 else list(reversed(sides))


def judge(case: Judgeable, pairs: Sequence[Pair], asked: int, seconds: float) -> Report:
    """What the pairs say of the case, of which `asked` should be valid; each run took `seconds`."""
    valid = [pair for pair in pairs if not pair.invalid_because]
    measurement = asked >= PAIRS_MIN and seconds >= SECONDS_MIN
    runs = {side: [pair.runs[side].figures for pair in valid] for side in case.sides}
    everything = {side: [pair.runs[side].figures for pair in pairs] for side in case.sides}
    return Report(
        measurement=measurement,
        erratic=case.erratic,
        pairs=len(valid),
        left_out=[reason for pair in pairs for reason in pair.invalid_because],
        sides={side: over_runs(runs[side]) for side in case.sides},
        judged=_judged(case, runs, measurement),
        guards=[
            _check(guard, side, runs[side], everything[side])
            for guard in case.guards
            for side in ([guard.side] if guard.side else case.sides)
        ],
    )


def ratio_between(metric: str, above: Sequence[Figures], below: Sequence[Figures]) -> Ratio | None:
    """Run by run `above` over `below`; None where a figure is missing or 0."""
    both = [(a.get(metric, 0.0), b.get(metric, 0.0)) for a, b in zip(above, below, strict=True)]
    if not both or any(a <= 0 or b <= 0 for a, b in both):
        return None
    return Ratio.over([a / b for a, b in both])


def _judged(
    case: Judgeable, runs: Mapping[str, Sequence[Figures]], measurement: bool
) -> list[Judged]:
    """Every goal; and server CPU of every side against the first, where no goal speaks of it."""
    cpu, first = "server_cpu_us_per_label", next(iter(case.sides))
    wanted = [(goal.metric, goal.side, goal.against, goal) for goal in case.goals]
    spoken = {(metric, side) for metric, side, _, _ in wanted}
    plain = [(cpu, s, first, None) for s in case.sides if s != first and (cpu, s) not in spoken]
    found = []
    for metric, side, against, goal in [*wanted, *plain]:
        ratio = ratio_between(metric, runs[side], runs[against])
        base = runs[against]
        aa = ratio_between(metric, base[1:], base[:-1])
        enough = measurement and len(base) >= PAIRS_MIN
        verdict = _verdict(goal, ratio, aa) if enough or goal is None else _too_short(measurement)
        found.append(Judged(metric, side, against, ratio, aa, goal, verdict))
    return found


def _too_short(measurement: bool) -> str:
    if measurement:
        return "not measurable here: too few valid pairs"
    return "quick look, not a measurement"


def _verdict(goal: Goal | None, ratio: Ratio | None, aa: Ratio | None) -> str:
    if goal is None:
        return ""
    if ratio is None or aa is None:
        return f"not measurable here: {goal.metric} was 0"
    demand = goal.ratio_max or goal.ratio_min or 1.0
    spread = max(aa.max, 1 / aa.min)
    # What every pair shows by more than equal sides differ is so on a noisy machine too.
    beyond = ratio.min > demand * spread or ratio.max * spread < demand
    if spread >= max(demand, 1 / demand) and not beyond:
        return "not measurable here: A/A spreads wider than the demand"
    sign = _SIGNS["<=" if goal.ratio_max else ">="]
    word = "reached" if sign(ratio.median, demand) else "missed"
    # The median decides; whether every pair agrees with it is for the reader to weigh.
    agreed = sign(ratio.min, demand) == sign(ratio.max, demand)
    return word if agreed else f"{word}, not in every pair"


def _check(
    guard: Guard, side: str, valid: Sequence[Figures], everything: Sequence[Figures]
) -> Checked:
    # What is counted or has a top is so in every run: an error in one left out is an error.
    counted = METRICS[guard.metric].over != "median"
    runs = everything if counted else valid
    value = over_runs(runs).get(guard.metric)
    if value is None:
        return Checked(guard, side, None, False if runs else None)
    return Checked(guard, side, value, _SIGNS[guard.sign](value, guard.bound))
