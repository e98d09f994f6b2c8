"""Starts of a service with what another one has left undelivered, beside starts with nothing.

The backlog is made once, in an outage of the store, and its service killed; each start has a copy
of it. After its ready line a service drains for the time of a run, with no load, and is killed. In
the end one start is let drain to the last label.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.suite.backlog import drained, fill
from bench.suite.compare import PAIRS_MIN, SECONDS_MIN, Pair, Report, Run, order
from bench.suite.servers import Server, ServerError, Spec, running
from bench.suite.show import guard_line, machine
from bench.writer import runner
from bench.writer.cases import WriterCase

__all__ = ["SECONDS", "document", "lines", "measure"]

SECONDS = SECONDS_MIN
_SPEC = Spec("labeler", 2, None, store="fast-dynamodb", backlog=True)
_DURABLE_S = 60.0
document = runner.document


def measure(
    case: WriterCase, pairs: int, seconds: float, progress: Callable[[str], None]
) -> list[Pair]:
    """The pairs in the order in which they ran. Errors: `ServerError`."""
    found: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="labeler-bench-") as text:
        folder = Path(text)
        states = {name: _left(folder / f"made-{name}", int(n)) for name, n in case.sides.items()}
        for number in range(pairs):
            runs = {
                name: Run(_run(folder / f"{name}-{number}", states[name], seconds))
                for name in order(number, list(case.sides))
            }
            found.append(Pair({name: runs[name] for name in case.sides}))
            progress(_progress(number + 1, found[-1]))
        with _killed(folder / "last", states[list(case.sides)[-1]]) as server:
            progress(f"  in the end: {drained(server).text}")
    return found


def _left(folder: Path, rows: int) -> Path:
    """The state directory of a service that was killed with so many labels undelivered."""
    with _killed(folder, None) as server:
        server.store.take_nothing(True)
        fill(server, rows)
        end_s = time.monotonic() + _DURABLE_S
        while server.status()["journal"]["uncommitted_bytes"]:
            if time.monotonic() > end_s:
                raise ServerError("the backlog is not on disk")
    return folder / "state"


def _run(folder: Path, state: Path, seconds: float) -> dict[str, float]:
    with _killed(folder, state) as server:
        before = server.status()
        rss = before["process"]["resident_bytes"]
        begin_s = time.monotonic()
        time.sleep(seconds)
        after, span_s = server.status(), time.monotonic() - begin_s
    stored = after["journal"]["stored_total"] - before["journal"]["stored_total"]
    return {
        "errors_total": float(after["writer"]["failures_total"]),
        "start_ms": server.ready_s * 1e3,
        "backlog_rows": float(before["journal"]["pending"]),
        "stored_per_s": stored / span_s,
        "server_rss_bytes_max": float(after["process"]["resident_bytes_max"]),
        "rss_growth_bytes": float(after["process"]["resident_bytes_max"] - rss),
    }


@contextmanager
def _killed(folder: Path, state: Path | None) -> Iterator[Server]:
    """A service that has no time to drain at its end."""
    with running(_SPEC, folder, state) as server:
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGKILL)


def _progress(number: int, pair: Pair) -> str:
    sides = (f"{name} {run.figures['start_ms']:.0f} ms" for name, run in pair.runs.items())
    return f"  pair {number}: ready after {', '.join(sides)}"


def lines(case: WriterCase, report: Report, seconds: float) -> Iterator[str]:
    """The summary."""
    yield f"{case.name}: {case.about}"
    text = f"  {report.pairs} pairs, {seconds:g} s of draining each, {machine()}"
    short = f" · quick look, not a measurement ({PAIRS_MIN} pairs of {SECONDS:g} s)"
    yield text + ("" if report.measurement else short)
    for name, figures in report.sides.items():
        rss, growth = (figures[key] / 1e6 for key in ("server_rss_bytes_max", "rss_growth_bytes"))
        yield (
            f"  {name:<10}{figures['backlog_rows']:>11,.0f} rows   ready after at most "
            f"{figures['start_ms']:,.0f} ms   at most {rss:.0f} MB, {growth:.0f} above that at the "
            f"ready line   stored {figures['stored_per_s']:,.0f}/s"
        )
    for checked in report.guards:
        yield f"  {guard_line(checked)}"
