"""The embedded store keeps one row a key, the right one, durably, and reads it back in pages."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labeler.errors import DiskError, InvalidRequestError
from labeler.stores.base import (
    Query,
    Status,
    StoreContext,
    StoredRow,
    StoreUnavailableError,
    StoreVersionError,
)
from labeler.stores.registry import names, open_store
from labeler.stores.sqlite import SqliteStore


def row(sequence: int, number: int, **changes: object) -> StoredRow:
    """A row that differs from others only where a test says so."""
    base = StoredRow(
        robot_id="robot-1",
        sequence=sequence,
        label="Move-Forward",
        index=0,
        confidence=0.75,
        model="wall-following",
        version="1",
        source=1,
        labeled_at_unix_us=1_000_000 * sequence,
        captured_at_unix_us=5,
        sku="SKU-1",
        instance_id="instance",
        journal_id="journal",
        journal_number=number,
    )
    return base._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """An open store in a folder of its own."""
    opened = SqliteStore(tmp_path / "labels.sqlite3")
    opened.ensure()
    yield opened
    opened.close()


def statuses(store: SqliteStore, *rows: StoredRow) -> list[Status]:
    return [outcome.status for outcome in store.write(rows)]


def test_a_row_comes_back_as_it_was_written(store: SqliteStore) -> None:
    written = row(7, 1, robot_id="r\u00f6bot \U0001f916\x00", confidence=0.1)
    assert statuses(store, written) == [Status.STORED]
    assert store.get(written.robot_id, 7) == written


def test_the_largest_sequence_is_kept_and_listed(store: SqliteStore) -> None:
    largest = row(2**63 - 1, 1, labeled_at_unix_us=1)
    assert statuses(store, largest) == [Status.STORED]
    assert store.get("robot-1", 2**63 - 1) == largest
    assert list(store.list(Query("robot-1")).rows) == [largest]


def test_a_confidence_that_is_not_a_number_stays_so(store: SqliteStore) -> None:
    assert statuses(store, row(1, 1, confidence=math.nan)) == [Status.STORED]
    found = store.get("robot-1", 1)
    assert found is not None
    assert math.isnan(found.confidence)


def test_the_later_number_of_one_journal_stays_whatever_the_order(store: SqliteStore) -> None:
    assert statuses(store, row(1, 9, label="later")) == [Status.STORED]
    assert statuses(store, row(1, 3, label="earlier")) == [Status.SUPERSEDED]
    found = store.get("robot-1", 1)
    assert found is not None
    assert found.label == "later"


def test_writing_a_row_again_changes_nothing(store: SqliteStore) -> None:
    for _ in range(3):
        assert statuses(store, row(1, 4)) == [Status.STORED]
    assert store.get("robot-1", 1) == row(1, 4)


def test_a_row_of_another_journal_replaces_one_with_a_higher_number(store: SqliteStore) -> None:
    store.write([row(1, 900)])
    assert statuses(store, row(1, 2, journal_id="other")) == [Status.STORED]


def test_a_row_that_sqlite_cannot_hold_is_refused_alone(store: SqliteStore) -> None:
    bad = row(2, 2, labeled_at_unix_us=2**63)
    lone = row(3, 3, sku="\ud800")
    found = store.write([row(1, 1), bad, lone, row(4, 4)])
    assert [outcome.status for outcome in found] == [
        Status.STORED,
        Status.REFUSED,
        Status.REFUSED,
        Status.STORED,
    ]
    assert found[1].reason
    assert store.get("robot-1", 4) is not None


def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, sys; sys.path[:0] = sys.argv[2].split(os.pathsep)\n"
        "from pathlib import Path\n"
        "from labeler.stores.sqlite import SqliteStore\n"
        "from labeler.stores.base import StoredRow\n"
        "s = SqliteStore(Path(sys.argv[1])); s.ensure()\n"
        "rows = [StoredRow('r', n, 'l', 0, 1.0, 'm', '1', 1, n, 0, '', 'i', 'j', n)"
        " for n in range(1, 251)]\n"
        "s.write(rows); os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "labels.sqlite3"
    arguments = [sys.executable, "-c", program, str(path), os.pathsep.join(sys.path)]
    assert subprocess.run(arguments, check=False).returncode == -9
    store = SqliteStore(path)
    store.ensure()
    assert len(store.list(Query("r", page_size=1000)).rows) == 250
    store.close()


def bytes_written() -> int:
    """By this thread."""
    with open("/proc/thread-self/io", encoding="ascii") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith("wchar"))


@pytest.mark.skipif(sys.platform != "linux", reason="bytes are counted by thread on Linux alone")
def test_a_group_is_written_once_to_the_log_and_nowhere_else(store: SqliteStore) -> None:
    numbers = range(1, 6001)
    rows = [row(1 + n // 64, n, robot_id=f"robot-{n % 64:02}") for n in numbers]
    store.write(rows[:5500])
    with sqlite3.connect(store.path) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = bytes_written()
    store.write(rows[5500:])
    assert bytes_written() - before == os.path.getsize(f"{store.path}-wal") > 0


def test_pages_cover_each_row_once_by_descending_sequence(store: SqliteStore) -> None:
    store.write([row(n, n) for n in range(1, 24)])
    store.write([row(n, n, robot_id="another") for n in range(1, 5)])
    seen, token = [], ""
    while True:
        page = store.list(Query("robot-1", page_size=5, page_token=token))
        seen += [item.sequence for item in page.rows]
        token = page.next_page_token
        if not token:
            break
    assert seen == list(range(23, 0, -1))


def test_the_last_full_page_has_no_token(store: SqliteStore) -> None:
    store.write([row(n, n) for n in range(1, 6)])
    assert store.list(Query("robot-1", page_size=5)).next_page_token == ""


def test_the_time_filter_takes_its_start_and_leaves_its_end(store: SqliteStore) -> None:
    store.write([row(n, n) for n in range(1, 11)])
    query = Query("robot-1", from_unix_us=3_000_000, to_unix_us=6_000_000)
    assert [item.sequence for item in store.list(query).rows] == [5, 4, 3]


@pytest.mark.parametrize("token", ["x", "AAAA", "\u00e9", "=" * 5, "A" * 18])
def test_a_page_token_that_is_none_is_refused(store: SqliteStore, token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        store.list(Query("robot-1", page_token=token))


def test_a_page_token_of_another_query_is_refused(store: SqliteStore) -> None:
    store.write([row(n, n) for n in range(1, 6)])
    token = store.list(Query("robot-1", page_size=2)).next_page_token
    with pytest.raises(InvalidRequestError, match="page_token"):
        store.list(Query("robot-2", page_size=2, page_token=token))


def test_a_database_of_a_newer_program_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "labels.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreVersionError, match="99") as caught:
        SqliteStore(path).ensure()
    assert caught.value.exit_code == 65
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.sqlite3"
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(DiskError, match=r"labels\.sqlite3"):
        SqliteStore(path).ensure()


def test_a_locked_database_is_unavailable_and_takes_the_rows_later(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(store.path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            store.write([row(1, 1)])
        other.execute("ROLLBACK")
    assert statuses(store, row(1, 1)) == [Status.STORED]


def test_a_search_past_its_time_is_broken_off(store: SqliteStore) -> None:
    store.write([row(n, n) for n in range(1, 20_001)])
    nothing = Query("robot-1", from_unix_us=2**62, timeout_ms=0)
    with pytest.raises(StoreUnavailableError):
        store.list(nothing)
    assert store.get("robot-1", 1) is not None


def test_reads_go_on_while_a_write_is_open(store: SqliteStore) -> None:
    store.write([row(1, 1)])
    with sqlite3.connect(store.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.get("robot-1", 1) is not None


def test_a_closed_store_says_so_and_closes_again(store: SqliteStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.get("robot-1", 1)


def test_the_registry_opens_the_embedded_store_in_the_state_directory(tmp_path: Path) -> None:
    assert "sqlite" in names()
    store = open_store("sqlite", StoreContext(tmp_path, {"path": ""}))
    asyncio.run(store.ensure())
    asyncio.run(store.close())
    assert (tmp_path / "labels.sqlite3").exists()
