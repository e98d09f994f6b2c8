"""Compares the exact figures of two trees by stated allowances. Pure: figures in, verdicts out.

A figure is exact, so that an allowance says what is worth a word, not what noise does. A growth
that is wanted is told in the commit that brings it, and then shown as accepted; so is a figure that
goes away, since one that is counted no more can no longer grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = ["RULES", "Compared", "Figures", "Rule", "compare", "lines", "rule_of"]

Figures = Mapping[str, float]
"""By name: `instructions/decode/floats`, `unary-buffered/transport/allocations`, …"""


@dataclass(frozen=True)
class Rule:
    """By how much a figure may grow: a share of the base, and so much more."""

    pattern: str
    share: float = 0.0
    more: float = 0.0
    either_way: bool = False
    """Whether it may not fall further than that either."""

    @property
    def allowed(self) -> str:
        """In words."""
        sign = "±" if self.either_way else "+"
        parts = [f"{sign}{self.share:.0%}"] if self.share else []
        parts += [f"{sign}{self.more:g}"] if self.more else []
        return " and ".join(parts) or "no growth"


# The first that fits counts; a figure that none fits is shown and not judged. When a commit falls
# in time, not in a label, decides over what a `BUFFERED` label costs the committer.
RULES: Sequence[Rule] = (
    Rule("instructions/*", share=0.03, more=20),
    Rule("*-buffered/committer/*", share=float("inf")),
    Rule("*/other/*", share=float("inf")),
    Rule("*/allocated_bytes", share=0.1, more=64),
    Rule("*/allocations", more=0.25),
    Rule("*/stage/*/per_label", more=0.01, either_way=True),
    # A wait for a store on the path; what a busy machine does to half of the labels is far less. A
    # `JOURNALED` label waits for the disk, whose times are no figure of a tree.
    Rule("*-buffered/stage/*/us_p50", more=5000),
    Rule("*/file_syncs", more=0.1),
    Rule("*/file_opens", more=0.1),
    Rule("*/file_writes", more=0.1),
    Rule("*/connects", more=0.1),
    Rule("*/sleeps", more=0.1),
)


@dataclass(frozen=True)
class Compared:
    """A figure of either tree. `verdict`: same, better, within, regression, accepted, new."""

    name: str
    base: float | None
    head: float | None
    rule: Rule
    verdict: str


def rule_of(name: str) -> Rule | None:
    """What a figure is judged by; None where it is only shown."""
    rule = next((rule for rule in RULES if fnmatchcase(name, rule.pattern)), None)
    return None if rule is None or rule.share == float("inf") else rule


def compare(base: Figures, head: Figures, accepted: Mapping[str, str]) -> list[Compared]:
    """Every judged figure that either tree has. `accepted`: by name, why one may grow or go."""
    found = []
    for name in [*head, *(name for name in base if name not in head)]:
        rule = rule_of(name)
        if rule:
            verdict = _verdict(base.get(name), head.get(name), rule)
            if verdict == "regression" and name in accepted:
                verdict = "accepted"
            found.append(Compared(name, base.get(name), head.get(name), rule, verdict))
    return found


def _verdict(base: float | None, head: float | None, rule: Rule) -> str:
    if base is None:
        return "new"
    if head is None:
        return "regression"
    allowance = base * rule.share + rule.more
    if head - base > allowance or (rule.either_way and base - head > allowance):
        return "regression"
    if head == base:
        return "same"
    return "better" if head < base else "within"


def lines(compared: Sequence[Compared], accepted: Mapping[str, str]) -> list[str]:
    """What is said: every figure that is not the same, then how many there are of each verdict."""
    said = [_line(c, accepted) for c in compared if c.verdict != "same"]
    counts = {c.verdict: 0 for c in compared}
    for c in compared:
        counts[c.verdict] += 1
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return [*said, f"{len(compared)} exact figures: {summary}"]


def _line(compared: Compared, accepted: Mapping[str, str]) -> str:
    base, head = compared.base, compared.head
    text = f"{compared.name}: base {_number(base)}, head {_number(head)}"
    if base is not None and head is not None:
        change = f"{(head - base) / base:+.1%}, " if base else ""
        text += f" ({change}allowed {compared.rule.allowed})"
    if head is None:
        text += " (no longer counted)"
    if compared.verdict == "regression":
        return f"REGRESSION {text}"
    reason = f": {accepted[compared.name]}" if compared.verdict == "accepted" else ""
    return f"{compared.verdict:<8} {text}{reason}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.10g}"
