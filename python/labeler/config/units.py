"""Byte sizes in the form operators write them: whole numbers, or whole numbers with KiB to TiB.

Decimal units (MB) are not taken: nobody should have to guess which of the two was meant.
"""

from __future__ import annotations

import re

__all__ = ["format_bytes", "parse_bytes"]

_SHIFTS = {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_BYTES = re.compile(r"(\d{1,19})\s*(KiB|MiB|GiB|TiB|B|)")


def parse_bytes(value: object) -> object:
    """Bytes as an int; what is no size is given back as it is, for the type check to refuse."""
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    return int(match[1]) << _SHIFTS[match[2]] if match else value


def format_bytes(count: int) -> str:
    """The shortest exact form: 16777216 is `16MiB`, 1000 stays `1000`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % (1 << _SHIFTS[unit]) == 0:
            return f"{count >> _SHIFTS[unit]}{unit}"
    return str(count)
