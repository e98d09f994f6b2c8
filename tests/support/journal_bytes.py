"""The journal's format by its document alone (docs/journal.md): reads groups, damages, changes.

A second reader, which shares nothing with the core's: records that it changes have good checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labeler.writer.record_bytes import _after_field

PAGE = 4096
ALIGN = 8
HEADER = struct.Struct("<4sIQQQQQIIII")
RECORD = 1


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _table()


def crc32c(data: bytes | bytearray, begin: int = 0) -> int:
    """The Castagnoli sum of `data`, begun with the sum of what stood before."""
    value = begin ^ 0xFFFFFFFF
    for byte in data:
        value = _CRC32C[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Group:
    """One commit: where it stands, and the numbers of its records (none: only confirmations)."""

    file: Path
    offset: int
    length: int
    numbers: range


@dataclass(frozen=True)
class Record:
    """A record's number, and where its body stands in its segment's file."""

    number: int
    group: int
    body: slice


def segments(journal: Path) -> list[Path]:
    """The segment files, oldest first."""
    return sorted(journal.glob("segment-*.log"))


def groups(journal: Path) -> list[Group]:
    """All groups of a journal that nobody has damaged, in the order of the log."""
    return [group for segment in segments(journal) for group in _groups(segment)]


def records(segment: Path) -> Iterator[Record]:
    """The records that were first written in a segment."""
    data = segment.read_bytes()
    for group in _groups(segment):
        yield from _records(data, group)


def flip(file: Path, offset: int, mask: int = 0x20) -> None:
    """Flips bits of one byte of a file."""
    content = bytearray(file.read_bytes())
    content[offset] ^= mask
    file.write_bytes(content)


def change(segment: Path, record: Record, change_body: Callable[[bytes], bytes]) -> None:
    """Writes another body of the same length in a record's place, with all sums right again."""
    data = bytearray(segment.read_bytes())
    changed = change_body(bytes(data[record.body]))
    assert len(changed) == record.body.stop - record.body.start
    data[record.body] = changed
    at = record.group
    length = HEADER.unpack_from(data, at)[8]
    body = bytes(data[at + HEADER.size : at + HEADER.size + length])
    struct.pack_into("<I", data, at + 56, crc32c(body))
    seed = crc32c(bytes(data[16:32]))
    struct.pack_into("<I", data, at + 4, crc32c(bytes(data[at + 8 : at + 64]), seed))
    segment.write_bytes(data)


def field(body: bytes, number: int) -> range:
    """Where a field of a record's body stands, its key included; `number` below 16.

    By the format and not by the key's byte, which may stand in any value too.
    """
    at = 0
    while at < len(body):
        end = _after_field(body, at)
        if body[at] >> 3 == number:
            return range(at, end)
        at = end
    raise ValueError(f"no field {number}")


def _groups(segment: Path) -> Iterator[Group]:
    data, at = segment.read_bytes(), PAGE
    while at + HEADER.size <= len(data):
        magic, _, _, offset, first, _, _, count, body, _, _ = HEADER.unpack_from(data, at)
        if magic != b"LJRG" or offset != at:
            break
        length = HEADER.size + body
        yield Group(segment, at, length, range(first, first + count))
        at += length
        assert at % ALIGN == 0


def _records(data: bytes, group: Group) -> Iterator[Record]:
    number = group.numbers.start
    at, end = group.offset + HEADER.size, group.offset + group.length
    while at < end and data[at]:
        if data[at] == RECORD:
            (size,) = struct.unpack_from("<I", data, at + 1)
            yield Record(number, group.offset, slice(at + 5, at + 5 + size))
            number, at = number + 1, at + 5 + size
        elif data[at] == 2:  # a copy
            at += 13 + struct.unpack_from("<I", data, at + 1)[0]
        else:  # a confirmation
            at += 18
