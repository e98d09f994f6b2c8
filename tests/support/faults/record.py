"""What went through the proxy: every call with its outcome, and what each key went through.

Tests assert on it: how often a key was sent, whether two writes of it were ever in flight at once,
and whether something was sent again though the client had been told that it is stored.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.support.faults.exchange import WRITES, Exchange, Key

CALLS_MAX = 100_000


@dataclass
class Call:
    """One call. `stored`: the keys that the store took; `told`: those the client heard of."""

    number: int
    operation: str
    table: str
    keys: tuple[Key, ...]
    connection: int
    access_key: str
    reached: bool = False
    """Whether any of it went to the store."""
    outcome: str = ""
    """`ok`, `partial`, an error's code, or how the connection ended; empty while under way."""
    faults: tuple[str, ...] = ()
    stored: frozenset[Key] = frozenset()
    told: frozenset[Key] = frozenset()
    unprocessed: tuple[Key, ...] = ()
    """The keys that the reply handed back."""
    left: bool = False
    """Whether the client closed the connection before it had the reply."""
    late: bool = False
    """Whether the store took it after the client had left."""


@dataclass
class KeyRecord:
    """What happened to one key."""

    sent: int = 0
    stored: int = 0
    told: int = 0
    sent_after_told: int = 0
    in_flight: int = 0


@dataclass(frozen=True)
class Overlap:
    """Two writes of one key at once: the numbers of the calls."""

    key: Key
    earlier: int
    later: int


@dataclass
class Record:
    """All of it. Written by the proxy's thread; `snapshot`s may be read from any other."""

    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=CALLS_MAX))
    """The newest `CALLS_MAX` calls; the figures below count all."""
    keys: dict[Key, KeyRecord] = field(default_factory=dict)
    overlaps: list[Overlap] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    unprocessed: int = 0
    """Items that were handed back, all calls together."""
    late: int = 0
    _holders: dict[Key, int] = field(default_factory=dict)
    _open: dict[int, tuple[Call, Exchange]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, exchange: Exchange) -> Call:
        """A request has been read."""
        keys = exchange.keys if exchange.operation in WRITES else ()
        call = Call(
            exchange.number,
            exchange.operation,
            exchange.table,
            keys,
            id(exchange.connection),
            exchange.access_key,
        )
        with self._lock:
            # Who waits for a connection's end is told of it a turn of the loop later than this.
            for earlier, its in list(self._open.values()):
                if its.connection.gone.is_set():
                    self._over(earlier, left=True)
            self.calls.append(call)
            self.operations[call.operation] += 1
            self._open[call.number] = call, exchange
            for key in set(keys):
                known = self.keys.setdefault(key, KeyRecord())
                if known.in_flight:
                    self.overlaps.append(Overlap(key, self._holders[key], call.number))
                known.in_flight += 1
                known.sent += 1
                known.sent_after_told += known.told > 0
                self._holders[key] = call.number
        return call

    def took(self, call: Call, keys: frozenset[Key], client_is_gone: bool) -> None:
        """The store has taken these."""
        with self._lock:
            call.stored = keys
            call.late = client_is_gone and bool(keys)
            self.late += call.late
            for key in keys:
                self.keys[key].stored += 1

    def over(self, call: Call, left: bool) -> None:
        """The client knows what became of it, or has left; the first time counts."""
        with self._lock:
            self._over(call, left)

    def end(self, call: Call, outcome: str, told: frozenset[Key]) -> None:
        """What was answered."""
        with self._lock:
            call.outcome = outcome
            call.told = told
            self.outcomes[outcome] += 1
            self.unprocessed += len(call.unprocessed)
            for key in told:
                self.keys[key].told += 1

    def _over(self, call: Call, left: bool) -> None:
        if self._open.pop(call.number, None) is None:
            return
        call.left = left
        for key in set(call.keys):
            self.keys[key].in_flight -= 1

    def writes(self, key: Key | None = None) -> list[Call]:
        """The calls that write, or those that write a key, oldest first."""
        with self._lock:
            calls = list(self.calls)
        found = [call for call in calls if call.operation in WRITES]
        return found if key is None else [call for call in found if key in call.keys]

    def sent(self, key: Key) -> int:
        """How often a key was sent."""
        return self.keys[key].sent if key in self.keys else 0

    def sent_again(self) -> dict[Key, int]:
        """Keys that were sent though the client had been told that they are stored, how often."""
        with self._lock:
            return {k: one.sent_after_told for k, one in self.keys.items() if one.sent_after_told}

    def in_flight(self) -> set[Key]:
        """Keys of which a write is under way."""
        with self._lock:
            return {key for key, one in self.keys.items() if one.in_flight}

    def clear(self) -> None:
        """Forgets what is over."""
        with self._lock:
            self.calls.clear()
            self.keys = {key: one for key, one in self.keys.items() if one.in_flight}
            self.overlaps.clear()
            self.outcomes.clear()
            self.operations.clear()
            self.unprocessed = self.late = 0
