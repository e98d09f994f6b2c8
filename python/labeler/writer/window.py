"""The records that the writer holds: which go next, which wait, which are being written. Pure.

Of one journal's records for a key the later number wins and the others are confirmed with it. A
key that is being written is in no other write: what comes for it meanwhile is blocked. A robot
whose part of the store is too busy waits beside the others, by a back-off of its own; DynamoDB's
partitions are by robot. Time is passed in, in s of one monotonic clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from labeler.stores.base import STORED, Outcome, Status, StoredRow
from labeler.writer.backoff import Backoff

__all__ = ["Held", "Settlement", "Window"]

Key = tuple[str, int]
# Not dicts: these are emptied from the front, where a dict would look at all that has left it.
Rows = OrderedDict[tuple[str, int], "Held"]


class Held:
    """A record, since when it is held, and the numbers of those of its key that it replaces."""

    __slots__ = ("key", "obsolete", "row", "since_s")

    def __init__(self, row: StoredRow, since_s: float) -> None:
        """Replaces none yet."""
        self.row, self.since_s = row, since_s
        self.key: Key = row[:2]  # `row.key` without a call, and made once a label
        self.obsolete: tuple[int, ...] = ()

    def merged(self, other: Held) -> Held:
        """The one of both with the later number, replacing the other."""
        later, earlier = (
            (self, other) if self.row.journal_number > other.row.journal_number else (other, self)
        )
        later.obsolete += (*earlier.obsolete, earlier.row.journal_number)
        later.since_s = min(later.since_s, earlier.since_s)
        return later


@dataclass
class Settlement:
    """Journal numbers that may be confirmed, and how many rows the store gave back."""

    stored: list[int] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)
    unprocessed: int = 0


@dataclass
class _Robot:
    """Rows of one robot that wait; `width` of them are tried at once when it is due."""

    backoff: Backoff
    due_s: float
    width: int = 1
    flying: int = 0
    armed_s: float | None = None
    rows: Rows = field(default_factory=OrderedDict)


class Window:
    """At most `rows_max` records, by key; whoever adds asks for `room` first."""

    def __init__(self, rows_max: int, make_backoff: Callable[[], Backoff]) -> None:
        """`make_backoff` is called once for each robot that has to wait."""
        self._rows_max, self._make_backoff = rows_max, make_backoff
        self._ready: Rows = OrderedDict()
        self._front: Rows = OrderedDict()  # given back by a write that failed: the oldest
        self._flying: dict[Key, Held] = {}
        self._blocked: dict[Key, Held] = {}
        self._robots: dict[str, _Robot] = {}
        self._dues: list[tuple[float, str]] = []  # a heap; an entry that no longer holds is skipped
        self._held = 0

    @property
    def held_rows(self) -> int:
        """Records, those included that will be confirmed with a later one of their key."""
        return self._held

    @property
    def room(self) -> int:
        """How many more may be added."""
        return max(0, self._rows_max - self._held)

    @property
    def waiting_robots(self) -> int:
        """Robots that wait by themselves."""
        return len(self._robots)

    @property
    def waiting_rows(self) -> int:
        """Rows of those robots."""
        return sum(len(robot.rows) for robot in list(self._robots.values()))

    def oldest_since_s(self) -> float | None:
        """Since when the oldest record is held; None without any. Of any thread."""
        robots = [list(robot.rows.values()) for robot in list(self._robots.values())]
        plain = (list(held.values()) for held in (self._flying, self._front, self._ready))
        return min((held.since_s for held in chain(*plain, *robots)), default=None)

    def add(self, rows: Iterable[StoredRow], now_s: float) -> None:
        """Records in the order of their numbers."""
        for row in rows:
            held = Held(row, now_s)
            key = held.key
            self._held += 1
            if key in self._flying:
                _put(self._blocked, held)
            elif self._front and key in self._front:
                _put(self._front, held)
            elif not self._robots or key[0] not in self._robots or key in self._ready:
                _put(self._ready, held)
            else:
                self._wait(held, now_s)

    def take(self, rows_max: int, now_s: float) -> list[Held]:
        """The next write: what failed first, then robots that are due, then the oldest."""
        taken = self._pop(self._front, rows_max, now_s)
        # Half at most: robots that wait by themselves must not crowd out those that can go on.
        taken += self._due_rows(min(rows_max - len(taken), max(1, rows_max // 2)), now_s)
        taken += self._pop(self._ready, rows_max - len(taken), now_s)
        flying = len(self._flying) + len(taken)
        for held in taken:
            self._flying[held.key] = held
        assert len(self._flying) == flying, "never two writes of one key"
        return taken

    def is_due(self, rows: int, linger_s: float, now_s: float) -> bool:
        """Whether to write now: `rows` are there, or one has waited long enough."""
        if len(self._front) + len(self._ready) >= rows:
            return True
        due_s = self.due_s(linger_s)
        return due_s is not None and due_s <= now_s

    def due_s(self, linger_s: float) -> float | None:
        """When to write however few there are; None if nothing can be written."""
        if self._front:
            return 0.0
        first = next(iter(self._ready.values()), None)
        times = [first.since_s + linger_s] if first else []
        while self._dues:
            due_s, name = self._dues[0]
            robot = self._robots.get(name)
            if robot and robot.armed_s == due_s:
                times.append(due_s)
                break
            heapq.heappop(self._dues)
        return min(times, default=None)

    def settle(self, results: Sequence[tuple[Held, Outcome]], now_s: float) -> Settlement:
        """What has been written may be confirmed; what the store gave back waits for its robot."""
        settlement = Settlement()
        for held, outcome in results:
            if outcome is STORED or outcome.status is Status.STORED:
                settlement.stored.append(held.row.journal_number)
            elif outcome.status is Status.SUPERSEDED:
                settlement.superseded.append(held.row.journal_number)
            else:
                assert outcome.status is Status.UNPROCESSED, "a refused row ends as a dead letter"
                settlement.unprocessed += 1
                self.postpone(held, now_s)
                continue
            settlement.superseded += held.obsolete
            self.forget(held, now_s)
        return settlement

    def forget(self, held: Held, now_s: float) -> None:
        """It has ended, with those it replaces."""
        key = held.key
        del self._flying[key]
        self._held -= 1 + len(held.obsolete)
        if not self._blocked and not self._robots:
            return
        name = key[0]
        blocked = self._blocked.pop(key, None)
        robot = self._robots.get(name)
        if robot is None:
            if blocked:
                self._ready[key] = blocked
            return
        if blocked:
            robot.rows[key] = blocked
        robot.flying -= 1
        if robot.flying:
            return
        if not robot.rows:
            del self._robots[name]
            return
        # One step back at a time: a part that takes some rows is not yet well.
        robot.width *= 2
        robot.backoff.attempts = max(0, robot.backoff.attempts - 1)
        self._arm(name, robot, max(robot.due_s, now_s))

    def postpone(self, held: Held, now_s: float) -> None:
        """It was not taken: its robot waits, longer each time, with all that comes for it."""
        name = held.key[0]
        robot = self._robots.get(name)
        if robot is None:
            flying = sum(key[0] == name for key in self._flying)
            robot = self._robots[name] = _Robot(self._make_backoff(), now_s, flying=flying)
        robot.flying -= 1
        robot.width = 1
        if robot.due_s <= now_s:  # of rows that come back together the first counts
            robot.due_s = now_s + robot.backoff.next_s()
        self._wait(self._landed(held), now_s)

    def give_back(self, batch: Iterable[Held], now_s: float) -> None:
        """A write that ended without a word on these: they go first in the next one."""
        front = len(self._front)
        for held in batch:
            robot = self._robots.get(held.key[0])
            back = self._landed(held)
            if robot is None:
                _put(self._front, back)
            else:
                robot.flying -= 1
                self._wait(back, now_s)
        if len(self._front) == front:
            return
        by_number = sorted(self._front.items(), key=lambda item: item[1].row.journal_number)
        self._front = OrderedDict(by_number)

    def hurry(self, until_s: float) -> None:
        """No robot waits beyond it: whoever drains has little time."""
        for name, robot in self._robots.items():
            if robot.armed_s is not None and robot.armed_s > until_s:
                self._arm(name, robot, until_s)

    def _landed(self, held: Held) -> Held:
        """The record of its key to go on with, now that it is in no write."""
        key = held.key
        del self._flying[key]
        blocked = self._blocked.pop(key, None)
        return held.merged(blocked) if blocked else held

    def _wait(self, held: Held, now_s: float) -> None:
        """With the others of its robot, which is waiting."""
        name = held.key[0]
        robot = self._robots[name]
        _put(robot.rows, held)
        if not robot.flying:
            self._arm(name, robot, max(robot.due_s, now_s))

    def _pop(self, where: Rows, most: int, now_s: float) -> list[Held]:
        """Takes the first `most` out; those of a robot that waits go to the others of it."""
        taken: list[Held] = []
        while where and len(taken) < most:
            key, held = where.popitem(last=False)
            if self._robots and key[0] in self._robots:
                self._wait(held, now_s)
            else:
                taken.append(held)
        return taken

    def _due_rows(self, rows_max: int, now_s: float) -> list[Held]:
        taken: list[Held] = []
        while self._dues and self._dues[0][0] <= now_s and len(taken) < rows_max:
            due_s, name = heapq.heappop(self._dues)
            robot = self._robots.get(name)
            if robot is None or robot.armed_s != due_s:
                continue
            robot.armed_s = None
            keys = list(islice(robot.rows, min(robot.width, rows_max - len(taken))))
            mine = [robot.rows.pop(key) for key in keys]
            robot.flying = len(mine)
            taken += mine
        return taken

    def _arm(self, name: str, robot: _Robot, due_s: float) -> None:
        """A robot with rows and none of them in a write stands in the heap, once."""
        if robot.armed_s != due_s:
            heapq.heappush(self._dues, (due_s, name))
        robot.due_s = robot.armed_s = due_s


def _put(where: dict[Key, Held] | Rows, held: Held) -> None:
    before = where.setdefault(held.key, held)
    if before is not held:
        where[held.key] = before.merged(held)
