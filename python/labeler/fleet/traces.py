"""When requests arrive, read from a trace: a CSV file, plain or gzip, with a column of seconds.

Only reads and rearranges times; what is sent then is the caller's. Wrong input is refused with
file, line, column and what was expected.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from labeler.errors import DiskError, InvalidRequestError
from labeler.fleet.draws import Draws

__all__ = ["Join", "faster", "overlay", "read_times", "side_by_side"]

Array = np.ndarray[Any, Any]

_S_MAX = 1e9  # thirty years: beyond, it is no time since the start but a date


@dataclass(frozen=True)
class Join:
    """Another CSV with one row for each value of the column `on`, which both files have."""

    path: Path
    on: str


def read_times(
    path: Path,
    time_column: str = "t_s",
    where: Mapping[str, str] | None = None,
    join: Join | None = None,
    by: str | None = None,
) -> list[Array]:
    """Arrival times, int64 µs ascending from 0; one array for each value of the column `by`.

    Without `by` there is one array. Only rows whose columns hold the values of `where` are taken;
    `join` adds the other file's columns to those that `where` and `by` may name. Times must not
    descend within an array; each array's first arrival is its 0.

    Errors: `InvalidRequestError` names file, line, column and expectation; `DiskError` where the
    file can't be read.
    """
    where = where or {}
    joined = _joined(join) if join else {}
    traces: dict[str, list[int]] = {}
    for line, row in _rows(path, [time_column, *([join.on] if join else [])]):
        if join:
            row = _with(joined, join, path, line, row)
        for column in (*where, *([by] if by else [])):
            if column not in row:
                raise _wrong(path, 1, column, "missing", f"one of {', '.join(row)}")
        if any(row[column] != value for column, value in where.items()):
            continue
        time_us = _micros(path, line, time_column, row[time_column])
        trace = traces.setdefault(row[by] if by else "", [])
        if trace and time_us < trace[-1]:
            expected = f"not before the arrival that precedes it ({trace[-1] / 1e6:g} s)"
            raise _wrong(path, line, time_column, row[time_column], expected)
        trace.append(time_us)
    if not traces:
        wanted = ", ".join(f"{column} = {value}" for column, value in where.items())
        raise _wrong(
            path, 1, time_column, "no arrival", f"rows{' with ' if wanted else ''}{wanted}"
        )
    arrays = (np.array(trace, dtype=np.int64) for trace in traces.values())
    return [array - array[0] for array in arrays]


def faster(times_us: Array, factor: float) -> Array:
    """The same arrivals with all gaps divided by `factor`: int64 µs.

    The bursts stay what they are in counts; the variance that belonged to a window of w seconds now
    belongs to one of w / `factor`.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise InvalidRequestError(
            f"factor = {factor}: expected a number above 0",
            field="factor",
            value=str(factor),
            expected="a number above 0",
        )
    return np.rint(times_us / factor).astype(np.int64)


def overlay(times_us: Array, copies: int, seed: int) -> Array:
    """`copies` of one trace over each other: int64 µs ascending, as long as the trace.

    Each copy but the first begins somewhere else in the trace, drawn from the seed, and goes on at
    the beginning when it comes to the end. This multiplies the rate and smooths the bursts: copies
    are independent of each other, as real callers often are not.
    """
    span = int(times_us[-1]) + max(1, int(times_us[-1]) // max(1, len(times_us) - 1))
    offsets = [0, *_offsets(copies - 1, span, seed)]
    shifted = [(times_us + offset) % span for offset in offsets]
    return np.sort(np.concatenate(shifted))


def side_by_side(traces: Sequence[Array], spread_us: int, seed: int) -> Array:
    """Several traces as one: int64 µs ascending, from the first arrival of all.

    Each begins within `spread_us` of the start, drawn from the seed; 0: all begin together, as
    robots do at the start of a shift.
    """
    offsets = _offsets(len(traces), spread_us, seed)
    merged = np.concatenate([times + start for times, start in zip(traces, offsets, strict=True)])
    merged.sort()
    from_first: Array = merged - merged[0]
    return from_first


def _offsets(count: int, end: int, seed: int) -> list[int]:
    words = Draws("offsets", seed).words(count)
    return [int(word) * end >> 64 for word in words]


def _joined(join: Join) -> dict[str, dict[str, str]]:
    """The other file's rows by the value they are joined on."""
    rows: dict[str, dict[str, str]] = {}
    for line, row in _rows(join.path, [join.on]):
        if row[join.on] in rows:
            raise _wrong(join.path, line, join.on, row[join.on], "each value once")
        rows[row[join.on]] = row
    return rows


def _with(
    joined: Mapping[str, dict[str, str]], join: Join, path: Path, line: int, row: dict[str, str]
) -> dict[str, str]:
    found = joined.get(row[join.on])
    if found is None:
        raise _wrong(path, line, join.on, row[join.on], f"a value that {join.path} has")
    return found | row


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows as column to text, with the line each ends on."""
    try:
        with _open(path) as text:
            reader = csv.reader(text, strict=True)
            header = next(reader, [])
            for column in needed:
                if column not in header:
                    expected = f"one of {', '.join(header)}" if header else "a header line"
                    raise _wrong(path, 1, column, "missing", expected)
            for values in reader:
                if len(values) != len(header):
                    found, expected = f"{len(values)} fields", f"{len(header)} as in the header"
                    raise _wrong(path, reader.line_num, header[0], found, expected)
                yield reader.line_num, dict(zip(header, values, strict=True))
    except (OSError, EOFError) as error:
        raise DiskError(f"can't read {path}: {error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        message = f"{path}: {error}: expected a CSV file in UTF-8"
        raise InvalidRequestError(message, field="path", value=str(path)) from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _micros(path: Path, line: int, column: str, text: str) -> int:
    expected = f"seconds from 0 to {_S_MAX:g}"
    try:
        seconds = float(text)
    except ValueError:
        raise _wrong(path, line, column, text, expected) from None
    if not 0 <= seconds <= _S_MAX:
        raise _wrong(path, line, column, text, expected)
    return round(seconds * 1e6)


def _wrong(path: Path, line: int, column: str, value: str, expected: str) -> InvalidRequestError:
    message = f"{path}, line {line}, column {column}: {value!r}: expected {expected}"
    return InvalidRequestError(message, field=column, value=value, expected=expected)
