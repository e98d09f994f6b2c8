"""Labels that the store refused for good, each with the reason: one SQLite file beside the journal.

It keeps what a store would not, so a row is kept as text that any row fits in, not in columns that
may refuse it. The file is made with the first letter. Other processes may read it and take letters
out at any time. Nothing here decides that a row is refused, and no letter is removed unasked.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from labeler.errors import DiskError
from labeler.stores.base import StoredRow, StoreVersionError

__all__ = ["FILE_NAME", "REASON_CHARS_MAX", "DeadLetter", "DeadLetters", "row_fields"]

FILE_NAME = "dead_letters.sqlite3"
SCHEMA_VERSION = 1
REASON_CHARS_MAX = 2000
"""What is kept of a store's reason."""

_BUSY_MS = 5000
_INT64_MAX = (1 << 63) - 1

# An id is never given twice, so that one that was noted down never means another letter.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS dead_letters (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    record     BLOB NOT NULL UNIQUE,
    robot_id   BLOB NOT NULL,
    fields     TEXT NOT NULL,
    reason     TEXT NOT NULL,
    store      TEXT NOT NULL,
    at_unix_us INTEGER NOT NULL,
    tries      INTEGER NOT NULL
)
"""
_COLUMNS = "id, fields, reason, store, at_unix_us, tries"

_ADD = """
INSERT INTO dead_letters (record, robot_id, fields, reason, store, at_unix_us, tries)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (record) DO NOTHING
"""
_REFUSED = "UPDATE dead_letters SET reason = ?, store = ?, tries = tries + 1 WHERE id = ?"

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class DeadLetter:
    """A row, and why `store` refused it at `at_unix_us`, a stamp.

    `id` is 0 until it is kept; `tries`: how often it was refused, its first time included.
    """

    row: StoredRow
    reason: str
    store: str
    at_unix_us: int
    id: int = 0
    tries: int = 1


class DeadLetters:
    """The dead letters of a state directory. Any thread may call it.

    Errors of every call: `DiskError` (full disk, locked for too long, damaged file: nothing of the
    call counts), `StoreVersionError`.
    """

    def __init__(self, state_dir: Path) -> None:
        """Only remembers where: a look at a directory without letters leaves it as it is."""
        self.path = state_dir / FILE_NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Durable when it returns, all or none. A journal's record is kept once, as it came first.

        So a crash between this and the record's confirmation makes no second letter.
        """
        values = [_values(letter) for letter in letters]
        if values:
            self._write(lambda db: db.executemany(_ADD, values), makes=True)

    def refused(self, letters: Iterable[DeadLetter]) -> None:
        """Tried again and refused again: `reason` and `store` are the new ones, one more try."""
        values = [(_kept(letter.reason), _kept(letter.store), letter.id) for letter in letters]
        if values:
            self._write(lambda db: db.executemany(_REFUSED, values))

    def remove(self, ids: Iterable[int]) -> int:
        """Durable when it returns, all or none; how many there were."""
        values = [(number,) for number in ids if 0 < number <= _INT64_MAX]
        sql = "DELETE FROM dead_letters WHERE id = ?"
        return self._write(lambda db: db.executemany(sql, values).rowcount) or 0 if values else 0

    def count(self) -> int:
        """How many there are now."""
        sql = "SELECT count(*) FROM dead_letters"
        return self._read(lambda db: int(db.execute(sql).fetchone()[0])) or 0

    def records(self) -> set[tuple[str, int]]:
        """The journal records that are here: id and number."""
        found = self._read(lambda db: db.execute("SELECT record FROM dead_letters").fetchall())
        return {_record_of(record) for (record,) in found or ()}

    def counts_by_reason(self) -> dict[str, int]:
        """The same by reason, the most frequent first."""
        sql = "SELECT reason, count(*) FROM dead_letters GROUP BY reason ORDER BY 2 DESC, 1"
        return self._read(lambda db: dict(db.execute(sql).fetchall())) or {}

    def list(
        self, limit: int = 100, after_id: int = 0, robot_id: str | None = None
    ) -> Sequence[DeadLetter]:
        """At most `limit`, by ascending id, those above `after_id`; of one robot if it is given."""
        values: list[object] = [min(after_id, _INT64_MAX)]
        where = "id > ?"
        if robot_id is not None:
            where += " AND robot_id = ?"
            values.append(_bytes(robot_id))
        sql = f"SELECT {_COLUMNS} FROM dead_letters WHERE {where} ORDER BY id LIMIT ?"
        found = self._read(lambda db: db.execute(sql, (*values, limit)).fetchall())
        return [self._letter(item) for item in found or ()]

    def get(self, number: int) -> DeadLetter | None:
        """The letter of an id."""
        if not 0 < number <= _INT64_MAX:
            return None
        sql = f"SELECT {_COLUMNS} FROM dead_letters WHERE id = ?"
        found = self._read(lambda db: db.execute(sql, (number,)).fetchone())
        return self._letter(found) if found is not None else None

    def close(self) -> None:
        """Closes the file. The next call opens it again."""
        with self._lock:
            self._drop()

    def _write(
        self, write: Callable[[sqlite3.Connection], _Result], *, makes: bool = False
    ) -> _Result | None:
        """One transaction; None where there is no file and `makes` is not set."""
        with self._alone():
            connection = self._open(makes)
            if connection is None:
                return None
            connection.execute("BEGIN IMMEDIATE")
            result = write(connection)
            connection.execute("COMMIT")
            return result

    def _read(self, read: Callable[[sqlite3.Connection], _Result]) -> _Result | None:
        with self._alone():
            connection = self._open(makes=False)
            return None if connection is None else read(connection)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call at a time. After an error the connection is not used again."""
        with self._lock:
            try:
                yield
            except BaseException as error:
                self._drop()
                if not isinstance(error, (sqlite3.Error, OSError)):
                    raise
                raise DiskError(
                    f"the dead letters {self.path} cannot be used: {error}; check the disk's "
                    "space, the file's permissions and who has it open; never delete it"
                ) from error

    def _open(self, makes: bool) -> sqlite3.Connection | None:
        """The file as it is under its name now: somebody may have moved it away."""
        there = _identity(self.path)
        if self._connection is not None and there == self._opened:
            return self._connection
        self._drop()
        if there is None and not makes:
            return None
        self._connection = sqlite3.connect(
            self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise StoreVersionError(
                f"the dead letters {self.path} have schema version {version}, this program knows "
                f"up to {SCHEMA_VERSION}; nothing was touched, use a newer program"
            )
        if version < SCHEMA_VERSION and not makes:
            self._drop()  # an empty file: whoever made it did not come further
            return None
        self._prepare(self._connection, version)
        self._opened = _identity(self.path)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection, version: int) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        if version < SCHEMA_VERSION:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")

    def _drop(self) -> None:
        """A transaction that is still open ends with its connection."""
        connection, self._connection, self._opened = self._connection, None, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _letter(self, found: Sequence[Any]) -> DeadLetter:
        number, fields, reason, store, at_unix_us, tries = found
        try:
            row = _row(json.loads(fields))
        except (ValueError, TypeError, KeyError) as error:
            raise DiskError(
                f"the dead letter {number} of {self.path} is damaged: {error}"
            ) from error
        return DeadLetter(row, reason, store, at_unix_us, number, tries)


def row_fields(row: StoredRow) -> dict[str, Any]:
    """The row for JSON, without loss: a confidence that is no number is text, `NaN` for one."""
    fields = row._asdict()
    fields["label_index"] = fields.pop("index")
    if not math.isfinite(row.confidence):
        sign = "-" if row.confidence < 0 else ""
        fields["confidence"] = "NaN" if math.isnan(row.confidence) else f"{sign}Infinity"
    return fields


def _row(fields: Mapping[str, Any]) -> StoredRow:
    values = dict(fields)
    values["index"] = values.pop("label_index")
    values["confidence"] = float(values["confidence"])
    return StoredRow(**values)


def _values(letter: DeadLetter) -> tuple[object, ...]:
    row = letter.row
    record = _bytes(f"{row.journal_number} {row.journal_id}")
    # ASCII, since a lone surrogate has no other form that SQLite takes.
    fields = json.dumps(row_fields(row), ensure_ascii=True, allow_nan=False)
    reason, store = _kept(letter.reason), _kept(letter.store)
    return record, _bytes(row.robot_id), fields, reason, store, letter.at_unix_us, letter.tries


def _record_of(record: bytes) -> tuple[str, int]:
    number, _, journal_id = record.decode("utf-8", "surrogatepass").partition(" ")
    return journal_id, int(number)


def _kept(text: str) -> str:
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(shown) <= REASON_CHARS_MAX else f"{shown[: REASON_CHARS_MAX - 1]}…"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
