"""The groups of a journal's segment files, as docs/journal.md has them: for tests that damage."""

import struct
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = 4096
_ALIGN_BYTES = 8
_HEADER = struct.Struct("<4s I Q Q Q Q Q I I I I")
_MAGIC = b"LJRG"


@dataclass(frozen=True)
class Group:
    """One commit: where it stands, and the numbers of its records (none: only confirmations)."""

    file: Path
    offset: int
    length: int
    numbers: range


def groups(journal: Path) -> list[Group]:
    """All groups of a journal that nobody has damaged, in the order of the log."""
    found = []
    for file in sorted(journal.glob("segment-*.log")):
        content, at = file.read_bytes(), _PAGE_BYTES
        while at + _HEADER.size <= len(content):
            magic, _, _, offset, first, _, _, count, body, _, _ = _HEADER.unpack_from(content, at)
            if magic != _MAGIC or offset != at:
                break
            length = _HEADER.size + body
            found.append(Group(file, at, length, range(first, first + count)))
            at += length
            assert at % _ALIGN_BYTES == 0
    return found


def flip(file: Path, offset: int, mask: int = 0x20) -> None:
    """Flips bits of one byte of a file."""
    content = bytearray(file.read_bytes())
    content[offset] ^= mask
    file.write_bytes(content)
