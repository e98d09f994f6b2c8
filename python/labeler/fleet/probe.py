"""What a service's operator asks of it: how late are labels, and whose time is it. Mostly pure.

The mean beside the percentiles, client, service and network apart; and p99 by how many models are
asked and how many calls are on their way. A library: it never prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labeler.client import Client, ModelVersion
from labeler.errors import InvalidRequestError, ModelNotFoundError
from labeler.fleet.drive import Target, send
from labeler.fleet.server import Watch

__all__ = [
    "MEASURED",
    "PREFIX",
    "Cell",
    "Grid",
    "cells",
    "latencies_ms",
    "model_counts",
    "one_model",
    "serving",
    "together",
]

PREFIX = "probe-"
"""Of the robots that ask, so that their labels are told from real ones."""
MEASURED = {
    "client": "at the client, from the planned time of each call to its reply",
    "client_from_send": "at the client, from the moment it was really sent to its reply",
    "server": "in the service, from a request's arrival to its encoded reply, as replies say",
    "network": "client from the real send minus server, call by call: the way there and back",
}
"""Where and from when each latency is measured."""

_READY_MS = 10_000
_ROBOTS_A_MODEL = 64
_CONNECTIONS = 16
_SHARES = ("mean", "p50", "p95", "p99", "p999", "max")


@dataclass(frozen=True)
class Grid:
    """How a matrix is measured: a run for each number of models and of calls on their way."""

    calls: tuple[int, ...]
    lasts_s: float
    warmup_s: float
    durability: str = ""
    seed: int = 1


@dataclass(frozen=True)
class Cell:
    """One run of a matrix, a closed loop: `calls` were on their way at every moment.

    `durabilities` has the labels by the level that they had reached when their reply left: a wait
    for a level ends with the deadline, so it may be less than was asked. `stages` are those of the
    run, empty where the admin port was not asked.
    """

    models: int
    calls: int
    labels: int
    labels_per_s: float
    latency_ms: Mapping[str, Mapping[str, float]]
    errors: Mapping[str, int]
    valid: bool
    invalid_because: Sequence[str]
    durabilities: Mapping[str, int] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def p99_ms(self) -> float | None:
        """At the client; None where no label came back."""
        return self.latency_ms["client"]["p99"] if self.labels else None


def latencies_ms(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Of the sender's result, by place (see `MEASURED`): mean, percentiles and maximum, ms."""
    places = {
        "client": result["latency_us"],
        "client_from_send": result["latency_uncorrected_us"],
        "server": result["server_us"],
        "network": result["network_us"],
    }
    return {
        place: {share: round(float(found[share]) / 1000, 3) for share in _SHARES}
        for place, found in places.items()
    }


def serving(address: str) -> list[ModelVersion]:
    """The versions that answer. Errors: `UnavailableError`; `ModelNotFoundError` if none does."""
    with Client(address) as client:
        client.wait_ready(_READY_MS)
        found = [model for model in client.models() if model.serving]
    if not found:
        raise ModelNotFoundError("no model is served: load one with `labeler models load NAME`")
    return found


def one_model(models: Sequence[ModelVersion], wanted: str) -> ModelVersion:
    """The one named, else the only one. Errors: `ModelNotFoundError`."""
    shown = ", ".join(f"{model.name} {model.version}" for model in models)
    found = [model for model in models if wanted in ("", model.name)]
    if not found:
        raise ModelNotFoundError(f"model {wanted!r} is not served, expected one of: {shown}")
    if len(found) > 1:
        raise ModelNotFoundError(f"several models are served, say which with --model: {shown}")
    return found[0]


def together(
    models: Sequence[ModelVersion], wanted: Sequence[str]
) -> tuple[list[ModelVersion], list[str]]:
    """The models that one load can ask, those named or all, and the names of those left out.

    A load has rows of one width: of several widths the one that most models take. Errors:
    `ModelNotFoundError` for a name that is not served, `InvalidRequestError` for two widths named.
    """
    chosen = [one_model(models, name) for name in dict.fromkeys(wanted)] or list(models)
    widths = Counter(model.width for model in chosen)
    if wanted and len(widths) > 1:
        shown = ", ".join(f"{model.name} takes {model.width}" for model in chosen)
        raise InvalidRequestError(f"models of one width are asked together, but {shown}")
    [(width, _)] = widths.most_common(1)
    fitting = [model for model in chosen if model.width == width]
    return fitting, [model.name for model in chosen if model.width != width]


def model_counts(served: int) -> list[int]:
    """1, 2, 4, … and all."""
    powers = [1 << place for place in range(served.bit_length()) if 1 << place < served]
    return [*powers, served]


def cells(target: Target, models: Sequence[ModelVersion], grid: Grid) -> Iterator[Cell]:
    """A run for each cell, by models and then by calls.

    Errors: `UnavailableError` where nobody answers.
    """
    watch = Watch(target.admin) if target.admin else None
    if watch:
        watch.read()  # the first cell's stages begin here, and a wrong port is told at once
    for count in model_counts(len(models)):
        for calls in grid.calls:
            plan = _plan(target.address, models[:count], grid, calls)
            result = send(plan)
            yield _cell(count, calls, result, watch.stages_since_last() if watch else [])


def _plan(address: str, models: Sequence[ModelVersion], grid: Grid, calls: int) -> dict[str, Any]:
    robots = _ROBOTS_A_MODEL * len(models)
    return {
        "address": address,
        "rpc": "label",
        "robots": robots,
        "robot_prefix": PREFIX,
        "connections": min(_CONNECTIONS, robots),
        "schedule": {"shape": "saturate", "in_flight": calls},
        "warmup_s": grid.warmup_s,
        "duration_s": grid.lasts_s,
        "seed": grid.seed,
        "models": [model.name for model in models],
        "durability": grid.durability,
        "payload": "raw_float32",
        "width": models[0].width,
    }


def _cell(models: int, calls: int, result: Mapping[str, Any], stages: list[dict[str, Any]]) -> Cell:
    return Cell(
        models=models,
        calls=calls,
        labels=result["answered"],
        labels_per_s=round(result["answered"] / max(result["elapsed_s"], 1e-9), 1),
        latency_ms=latencies_ms(result),
        errors={kind: count for kind, count in result["errors"].items() if count},
        valid=result["valid"],
        invalid_because=result["invalid_because"],
        durabilities={level: count for level, count in result["durabilities"].items() if count},
        stages=stages,
    )
