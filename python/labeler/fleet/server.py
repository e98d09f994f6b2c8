"""The service's own word on a run: readings of its admin port and what lies between them.

Another process, or a restarted one, is noticed: its counters began again, so that a difference
would be a lie and is not given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labeler.errors import UnavailableError
from labeler.fleet.accounts import LABEL_METHODS, OUTCOMES, RECORDS
from labeler.telemetry.reader import read_page
from labeler.telemetry.status import stages_between

__all__ = ["ServerFigures", "ServerReading", "Watch", "figures"]

_POLL_S = 0.25


@dataclass(frozen=True)
class ServerReading:
    """`/status` and the stages' histograms, read one after the other."""

    status: Mapping[str, Any]
    stages: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ServerFigures:
    """What the service did in a run; after a restart since that, and said so.

    Counts are of all its clients and of the whole run: `requests` by method, of those that were
    used. CPU and stages are of the measured part, in which `measured` labels were answered; CPU is
    None where the process is another one.
    """

    restarted: bool
    requests: dict[str, dict[str, int]]
    answered: int
    measured: int
    journaled: int
    stored: int
    superseded: int
    dead: int
    pending: int
    pending_before: int
    cpu_user_us: int | None
    cpu_system_us: int | None
    memory_bytes: int
    memory_bytes_max: int
    stages: list[dict[str, Any]]

    @property
    def records(self) -> dict[str, int]:
        """What became of those journaled, as parts of their sum."""
        parts = {name: getattr(self, name) for name in RECORDS}
        return parts | {"pending": self.pending - self.pending_before}

    @property
    def cpu_us_per_label(self) -> float | None:
        """CPU of the whole process for a label: path, writer, telemetry."""
        if self.cpu_user_us is None or self.cpu_system_us is None or not self.measured:
            return None
        return round((self.cpu_user_us + self.cpu_system_us) / self.measured, 1)


class Watch:
    """Reads one admin port, and keeps the last stages for the live view."""

    def __init__(self, admin: str) -> None:
        """`admin`: `host:port`."""
        self._admin = admin
        self._last: Mapping[str, Any] = {"stages": ()}

    def read(self) -> ServerReading:
        """A reading now. Errors: `UnavailableError`."""
        status = read_page(self._admin, "/status")
        self._last = read_page(self._admin, "/stages")
        return ServerReading(status, self._last["stages"])

    def read_if_there(self) -> ServerReading | None:
        """A reading now; None where the service does not answer."""
        try:
            return self.read()
        except UnavailableError:
            return None

    def stages_since_last(self) -> list[dict[str, Any]]:
        """The stages since the last call; empty where the service does not answer now."""
        try:
            now = read_page(self._admin, "/stages")
        except UnavailableError:
            return []
        before, self._last = self._last, now
        same = before.get("started_unix_us") == now["started_unix_us"]
        return stages_between(now["stages"], before["stages"] if same else ())

    def read_at_rest(self, timeout_s: float) -> ServerReading:
        """A reading once nothing is in flight or pending, or as it is after `timeout_s`."""
        pause, deadline = threading.Event(), time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = read_page(self._admin, "/status")
            journal, methods = status["journal"], status["methods"]
            in_flight = sum(methods[name]["in_flight"] for name in LABEL_METHODS)
            if not (journal["pending"] or journal["uncommitted_bytes"] or in_flight):
                break
            pause.wait(_POLL_S)
        return self.read()


def figures(before: ServerReading, warm: ServerReading, after: ServerReading) -> ServerFigures:
    """The figures of a run: read before it, at the end of its warm-up, and after it."""
    same = _who(before) == _who(warm) == _who(after)
    older = before.status if same else None
    process = after.status["process"]

    def records(name: str) -> int:
        return _added(after.status["journal"], older and older["journal"], name)

    def cpu(name: str) -> int | None:
        return _added(process, warm.status["process"], name) if same else None

    return ServerFigures(
        restarted=not same,
        requests=_requests(after.status, older),
        answered=_added(after.status, older, "labels_total"),
        measured=_added(after.status, warm.status if same else None, "labels_total"),
        journaled=records("journaled_total"),
        stored=records("stored_total"),
        superseded=records("superseded_total"),
        dead=records("dead_total"),
        pending=after.status["journal"]["pending"],
        pending_before=older["journal"]["pending"] if older else 0,
        cpu_user_us=cpu("cpu_user_us"),
        cpu_system_us=cpu("cpu_system_us"),
        memory_bytes=process["resident_bytes"],
        memory_bytes_max=process["resident_bytes_max"],
        stages=stages_between(after.stages, warm.stages if same else ()),
    )


def _requests(
    newer: Mapping[str, Any], older: Mapping[str, Any] | None
) -> dict[str, dict[str, int]]:
    found = {}
    for method in LABEL_METHODS:
        before = older and older["methods"][method]
        counts = newer["methods"][method]
        added = {name: _added(counts, before, name) for name in ("received", *OUTCOMES)}
        if any(added.values()):
            found[method] = added
    return found


def _added(newer: Mapping[str, Any], older: Mapping[str, Any] | None, name: str) -> int:
    return int(newer[name] - older[name] if older is not None else newer[name])


def _who(reading: ServerReading) -> tuple[object, ...]:
    status = reading.status
    return status["instance_id"], status["started_unix_us"], status["process"]["pid"]
