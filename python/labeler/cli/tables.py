"""How figures are shown to people: units, and plain tables that survive a log file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDTH_ELSEWHERE = 120
"""Columns of a file or pipe, where none are known."""

__all__ = ["amount", "bytes_text", "counts_text", "duration", "out", "table"]


def out() -> Console:
    """Standard output; made for each command, since a test replaces the stream."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE
    return console


def duration(us: float) -> str:
    """Microseconds with the unit that reads best: `850 µs`, `12.3 ms`, `4.5 s`, `3 min`."""
    if us < 1000:
        return f"{us:.0f} µs"
    if us < 1_000_000:
        return f"{us / 1000:.1f} ms"
    if us < 120_000_000:
        return f"{us / 1_000_000:.1f} s"
    minutes = us / 60_000_000
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def amount(count: float) -> str:
    """A count with thousands separated."""
    return f"{count:,.0f}"


def counts_text(counts: Mapping[str, int]) -> str:
    """`1,204 JOURNALED, 3 STORED`; those that are 0 are left out, and `none` is where all are."""
    return ", ".join(f"{amount(count)} {name}" for name, count in counts.items() if count) or "none"


def bytes_text(count: float) -> str:
    """Bytes with a binary unit, rounded."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text and whose others are numbers; no text is markup."""
    made = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*map(escape, row))
    return made
