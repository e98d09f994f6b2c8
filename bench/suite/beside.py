"""What goes on beside a run at a labeler: bulk rows, models that come and go, a store that is out.

Each lasts as long as its block, and says what it has done. Measures no label of the run itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.suite.case import Side
from bench.suite.servers import Server, ServerError
from labeler import Client
from labeler._core import loadgen
from labeler.errors import LabelerError

__all__ = ["beside"]

_BULK_ROWS = 1000
"""In a batch."""
_BULK_S = 3600.0
_END_MS = 60_000
_MODEL = "wall-following"
"""Packaged, and not loaded unasked."""
_APART_S = 0.25


@contextmanager
def beside(server: Server, side: Side) -> Iterator[dict[str, float]]:
    """While the block runs, what the side wants beside its load.

    The dict has its figures once the block is left. Errors: `ServerError` where it came to nothing.
    """
    found: dict[str, float] = {}
    with ExitStack() as stack:
        if side.store_out:
            stack.enter_context(_store_out(server))
        if side.bulk_rows_per_s:
            stack.enter_context(_bulk(server, side.bulk_rows_per_s, found))
        if side.swaps:
            stack.enter_context(_swaps(server, found))
        yield found


@contextmanager
def _store_out(server: Server) -> Iterator[None]:
    server.store.take_nothing(True)
    try:
        yield
    finally:
        server.store.take_nothing(False)


@contextmanager
def _bulk(server: Server, rows_per_s: int, found: dict[str, float]) -> Iterator[None]:
    plan = {
        "address": server.address,
        "rpc": "label_batch",
        "batch_rows": _BULK_ROWS,
        "robots": _BULK_ROWS,
        "robot_prefix": "bulk-",
        "connections": 2,
        "priority": "BULK",
        "durability": "JOURNALED",
        "payload": "raw_float32",
        "schedule": {"shape": "constant", "rate_per_s": rows_per_s / _BULK_ROWS},
        "duration_s": _BULK_S,
        "timeout_ms": 10_000,
    }
    sender = loadgen.Sender(json.dumps(plan))
    sender.connect()
    sender.fire()
    try:
        yield
    finally:
        sender.stop()
        sender.wait(_END_MS)
    result = sender.result()
    if not result["answered"]:
        raise ServerError(f"no bulk row was answered: {result['errors']}")
    found["bulk_rows_per_s"] = result["answered"] / result["elapsed_s"]


@contextmanager
def _swaps(server: Server, found: dict[str, float]) -> Iterator[None]:
    """Loads a second model and unloads it, again and again."""
    over, failed, done = threading.Event(), list[LabelerError](), 0

    def swap() -> None:
        nonlocal done
        try:
            with Client(server.address) as client:
                while not over.wait(_APART_S):
                    client.load_model(_MODEL)
                    client.unload_model(_MODEL)
                    done += 1
        except LabelerError as error:
            failed.append(error)

    thread = threading.Thread(target=swap, name="swaps")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise ServerError(f"a model could not be loaded or unloaded: {failed[0]}")
    found["swaps_total"] = float(done)
