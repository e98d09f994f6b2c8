"""THE ONLY WIRING of the control side: plan ▸ log ▸ store ▸ core ▸ writer ▸ telemetry.

The only module that knows `labeler._core`; every part gets what it needs as an argument. Whatever
can refuse the start does so before a port takes a request: that gives the order.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeler import state_dir
from labeler._core import (
    Engine,
    build_info,
    init_logging,
    journal_dump,
    journal_stat,
    journal_verify,
    log_fatal,
    version,
)
from labeler.control import Control
from labeler.loop import LoopThread
from labeler.plan import ServicePlan
from labeler.stores.base import Store, StoreContext
from labeler.stores.registry import open_store
from labeler.telemetry.admin import AdminServer
from labeler.telemetry.logs import LogSink, resolve_format
from labeler.telemetry.prometheus import Exposition
from labeler.telemetry.status import StatusWindow
from labeler.writer import Writer
from labeler.writer.dead_letters import DeadLetters
from labeler.writer.graveyard import Buried

__all__ = [
    "build_info",
    "journal_dump",
    "journal_stat",
    "journal_verify",
    "log_fatal",
    "serve",
    "version",
]

_log = logging.getLogger(__name__)

_STOP_S = 2.0
"""For the steps after the writer's drain; of a short budget a quarter."""
_ENSURE_S = 60.0
"""For a store to be opened: a database that another process holds, a table that is asked for."""


@dataclass(frozen=True)
class _Parts:
    engine: Engine
    writer: Writer
    control: Control
    admin: AdminServer


def serve(plan: ServicePlan) -> int:
    """Serves until SIGTERM, SIGINT or a failure; the exit code.

    Errors before it serves: any `LabelerError`, with its exit code. The core handles signals; its
    own watchdog ends the process when the drain's budget is over.
    """
    with ExitStack() as undo:
        sink = _start_log(plan, undo)
        parts = _start(plan, sink, undo)
        _announce(plan, parts)
        state = "serving"
        while state == "serving":
            state = parts.engine.wait_state(1000)
        if state == "failed":
            log_fatal("the label path failed, see the lines above; start again to recover")
            return parts.engine.exit_code()
        _drain(plan, parts)
        return parts.engine.exit_code()


def _start_log(plan: ServicePlan, undo: ExitStack) -> LogSink:
    form = resolve_format(plan.log_format, sys.stderr)
    init_logging(plan.log_level, "text" if form == "text" else "json")
    sink = LogSink(plan.log_level, form, sys.stderr)
    undo.callback(sink.close)
    return sink


def _start(plan: ServicePlan, sink: LogSink, undo: ExitStack) -> _Parts:
    admin = AdminServer(plan.admin_address)  # bound, not yet answering
    undo.callback(admin.stop)
    state_dir.check(Path(plan.state_dir))
    store, loop = _open_store(plan, undo)  # labels have an end before one is made
    # The core takes SIGINT as it takes SIGTERM; Python's own handler would raise in between.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = Engine.start(plan.core)  # recovers, loads, warms; opens the port last
    undo.callback(engine.stop)  # runs before the store closes: confirmations stop first
    letters = Buried(DeadLetters(Path(plan.state_dir)), plan.store, plan.dead_letters_max)
    undo.callback(letters.close)
    writer = Writer(engine, store, letters, loop, plan.writer, random.Random())
    undo.callback(writer.stop, _STOP_S)
    control = Control(engine, store, loop)
    writer.start()
    control.start()
    reading = _Reading(engine, writer, sink)
    admin.start(Exposition(reading), StatusWindow(reading))
    return _Parts(engine, writer, control, admin)


def _open_store(plan: ServicePlan, undo: ExitStack) -> tuple[Store, LoopThread]:
    """The store, ready, and the event loop that it lives on."""
    loop = LoopThread()
    undo.callback(loop.stop, _STOP_S)
    store = open_store(plan.store, StoreContext(Path(plan.state_dir), plan.store_settings))
    undo.callback(_close_store, store, loop)
    loop.call(store.ensure(), _ENSURE_S)
    return store, loop


def _close_store(store: Store, loop: LoopThread) -> None:
    """A store that hangs is left behind: what it has not confirmed is in the journal."""
    try:
        loop.call(store.close(), _STOP_S)
    except Exception as error:
        _log.warning("the store could not be closed: %r", error)


def _announce(plan: ServicePlan, parts: _Parts) -> None:
    """The line that says that it serves, where, and on how many threads by whose word."""
    fields = {
        "grpc_address": parts.engine.grpc_address(),
        "admin_address": parts.admin.address,
        "state_dir": plan.state_dir,
        "store": plan.store,
        "threads": plan.threads,
        "threads_origin": plan.threads_origin,
        "instance_id": parts.engine.instance_id(),
        "version": version(),
    }
    _log.info("serving", extra={"fields": fields})


def _drain(plan: ServicePlan, parts: _Parts) -> None:
    """Lets the writer deliver what is accepted, within the budget; the journal keeps the rest."""
    began = time.monotonic()
    calm = _Calm(parts.engine, began + plan.drain_lame_duck_ms / 1000)
    kept_s = min(_STOP_S, plan.drain_budget_ms / 4000)
    _log.info("draining", extra={"fields": {"budget_ms": plan.drain_budget_ms}})
    done = parts.writer.drain(plan.drain_budget_ms / 1000 - kept_s, calm.reached)
    parts.writer.stop(kept_s / 2)
    pending = parts.engine.snapshot()["journal"]["pending"]
    parts.engine.stop()
    parts.control.join(kept_s / 4)
    took_ms = int((time.monotonic() - began) * 1000)
    fields = {"took_ms": took_ms, "pending": pending, "complete": done}
    _log.info("stopped", extra={"fields": fields})


class _Calm:
    """Nothing in flight and nothing pending, twice in a row, after the lame-duck time."""

    def __init__(self, engine: Engine, not_before_s: float) -> None:
        self._engine, self._not_before_s, self._seen = engine, not_before_s, 0

    def reached(self) -> bool:
        snapshot = self._engine.snapshot()
        journal = snapshot["journal"]
        in_flight = sum(counts["in_flight"] for counts in snapshot["methods"].values())
        busy = in_flight or journal["pending"] or journal["uncommitted_bytes"]
        early = time.monotonic() < self._not_before_s
        self._seen = 0 if busy or early else self._seen + 1
        return self._seen >= 2


class _Reading:
    """What telemetry may read, from the parts that know it."""

    def __init__(self, engine: Engine, writer: Writer, sink: LogSink) -> None:
        self._engine, self._writer, self._sink = engine, writer, sink
        info = build_info()
        self._build = {
            "version": info["version"],
            "profile": info["profile"],
            "instance_id": engine.instance_id(),
        }

    def snapshot(self) -> Mapping[str, Any]:
        return self._engine.snapshot()

    def stages(self) -> Sequence[Mapping[str, Any]]:
        return self._engine.stages()

    def writer(self) -> Mapping[str, Any]:
        return self._writer.stats().as_dict()

    def build(self) -> Mapping[str, str]:
        return self._build

    def logs_dropped(self) -> int:
        return self._sink.dropped
