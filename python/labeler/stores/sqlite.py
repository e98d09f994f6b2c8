"""The embedded store: one SQLite file in WAL mode, one row a key.

What is confirmed is durable: `synchronous=FULL` syncs the log at each commit. Measured beside a
journal that syncs each millisecond, at 2,300 rows/s in commits of 230: FULL commits in 2.1 ms
(p50) and leaves the journal's sync at p99 2.8 to 4.2 ms, p99.9 6 to 9 (alone: 1.3 to 6, 4 to 11).
NORMAL with a synced checkpoint each second leaves p99 2.0 to 3.3 ms but p99.9 8 to 14, since a
checkpoint takes 20 to 30 ms at once; and it confirms a label up to a second late, past the deadline
of those who wait for STORED. So: FULL.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from labeler.errors import DiskError
from labeler.stores.base import (
    STORED,
    Difference,
    Outcome,
    Page,
    Query,
    Status,
    StoreContext,
    StoredRow,
    StoreLimits,
    StoreUnavailableError,
    StoreVersionError,
    decode_page_token,
    encode_page_token,
)

__all__ = ["SqliteStore", "open_store"]

SCHEMA_VERSION = 1
WAL_BYTES_MAX = 32 << 20
"""A log above it is emptied into the database at once, whatever SQLite's own pace."""

_BUSY_MS = 2000
_STEPS_BETWEEN_CHECKS = 10_000

_COLUMNS = (
    "robot_id, sequence, label, label_index, confidence, model, version, source, "
    "labeled_at_unix_us, captured_at_unix_us, sku, instance_id, journal_id, journal_number"
)

# Only the primary key is indexed: a second index costs each write; nobody reads without a robot.
# Rows stand in the order they came and only the small index is scattered: of 2,300 robots' rows
# in groups of 250 that is 1.1 KB written and 9 µs of CPU a row, against 5.4 KB and 16 µs
# WITHOUT ROWID.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS labels (
    robot_id            TEXT NOT NULL,
    sequence            INTEGER NOT NULL,
    label               TEXT NOT NULL,
    label_index         INTEGER NOT NULL,
    confidence          REAL,
    model               TEXT NOT NULL,
    version             TEXT NOT NULL,
    source              INTEGER NOT NULL,
    labeled_at_unix_us  INTEGER NOT NULL,
    captured_at_unix_us INTEGER NOT NULL,
    sku                 TEXT NOT NULL,
    instance_id         TEXT NOT NULL,
    journal_id          TEXT NOT NULL,
    journal_number      INTEGER NOT NULL,
    PRIMARY KEY (robot_id, sequence)
)
"""

# Another journal's row gives way: order is promised within one journal only.
_UPSERT = f"""
INSERT INTO labels ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (robot_id, sequence) DO UPDATE SET
    label = excluded.label, label_index = excluded.label_index,
    confidence = excluded.confidence, model = excluded.model, version = excluded.version,
    source = excluded.source, labeled_at_unix_us = excluded.labeled_at_unix_us,
    captured_at_unix_us = excluded.captured_at_unix_us, sku = excluded.sku,
    instance_id = excluded.instance_id, journal_id = excluded.journal_id,
    journal_number = excluded.journal_number
WHERE excluded.journal_id <> labels.journal_id
   OR excluded.journal_number >= labels.journal_number
"""

_LIST = f"""
SELECT {_COLUMNS} FROM labels
WHERE robot_id = ? AND sequence < ? AND labeled_at_unix_us >= ? AND labeled_at_unix_us < ?
ORDER BY sequence DESC LIMIT ?
"""

_REFUSED = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeEncodeError,
)
_Result = TypeVar("_Result")


def open_store(context: StoreContext) -> SqliteStore:
    """The store of the settings `sqlite.*`; by default `labels.sqlite3` in the state directory."""
    path = str(context.settings.get("path") or "")
    return SqliteStore(Path(path) if path else context.state_dir / "labels.sqlite3")


class SqliteStore:
    """One file, a connection to write and one to read: in WAL mode neither waits for the other."""

    def __init__(self, path: Path) -> None:
        """Only remembers the path; `ensure` opens it."""
        self.path = path
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()

    @property
    def limits(self) -> StoreLimits:
        """One write at a time: SQLite has one writer."""
        return StoreLimits(rows_max=2500)

    def ensure(self) -> None:
        """Opens the file, makes the table. Errors: `DiskError`, `StoreVersionError`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect()
            found = self._known_version(self._writer)
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = FULL")
            self._writer.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
            # A process that will not get the journal's lock must leave the file as it is.
            if found < SCHEMA_VERSION:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.execute(_SCHEMA)
                self._writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                self._writer.execute("COMMIT")
            self._reader = self._connect()
            self._reader.execute("PRAGMA query_only = ON")
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise DiskError(
                f"the label database {self.path} cannot be opened: {error}; "
                "check the folder's permissions and space, or set sqlite.path"
            ) from error

    def check(self) -> list[Difference]:
        """What is not as it should be; nothing is made or changed.

        Errors: `StoreVersionError`, `DiskError` for a file that is no database of ours.
        """
        if not self.path.exists():
            change = "labeler store ensure creates it"
            return [Difference("sqlite.path", str(self.path), "none", change)]
        try:
            with closing(
                sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
            ) as db:
                found = self._known_version(db)
        except sqlite3.Error as error:
            raise DiskError(f"the label database {self.path} cannot be read: {error}") from error
        if found == SCHEMA_VERSION:
            return []
        change = "labeler store ensure brings it to this version"
        return [Difference("schema version", str(SCHEMA_VERSION), str(found), change)]

    def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """One transaction; it is on disk when this returns."""
        with self._write_lock:
            connection = _opened(self._writer)
            try:
                outcomes = _upsert_all(connection, rows)
                connection.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                raise StoreUnavailableError(f"SQLite {self.path}: {error}") from error
            finally:
                # Whatever ended it early, the next call must find no open transaction.
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
            self._bound_wal(connection)
        assert len(outcomes) == len(rows)
        return outcomes

    def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        """The row of a key."""
        if not 0 < sequence <= _INT64_MAX:
            return None
        sql = f"SELECT {_COLUMNS} FROM labels WHERE robot_id = ? AND sequence = ?"
        found = self._read(1000, lambda db: db.execute(sql, (robot_id, sequence)).fetchone())
        return _row(found) if found is not None else None

    def list(self, query: Query) -> Page:
        """One page by descending sequence; a search past `query.timeout_ms` is broken off."""
        assert 1 <= query.page_size <= 1000
        below = decode_page_token(query)
        limits = (query.from_unix_us or _INT64_MIN, query.to_unix_us or _INT64_MAX)
        # 2^63 itself is no INTEGER; no sequence is above 2^63-1, and that one must be found too.
        values = (query.robot_id, min(below, _INT64_MAX), *limits, query.page_size + 1)
        sql = _LIST if below <= _INT64_MAX else _LIST.replace("sequence < ?", "sequence <= ?")
        found = self._read(query.timeout_ms, lambda db: db.execute(sql, values).fetchall())
        rows = [_row(item) for item in found[: query.page_size]]
        more = len(found) > query.page_size
        return Page(rows, encode_page_token(query, rows[-1].sequence) if more else "")

    def close(self) -> None:
        """Closes both connections; SQLite then empties its log into the file."""
        with self._write_lock, self._read_lock:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )

    def _known_version(self, connection: sqlite3.Connection) -> int:
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if found > SCHEMA_VERSION:
            raise StoreVersionError(
                f"the label database {self.path} has schema version {found}, this program knows up "
                f"to {SCHEMA_VERSION}; nothing was touched, use a newer program"
            )
        return found

    def _read(self, timeout_ms: int, read: Callable[[sqlite3.Connection], _Result]) -> _Result:
        end = time.monotonic() + timeout_ms / 1000
        with self._read_lock:
            connection = _opened(self._reader)
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_CHECKS)
            try:
                return read(connection)
            except sqlite3.DatabaseError as error:
                raise StoreUnavailableError(f"SQLite {self.path}: {error}") from error
            finally:
                connection.set_progress_handler(None, 0)

    def _bound_wal(self, connection: sqlite3.Connection) -> None:
        """Empties a log that a long read let grow; the rows are durable with or without this."""
        with suppress(OSError, sqlite3.OperationalError):
            if os.path.getsize(f"{self.path}-wal") > WAL_BYTES_MAX:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def _opened(connection: sqlite3.Connection | None) -> sqlite3.Connection:
    if connection is None:
        raise StoreUnavailableError("the SQLite store is closed")
    return connection


def _upsert_all(connection: sqlite3.Connection, rows: Sequence[StoredRow]) -> list[Outcome]:
    """All rows at once; one by one where SQLite refuses one, or an earlier row of it stays.

    The transaction is left open. It begins anew for the second way: back to a savepoint would be
    shorter, but for one SQLite copies each page that changes to a temporary file, two fifths of
    all that it writes.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Exact tuples: binding the fields of a named one costs a fifth of the whole write.
        if connection.executemany(_UPSERT, map(tuple, rows)).rowcount == len(rows):
            return [STORED] * len(rows)
    except _REFUSED:
        pass
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    return [_upsert(connection, row) for row in rows]


def _upsert(connection: sqlite3.Connection, row: StoredRow) -> Outcome:
    """One statement a row: what SQLite refuses is undone alone, and `rowcount` says who won."""
    try:
        written = connection.execute(_UPSERT, row).rowcount
    except _REFUSED as error:
        return Outcome(Status.REFUSED, str(error))
    return STORED if written else Outcome(Status.SUPERSEDED)


def _row(values: Sequence[object]) -> StoredRow:
    items = list(values)
    if items[4] is None:
        items[4] = float("nan")
    return StoredRow(*items)  # type: ignore[arg-type]
