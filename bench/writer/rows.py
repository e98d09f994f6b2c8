"""Made labels: the same for every side, of as many robots as a warehouse has."""

from __future__ import annotations

import random
import struct

from labeler.stores.base import StoredRow

__all__ = ["made_rows"]

ROBOTS = 2300
_BEGIN_UNIX_US = 1_750_000_000_000_000


def made_rows(seed: int, rows: int = ROBOTS) -> list[StoredRow]:
    """Rows of distinct keys, in the order of a journal."""
    draws = random.Random(seed)
    return [_row(draws, number) for number in range(rows)]


def _row(draws: random.Random, number: int) -> StoredRow:
    index = draws.randrange(12)
    captured_us = _BEGIN_UNIX_US + number * 435
    return StoredRow(
        robot_id=f"robot-{number % ROBOTS:05d}",
        sequence=1 + number // ROBOTS,
        label=f"category-{index:02d}",
        index=index,
        confidence=struct.unpack("<f", struct.pack("<f", draws.random()))[0],
        model="warehouse-sku",
        version="1.4.0",
        source=1,
        labeled_at_unix_us=captured_us + draws.randrange(500, 5000),
        captured_at_unix_us=captured_us,
        sku=f"SKU-{draws.randrange(5000):06d}",
        instance_id="labeler-6d5f7c9b8-x2x7k",
        journal_id="7d9f6c1e2b3a4d5e8f90a1b2c3d4e5f6",
        journal_number=1 + number,
    )
