"""Replies: what comes back, as plain data with units in the names.

Pure: no channel, no clock. Enum values become their short names; one that this client does not know
yet becomes its number as text, so that a newer server's reply is never lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labeler.v1 import label_pb2, model_pb2, types_pb2

__all__ = [
    "Label",
    "ModelVersion",
    "StoredLabel",
    "Timing",
    "label_from",
    "model_from",
    "models_from",
    "receipt_of",
    "stored_from",
]


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds that a request spent in each stage on the server; 0 for a skipped stage."""

    decode_us: int
    admit_us: int
    cache_us: int
    queue_us: int
    infer_us: int
    journal_us: int
    encode_us: int
    total_us: int


@dataclass(slots=True)
class Label:
    """A label, and what is true of it.

    `scores`: float32, one per label of the model, None unless asked for. `source`: MODEL, CACHE,
    REPLAY or FALLBACK. `durability`: the level reached, BUFFERED, JOURNALED or STORED.
    `round_trip_us`: from the send of the attempt that was answered to its reply, measured here;
    `network_us`: the part of it that the server does not account for.
    """

    sequence: int
    label: str
    index: int
    confidence: float
    scores: np.ndarray[Any, np.dtype[np.float32]] | None = field(compare=False)
    model: str
    version: str
    source: str
    durability: str
    timing: Timing = field(compare=False)
    round_trip_us: int = field(compare=False)
    network_us: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class StoredLabel:
    """A label as it is kept: by which process, in which of its journals, under which number."""

    robot_id: str
    sequence: int
    label: str
    index: int
    confidence: float
    model: str
    version: str
    source: str
    durability: str
    labeled_at_unix_us: int
    captured_at_unix_us: int
    sku: str
    instance_id: str
    journal_id: str
    journal_number: int


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model: `state` is AVAILABLE or READY, `width` the values in a payload.

    `serving`: whether requests that name no version get this one. `problem`: why an available
    version can't be loaded, empty where nothing is known against it.
    """

    name: str
    version: str
    state: str
    serving: bool
    width: int
    labels: tuple[str, ...]
    precision: str
    sha256: str
    problem: str


def _short_names(values: Sequence[tuple[str, Any]], prefix: str) -> dict[int, str]:
    """Map an enum's numbers to its names without their common prefix."""
    return {int(number): name.removeprefix(prefix) for name, number in values}


_SOURCES = _short_names(types_pb2.Source.items(), "SOURCE_")
_DURABILITIES = _short_names(types_pb2.Durability.items(), "DURABILITY_")
_STATES = _short_names(model_pb2.ModelState.items(), "MODEL_STATE_")


def label_from(
    response: label_pb2.LabelResponse, round_trip_us: int, server_us: int | None = None
) -> Label:
    """Make a label of a reply; `server_us` is the call's, where a call answers several requests."""
    timing = response.timing
    total_us = timing.total_us
    return Label(
        response.sequence,
        response.label,
        response.index,
        response.confidence,
        np.array(response.scores, np.float32) if response.scores else None,
        response.model,
        response.version,
        _name(_SOURCES, response.source),
        _name(_DURABILITIES, response.durability),
        Timing(
            timing.decode_us,
            timing.admit_us,
            timing.cache_us,
            timing.queue_us,
            timing.infer_us,
            timing.journal_us,
            timing.encode_us,
            total_us,
        ),
        round_trip_us,
        max(0, round_trip_us - (total_us if server_us is None else server_us)),
    )


def receipt_of(label: Label) -> label_pb2.Receipt:
    """Make the receipt that the robot's next request carries."""
    return label_pb2.Receipt(
        sequence=label.sequence,
        round_trip_us=label.round_trip_us,
        server_us=label.timing.total_us,
    )


def stored_from(stored: label_pb2.StoredLabel) -> StoredLabel:
    """Make plain data of a stored label."""
    return StoredLabel(
        robot_id=stored.robot_id,
        sequence=stored.sequence,
        label=stored.label,
        index=stored.index,
        confidence=stored.confidence,
        model=stored.model,
        version=stored.version,
        source=_name(_SOURCES, stored.source),
        durability=_name(_DURABILITIES, stored.durability),
        labeled_at_unix_us=stored.labeled_at_unix_us,
        captured_at_unix_us=stored.captured_at_unix_us,
        sku=stored.sku,
        instance_id=stored.instance_id,
        journal_id=stored.journal_id,
        journal_number=stored.journal_number,
    )


def model_from(model: model_pb2.ModelVersion) -> ModelVersion:
    """Make plain data of a model version."""
    return ModelVersion(
        name=model.name,
        version=model.version,
        state=_name(_STATES, model.state),
        serving=model.serving,
        width=model.width,
        labels=tuple(model.labels),
        precision=model.precision,
        sha256=model.sha256,
        problem=model.problem,
    )


def models_from(models: Sequence[model_pb2.ModelVersion]) -> list[ModelVersion]:
    """Make plain data of model versions, in their order."""
    return [model_from(model) for model in models]


def _name(names: dict[int, str], number: int) -> str:
    """Return the short name of an enum's number."""
    return names.get(number) or str(number)
