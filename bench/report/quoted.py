"""Figures that readers know from elsewhere: quoted, not measured, and in no ratio of ours."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONTRACT_MS", "QUOTED", "Quoted"]

CONTRACT_MS = 150.0
"""What the contract allows at twice the fleet's peak, 2,300 labels a second."""


@dataclass(frozen=True)
class Quoted:
    """`figure` as it was told, `of` whose it is."""

    figure: str
    of: str


QUOTED = (
    Quoted("78 ms, P99", "SageMaker on 2 vCPU"),
    Quoted("72 ms", "one model on one endpoint"),
    Quoted("143 ms", "more than three models on one endpoint"),
    Quoted("212 ms", "a hosted API"),
    Quoted("9.5 ms at 350 requests a second", "a model on the robot itself"),
    Quoted("120 ms → 340 ms", "the incident: a store written to before the reply"),
    Quoted(f"{CONTRACT_MS:.0f} ms at 2,300 labels a second", "the contract, at twice the peak"),
)
