"""Payloads of a CSV file, plain or gzipped: which columns are values, truths, times and SKUs.

Every error names file, line, column, what stands there and what was expected. Reads the whole file
at once, up to a bound; never guesses what an unreadable cell might have meant.
"""

from __future__ import annotations

import csv
import gzip
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from labeler.errors import InvalidRequestError
from labeler.fleet.rows import Batch

__all__ = ["Columns", "Table", "TableRows", "read_table"]

CELLS_MAX = 50_000_000
NAMES_MAX = 32_767
TIME_COLUMN = "t_s"
_BATCH_ROWS = 1000
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are no values; empty: there is none."""

    label: str = ""
    time: str = ""
    sku: str = ""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """`n` rows: float32 [n, width], int16 [n] truths and SKUs, times in µs from the first row."""

    name: str
    columns: tuple[str, ...]
    """The columns that are values, in the file's order."""
    skipped: tuple[str, ...]
    """Columns left out since they hold no numbers."""
    values: np.ndarray[Any, np.dtype[np.float32]]
    truths: np.ndarray[Any, np.dtype[np.int16]]
    labels: tuple[str, ...]
    sku_indices: np.ndarray[Any, np.dtype[np.int16]]
    skus: tuple[str, ...]
    times_us: tuple[int, ...] | None

    def __len__(self) -> int:
        """Rows."""
        return len(self.values)


class TableRows:
    """The rows of a table, once, in their order."""

    def __init__(self, table: Table) -> None:
        """From the first row on."""
        self._table, self._next = table, 0
        self.about = table.name
        self.width: int = table.values.shape[1]
        self.labels: Sequence[str] = table.labels
        self.skus: Sequence[str] = table.skus

    def take(self) -> Batch | None:
        """The next rows, None after the last."""
        part = slice(self._next, self._next + _BATCH_ROWS)
        if self._next >= len(self._table):
            return None
        self._next += _BATCH_ROWS
        table = self._table
        return Batch(table.values[part], table.truths[part], table.sku_indices[part])


def read_table(path: Path, columns: Columns) -> Table:
    """The table in `path`, with a header line. Errors: `InvalidRequestError`.

    A column named `t_s` is the time where no other is named. Values are all other columns whose
    first cell is a number.
    """
    try:
        with _opened(path) as file:
            return _Reader(path, columns).read(file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(f"{path} cannot be read: {reason}") from error
    except csv.Error as error:
        raise InvalidRequestError(f"{path} is no CSV: {error}") from error


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


class _Names:
    """Names in the order in which they are met, with their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


class _Reader:
    def __init__(self, path: Path, columns: Columns) -> None:
        self._path, self._columns = path, columns
        self._header: list[str] = []
        self._line = 1

    def read(self, file: IO[str]) -> Table:
        rows = csv.reader(file)
        self._header = [name.strip() for name in next(rows, [])]
        self._check_header()
        time = self._columns.time or (TIME_COLUMN if TIME_COLUMN in self._header else "")
        label_at, time_at = self._index(self._columns.label), self._index(time)
        sku_at = self._index(self._columns.sku)
        named = {self._columns.label, time, self._columns.sku, *self._columns.left_out}
        value_at: list[int] = []
        values, truths, skus, times = array("f"), array("h"), array("h"), array("d")
        labels, sku_names = _Names(), _Names()
        count = 0
        for cells in self._rows(rows):
            if not count:
                value_at = self._value_columns(cells, named)
            values.extend(self._number(cells, at, _FLOAT32_MAX) for at in value_at)
            truths.append(self._name(labels, cells, label_at))
            if sku_at is not None:
                skus.append(self._name(sku_names, cells, sku_at))
            if time_at is not None:
                times.append(self._time(cells, time_at, times[-1] if times else None))
            count += 1
            if count * len(value_at) > CELLS_MAX:
                raise self._wrong(f"it has more than {CELLS_MAX:,} values", "a smaller file")
        if not count:
            raise self._wrong("it has no row", "a header line and at least one row")
        kept = {self._header[at] for at in value_at}
        return Table(
            name=str(self._path),
            columns=tuple(self._header[at] for at in value_at),
            skipped=tuple(n for n in self._header if n not in kept and n not in named),
            values=np.array(values, np.float32).reshape(count, len(value_at)),
            truths=np.array(truths, np.int16),
            labels=tuple(labels.numbers),
            sku_indices=np.array(skus, np.int16),
            skus=tuple(sku_names.numbers),
            times_us=tuple(round((at - times[0]) * 1e6) for at in times) if times else None,
        )

    def _check_header(self) -> None:
        if not self._header:
            raise self._wrong("it is empty", "a header line and at least one row")
        twice = next((n for n in self._header if self._header.count(n) > 1), None)
        if twice is not None:
            raise self._wrong(f"two columns are named {twice!r}", "each name once")

    def _index(self, name: str) -> int | None:
        if not name:
            return None
        return self._place(name)

    def _place(self, name: str) -> int:
        if name not in self._header:
            known = ", ".join(self._header[:30])
            raise self._wrong(f"it has no column {name!r}", f"one of {known}")
        return self._header.index(name)

    def _rows(self, rows: Iterator[list[str]]) -> Iterator[list[str]]:
        reader: Any = rows
        for cells in rows:
            self._line = reader.line_num
            if not cells:
                continue
            if len(cells) != len(self._header):
                raise self._wrong(f"{len(cells)} cells", f"{len(self._header)}, as in the header")
            yield cells

    def _value_columns(self, cells: list[str], named: set[str]) -> list[int]:
        for name in self._columns.left_out:
            self._place(name)
        found = [
            at
            for at, name in enumerate(self._header)
            if name not in named and _is_number(cells[at])
        ]
        if not found:
            raise self._wrong("no column holds numbers", "at least one column of values")
        return found

    def _number(self, cells: list[str], at: int, most: float) -> float:
        try:
            value = float(cells[at])
        except ValueError:
            raise self._wrong_cell(cells, at, "a number") from None
        if not math.isfinite(value) or abs(value) > most:
            raise self._wrong_cell(cells, at, f"a finite number up to {most:.3g}")
        return value

    def _time(self, cells: list[str], at: int, before: float | None) -> float:
        value = self._number(cells, at, 1e12)
        if before is not None and value < before:
            raise self._wrong_cell(cells, at, f"seconds not before {before:g}, the row above")
        return value

    def _name(self, names: _Names, cells: list[str], at: int | None) -> int:
        if at is None:
            return -1
        name = cells[at].strip()
        if not name:
            raise self._wrong_cell(cells, at, "a name")
        number = names.number(name)
        if number >= NAMES_MAX:
            raise self._wrong_cell(cells, at, f"at most {NAMES_MAX:,} different names")
        return number

    def _wrong_cell(self, cells: list[str], at: int, expected: str) -> InvalidRequestError:
        column, value = self._header[at], cells[at][:40]
        return InvalidRequestError(
            f"{self._path}, line {self._line}, column {column}: {value!r}: expected {expected}",
            field=column,
            value=value,
            expected=expected,
        )

    def _wrong(self, what: str, expected: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._path}, line {self._line}: {what}: expected {expected}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
