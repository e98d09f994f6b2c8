"""A store that takes nothing while a run is on, and forgets between runs: a writer that is off.

The file that its settings name says when a run is on. The writer holds what it has taken, a hundred
rows, and waits. Keeps no row, and is no part of the product.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Sequence
from pathlib import Path

from labeler.stores.base import (
    STORED,
    Outcome,
    Page,
    Query,
    StoreContext,
    StoredRow,
    StoreLimits,
)

__all__ = ["Off", "open_store"]

_LOOK_S = 0.05


def open_store(context: StoreContext) -> Off:
    """The store of `writer.store = "bench-off"`."""
    return Off(Path(context.settings["flag"]))


class Off:
    """The `Store`; the flag's first byte is 1 while a run is on."""

    limits = StoreLimits(rows_max=50)

    def __init__(self, flag: Path) -> None:
        """Watches the flag, without a call of the system."""
        with flag.open("rb") as file:
            self._on = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    async def ensure(self) -> None:
        """Nothing is to be made."""

    async def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """Waits for the end of a run that is on."""
        while self._on[0]:
            await asyncio.sleep(_LOOK_S)
        return [STORED] * len(rows)

    async def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        """Nothing is kept."""
        return None

    async def list(self, query: Query) -> Page:
        """Nothing is kept."""
        return Page([], "")

    async def confirm_refusal(self) -> None:
        """Nothing is refused."""

    async def close(self) -> None:
        """Nothing is open."""
