"""Runs of the sender, as tests make them."""

from __future__ import annotations

import json
from typing import Any

from labeler._core import loadgen

RUN_S = 60


def sender(address: str, **changes: Any) -> loadgen.Sender:
    """A sender for a second of constant load, or what `changes` make of its plan."""
    plan = {
        "address": address,
        "robots": 20,
        "connections": 2,
        "duration_s": 1,
        "schedule": {"shape": "constant", "rate_per_s": 200},
    }
    return loadgen.Sender(json.dumps(plan | changes))


def run(made: loadgen.Sender) -> loadgen.Result:
    """Connects, fires and waits. Errors: those of `connect`, and of `ended`."""
    made.connect()
    made.fire()
    return ended(made)


def ended(made: loadgen.Sender) -> loadgen.Result:
    """Waits for a run that was fired; its result, which accounts for every label.

    Errors: `AssertionError` where it does not end, or a label is missing in the accounts.
    """
    assert made.wait(RUN_S * 1_000), made.snapshot()
    result = made.result()
    settled = result["answered"] + sum(result["errors"].values()) + result["unsent"]
    assert result["planned"] == settled, result
    return result


def refused(made: loadgen.Sender) -> int:
    """Labels refused so far for want of room."""
    return made.snapshot()["errors"].get("RESOURCE_EXHAUSTED", 0)


def stopped(made: loadgen.Sender) -> loadgen.Result:
    """Ends a load; its result."""
    made.stop()
    assert made.wait(30_000), made.snapshot()
    return made.result()
