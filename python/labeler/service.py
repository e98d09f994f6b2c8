"""THE ONLY WIRING of the control side: plan ▸ log ▸ store ▸ core ▸ writer ▸ telemetry.

The only module that knows `labeler._core`; every part gets what it needs as an argument. Whatever
can refuse the start does so before a port takes a request: that gives the order.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeler import state_dir
from labeler._core import (
    Engine,
    Journal,
    build_info,
    init_logging,
    journal_dump,
    journal_stat,
    journal_verify,
    log_fatal,
    version,
)
from labeler.control import Control
from labeler.handover import Adoptions, Destination, Left, left_in, ready
from labeler.handover import deliver as deliver_left
from labeler.loop import LoopThread
from labeler.plan import DeliveryPlan, ServicePlan
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
    "deliver",
    "journal_dump",
    "journal_stat",
    "journal_verify",
    "log_fatal",
    "rest_garbage",
    "serve",
    "version",
]

_log = logging.getLogger(__name__)

_CLOSE_MS = 5000
_STOP_S = 2.0
"""For the steps after the writer's drain; of a short budget a quarter."""
_COLLECT_AFTER = 20_000
"""New objects until Python looks for cycles among them. Labels on their way to the store are a few
objects each and in no cycle: at Python's own 700 it looked at all of them, again and again."""
_ENSURE_S = 60.0
"""For a store to be opened: a database that another process holds, a table that is asked for."""


@dataclass(frozen=True)
class _Parts:
    engine: Engine
    writer: Writer
    control: Control
    admin: AdminServer
    adoptions: Adoptions


def serve(plan: ServicePlan) -> int:
    """Serves until SIGTERM, SIGINT or a failure; the exit code.

    Errors before it serves: any `LabelerError`, with its exit code. The core handles signals; its
    own watchdog ends the process when the drain's budget is over.
    """
    with ExitStack() as undo:
        sink = _start_log(plan, undo)
        parts = _start(plan, sink, undo)
        rest_garbage()
        _announce(plan, parts)
        parts.adoptions.start()
        state = "serving"
        while state == "serving":
            state = parts.engine.wait_state(1000)
        if state == "failed":
            log_fatal("the label path failed, see the lines above; start again to recover")
            return parts.engine.exit_code()
        _drain(plan, parts)
        return parts.engine.exit_code()


def rest_garbage() -> None:
    """What is there now stays, and what comes is looked at less often.

    A collection that looks at all of it, the AWS client's tables above all, stops the event loop
    for 0.1 s and more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


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
    adoptions = _adoptions(plan, store, loop)
    undo.callback(adoptions.stop, _STOP_S)
    writer.start()
    control.start()
    reading = _Reading(engine, writer, adoptions, sink)
    admin.start(Exposition(reading), StatusWindow(reading))
    return _Parts(engine, writer, control, admin, adoptions)


def _adoptions(plan: ServicePlan, store: Store, loop: LoopThread) -> Adoptions:
    settings = json.loads(plan.core)["journal"]
    to = Destination(store, plan.store, loop, plan.writer, plan.dead_letters_max, _STOP_S)
    return Adoptions(plan.adopt, lambda left: _open_left(settings, left), to)


def _open_left(settings: Mapping[str, Any], left: Left) -> Journal:
    config = {**settings, "directory": str(left.journal)}
    return Journal.open(json.dumps(config), str(left.state_dir))


def deliver(
    plan: DeliveryPlan,
    directory: Path,
    timeout_s: float,
    told: Callable[[Mapping[str, Any], Callable[[], str]], None],
) -> Mapping[str, Any]:
    """Delivers what a removed process left in `directory`; the journal's last stats.

    SIGINT and SIGTERM end it after the writes under way, a second one at once. Errors: any
    `LabelerError`: a journal that is in use, newer or gone, a store that cannot be reached.
    """
    stop = threading.Event()
    with ExitStack() as undo:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, lambda number, _: _stop_once(stop, number))
            undo.callback(signal.signal, number, before)
        left = left_in(directory)
        journal = _open_left(plan.journal, left)
        closing = undo.enter_context(ExitStack())
        closing.callback(journal.close, _CLOSE_MS)
        loop = LoopThread(nice=plan.writer.nice)
        undo.callback(loop.stop, _STOP_S)
        store = open_store(plan.store, StoreContext(Path(plan.state_dir), plan.store_settings))
        undo.callback(_close_store, store, loop)
        drain_s = plan.drain_budget_ms / 1000
        limits, letters_max = plan.writer, plan.dead_letters_max
        to = Destination(store, plan.store, loop, limits, letters_max, drain_s)
        if ready(to, stop, timeout_s):
            deliver_left(left, journal, to, stop, told, timeout_s)
        stats = journal.stats()
        closing.close()  # its error is the command's: what is confirmed is not on disk then
    return stats


def _stop_once(stop: threading.Event, number: int) -> None:
    stop.set()
    signal.signal(number, signal.SIG_DFL)


def _open_store(plan: ServicePlan, undo: ExitStack) -> tuple[Store, LoopThread]:
    """The store, ready, and the event loop that it lives on."""
    loop = LoopThread(nice=plan.writer.nice)
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
    parts.adoptions.end()
    calm = _Calm(parts.engine, began + plan.drain_lame_duck_ms / 1000)
    kept_s = min(_STOP_S, plan.drain_budget_ms / 4000)
    _log.info("draining", extra={"fields": {"budget_ms": plan.drain_budget_ms}})
    done = parts.writer.drain(plan.drain_budget_ms / 1000 - kept_s, calm.reached)
    parts.writer.stop(kept_s / 2)
    parts.adoptions.stop(kept_s / 4)
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

    def __init__(self, engine: Engine, writer: Writer, adoptions: Adoptions, sink: LogSink) -> None:
        self._engine, self._writer, self._sink = engine, writer, sink
        self._adoptions = adoptions
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

    def adopted(self) -> Mapping[str, int]:
        return self._adoptions.stats()

    def build(self) -> Mapping[str, str]:
        return self._build

    def logs_dropped(self) -> int:
        return self._sink.dropped
