"""A backlog for a service that is measured: made while its store is out, drained while a run is on.

Before a run it fills up what is missing to so many labels that wait for the store; after the run
the outage begins anew, so that what is left need not be made again. Measures no label.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.suite.servers import Server, ServerError
from labeler._core import loadgen

__all__ = ["Drained", "backlog", "drained", "fill"]

_ROBOTS = 2300
_FILL_S = 600.0
_BACK_S = 60.0
_DRAIN_S = 1200.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Drained:
    """What was left after the last run went to the store with nothing beside it.

    `stored_total` is what the service says of its whole life, `in_store` the store's own count.
    """

    rows: int
    seconds: float
    stored_total: int
    in_store: int
    journaled_total: int
    rss_bytes_max: int

    @property
    def text(self) -> str:
        """In a line."""
        return (
            f"{self.rows:,} rows drained with nothing beside in {self.seconds:.1f} s, "
            f"{self.rows / max(self.seconds, 1e-9):,.0f}/s; journaled {self.journaled_total:,}, "
            f"in the store {self.in_store:,}; resident at most {self.rss_bytes_max / 1e6:.0f} MB"
        )


@contextmanager
def backlog(server: Server, rows: int) -> Iterator[None]:
    """While the block runs the store takes labels, at whose begin at least `rows` were waiting."""
    if not rows:
        yield
        return
    server.store.take_nothing(True)
    fill(server, rows)
    _begin_to_drain(server)
    try:
        yield
    finally:
        server.store.take_nothing(True)


def drained(server: Server) -> Drained:
    """Lets the rest go to the store. Errors: `ServerError` where some are not in it then."""
    _begin_to_drain(server)
    rows, begin_s = server.status()["journal"]["pending"], time.monotonic()
    server.settle(_DRAIN_S)
    seconds, status = time.monotonic() - begin_s, server.status()
    journal = status["journal"]
    found = Drained(
        rows=rows,
        seconds=seconds,
        stored_total=journal["stored_total"],
        in_store=server.store.rows(),
        journaled_total=journal["journaled_total"],
        rss_bytes_max=status["process"]["resident_bytes_max"],
    )
    # The sender's keys are distinct.
    if not found.in_store == found.stored_total == found.journaled_total:
        raise ServerError(f"not every journaled label is in the store: {found.text}")
    return found


def fill(server: Server, rows: int) -> None:
    """Makes labels until at least so many wait. The store takes nothing meanwhile."""
    plan = {
        "address": server.address,
        "rpc": "label_batch",
        "batch_rows": 250,
        "robots": _ROBOTS,
        "connections": 2,
        "durability": "BUFFERED",
        "schedule": {"shape": "saturate", "in_flight": 16},
        "duration_s": _FILL_S,
        "timeout_ms": 60_000,
    }
    if _pending(server) >= rows:
        return
    sender = loadgen.Sender(json.dumps(plan))
    sender.connect()
    sender.fire()
    try:
        _until(lambda: _pending(server) >= rows, _FILL_S, f"{rows} labels wait for the store")
    finally:
        sender.stop()
        sender.wait(int(_BACK_S * 1000))
    errors = sender.result()["errors"]
    if errors:
        raise ServerError(f"a backlog could not be made: {errors}")


def _begin_to_drain(server: Server) -> None:
    """Ends the outage, and waits until the writer has found out: it looks each few seconds."""
    stored = server.status()["journal"]["stored_total"]
    server.store.take_nothing(False)
    _until(
        lambda: server.status()["journal"]["stored_total"] > stored,
        _BACK_S,
        "labels are stored again",
    )


def _pending(server: Server) -> int:
    return int(server.status()["journal"]["pending"])


def _until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(_POLL_S)
