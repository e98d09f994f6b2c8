"""Runs ways to write to SQLite in turns, each run a process with a file of its own.

All write the same rows of distinct keys, the robots of each round in an order of its own. At the
end of a pair the files must hold equal rows, so that no side is cheap by writing less. A run's
figures are of its process alone. As a program it is one side, given its kind, file, rows and seed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.suite.compare import PAIRS_MIN, Pair, Report, Run, order
from bench.suite.measure import MeasureError
from bench.suite.show import judged_line, machine
from bench.writer import runner
from bench.writer.cases import WriterCase
from bench.writer.rows import ROBOTS, made_rows
from bench.writer.sides import NoGraves
from labeler.config.schema import Settings
from labeler.loop import LoopThread
from labeler.plan import WriterLimits
from labeler.service import rest_garbage
from labeler.stores.base import StoredRow
from labeler.stores.blocking import Threaded
from labeler.stores.sqlite import SqliteStore
from labeler.writer import Writer

__all__ = ["SECONDS", "document", "lines", "main", "measure"]

SECONDS = runner.SECONDS
document = runner.document

_ROWS_A_SECOND = 10_000
"""A run's rows, by the seconds that were asked for: a little less than they take."""
_GROUP_ROWS = Settings().writer.rows_max
_WARM_UP_ROWS = 10_000
_RUN_S = 600.0
_FIGURES = ("server_cpu_us_per_label", "write_calls_per_label", "write_bytes_per_label")
_READ = "SELECT * FROM labels ORDER BY journal_number"

Row = tuple[Any, ...]
"""The fields of a `StoredRow`, as the core gives them."""
Write = Callable[[Sequence[Row]], None]


def measure(
    case: WriterCase, pairs: int, seconds: float, progress: Callable[[str], None]
) -> list[Pair]:
    """The pairs in the order in which they ran. Errors: `MeasureError`."""
    found: list[Pair] = []
    rows = int(seconds * _ROWS_A_SECOND)
    for number in range(pairs):
        with tempfile.TemporaryDirectory(prefix="labeler-bench-") as text:
            files = {name: Path(text) / f"{name}.sqlite3" for name in case.sides}
            runs = {
                name: Run(_side(case.sides[name], files[name], rows, case.seed))
                for name in order(number, list(case.sides))
            }
            _equal(files, rows + _WARM_UP_ROWS)
        found.append(Pair({name: runs[name] for name in case.sides}))
        progress(runner.progress_line(number + 1, found[-1]))
    return found


def lines(case: WriterCase, report: Report, seconds: float) -> Iterator[str]:
    """The summary."""
    yield f"{case.name}: {case.about}"
    rows = int(seconds * _ROWS_A_SECOND)
    text = f"  {report.pairs} pairs of {rows:,} labels, {machine()}"
    short = f" · quick look, not a measurement ({PAIRS_MIN} pairs of {SECONDS:g} s)"
    yield text + ("" if report.measurement else short)
    for name, figures in report.sides.items():
        cpu, calls, size = (figures[figure] for figure in _FIGURES)
        yield f"  {name:<10}{cpu:>7.1f} µs/label{calls:>7.2f} write calls{size:>8,.0f} bytes"
    for judged in report.judged:
        yield f"  {judged_line(judged)}"


def _side(kind: str, file: Path, rows: int, seed: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.writer.embedded", kind, str(file), str(rows), str(seed)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_RUN_S, check=False)
    if ended.returncode:
        raise MeasureError(f"a side ended with {ended.returncode}, see above")
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def _equal(files: dict[str, Path], rows: int) -> None:
    first: list[Any] | None = None
    for name, file in files.items():
        with closing(sqlite3.connect(file)) as connection:
            found = connection.execute(_READ).fetchall()
        if len(found) != rows or found != (first or found):
            raise MeasureError(f"{name} did not write the rows that it was given")
        first = first or found


# ---- one side, a process


def main(kind: str, file: str, rows: str, seed: str) -> None:
    """Writes the rows and prints the figures."""
    made = _made(int(seed), int(rows) + _WARM_UP_ROWS)
    write = _KINDS[kind](Path(file))
    rest_garbage()
    write(made[:_WARM_UP_ROWS])
    before = _spent()
    write(made[_WARM_UP_ROWS:])
    spent = [(now - then) / int(rows) for then, now in zip(before, _spent(), strict=True)]
    print(json.dumps(dict(zip(_FIGURES, spent, strict=True))), flush=True)


def _made(seed: int, rows: int) -> list[Row]:
    """Robots come in another order in each round: their keys are spread over all of the index."""
    made, draws = made_rows(seed, rows), random.Random(seed)
    for begin in range(0, rows, ROBOTS):
        part = made[begin : begin + ROBOTS]
        draws.shuffle(part)
        made[begin : begin + ROBOTS] = part
    return [(*row[:-1], 1 + number) for number, row in enumerate(made)]


def _spent() -> tuple[float, float, float]:
    """CPU in µs, calls that write, bytes that they wrote; the latter are counted on Linux alone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    counts = {"syscw": 0, "wchar": 0}
    if sys.platform == "linux":
        text = Path("/proc/self/io").read_text(encoding="ascii")
        counts = {
            key: int(value) for key, value in (line.split(": ") for line in text.splitlines())
        }
    return (used.ru_utime + used.ru_stime) * 1e6, counts["syscw"], counts["wchar"]


def _labeler(file: Path) -> Write:
    """The product's writer with its store, given all rows at once as a journal gives them."""
    loop, store = LoopThread(), Threaded(SqliteStore(file))
    loop.call(store.ensure(), _RUN_S)
    records = _Records()
    limits = WriterLimits(
        rows_max=_GROUP_ROWS,
        linger_ms=100,
        retry_ms_min=50,
        retry_ms_max=5000,
        write_timeout_ms=10_000,
        held_rows_max=10_000,
        concurrency_max=1,
        nice=0,
    )
    Writer(records, store, NoGraves(), loop, limits, random.Random(7)).start()
    return records.give


class _Records:
    """The journal's side."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._given = self._confirmed = 0
        self._changed = threading.Condition()

    def give(self, rows: Sequence[Row]) -> None:
        """Returns when all are confirmed."""
        with self._changed:
            self._rows += rows
            self._changed.notify_all()
            if not self._changed.wait_for(self._is_done, _RUN_S):
                raise MeasureError("not all rows were confirmed")

    def take_records(self, rows_max: int, bytes_max: int, timeout_ms: int) -> Sequence[Row]:
        with self._changed:
            self._changed.wait_for(lambda: self._given < len(self._rows), timeout_ms / 1000)
            taken = self._rows[self._given : self._given + rows_max]
            self._given += len(taken)
        return taken

    def confirm(self, numbers: Sequence[int], outcome: str) -> None:
        assert outcome == "stored", f"{len(numbers)} rows ended as {outcome}"
        with self._changed:
            self._confirmed += len(numbers)
            if self._is_done():
                self._changed.notify_all()

    def _is_done(self) -> bool:
        return self._confirmed == len(self._rows)


def _store(file: Path) -> Write:
    """The product's store without the writer around it."""
    store = SqliteStore(file)
    store.ensure()

    def write(rows: Sequence[Row]) -> None:
        for group in _groups(rows):
            store.write([StoredRow._make(row) for row in group])

    return write


def _floor(file: Path) -> Write:
    """Bare inserts into the same table, as durable, of plain tuples; nobody asks what is there."""
    store = SqliteStore(file)
    store.ensure()
    store.close()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    marks = ", ".join("?" * len(StoredRow._fields))

    def write(rows: Sequence[Row]) -> None:
        for group in _groups(rows):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(f"INSERT INTO labels VALUES ({marks})", group)
            connection.execute("COMMIT")

    return write


def _groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for begin in range(0, len(rows), _GROUP_ROWS):
        yield rows[begin : begin + _GROUP_ROWS]


_KINDS: dict[str, Callable[[Path], Write]] = {
    "labeler": _labeler,
    "store": _store,
    "floor": _floor,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # the writer's threads wait for more
