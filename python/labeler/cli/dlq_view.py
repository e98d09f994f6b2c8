"""How dead letters are shown: as JSON for machines, as tables and lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from labeler.cli.dlq_select import Item
from labeler.cli.tables import amount, out, table
from labeler.writer.dead_letters import row_fields
from labeler.writer.undecodable import Undecodable

__all__ = ["as_dict", "reasons_line", "show_letter", "show_table"]

_REASONS_SHOWN = 5
_REASON_CHARS = 60
_BYTES_SHOWN = 256


def as_dict(item: Item) -> dict[str, Any]:
    """All that is known of it, exactly; ids are text, since those of undecodable records are."""
    if isinstance(item, Undecodable):
        kept = item.body()
        return {
            "id": item.id,
            "kind": "undecodable",
            "reason": item.reason(),
            "at_unix_us": item.at_unix_us,
            "journal_number": item.number,
            "body_hex": kept.hex(),
        }
    return {
        "id": str(item.id),
        "kind": "refused",
        "reason": item.reason,
        "store": item.store,
        "at_unix_us": item.at_unix_us,
        "tries": item.tries,
        "row": row_fields(item.row),
    }


def show_table(items: Sequence[Item]) -> None:
    """One line each, with the beginning of the reason."""
    columns = ["id", "robot", "sequence", "label", "since", "tries", "reason"]
    made = table("dead letters", columns, map(_line, items))
    made.columns[1].justify = made.columns[3].justify = made.columns[6].justify = "left"
    out().print(made)


def _line(item: Item) -> list[str]:
    since = _time(item.at_unix_us)
    if isinstance(item, Undecodable):
        return [item.id, "?", "?", "?", since, "-", _short(item.reason())]
    row = item.row
    texts = [str(item.id), _plain(row.robot_id), str(row.sequence), _plain(row.label)]
    return [*texts, since, str(item.tries), _short(_plain(item.reason))]


def show_letter(item: Item) -> None:
    """A line for each field."""
    fields = as_dict(item)
    fields.update(fields.pop("row", {}))
    for name, value in fields.items():
        text = _plain(str(value))
        if name.endswith("_unix_us"):
            text = f"{value} ({_time(int(value))})"
        if name == "body_hex" and len(text) > 2 * _BYTES_SHOWN:
            text = f"{text[: 2 * _BYTES_SHOWN]}… ({amount(len(text) // 2)} bytes, --json has all)"
        out().print(f"{name:20} {text}", markup=False)


def reasons_line(total: int, reasons: Mapping[str, int]) -> str:
    """`3 dead letters: 2 × too large, 1 × wrong type`."""
    if not total:
        return "no dead letters"
    shown = [f"{amount(n)} × {_short(_plain(text))}" for text, n in reasons.items()]
    if len(shown) > _REASONS_SHOWN:
        shown[_REASONS_SHOWN:] = [f"{len(shown) - _REASONS_SHOWN} other reasons"]
    return f"{amount(total)} dead letter{'' if total == 1 else 's'}: {', '.join(shown)}"


def _plain(text: str) -> str:
    """What a terminal would obey, or cannot print, is written out."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _short(text: str) -> str:
    return text if len(text) <= _REASON_CHARS else f"{text[: _REASON_CHARS - 1]}…"


def _time(unix_us: int) -> str:
    try:
        return datetime.fromtimestamp(unix_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "no time"
