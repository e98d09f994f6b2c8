"""Moves words beyond column 100 of comment lines to the next line: rustfmt leaves comments alone.

Touches nothing but lines that are comments as a whole; never joins lines. Run by `make fmt`.
"""

import re
import sys
from pathlib import Path

COLUMNS = 100
_COMMENT = re.compile(r"^(?P<mark>\s*//[/!]?) (?P<text>.*)$")
_ITEM = re.compile(r"[-*|#>]|\d+\.|```|  ")


def wrapped(text: str) -> str:
    """The text with its long comment lines broken."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        comment = _COMMENT.match(lines[number])
        if comment and len(lines[number]) > COLUMNS:
            _break(lines, number, comment["mark"])
        number += 1
    return "\n".join(lines)


def _break(lines: list[str], number: int, mark: str) -> None:
    line = lines[number]
    cut = line.rfind(" ", len(mark) + 2, COLUMNS + 1)
    if cut < 0:
        return  # one long word, such as an address
    lines[number], rest = line[:cut].rstrip(), line[cut + 1 :]
    following = _COMMENT.match(lines[number + 1]) if number + 1 < len(lines) else None
    if following and following["mark"] == mark and not _ITEM.match(following["text"]):
        lines[number + 1] = f"{mark} {rest} {following['text']}"
    else:
        lines.insert(number + 1, f"{mark} {rest}")


def main() -> None:
    """Wraps the files that are named."""
    for path in map(Path, sys.argv[1:]):
        before = path.read_text(encoding="utf-8")
        if (after := wrapped(before)) != before:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
