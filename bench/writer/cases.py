"""The cases of this kind: their questions, sides and demands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.suite.case import Goal, Guard

__all__ = ["CASES", "WriterCase"]

_CPU = "server_cpu_us_per_label"


@dataclass(frozen=True)
class WriterCase:
    """`sides`: by name, a kind of `bench.writer.sides`; the first is what others are against."""

    name: str
    about: str
    seed: int
    sides: Mapping[str, str]
    goals: tuple[Goal, ...]
    guards: tuple[Guard, ...] = ()
    erratic: bool = False


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
    )
}
