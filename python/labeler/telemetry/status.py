"""The golden figures as JSON: what `/status` and `labeler status` show.

Percentiles and rates are of the last seconds, taken from two readings a window apart; totals are
since the start. The readings are kept here, bounded, one a second at most.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labeler.telemetry.histograms import Counts, minus, plus, summary
from labeler.telemetry.process import process_facts
from labeler.telemetry.prometheus import Reading

__all__ = ["StatusWindow", "stages_between"]

WINDOW_S = 10
_LABEL_METHODS = ("Label", "LabelBatch", "LabelStream")


@dataclass(frozen=True)
class _Moment:
    uptime_us: int
    answered: int
    stages: Sequence[Mapping[str, Any]]


class StatusWindow:
    """Status of a service; `sample` is called once a second by whoever has a clock."""

    def __init__(self, reading: Reading) -> None:
        """Keeps readings of the last `WINDOW_S` seconds."""
        self._reading = reading
        self._moments: deque[_Moment] = deque(maxlen=WINDOW_S + 1)
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Takes a reading into the window."""
        moment = _moment(self._reading.snapshot(), self._reading.stages())
        with self._lock:
            self._moments.append(moment)

    def status(self) -> dict[str, Any]:
        """The status now. All times in µs, rates per second."""
        snapshot, stages = self._reading.snapshot(), self._reading.stages()
        now = _moment(snapshot, stages)
        with self._lock:
            oldest = self._moments[0] if self._moments else _Moment(0, 0, [])
        span_us = max(1, now.uptime_us - oldest.uptime_us)
        journal, writer = snapshot["journal"], self._reading.writer()
        return {
            "state": snapshot["state"],
            **self._reading.build(),
            "started_unix_us": snapshot["started_unix_us"],
            "uptime_us": snapshot["uptime_us"],
            "process": process_facts(),
            "window_us": span_us,
            "labels_per_s": round((now.answered - oldest.answered) * 1e6 / span_us, 1),
            "labels_total": now.answered,
            "stages": stages_between(stages, oldest.stages),
            "stages_since_start": stages_between(stages, ()),
            "methods": snapshot["methods"],
            "errors": snapshot["errors"],
            "queues": [_without(queue, "batch_rows") for queue in snapshot["queues"]],
            "journal": _summed(journal, "commit_us"),
            "writer": _summed(writer, "loop_lag_us"),
            "adopted": dict(self._reading.adopted()),
            "transport": snapshot["transport"],
            "logs_dropped_total": snapshot["logs"]["dropped_total"] + self._reading.logs_dropped(),
        }

    def stages(self) -> dict[str, Any]:
        """The histograms since the start, for whoever measures a span of his own."""
        stages = self._reading.stages()
        snapshot = self._reading.snapshot()
        return {
            "started_unix_us": snapshot["started_unix_us"],
            "uptime_us": snapshot["uptime_us"],
            "stages": stages,
            "loop_lag_us": self._reading.writer()["loop_lag_us"],
        }


def stages_between(
    newer: Sequence[Mapping[str, Any]], older: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`stage`, `count` and percentiles in µs of what was added between two readings of `/stages`.

    Over all model versions, in the order of the path. An empty `older` is the start.
    """
    before: dict[tuple[str, str, str], Counts] = {_key(stage): stage["counts"] for stage in older}
    parts: dict[str, list[Counts]] = {}
    for stage in newer:
        added = minus(stage["counts"], before.get(_key(stage), ()))
        parts.setdefault(stage["stage"], []).append(added)
    result = []
    for name, counts in parts.items():
        merged = plus(counts)
        shares = {f"us_{share}": value for share, value in summary(merged).items()}
        result.append({"stage": name, "count": sum(n for _, n in merged), **shares})
    return result


def _moment(snapshot: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> _Moment:
    methods = snapshot["methods"]
    answered = sum(methods[name]["answered"] for name in _LABEL_METHODS if name in methods)
    return _Moment(snapshot["uptime_us"], answered, stages)


def _key(stage: Mapping[str, Any]) -> tuple[str, str, str]:
    return stage["stage"], stage["model"], stage["version"]


def _summed(table: Mapping[str, Any], histogram: str) -> dict[str, Any]:
    """The table with the percentiles since the start in place of the histogram."""
    shares = summary(table[histogram]).items()
    return _without(table, histogram) | {f"{histogram}_{name}": value for name, value in shares}


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}
