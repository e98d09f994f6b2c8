"""How long records are gathered before they are handed on, by how many came the last time. Pure."""

from __future__ import annotations

__all__ = ["Linger"]

_LEAST_S = 0.001


class Linger:
    """At first `most_s`, and never longer; in busy hours about as long as `full` records take.

    So a quiet hour does not wake anybody for each record, and a busy one makes no burst of writes.
    """

    def __init__(self, full: int, most_s: float) -> None:
        """`full`: records in one write."""
        self._full, self._most_s = full, most_s
        self.wait_s = most_s

    def gathered(self, rows: int) -> None:
        """In `wait_s` so many came, at least one."""
        self.wait_s = min(max(self.wait_s * self._full / rows, _LEAST_S), self._most_s)
