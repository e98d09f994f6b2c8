"""Runs the sides of a writer case in turns, each a process for the whole case, and shows them.

All write the same rows to one server, each to a table of its own; in the end the tables must hold
equal items, so that no side is cheap by writing less. The server is `ministack`, a process too:
its CPU is in no figure, but it shares the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.suite.compare import PAIRS_MIN, Pair, Report, Run, order
from bench.suite.measure import MeasureError
from bench.suite.show import commit, compared, judged_line, machine
from bench.writer.cases import WriterCase
from tests.support.dynamodb import DynamoServer, DynamoTable, dynamo_server

__all__ = ["SECONDS", "document", "lines", "measure", "progress_line"]

SECONDS = 5.0
_STOP_S = 20.0
_FIGURES = ("labels_per_s", "server_cpu_us_per_label", "server_rss_bytes_max")


@dataclass
class _Process:
    process: subprocess.Popen[str]

    def run(self, seconds: float) -> dict[str, float]:
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, float]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise MeasureError(f"a side ended with {self.process.wait(_STOP_S)}, see above")
        figures: dict[str, float] = json.loads(line)
        return figures


def measure(
    case: WriterCase, pairs: int, seconds: float, progress: Callable[[str], None]
) -> list[Pair]:
    """The pairs in the order in which they ran. Errors: `MeasureError`."""
    found: list[Pair] = []
    with ExitStack() as stack:
        server = stack.enter_context(dynamo_server())
        tables = {name: server.table(f"bench-{name}").create() for name in case.sides}
        processes = {
            name: stack.enter_context(_running(kind, server, tables[name], case.seed))
            for name, kind in case.sides.items()
        }
        for number in range(pairs):
            runs = {
                name: Run(processes[name].run(seconds)) for name in order(number, list(case.sides))
            }
            found.append(Pair({name: runs[name] for name in case.sides}))
            progress(progress_line(number + 1, found[-1]))
        _equal(tables)
    return found


@contextmanager
def _running(kind: str, server: DynamoServer, table: DynamoTable, seed: int) -> Iterator[_Process]:
    command = [sys.executable, "-m", "bench.writer.sides", kind, server.url, table.name, str(seed)]
    environment = {**os.environ, **server.environment}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            running = _Process(process)
            running.answer()  # its warm-up
            yield running
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _equal(tables: Mapping[str, DynamoTable]) -> None:
    rows = {name: table.rows() for name, table in tables.items()}
    first = next(iter(rows))
    for name in rows:
        both = rows[name].keys() & rows[first].keys()
        different = [key for key in both if rows[name][key] != rows[first][key]]
        if not both or different:
            raise MeasureError(f"{name} and {first} wrote different items: {different[:3]}")


def progress_line(number: int, pair: Pair) -> str:
    """What a pair brought."""
    sides = (
        f"{name} {run.figures['server_cpu_us_per_label']:.1f}" for name, run in pair.runs.items()
    )
    return f"  pair {number}: µs/label {', '.join(sides)}"


def lines(case: WriterCase, report: Report, seconds: float) -> Iterator[str]:
    """The summary."""
    yield f"{case.name}: {case.about}"
    text = f"  {report.pairs} pairs of {seconds:g} s, {machine()}, the store's server beside it"
    short = f" · quick look, not a measurement ({PAIRS_MIN} pairs of {SECONDS:g} s)"
    yield text + ("" if report.measurement else short)
    for name, figures in report.sides.items():
        rate, cpu, rss = (figures[figure] for figure in _FIGURES)
        yield f"  {name:<10}{rate:>9,.0f} labels/s{cpu:>9.1f} µs/label{rss / 1e6:>7.0f} MB"
    for judged in report.judged:
        yield f"  {judged_line(judged)}"


def document(case: WriterCase, report: Report, pairs: list[Pair], seconds: float) -> dict[str, Any]:
    """The result file."""
    return {
        "case": case.name,
        "about": case.about,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "measurement": report.measurement,
        "pairs": report.pairs,
        "seconds": seconds,
        "seed": case.seed,
        "erratic": case.erratic,
        "kinds": dict(case.sides),
        "sides": {name: dict(figures) for name, figures in report.sides.items()},
        "compared": [compared(judged) for judged in report.judged],
        "guards": [
            {"guard": c.guard.text, "side": c.side, "value": c.value, "holds": c.holds}
            for c in report.guards
        ],
        "runs": [
            {
                name: {figure: round(value, 3) for figure, value in run.figures.items()}
                for name, run in pair.runs.items()
            }
            for pair in pairs
        ],
    }
