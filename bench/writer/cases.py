"""The cases of this kind: their questions, sides and demands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.suite.case import Goal, Guard, guard_of

__all__ = ["CASES", "WriterCase"]

_CPU = "server_cpu_us_per_label"


@dataclass(frozen=True)
class WriterCase:
    """`sides`: by name, a kind of `bench.writer.sides`; the first is what others are against.

    Of starts the kind is how many labels the journal holds.
    """

    name: str
    about: str
    seed: int
    sides: Mapping[str, str]
    goals: tuple[Goal, ...] = ()
    guards: tuple[Guard, ...] = ()
    erratic: bool = False
    runner: Literal["bench.writer.runner", "bench.writer.embedded", "bench.writer.starts"] = (
        "bench.writer.runner"
    )
    """The module that measures it."""


def _guard(text: str) -> Guard:
    problems: list[str] = []
    guard = guard_of(text, problems)
    assert guard, problems
    return guard


CASES: Mapping[str, WriterCase] = {
    case.name: case
    for case in (
        WriterCase(
            name="writer-dynamodb-cpu",
            about="What CPU does a label cost on its way to DynamoDB, against plain client code?",
            seed=7,
            sides={
                "labeler": "labeler",
                "aioboto3": "aioboto3",
                "boto3": "boto3",
                "store": "store",
                "floor": "floor",
            },
            goals=(
                Goal(metric=_CPU, side="labeler", against="aioboto3", ratio_max=0.6),
                Goal(metric=_CPU, side="labeler", against="boto3", ratio_max=0.6),
            ),
        ),
        WriterCase(
            name="writer-sqlite-cpu",
            about="What CPU does a label cost on its way to SQLite, against bare inserts?",
            seed=7,
            sides={"labeler": "labeler", "store": "store", "floor": "floor"},
            goals=(Goal(metric=_CPU, side="labeler", against="floor", ratio_max=2.0),),
            runner="bench.writer.embedded",
        ),
        WriterCase(
            name="writer-start-backlog",
            about="How long does a start take with a million undelivered labels, and what memory?",
            seed=7,
            sides={"empty": "0", "backlog": "1000000"},
            guards=(
                _guard("errors_total == 0"),
                _guard("backlog.start_ms < 5000"),
                _guard("backlog.rss_growth_bytes <= 67108864"),  # journal.memory_bytes_max
            ),
            runner="bench.writer.starts",
        ),
    )
}
