"""Journal records whose bytes are no label: kept by the core in `journal/quarantine/`, a file each.

They count as dead and can't be redriven: nobody knows which label they were. The file holds the
bytes alone; what is wrong with them is found again when somebody looks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labeler.errors import DiskError
from labeler.writer.record_bytes import what_is_wrong

__all__ = ["Undecodable", "remove", "undecodable"]

_NAME = re.compile(r"record-(\d{20})")


@dataclass(frozen=True)
class Undecodable:
    """A body by its number in the journal; `at_unix_us`: when it was kept, a stamp."""

    number: int
    path: Path
    size_bytes: int
    at_unix_us: int

    @property
    def id(self) -> str:
        """What commands call it."""
        return f"u{self.number}"

    def reason(self) -> str:
        """Why no label can be read from it."""
        try:
            wrong = what_is_wrong(self.body())
        except DiskError as error:
            return error.message
        if not wrong:
            return "it is a label to this program, and was none to the one that gave it up"
        return f"its bytes are no label: {wrong}"

    def body(self) -> bytes:
        """The bytes. Errors: `DiskError`."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DiskError(f"{self.path} cannot be read: {error.strerror}") from error


def undecodable(state_dir: Path) -> list[Undecodable]:
    """All of a state directory, by number; nothing is made. Errors: `DiskError`."""
    folder = state_dir / "journal" / "quarantine"
    found = []
    try:
        for name in os.listdir(folder) if folder.is_dir() else ():
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            with suppress(FileNotFoundError):  # purged meanwhile
                kept = (folder / name).stat()
                at_unix_us = kept.st_mtime_ns // 1000
                found.append(Undecodable(int(match[1]), folder / name, kept.st_size, at_unix_us))
    except OSError as error:
        raise DiskError(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(found, key=lambda record: record.number)


def remove(record: Undecodable) -> bool:
    """Deletes the bytes for good; False where they were gone already. Errors: `DiskError`."""
    try:
        record.path.unlink()
        folder = os.open(record.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DiskError(f"{record.path} cannot be deleted: {error.strerror}") from error
    return True
