"""Whether a run's accounts are exact: those of the service in itself, and both sides' together.

received = answered + rejected + expired + cancelled + failed + in_flight, for each method;
journaled = stored + superseded + dead + pending. And what the robots were answered is what the
service has answered. Pure: it asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["LABEL_METHODS", "OUTCOMES", "RECORDS", "between_sides", "in_itself"]

LABEL_METHODS = ("Label", "LabelBatch", "LabelStream")
OUTCOMES = ("answered", "rejected", "expired", "cancelled", "failed", "in_flight")
RECORDS = ("stored", "superseded", "dead", "pending")


def in_itself(status: Mapping[str, Any]) -> list[str]:
    """What is not exact in one reading of `/status`, in words; empty where all of it is."""
    found = []
    for method, counts in status["methods"].items():
        parts = {name: counts[name] for name in OUTCOMES}
        found += _unequal(f"{method}: received", counts["received"], parts)
    journal = status["journal"]
    records = {name: journal[name if name == "pending" else f"{name}_total"] for name in RECORDS}
    return found + _unequal("journaled", journal["journaled_total"], records)


def between_sides(result: Mapping[str, Any], received: int, answered: int) -> list[str]:
    """Where the robots and the service disagree on how many were answered, in words.

    `result`: the sender's. `received`, `answered`: the service's, of the method that was used. A
    reply can be lost on its way: the robots then heard nothing of that request. Where others asked
    too, the service may have answered more.
    """
    told, unheard = result["acknowledged_total"], result["unheard_total"]
    said = f"the robots were answered {told:,} times, the service says {answered:,}"
    if answered < told:
        return [said]
    alone = received <= result["sent_total"]
    if alone and answered > told + unheard:
        return [f"{said}, though the replies of {unheard:,} at most were lost"]
    return []


def _unequal(name: str, whole: int, parts: Mapping[str, int]) -> list[str]:
    there = sum(parts.values())
    if whole == there:
        return []
    shown = " + ".join(f"{count:,} {part}" for part, count in parts.items())
    return [f"{name} {whole:,} is not {shown} = {there:,}"]
