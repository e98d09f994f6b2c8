"""How many writes may be under way: AIMD on throttles, and one probe after an outage. Pure.

The limit rises by one for each write that succeeds until the first throttle, from then on by one
for each round of writes; a throttle halves it, an outage sets it to one. Chiu and Jain, "Analysis
of the increase and decrease algorithms for congestion avoidance in computer networks", 1989.
"""

from __future__ import annotations

from labeler.writer.backoff import Backoff

__all__ = ["Gate"]


class Gate:
    """Counts writes; time is passed in, in s of one monotonic clock."""

    def __init__(self, concurrency_max: int, backoff: Backoff) -> None:
        """`backoff` draws the waits after throttles and failures."""
        assert concurrency_max >= 1
        self._most, self._backoff = concurrency_max, backoff
        self._limit, self._doubling = 1.0, True
        self._under_way = self._epoch = 0
        self._shut_until_s = 0.0

    @property
    def limit(self) -> int:
        """Writes that may be under way at once."""
        return int(self._limit)

    @property
    def under_way(self) -> int:
        """Writes that are."""
        return self._under_way

    @property
    def tries(self) -> int:
        """Failures since the last success."""
        return self._backoff.attempts

    def is_open(self, now_s: float) -> bool:
        """Whether one more may begin."""
        return now_s >= self._shut_until_s and self._under_way < self.limit

    def opens_in_s(self, now_s: float) -> float | None:
        """How long it stays shut; None while only the end of a write can open it."""
        if self._under_way >= self.limit:
            return None
        return max(0.0, self._shut_until_s - now_s)

    def begin(self) -> int:
        """One write begins; what to end it with."""
        self._under_way += 1
        return self._epoch

    def succeed(self, epoch: int) -> None:
        """It ended well. One that began before the last failure says nothing about now."""
        self._under_way -= 1
        if epoch == self._epoch:
            self._backoff.reset()
            self._limit += 1.0 if self._doubling else 1.0 / self._limit
            self._limit = min(self._limit, float(self._most))

    def throttle(self, epoch: int, now_s: float, retry_after_s: float) -> None:
        """The store asked for less. Of writes that were under way together the first counts."""
        self._shut(epoch, now_s, retry_after_s, self._limit / 2)
        self._doubling = False

    def fail(self, epoch: int, now_s: float, retry_after_s: float) -> None:
        """The store took nothing: the next write is a probe, and goes alone."""
        self._shut(epoch, now_s, retry_after_s, 1.0)
        self._doubling = True

    def hurry(self, until_s: float) -> None:
        """No wait beyond it: whoever drains has little time."""
        self._shut_until_s = min(self._shut_until_s, until_s)

    def _shut(self, epoch: int, now_s: float, retry_after_s: float, limit: float) -> None:
        self._under_way -= 1
        if epoch != self._epoch:
            return
        self._epoch += 1
        self._limit = max(1.0, limit)
        self._shut_until_s = now_s + max(retry_after_s, self._backoff.next_s())
