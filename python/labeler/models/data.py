"""Tables: a CSV file in, float32 rows with one label each out, or an error that names the cell.

Reads `.csv` and `.csv.gz`, UTF-8, with a header line. Values are cast to float32 here, as they are
served: what is learnt and compared later is what a robot will get. Changes no value, fills no gap.
"""

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from labeler.models.errors import TrainingError
from labeler.models.inference import Rows

__all__ = ["Columns", "Labels", "Table", "read_rows", "read_table"]

Labels = npt.NDArray[np.int64]
"""Indices of labels `[rows]`."""

_BYTES_MAX = 1 << 30
_ROWS_MAX = 5_000_000
_LABELS_MAX = 4_096
_LABEL_BYTES_MAX = 128
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))


@dataclass(frozen=True)
class Columns:
    """What columns are for: one is the label, `drop` are left out, the rest is the payload.

    `run`: the column that says which run a row belongs to. `time`: the column that must not fall.
    Both are no part of a payload. `refuse_missing`: a missing value is an error, else its row is
    dropped and counted.
    """

    label: str
    drop: Sequence[str] = ()
    run: str | None = None
    time: str | None = None
    refuse_missing: bool = False

    @property
    def aside(self) -> set[str]:
        """Columns that are no part of a payload."""
        return {self.label, *self.drop} | {name for name in (self.run, self.time) if name}


@dataclass(frozen=True, eq=False)
class Table:
    """`rows` float32 `[n, width]`, `labels` `[n]` as indices of `classes`, in the file's order.

    `columns`: names of the width. `runs`: the run of each row `[n]`, numbered by appearance; empty
    where there is no such column. `run_names`: their names. `dropped`: rows with a missing value.
    """

    rows: Rows
    labels: Labels
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    source: str
    sha256: str
    runs: Labels = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    run_names: tuple[str, ...] = ()
    dropped: int = 0


@dataclass
class _Read:
    """What has been read so far."""

    values: list[list[float]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    dropped: int = 0
    time: float = -np.inf


def read_table(path: Path, columns: Columns) -> Table:
    """Reads a table. Errors: `TrainingError` names file, line, column, value, expectation."""
    content = _content(path)
    lines = _lines(path, content)
    header = _header(path, lines)
    for name in sorted(columns.aside):
        if name not in header:
            raise TrainingError(f"{path}: no column {name!r}; it has {', '.join(header)}")
    given = tuple(name for name in header if name not in columns.aside)
    if not given:
        raise TrainingError(f"{path}: no column is left for the payload beside {columns.label!r}")
    read = _read_lines(path, lines, header, columns)
    classes = _classes(path, columns.label, read.labels)
    places = {name: place for place, name in enumerate(classes)}
    run_names = tuple(dict.fromkeys(read.runs))
    run_places = {name: place for place, name in enumerate(run_names)}
    return Table(
        rows=np.array(read.values, dtype=np.float32),
        labels=np.array([places[name] for name in read.labels], dtype=np.int64),
        classes=classes,
        columns=given,
        source=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        runs=np.array([run_places[name] for name in read.runs], dtype=np.int64),
        run_names=run_names,
        dropped=read.dropped,
    )


def read_rows(
    path: Path, width: int, label: str | None, drop: Sequence[str]
) -> tuple[Rows, list[str]]:
    """Payloads `[n, width]` of a table and, where `label` names a column, their labels.

    Errors: `TrainingError`, also for another number of columns than `width`.
    """
    lines = _lines(path, _content(path))
    header = _header(path, lines)
    aside = {*drop} | ({label} if label else set())
    for name in sorted(aside - set(header)):
        raise TrainingError(f"{path}: no column {name!r}; it has {', '.join(header)}")
    given = [place for place, name in enumerate(header) if name not in aside]
    if len(given) != width:
        names = ", ".join(header[place] for place in given)
        raise TrainingError(
            f"{path}: {len(given)} columns are left for the payload ({names}), expected {width}; "
            "leave others out with --drop"
        )
    values, labels = [], []
    for line, cells in lines:
        values.append([_number(path, line, header[place], cells[place]) for place in given])
        if label:
            labels.append(cells[header.index(label)].strip())
    if not values:
        raise TrainingError(f"{path}: no rows below the header")
    return np.array(values, dtype=np.float32), labels


def _content(path: Path) -> bytes:
    """The file's bytes as they are, for the fingerprint."""
    try:
        size = path.stat().st_size
        if size > _BYTES_MAX:
            raise TrainingError(f"{path} has {size} bytes, expected at most {_BYTES_MAX}")
        return path.read_bytes()
    except OSError as error:
        raise TrainingError(f"{path} can't be read: {error.strerror}") from error


def _lines(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Number (from 1) and cells of each line; empty lines are left out."""
    try:
        if path.name.endswith(".gz"):
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(_BYTES_MAX + 1)
            if len(content) > _BYTES_MAX:
                raise TrainingError(f"{path} unpacks to more than {_BYTES_MAX} bytes")
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        expected = "gzip of UTF-8 text" if path.name.endswith(".gz") else "UTF-8 text"
        raise TrainingError(f"{path} is not {expected}: {error}") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header_cells = 0
    try:
        for cells in reader:
            if not cells:
                continue
            header_cells = header_cells or len(cells)
            if len(cells) != header_cells:
                raise TrainingError(
                    f"{path}:{reader.line_num}: {len(cells)} values, expected {header_cells} as in "
                    "the header"
                )
            yield reader.line_num, cells
    except csv.Error as error:
        raise TrainingError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _header(path: Path, lines: Iterator[tuple[int, list[str]]]) -> list[str]:
    _, header = next(lines, (0, []))
    header = [name.strip() for name in header]
    if not header or "" in header or len(set(header)) != len(header):
        raise TrainingError(f"{path}:1: the header is {header}, expected each column named once")
    return header


def _read_lines(
    path: Path, lines: Iterator[tuple[int, list[str]]], header: list[str], columns: Columns
) -> _Read:
    read = _Read()
    aside = columns.aside
    given = [place for place, name in enumerate(header) if name not in aside]
    needed = [*given, *(header.index(name) for name in aside - set(columns.drop))]
    for line, cells in lines:
        empty = [place for place in needed if cells[place].strip().lower() in _MISSING]
        if empty and columns.refuse_missing:
            name, cell = header[empty[0]], cells[empty[0]]
            raise TrainingError(
                f"{path}:{line}: column {name!r} holds {cell!r}, expected a value; "
                "--missing drop leaves such rows out"
            )
        if empty:
            read.dropped += 1
            continue
        if len(read.values) == _ROWS_MAX:
            raise TrainingError(f"{path}:{line}: more than {_ROWS_MAX} rows")
        read.values.append([_number(path, line, header[p], cells[p]) for p in given])
        read.labels.append(cells[header.index(columns.label)].strip())
        if columns.run:
            read.runs.append(cells[header.index(columns.run)].strip())
        if columns.time:
            _require_later(path, line, columns.time, cells[header.index(columns.time)], read)
    if not read.values:
        raise TrainingError(f"{path}: no row without missing values below the header")
    return read


def _require_later(path: Path, line: int, column: str, cell: str, read: _Read) -> None:
    time = _number(path, line, column, cell)
    if time < read.time:
        raise TrainingError(
            f"{path}:{line}: column {column!r} holds {cell!r}, expected {read.time} or later, as "
            "in the row before: sort the rows by time"
        )
    read.time = time


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not abs(value) <= _FLOAT32_MAX:
        raise TrainingError(
            f"{path}:{line}: column {column!r} holds {cell.strip()!r}, expected a finite number "
            "within float32"
        )
    return value


def _classes(path: Path, column: str, labels: list[str]) -> tuple[str, ...]:
    """Distinct labels: whole numbers by value, others by text; of two the rarer one last."""
    found = sorted(set(labels))
    if not 2 <= len(found) <= _LABELS_MAX:
        shown = ", ".join(found[:5])
        raise TrainingError(
            f"{path}: column {column!r} holds {len(found)} labels ({shown}), expected 2 to "
            f"{_LABELS_MAX}"
        )
    for name in found:
        if len(name.encode()) > _LABEL_BYTES_MAX:
            raise TrainingError(
                f"{path}: column {column!r} holds the label {name[:40]!r}… of "
                f"{len(name.encode())} bytes, expected at most {_LABEL_BYTES_MAX}"
            )
    if all(name.isascii() and name.isdigit() for name in found):
        found.sort(key=int)
    if len(found) == 2:
        found.sort(key=labels.count, reverse=True)
    return tuple(found)
