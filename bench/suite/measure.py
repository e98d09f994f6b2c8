"""Runs the sides of a case in turns: A B, B A, A B …, each run by the sender as a process.

Beside the pairs it measures the floor of the same run: the bare echo under the case's load, and
fdatasync on the disk where the servers keep their state. Judges nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.suite.backlog import Drained, backlog, drained
from bench.suite.beside import beside
from bench.suite.burning import burning
from bench.suite.case import Case, Load, Side
from bench.suite.compare import Pair, Run, order
from bench.suite.limits import ort_us_per_row
from bench.suite.metrics import Figures, figures_of, over_runs, writer_cpu_us_per_stored
from bench.suite.never_reading import never_reading
from bench.suite.peers import PEER
from bench.suite.servers import BINARIES, Server, ServerError, Spec, running
from bench.suite.stores import OFF

__all__ = ["MeasureError", "Measured", "Options", "fdatasync_us", "measure", "plan_of"]

_FLOOR_WRITES = 300


class MeasureError(Exception):
    """The sender could not do a run; the message has what it said."""


@dataclass(frozen=True)
class Options:
    """How often and how long; `seconds` None is the case's own time.

    `spare`: so many pairs may be run again for those of a late sender; None: as many as `pairs`.
    """

    pairs: int
    seconds: float | None = None
    spare: int | None = None

    @property
    def tries(self) -> int:
        """The most pairs that are run."""
        return self.pairs + (self.pairs if self.spare is None else self.spare)


@dataclass(frozen=True)
class Measured:
    """The pairs in the order in which they ran, and the floor beside them."""

    pairs: list[Pair]
    echo: Figures
    fdatasync_us_p99: float
    drained: Drained | None = None
    """Of the side with a backlog: how what was left of it went to the store in the end."""
    could_not_run: Mapping[str, str] = field(default_factory=dict)
    """Sides of peers, and why; the pairs are without them."""
    ort_us_per_row: Mapping[str, float] = field(default_factory=dict)
    """A bare loop of ONNX Runtime by rows at once, where a side is a peer."""


def measure(
    case: Case, options: Options, folder: Path, progress: Callable[[int, Pair], None]
) -> Measured:
    """As many valid pairs as asked for; for each invalid one another, up to `options.tries` in all.

    `folder`: empty, where servers keep their state. `progress` is called after each pair. Errors:
    `ServerError`, `MeasureError`, but not of a peer: the pairs are without a peer that fails.
    """
    pairs: list[Pair] = []
    absent: dict[str, str] = {}
    floor_us = fdatasync_us(folder, _FLOOR_WRITES)
    with ExitStack() as stack:
        servers = _start(case, folder, stack, absent)
        floor = [_floor_run(case, options, servers)]
        while _wanting(pairs, options):
            runs = _pair(case, len(pairs), servers, options, absent)
            pairs = [_only(pair, absent) for pair in pairs]
            pairs.append(Pair(_above_off(case, {n: runs[n] for n in case.sides if n in runs})))
            progress(len(pairs), pairs[-1])
        floor.append(_floor_run(case, options, servers))
        [*rest] = [drained(server) for server in servers.values() if server.spec.backlog]
    floor_us += fdatasync_us(folder, _FLOOR_WRITES)
    echo = _echo_side(case)
    lying = [pair.runs[echo].figures for pair in pairs] if echo else [f for f in floor if f]
    fdatasync_us_p99 = sorted(floor_us)[int(len(floor_us) * 0.99)]
    return Measured(
        pairs,
        over_runs(lying),
        fdatasync_us_p99,
        rest[0] if rest else None,
        absent,
        ort_us_per_row() if case.has_peers else {},
    )


def plan_of(case: Case, load: Load, server: Server, seconds: float | None) -> dict[str, Any]:
    """The sender's plan for one run."""
    plan = load.model_dump() | {
        "address": server.address,
        "server_pid": server.pid,
        "server_workers": server.workers(),
        "seed": case.seed,
        "rows": "synthetic",
    }
    return plan if seconds is None else plan | {"duration_s": seconds}


def fdatasync_us(folder: Path, count: int) -> list[float]:
    """The disk's floor: µs of each of `count` fdatasync after a 4 KiB append."""
    times = []
    path = folder / "fdatasync"
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * 4096)
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begin) * 1e6)
    path.unlink()
    return times


def _wanting(pairs: list[Pair], options: Options) -> bool:
    valid = sum(not pair.invalid_because for pair in pairs)
    return valid < options.pairs and len(pairs) < options.tries


def _pair(
    case: Case,
    number: int,
    servers: Mapping[Spec, Server],
    options: Options,
    absent: dict[str, str],
) -> dict[str, Run]:
    """A run of each side that is not absent; that of a peer which fails becomes so."""
    runs = {}
    for name in order(number, [name for name in case.sides if name not in absent]):
        side = case.sides[name]
        try:
            runs[name] = _run(case, side, servers, options)
        except (MeasureError, ServerError) as error:
            if not side.server.startswith(PEER):
                raise
            servers[_spec(case, side)].finish()
            absent[name] = _reason(error)
    return runs


def _reason(error: Exception) -> str:
    """On one line: how it begins, and above all how it ends."""
    text = " ".join(str(error).split())
    return text if len(text) <= 400 else f"{text[:100]} … {text[-300:]}"


def _only(pair: Pair, absent: Collection[str]) -> Pair:
    return Pair({name: run for name, run in pair.runs.items() if name not in absent})


def _start(
    case: Case, folder: Path, stack: ExitStack, absent: dict[str, str]
) -> dict[Spec, Server]:
    """One server for each different spec; the floor's echo comes with them. Fills `absent`."""
    specs = {_spec(case, side) for side in case.sides.values()} | {_floor_spec(case)}
    servers: dict[Spec, Server] = {}
    for number, spec in enumerate(sorted(specs, key=str)):
        place = folder / f"{spec.kind.replace(':', '-')}-{number}"
        try:
            servers[spec] = stack.enter_context(running(spec, place))
        except ServerError as error:
            if not spec.peer:
                raise
            names = [name for name, side in case.sides.items() if _spec(case, side) == spec]
            absent |= dict.fromkeys(names, _reason(error))
    return servers


def _spec(case: Case, side: Side) -> Spec:
    config = case.config_of(side) if side.server == "labeler" else None
    store = "sqlite" if side.server == "echo" else case.server.store
    return Spec(
        side.server,
        case.server.threads,
        config,
        burns=side.burn == "inside",
        store=OFF if side.writer == "off" else store,
        copies=case.server.copies if side.server == "labeler" else 0,
        backlog=bool(side.backlog_rows),
        arguments=tuple(side.arguments),
        tree=side.tree,
    )


def _floor_spec(case: Case) -> Spec:
    return Spec("echo", case.server.threads)


def _echo_side(case: Case) -> str | None:
    """A side that is the floor already."""
    return next((name for name, side in case.sides.items() if side.server == "echo"), None)


def _floor_run(case: Case, options: Options, servers: Mapping[Spec, Server]) -> Figures:
    """The first side's load on the bare echo; nothing where a side is that already."""
    if _echo_side(case):
        return {}
    first = next(iter(case.sides.values()))
    echo = Side(server="echo", load=first.load)
    return _run(case, echo, servers, options).figures


def _run(case: Case, side: Side, servers: Mapping[Spec, Server], options: Options) -> Run:
    server = servers[_spec(case, side)]
    idle = never_reading(server.address, side.never_reading)
    waiting = backlog(server, side.backlog_rows)
    with waiting, idle:
        server.begin()
        # While Python burns inside, a service says nothing of itself.
        with burning(side.burn, server.burn_flag), beside(server, side) as seen:
            result = _send(plan_of(case, side.load, server, options.seconds))
    figures = figures_of(result, server.finish() | seen)
    because = () if result["valid"] else tuple(result["invalid_because"])
    return Run(figures, because)


def _above_off(case: Case, runs: Mapping[str, Run]) -> Mapping[str, Run]:
    """With what a label stored costs, where a side of the pair has its writer off."""
    off = [runs[name] for name, side in case.sides.items() if side.writer == "off"]
    if not off:
        return runs
    found = {}
    for name, run in runs.items():
        cost = writer_cpu_us_per_stored(run.figures, off[0].figures)
        more = {} if cost is None else {"writer_cpu_us_per_stored": cost}
        found[name] = Run({**run.figures, **more}, run.invalid_because)
    return found


def _send(plan: Mapping[str, Any]) -> dict[str, Any]:
    allowed_s = plan["ready_timeout_ms"] / 1e3 + plan["warmup_s"] + plan["duration_s"]
    allowed_s += plan["timeout_ms"] / 1e3 + 60
    try:
        done = subprocess.run(
            [BINARIES / "loadgen", "-"],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=allowed_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise MeasureError(f"no sender at {error.filename}; `make bench` builds it") from error
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"the sender did not end within {allowed_s:.0f} s") from error
    if done.returncode != 0:
        raise MeasureError(f"the sender exits with {done.returncode}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    if result["server"] is None or not result["answered"]:
        raise MeasureError(f"no label or no server was left to measure: {done.stdout.strip()}")
    return result
