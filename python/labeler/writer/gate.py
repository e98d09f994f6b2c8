"""How many writes may be under way: AIMD on throttles, and one probe after an outage. Pure.

`Spread` tells a throttle of all that is stored from that of a part.

The limit rises by one for each write that succeeds until the first throttle, from then on by one
for each round of writes; a throttle halves it, an outage sets it to one. Chiu and Jain, "Analysis
of the increase and decrease algorithms for congestion avoidance in computer networks", 1989.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from labeler.writer.backoff import Backoff

__all__ = ["Gate", "Spread"]

_RECENT_ROBOTS = 64
_FEW_ROBOTS = 8


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


class Spread:
    """Whether rows that the store gives back tell of a part that is busy, or of all of it. Pure.

    The store says which rows come back and not why. A throttle of the table hits any robot; a busy
    part keeps hitting the same ones, whose back-off is enough. So robots are counted and not rows,
    by what was last heard of each, over several writes: one write can consist of nothing but a few
    busy robots' next tries. It is the table where at least half of the last `_RECENT_ROBOTS` came
    back; a new table of DynamoDB has four partitions, and one that is busy gives back a quarter of
    the robots. Below `_FEW_ROBOTS` nobody can tell, and each of them waits by itself anyway.
    """

    def __init__(self) -> None:
        """Nothing heard yet."""
        self._came_back: OrderedDict[str, bool] = OrderedDict()

    def is_wide(self, stored: Collection[str], back: Collection[str]) -> bool:
        """After one more write, of these robots: whether what it gave back is the table's fault."""
        for robots, came_back in ((stored, False), (back, True)):
            for robot in robots:
                self._came_back[robot] = came_back
                self._came_back.move_to_end(robot)
        while len(self._came_back) > _RECENT_ROBOTS:
            self._came_back.popitem(last=False)
        count = sum(self._came_back.values())
        return bool(back) and count >= max(_FEW_ROBOTS, len(self._came_back) / 2)
