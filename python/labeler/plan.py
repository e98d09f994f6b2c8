"""What a service is told at its start: checked settings, resolved, as plain values.

It crosses from the process that reads and checks settings to the one that serves, which is so free
of what only the check needs. Nothing here reads a setting, a file or the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

__all__ = ["DeliveryPlan", "ServicePlan", "WriterLimits"]


@dataclass(frozen=True)
class WriterLimits:
    """Settings `writer.*`."""

    rows_max: int
    linger_ms: int
    retry_ms_min: int
    retry_ms_max: int
    write_timeout_ms: int
    held_rows_max: int
    concurrency_max: int
    nice: int


@dataclass(frozen=True)
class DeliveryPlan:
    """Where the labels of a journal go that is not this process's own; `ServicePlan` has it too.

    `journal`: the core's settings of a journal, without its directory.
    """

    journal: Mapping[str, Any]
    state_dir: str
    store: str
    store_settings: Mapping[str, Any]
    writer: WriterLimits
    dead_letters_max: int
    drain_budget_ms: int


@dataclass(frozen=True)
class ServicePlan:
    """All that `labeler.service` needs; paths are absolute.

    `core`: the core's part, as the JSON that it reads. `store_settings`: those of `store` alone.
    `adopt`: state directories of removed services.
    """

    core: str
    state_dir: str
    log_level: str
    log_format: str
    admin_address: str
    store: str
    store_settings: Mapping[str, Any]
    writer: WriterLimits
    dead_letters_max: int
    adopt: Sequence[str]
    drain_budget_ms: int
    drain_lame_duck_ms: int
    threads: int
    threads_origin: str

    def to_json(self) -> str:
        """As text, for another process of the same version."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "writer": WriterLimits(**fields["writer"])})
