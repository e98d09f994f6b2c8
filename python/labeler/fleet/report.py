"""What a run has shown, as data: one dataclass, and the JSON object that scripts read. Pure.

Says where each latency was measured, and whether each label can be accounted for: by the robots'
count, by the service's own counters, by both together, and by reading back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labeler.fleet.audit import Audit
from labeler.fleet.load import Load, Model
from labeler.fleet.server import ServerFigures

__all__ = ["FleetReport"]

MEASURED = {
    "corrected": "at the robots, from the planned time of each request to its reply",
    "uncorrected": "at the robots, from the moment it was really sent to its reply",
    "server": "in the service, from a request's arrival to its encoded reply, as replies say",
}
"""Where and from when each latency is measured."""


@dataclass(frozen=True)
class FleetReport:
    """A run: what was asked for, the sender's result, the service's figures, and what is missing.

    `server` is None where its admin port was not asked, or no longer answers; `notes` says so.
    """

    load: Load
    model: Model
    result: Mapping[str, Any]
    """The sender's; its keys stand in `labeler._core.loadgen`."""
    server: ServerFigures | None
    audit: Audit | None
    notes: Sequence[str]
    files: Sequence[str] = field(default=())
    """Histograms that were written."""
    unaccounted: Sequence[str] = field(default=())
    """What is not exact in the service's accounts, or between it and the robots, in words."""

    @property
    def labels_per_s(self) -> float:
        """Labels that came back, a second of the measured part."""
        elapsed_s = self.result["elapsed_s"]
        return round(self.result["answered"] / elapsed_s, 1) if elapsed_s else 0.0

    @property
    def errors(self) -> dict[str, int]:
        """Errors by kind, unfed rows left out: those were never sent."""
        return {kind: n for kind, n in self.result["errors"].items() if n and kind != "UNFED"}

    @property
    def unfed(self) -> int:
        """Planned, but not sent, since the rows were at their end."""
        return int(self.result["errors"].get("UNFED", 0))

    @property
    def unlinked(self) -> int:
        """Planned, but not sent, since the robot had no connection; these are errors too."""
        result = self.result
        return int(result["planned"] - result["sent"] - result["unsent"] - self.unfed)

    @property
    def stored(self) -> int | None:
        """Labels of the measured part in the store: all less those acknowledged in the warm-up.

        None where the service's counters do not span the run.
        """
        if self.server is None or self.server.restarted:
            return None
        warm_up = self.result["acknowledged_total"] - self.result["answered"]
        return int(self.server.stored - warm_up)

    @property
    def lost(self) -> int:
        """Acknowledged labels that the service should hold and does not, as far as is known.

        By the audit, where there was one; else by the service's counters, if it was one process
        all the time. A replay is another's record.
        """
        if self.audit is not None:
            return self.audit.lost
        if self.server is None or self.server.restarted:
            return 0
        replays = int(self.result["sources"].get("REPLAY", 0))
        made = int(self.result["acknowledged_total"]) - replays
        return max(0, made - self.server.journaled)

    def to_json(self) -> dict[str, Any]:
        """One object; times in ms where their name says so, else µs."""
        result, server = self.result, self.server
        return {
            "labels": result["answered"],
            "labels_per_s": self.labels_per_s,
            "errors": sum(self.errors.values()),
            "errors_by_kind": self.errors,
            "accuracy": result["accuracy"],
            "judged": result["judged"],
            **_latencies_ms(result),
            "server_p99_ms": self._server_p99_ms(),
            "stages": server.stages if server else [],
            "server_cpu_us_per_label": server.cpu_us_per_label if server else None,
            "server": asdict(server) if server else None,
            "stored": self.stored,
            "lost": self.lost,
            "unaccounted": list(self.unaccounted),
            "planned": result["planned"],
            "sent": result["sent"],
            "unsent": result["unsent"],
            "unfed": self.unfed,
            "acknowledged_total": result["acknowledged_total"],
            "sent_total": result["sent_total"],
            "unheard_total": result["unheard_total"],
            "elapsed_s": result["elapsed_s"],
            "rate_planned_per_s": result["rate_planned_per_s"],
            "rate_reached_per_s": result["rate_reached_per_s"],
            "sources": result["sources"],
            "durabilities": result["durabilities"],
            "by_label": result["by_label"],
            "schedule_lag_p99_ms": _ms(result["schedule_lag_us"]["p99"]),
            "sender_cpu_share": result["sender_cpu_share"],
            "sender_cpu_us_per_label": result["sender_cpu_us_per_label"],
            "valid": result["valid"],
            "invalid_because": list(result["invalid_because"]),
            "notes": list(self.notes),
            "audit": asdict(self.audit) | {"lost": self.audit.lost} if self.audit else None,
            "model": f"{self.model.name} {self.model.version}",
            "seed": self.load.seed,
            "load": _load(self.load),
            "measured": MEASURED,
            "files": list(self.files),
        }

    def _server_p99_ms(self) -> float:
        """Of the stage `total` in the span; as the replies say it where the port was not asked."""
        for stage in self.server.stages if self.server else ():
            if stage["stage"] == "total":
                return _ms(stage["us_p99"])
        return _ms(self.result["server_us"]["p99"])


def _load(load: Load) -> dict[str, Any]:
    schedule = dict(load.schedule)
    if "at_us" in schedule:  # as long as the run itself
        schedule["at_us"] = f"{len(schedule['at_us'])} times"
    return asdict(load) | {"connections": load.connections_used(), "schedule": schedule}


def _latencies_ms(result: Mapping[str, Any]) -> dict[str, Any]:
    names = ("p50", "p99", "p999", "max")
    corrected, uncorrected = result["latency_us"], result["latency_uncorrected_us"]
    return {
        **{f"{name}_ms": _ms(corrected[name]) for name in names},
        **{f"uncorrected_{name}_ms": _ms(uncorrected[name]) for name in names},
    }


def _ms(us: float) -> float:
    return round(us / 1000, 3)
