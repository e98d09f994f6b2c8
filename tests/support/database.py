"""Reads the store's file directly, without the service: what is in it is what was kept."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.load import Robot

Key = tuple[str, int]


def stored(database: Path) -> dict[Key, str]:
    """Label by (robot_id, sequence). Errors: `AssertionError` where a key has more than one row."""
    if not database.exists():
        return {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        rows = connection.execute("SELECT robot_id, sequence, label FROM labels").fetchall()
    counts = Counter((robot_id, sequence) for robot_id, sequence, _ in rows)
    assert not (twice := [key for key, count in counts.items() if count > 1]), twice
    return {(robot_id, sequence): label for robot_id, sequence, label in rows}


def acknowledged(robots: Iterable[Robot]) -> dict[Key, str]:
    """What the robots were told, by key."""
    return {
        (robot.robot_id, sequence): label
        for robot in robots
        for sequence, label in robot.acknowledged.items()
    }


def lost_or_changed(robots: Iterable[Robot], database: Path) -> dict[Key, str]:
    """Acknowledged labels that the store does not hold as they were acknowledged."""
    held = stored(database)
    return {key: label for key, label in acknowledged(robots).items() if held.get(key) != label}


@contextmanager
def write_locked(database: Path) -> Iterator[None]:
    """Holds the file's write lock, so that the service's writer cannot write: a store outage."""
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


REFUSAL = "rows of this robot are not taken"


@contextmanager
def refusing(database: Path, robot_id: str = "bad") -> Iterator[None]:
    """The store takes no row of the robot meanwhile."""
    with closing(sqlite3.connect(database, timeout=10)) as connection:
        for event in ("INSERT", "UPDATE"):
            connection.execute(
                f"CREATE TRIGGER refuse_{event} BEFORE {event} ON labels WHEN "
                f"new.robot_id = '{robot_id}' BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
            )
        connection.commit()
        yield
        for event in ("INSERT", "UPDATE"):
            connection.execute(f"DROP TRIGGER refuse_{event}")
        connection.commit()
