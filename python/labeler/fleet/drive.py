"""One run of a fleet against a service: rows in, a report out. A library: it never prints.

The sender (`labeler._core.loadgen`) sends by its schedule on threads of its own; here its rows are
brought, its figures are read once a second, and the service's own are laid beside them.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labeler._core.loadgen import Sender
from labeler.client import Client
from labeler.errors import LabelerError, UnavailableError
from labeler.fleet.accounts import between_sides, in_itself
from labeler.fleet.audit import Audit, audit
from labeler.fleet.load import Load, Model, choose_model, make_plan
from labeler.fleet.report import FleetReport
from labeler.fleet.rows import Feeder, Rows
from labeler.fleet.server import ServerFigures, ServerReading, Watch, figures

if TYPE_CHECKING:
    from labeler._core.loadgen import Snapshot

__all__ = ["Progress", "Target", "Wanted", "drive", "send"]

_READY_MS = 10_000
_WAIT_MS = 200
"""How long a call into the sender may last: signals are seen in between."""
_PRIME_S = 60.0
_PRIMED_TICKS = 2
"""Ticks that are there before the run begins: half of what the sender holds at least."""
_REST_S = 30.0
_METHODS = {"stream": "LabelStream", "unary": "Label"}


@dataclass(frozen=True)
class Target:
    """The service: `host:port` of gRPC, and of its admin port (empty: not asked)."""

    address: str
    admin: str = ""


@dataclass(frozen=True)
class Wanted:
    """What a run leaves behind beside its report; None: not wanted."""

    histograms: Path | None = None
    acks: Path | None = None
    audit: bool = False


@dataclass(frozen=True)
class Progress:
    """A second of a run: totals since the start, percentiles (µs) and stages of this second."""

    elapsed_s: float
    sent: int
    answered: int
    errors: Mapping[str, int]
    in_flight: int
    accuracy: float | None
    rate_per_s: float
    interval: Mapping[str, Any]
    """The sender's: `answered`, `latency_us_p50`, `_p99`, `_p999`, `schedule_lag_us_p99`."""
    stages: list[dict[str, Any]]


def drive(
    target: Target,
    load: Load,
    rows: Rows,
    wanted: Wanted,
    tell: Callable[[Progress], None] | None = None,
) -> FleetReport:
    """Sends the load and waits until the service has stored what it answered.

    `tell` is called once a second; without it the service is not asked meanwhile, which would cost
    it some ms each time. KeyboardInterrupt ends the run. Errors: `UnavailableError` where nobody
    answers, `InvalidRequestError` for a width or a plan that does not fit, and what `rows` raise.
    """
    with ExitStack() as undo:
        acks = _acks_file(wanted, undo)
        model = _model(target.address, load, rows)
        plan = make_plan(load, target.address, model, rows)
        sender = Sender(json.dumps(plan | {"acks_file": str(acks or "")}))
        feeder = Feeder(rows, sender, _PRIMED_TICKS * load.robots)
        undo.callback(feeder.stop)
        undo.callback(sender.stop)  # first, since it lets a feeder go that waits for room
        _prime(feeder)
        sender.connect()
        watch = Watch(target.admin) if target.admin else None
        before = watch.read() if watch else None
        sender.fire()
        warm = _warm_up(sender, watch, load.warmup_s) or before
        _follow(sender, watch, tell)
        feeder.stop()
        if feeder.error is not None:
            raise feeder.error
        result = sender.result()
        files = sender.write_histograms(str(wanted.histograms)) if wanted.histograms else []
        notes = [model.note] if model.note else []
        unaccounted: list[str] = []
        after = _read_after(watch, unaccounted)
        server = figures(before, warm, after) if before and warm and after else None
        if server and server.restarted:
            notes.append("the service was restarted in between; its counters are since that")
        if watch is None:
            notes.append("the admin port was not asked: no stages, CPU and counters of the service")
        if server and after:
            unaccounted += in_itself(after.status)
            unaccounted += _disagreement(load, result, server, notes)
        found = _audited(target, acks, notes) if wanted.audit else None
        return FleetReport(load, model, result, server, found, notes, files, unaccounted)


def send(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """One run of the sender by a plan of its own, whose rows it makes up; its result.

    Errors: `UnavailableError` where nobody answers, `InvalidRequestError` for a plan.
    """
    sender = Sender(json.dumps(plan))
    try:
        sender.connect()
        sender.fire()
        while not sender.wait(_WAIT_MS):
            pass
        return sender.result()
    finally:
        sender.stop()


def _acks_file(wanted: Wanted, undo: ExitStack) -> Path | None:
    if wanted.acks is not None or not wanted.audit:
        return wanted.acks
    folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="labeler-acks-"))
    return Path(folder) / "acks.csv"


def _model(address: str, load: Load, rows: Rows) -> Model:
    with Client(address) as client:
        client.wait_ready(_READY_MS)
        return choose_model(client.models(), load.model, rows)


def _prime(feeder: Feeder) -> None:
    """Starts it and waits until it is some ticks ahead of the schedule. Errors: the rows'."""
    feeder.start()
    deadline = time.monotonic() + _PRIME_S
    while not feeder.primed.wait(_WAIT_MS / 1000) and time.monotonic() < deadline:
        pass
    if feeder.error is not None:
        raise feeder.error


def _warm_up(sender: Sender, watch: Watch | None, lasts_s: float) -> ServerReading | None:
    """Waits for the warm-up's end; the reading there, None where there is none to take."""
    if not lasts_s:
        return None
    end_s = time.monotonic() + lasts_s
    while (left_s := end_s - time.monotonic()) > 0:
        if sender.wait(max(1, min(_WAIT_MS, round(left_s * 1000)))):
            return None
    return watch.read_if_there() if watch else None


def _follow(sender: Sender, watch: Watch | None, tell: Callable[[Progress], None] | None) -> None:
    """Tells the progress once a second until the last reply."""
    sender.snapshot()  # the first second begins here
    began_s = next_s = time.monotonic()
    over = False
    while not over:
        next_s = max(next_s, time.monotonic() - 0.5) + 1.0  # after a stall not all at once
        while not over and (left_s := next_s - time.monotonic()) > 0:
            over = sender.wait(max(1, min(_WAIT_MS, round(left_s * 1000))))
        if not tell:
            continue
        now, now_s = sender.snapshot(), time.monotonic()
        if now["interval"]["answered"] or not over:  # no line for the rest of a second
            tell(_progress(now, now_s - began_s, watch.stages_since_last() if watch else []))
            began_s = now_s


def _progress(now: Snapshot, span_s: float, stages: list[dict[str, Any]]) -> Progress:
    interval = now["interval"]
    return Progress(
        elapsed_s=now["elapsed_s"],
        sent=now["sent"],
        answered=now["answered"],
        errors=now["errors"],
        in_flight=now["in_flight"],
        accuracy=now["correct"] / now["judged"] if now["judged"] else None,
        rate_per_s=interval["answered"] / span_s,
        interval=interval,
        stages=stages,
    )


def _read_after(watch: Watch | None, unaccounted: list[str]) -> ServerReading | None:
    if watch is None:
        return None
    try:
        return watch.read_at_rest(_REST_S)
    except UnavailableError as error:
        unaccounted.append(f"after the run: {error.message}")
        return None


def _disagreement(
    load: Load, result: Mapping[str, Any], server: ServerFigures, notes: list[str]
) -> list[str]:
    if server.restarted:  # how many it answered before is not known
        return []
    counts = server.requests.get(_METHODS[load.calls], {})
    received, answered = counts.get("received", 0), counts.get("answered", 0)
    if (others := received - result["sent_total"]) > 0:
        notes.append(f"{others:,} requests that the service received were not this fleet's")
    return between_sides(result, received, answered)


def _audited(target: Target, acks: Path | None, notes: list[str]) -> Audit | None:
    assert acks is not None
    try:
        return audit(target.address, acks)
    except LabelerError as error:
        notes.append(f"the audit did not come to its end: {error.message}")
        return None
