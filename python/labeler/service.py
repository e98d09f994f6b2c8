"""THE ONLY WIRING of the control side: configuration ▸ log ▸ store ▸ core ▸ writer ▸ telemetry.

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
from dataclasses import asdict, dataclass
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
from labeler.config import Config, core_json, state_path
from labeler.control import Control
from labeler.stores.base import Store, StoreContext
from labeler.stores.registry import open_store
from labeler.telemetry.admin import AdminServer
from labeler.telemetry.logs import LogSink, resolve_format
from labeler.telemetry.prometheus import Exposition
from labeler.telemetry.status import StatusWindow
from labeler.writer import Writer, WriterLimits

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


@dataclass(frozen=True)
class _Parts:
    engine: Engine
    store: Store
    writer: Writer
    control: Control
    admin: AdminServer


def serve(config: Config) -> int:
    """Serves until SIGTERM, SIGINT or a failure; the exit code.

    Errors before it serves: any `LabelerError`, with its exit code. The core handles signals; its
    own watchdog ends the process when the drain's budget is over.
    """
    with ExitStack() as undo:
        sink = _start_log(config, undo)
        parts = _start(config, sink, undo)
        _announce(config, parts)
        state = "serving"
        while state == "serving":
            state = parts.engine.wait_state(1000)
        if state == "failed":
            log_fatal("the label path failed, see the lines above; start again to recover")
            return parts.engine.exit_code()
        _drain(config, parts)
        return parts.engine.exit_code()


def _start_log(config: Config, undo: ExitStack) -> LogSink:
    log = config.settings.log
    form = resolve_format(log.format, sys.stderr)
    init_logging(log.level, "text" if form == "text" else "json")
    sink = LogSink(log.level, form, sys.stderr)
    undo.callback(sink.close)
    return sink


def _start(config: Config, sink: LogSink, undo: ExitStack) -> _Parts:
    core = core_json(config)  # finds ONNX Runtime's library: the cheapest way to be refused
    admin = AdminServer(config.settings.admin.address)  # bound, not yet answering
    undo.callback(admin.stop)
    state_dir.check(state_path(config))
    store = _open_store(config)
    undo.callback(store.close)
    store.ensure()  # labels have an end before one is made
    # The core takes SIGINT as it takes SIGTERM; Python's own handler would raise in between.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = Engine.start(core)  # recovers, loads, warms; opens the port last
    undo.callback(engine.stop)  # runs before the store closes: confirmations stop first
    writer = Writer(engine, store, _writer_limits(config), random.Random())
    undo.callback(writer.stop, _STOP_S)
    control = Control(engine, store)
    writer.start()
    control.start()
    reading = _Reading(engine, writer, sink)
    admin.start(Exposition(reading), StatusWindow(reading))
    return _Parts(engine, store, writer, control, admin)


def _open_store(config: Config) -> Store:
    name = config.settings.writer.store
    settings: Mapping[str, Any] = config.settings.model_dump().get(name, {})
    return open_store(name, StoreContext(state_path(config), settings))


def _writer_limits(config: Config) -> WriterLimits:
    writer = config.settings.writer
    return WriterLimits(
        rows_max=writer.rows_max,
        linger_ms=writer.linger_ms,
        retry_ms_min=writer.retry_ms_min,
        retry_ms_max=writer.retry_ms_max,
    )


def _announce(config: Config, parts: _Parts) -> None:
    """The line that says that it serves, where, and on how many threads by whose word."""
    threads = config.threads()
    fields = {
        "grpc_address": parts.engine.grpc_address(),
        "admin_address": parts.admin.address,
        "state_dir": str(state_path(config)),
        "store": config.settings.writer.store,
        "threads": threads.count,
        "threads_origin": threads.origin,
        "instance_id": parts.engine.instance_id(),
        "version": version(),
    }
    _log.info("serving", extra={"fields": fields})


def _drain(config: Config, parts: _Parts) -> None:
    """Lets the writer deliver what is accepted, within the budget; the journal keeps the rest."""
    drain = config.settings.drain
    began = time.monotonic()
    calm = _Calm(parts.engine, began + drain.lame_duck_ms / 1000)
    kept_s = min(_STOP_S, drain.budget_ms / 4000)
    _log.info("draining", extra={"fields": {"budget_ms": drain.budget_ms}})
    done = parts.writer.drain(drain.budget_ms / 1000 - kept_s, calm.reached)
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

    def writer(self) -> Mapping[str, int]:
        return asdict(self._writer.stats())

    def build(self) -> Mapping[str, str]:
        return self._build

    def logs_dropped(self) -> int:
        return self._sink.dropped
