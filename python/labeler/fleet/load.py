"""What a run sends: robots, schedule and what each request asks for, as the sender's plan. Pure.

Knows the sender's plan by its names only; the sender itself checks it and names what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from labeler.client import ModelVersion
from labeler.errors import InvalidRequestError, ModelNotFoundError
from labeler.fleet.rows import Rows

__all__ = ["Load", "Model", "Shape", "choose_model", "make_plan", "make_schedule"]

Calls = Literal["stream", "unary"]
Shape = Literal["constant", "poisson", "step", "ramp", "flash-crowd"]

CONNECTIONS = 16
ROBOTS_PER_CONNECTION_MAX = 150
"""A stream each; below the 200 calls at once that the service allows on one connection."""


@dataclass(frozen=True)
class Load:
    """`schedule`: the sender's, with rates of the whole fleet. `connections` 0: enough of them."""

    robots: int
    schedule: Mapping[str, Any]
    duration_s: float
    warmup_s: float = 0.0
    calls: Calls = "stream"
    connections: int = 0
    durability: str = ""
    model: str = ""
    timeout_ms: int = 2000
    seed: int = 1
    robot_prefix: str = "robot-"

    def connections_used(self) -> int:
        """As asked for; else a few, and so many that none holds too many streams."""
        least = math.ceil(self.robots / ROBOTS_PER_CONNECTION_MAX)
        return self.connections or max(min(CONNECTIONS, self.robots), least)


@dataclass(frozen=True)
class Model:
    """The model that answers. `named`: requests name it, since the service has several."""

    name: str
    version: str
    width: int
    labels: tuple[str, ...]
    named: bool
    note: str = field(default="")
    """Why there is no accuracy, empty where there is."""


def make_schedule(
    shape: Shape, rate_per_s: float, lasts_s: float, details: Mapping[str, float]
) -> dict[str, Any]:
    """The sender's schedule of a shape. `details`: what was said of `to_rate`, `factor` or `at`.

    Unsaid: a step and a ramp double the rate, the step after half of the time; a flash crowd comes
    after a third, tenfold, for a tenth. Errors: `InvalidRequestError` for a detail that the shape
    does not have.
    """
    plain: dict[str, Any] = {"shape": shape.replace("-", "_"), "rate_per_s": rate_per_s}
    own: dict[str, dict[str, float]] = {
        "step": {"to_rate": 2 * rate_per_s, "at": lasts_s / 2},
        "ramp": {"to_rate": 2 * rate_per_s},
        "flash-crowd": {"factor": 10.0, "at": lasts_s / 3},
    }
    known = own.get(shape, {})
    strange = next((name for name in details if name not in known), None)
    if strange is not None:
        having = " or ".join(name for name, names in own.items() if strange in names)
        flag = f"--{strange.replace('_', '-')}"
        raise InvalidRequestError(f"{flag} with --schedule {shape}, expected {having}")
    names = {"to_rate": "to_rate_per_s", "factor": "factor", "at": "at_s"}
    shaped = plain | {names[name]: value for name, value in {**known, **details}.items()}
    if shape == "flash-crowd":
        shaped["lasts_s"] = min(lasts_s / 10, max(0.0, lasts_s - shaped["at_s"]))
    return shaped


def choose_model(models: Sequence[ModelVersion], wanted: str, rows: Rows) -> Model:
    """The serving model `wanted`; else the only one of the rows' width that knows their labels.

    Errors: `ModelNotFoundError`, and `InvalidRequestError` where no model takes the rows' width.
    """
    serving = [model for model in models if model.serving]
    asked = [model for model in serving if model.name == wanted] if wanted else serving
    shown = ", ".join(f"{m.name} {m.version} ({m.width} values)" for m in serving) or "none"
    if not asked:
        what = f"model {wanted!r} is not served" if wanted else "no model is served"
        raise ModelNotFoundError(f"{what}, expected one of: {shown}")
    fitting = [model for model in asked if model.width == rows.width]
    if not fitting:
        what = f"model {wanted} takes others" if wanted else "no model that is served takes them"
        raise InvalidRequestError(
            f"{rows.about} gives {rows.width} values, {what}; served are: {shown}",
            field="width",
            value=str(rows.width),
            expected=" or ".join(sorted({str(model.width) for model in asked})),
        )
    knowing = [model for model in fitting if set(rows.labels) & set(model.labels)]
    chosen = knowing or fitting
    if len(chosen) > 1:
        raise ModelNotFoundError(
            f"several models take the values of {rows.about}: say which with --model; served are: "
            f"{shown}"
        )
    [model] = chosen
    named = bool(wanted) or len(serving) > 1
    note = _no_accuracy(model, rows)
    return Model(model.name, model.version, model.width, model.labels, named, note)


def make_plan(load: Load, address: str, model: Model, rows: Rows) -> dict[str, Any]:
    """The sender's plan; its rows are fed."""
    return {
        "address": address,
        "rpc": "label_stream" if load.calls == "stream" else "label",
        "robots": load.robots,
        "robot_prefix": load.robot_prefix,
        "connections": load.connections_used(),
        "schedule": dict(load.schedule),
        "warmup_s": load.warmup_s,
        "duration_s": load.duration_s,
        "seed": load.seed,
        "timeout_ms": load.timeout_ms,
        "model": model.name if model.named else "",
        "durability": load.durability,
        "payload": "raw_float32",
        "width": rows.width,
        "rows": "fed",
        "labels": [] if model.note else list(rows.labels),
        "skus": list(rows.skus),
    }


def _no_accuracy(model: ModelVersion, rows: Rows) -> str:
    if not rows.labels:
        return f"{rows.about} has no truths"
    if not set(rows.labels) & set(model.labels):
        return (
            f"model {model.name} knows none of the labels of {rows.about}: it says "
            f"{', '.join(model.labels[:4])}, the truths say {', '.join(rows.labels[:4])}"
        )
    return ""
