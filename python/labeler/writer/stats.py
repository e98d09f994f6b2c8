"""What the writer tells: counters and gauges."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["WriterStats"]


@dataclass
class WriterStats:
    """Counters since the start and gauges of now; times in µs of the monotonic clock."""

    batches_total: int = 0
    writes_total: int = 0
    rows_total: int = 0
    superseded_total: int = 0
    dead_total: int = 0
    unprocessed_total: int = 0
    failures_total: int = 0
    retries_total: int = 0
    crashes_total: int = 0
    write_us_sum: int = 0
    held_rows: int = 0
    waiting_rows: int = 0
    waiting_robots: int = 0
    writes_under_way: int = 0
    concurrency_limit: int = 0
    lag_us: int = 0
    loop_lag_us: Sequence[tuple[int, int]] = ()
    """A histogram: (upper bound, count)."""
    loop_lag_us_sum: int = 0
    failing_us: int = 0
    problems: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    problem_kind: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: int) -> None:
        """Counts up; from the writer's thread and from its loop."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def read(self, **gauges: Any) -> WriterStats:
        """A copy with the gauges of now."""
        with self._lock:
            return replace(self, **gauges, _lock=threading.Lock())

    def as_dict(self) -> dict[str, Any]:
        """As telemetry has it."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}
