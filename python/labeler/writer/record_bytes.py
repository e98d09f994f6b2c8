"""Why bytes are no journal record: for people, after the core has found that they are none.

Reads protobuf's wire format by the fields of `labeler.journal.v1.Record` and stops at what cannot
be. It makes no record and decides nothing: whether a body is a label is the core's to say.
"""

from __future__ import annotations

__all__ = ["FIELDS", "what_is_wrong"]

FIELDS = {
    1: ("robot_id", "string"),
    2: ("sequence", "uint64"),
    3: ("model", "string"),
    4: ("version", "string"),
    5: ("label", "string"),
    6: ("index", "uint32"),
    7: ("confidence", "float"),
    8: ("scores", "repeated float"),
    9: ("payload_digest", "bytes"),
    10: ("source", "uint32"),
    11: ("labeled_at_unix_us", "int64"),
    12: ("captured_at_unix_us", "int64"),
    13: ("sku", "string"),
}
"""Number, name and type of each, as `protos/labeler/journal/v1/record.proto` has them."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_NAMES = {_VARINT: "a number", _FIXED64: "8 bytes", _BYTES: "a text", _FIXED32: "4 bytes"}
_WIRES = {
    "string": (_BYTES,),
    "bytes": (_BYTES,),
    "float": (_FIXED32,),
    "repeated float": (_BYTES, _FIXED32),
}
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES_MAX = 10


class _WrongError(Exception):
    """What is wrong."""


def what_is_wrong(body: bytes) -> str:
    """The first thing in it that no record has, without its place; empty where there is none."""
    at = 0
    try:
        while at < len(body):
            at = _after_field(body, at)
    except _WrongError as error:
        return str(error)
    return ""


def _after_field(body: bytes, at: int) -> int:
    key, at = _varint(body, at, "between two fields")
    number, wire = key >> 3, key & 7
    name, kind = FIELDS.get(number, ("", ""))
    shown = f"field {number} ({name or 'not known here'})"
    if not 0 < number < 1 << 29:
        raise _WrongError("there is a field without a number")
    if wire not in _WIRE_NAMES:
        raise _WrongError(f"{shown} has wire type {wire}, which no record has")
    expected = _WIRES.get(kind, (_VARINT,)) if name else (wire,)
    if wire not in expected:
        raise _WrongError(f"{shown} is {_WIRE_NAMES[wire]}, expected {_WIRE_NAMES[expected[0]]}")
    if wire == _VARINT:
        return _varint(body, at, f"in {shown}")[1]
    length = _SIZES.get(wire, 0)
    if wire == _BYTES:
        length, at = _varint(body, at, f"in {shown}")
    end = at + length
    if end > len(body):
        raise _WrongError(f"the bytes end in {shown}")
    if kind == "string":
        try:
            body[at:end].decode()
        except UnicodeDecodeError:
            raise _WrongError(f"{shown} is no UTF-8") from None
    if kind == "repeated float" and wire == _BYTES and length % 4:
        raise _WrongError(f"{shown} is no whole number of floats")
    return end


def _varint(body: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80 and value < 1 << 64:
            return value, at + place + 1
    ends = at + _VARINT_BYTES_MAX > len(body)
    raise _WrongError(f"the bytes end {where}" if ends else f"a number {where} does not end")
