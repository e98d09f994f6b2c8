"""A row as an item of DynamoDB, and back; what an item weighs in DynamoDB's own sizing.

Pure: no client, no clock, no settings but those passed in. What DynamoDB cannot hold is told by
`refusal`, before anything is sent, so that one such row never costs the others of its batch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from labeler.stores.base import StoredRow

__all__ = [
    "EXPIRES",
    "IF_NEWER",
    "ITEM_BYTES_MAX",
    "PARTITION_KEY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "REQUEST_ROWS_MAX",
    "batch_body",
    "if_newer_values",
    "item_of",
    "key_of",
    "number_bytes",
    "refusal",
    "row_of",
    "size_bytes",
]

ITEM_BYTES_MAX = 400 * 1024
"""An item, names and values, as it is stored."""
REQUEST_BYTES_MAX = 16 * 1024 * 1024
"""A request, as it is sent."""
REQUEST_ROWS_MAX = 25
"""Items of one BatchWriteItem."""
PARTITION_KEY_BYTES_MAX = 2048
"""UTF-8 bytes of a partition key; a secondary index's key has the same bound."""
EXPIRES = "expires_at_unix_s"
"""The attribute that DynamoDB's time to live reads: whole seconds."""

IF_NEWER = "attribute_not_exists(journal_id) OR journal_id <> :journal OR journal_number <= :number"
"""The condition of a put that leaves a later record of the same journal where it is."""

_Item = dict[str, dict[str, str]]

# In the order of `StoredRow`; the numbers are those whose JSON is a bare `N`.
_KINDS: dict[str, str] = {
    "robot_id": "S",
    "sequence": "N",
    "label": "S",
    "label_index": "N",
    "confidence": "N",
    "model": "S",
    "version": "S",
    "source": "N",
    "labeled_at_unix_us": "N",
    "captured_at_unix_us": "N",
    "sku": "S",
    "instance_id": "S",
    "journal_id": "S",
    "journal_number": "N",
}
_FIELDS = {name: "index" if name == "label_index" else name for name in _KINDS}
# Fewer characters than this fit whatever they are: 4 bytes each, 1 KiB for names and numbers.
_CHARACTERS_MAX = (ITEM_BYTES_MAX - 1024) // 4
_F32 = struct.Struct("<f")


def item_of(row: StoredRow, retention_s: int = 0) -> _Item:
    """The row as DynamoDB's attribute values; with a retention it says when it may be deleted."""
    item: _Item = {}
    for name, kind in _KINDS.items():
        value = getattr(row, _FIELDS[name])
        if name == "confidence":
            if not math.isnan(value):
                item[name] = {"N" if math.isfinite(value) else "S": _confidence(value)}
        elif name != "sku" or value:
            item[name] = {kind: str(value)}
    if retention_s:
        item[EXPIRES] = {"N": str(expires_at_unix_s(row, retention_s))}
    return item


def row_of(item: Mapping[str, Mapping[str, Any]]) -> StoredRow:
    """The item as a row: what others have added is passed over, what is missing has its default.

    Errors: `ValueError` for a number that is none.
    """
    values: list[Any] = []
    for name, kind in _KINDS.items():
        if name == "confidence":
            values.append(_confidence_of(item.get(name, {})))
        elif kind == "N":
            values.append(_whole(item.get(name, {}).get("N", "0")))
        else:
            values.append(str(item.get(name, {}).get("S", "")))
    return StoredRow(*values)


def key_of(item: Mapping[str, Mapping[str, Any]]) -> tuple[str, int]:
    """What names the item's row. Errors: `KeyError`, `ValueError` where it has no such key."""
    return str(item["robot_id"]["S"]), _whole(item["sequence"]["N"])


def if_newer_values(row: StoredRow) -> _Item:
    """The values of `IF_NEWER`."""
    return {":journal": {"S": row.journal_id}, ":number": {"N": str(row.journal_number)}}


def expires_at_unix_s(row: StoredRow, retention_s: int) -> int:
    """When DynamoDB may delete the row: seconds, not the µs of our other times."""
    return row.labeled_at_unix_us // 1_000_000 + retention_s


def batch_body(table: str, rows: Sequence[StoredRow], retention_s: int = 0) -> bytes:
    """The JSON of a BatchWriteItem with one put a row: what botocore makes of `item_of`, sooner."""
    puts = ",".join([_put(row, retention_s) for row in rows])
    return f'{{"RequestItems":{{{_text(table)}:[{puts}]}}}}'.encode("ascii")


def refusal(row: StoredRow) -> str:
    """Why DynamoDB would never take the row; empty if nothing speaks against it.

    Only what is the row's own fault stands here. The service is never asked.
    """
    texts = (
        row.robot_id,
        row.sku,
        row.label,
        row.model,
        row.version,
        row.instance_id,
        row.journal_id,
    )
    try:
        # Nearly always ASCII is enough, and characters bound the bytes: nothing is encoded.
        if not all(map(str.isascii, texts)):
            for text in texts:
                text.encode()
        key_bytes = len(row.robot_id.encode())
        if sum(map(len, texts)) > _CHARACTERS_MAX and (found := size_bytes(row)) > ITEM_BYTES_MAX:
            return f"the item is {found:,} bytes, DynamoDB takes {ITEM_BYTES_MAX:,}"
    except UnicodeEncodeError as error:
        return f"a text is no Unicode: {error.reason} at {error.start}"
    if not 1 <= key_bytes <= PARTITION_KEY_BYTES_MAX:
        return f"robot_id is {key_bytes:,} bytes, DynamoDB takes 1 to {PARTITION_KEY_BYTES_MAX:,}"
    return ""


def size_bytes(row: StoredRow, retention_s: int = 1) -> int:
    """What the item weighs in DynamoDB's own sizing: names, texts in UTF-8, numbers normalised."""
    return sum(
        len(name) + (number_bytes(value["N"]) if "N" in value else len(value["S"].encode()))
        for name, value in item_of(row, retention_s).items()
    )


def number_bytes(text: str) -> int:
    """A number's bytes: one for two significant digits, one more, and one for a sign.

    Digits stand in pairs from the decimal point on, so an odd exponent can cost one byte more;
    that one is counted always: too much by one at most, never too little.
    """
    mantissa, _, _ = text.lower().lstrip("-").partition("e")
    digits = mantissa.replace(".", "").strip("0")
    return 1 + len(digits) // 2 + 1 + text.startswith("-")


def _confidence(value: float) -> str:
    """A decimal of few digits that gives the same float32 again, to the bit; -0.0 is 0."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    bits = _F32.pack(value)
    for digits in (7, 8):
        text = f"{value:.{digits}g}"
        if _F32.pack(float(text)) == bits:
            return text
    return f"{value:.9g}"


def _confidence_of(value: Mapping[str, Any]) -> float:
    if "N" in value:
        return float(_F32.unpack(_F32.pack(float(value["N"])))[0])
    return float(value["S"]) if value.get("S") in ("Infinity", "-Infinity") else math.nan


def _whole(text: str) -> int:
    """A whole number in whatever form a server gives it back."""
    try:
        return int(text)
    except ValueError:
        return int(float(text)) if abs(float(text)) < 2**53 else _exact(text)


def _exact(text: str) -> int:
    from decimal import Decimal

    return int(Decimal(text))


_text: Callable[[str], str] = json.encoder.encode_basestring_ascii
# Models, labels and journals are few, and each stands in thousands of rows.
_often: Callable[[str], str] = lru_cache(maxsize=4096)(_text)


def _put(row: StoredRow, retention_s: int) -> str:
    confidence = row.confidence
    shown = "" if math.isnan(confidence) else _shown(confidence)
    sku = f'"sku":{{"S":{_often(row.sku)}}},' if row.sku else ""
    expires = f',"{EXPIRES}":{{"N":"{expires_at_unix_s(row, retention_s)}"}}' if retention_s else ""
    return (
        f'{{"PutRequest":{{"Item":{{"robot_id":{{"S":{_text(row.robot_id)}}},'
        f'"sequence":{{"N":"{row.sequence}"}},"label":{{"S":{_often(row.label)}}},'
        f'"label_index":{{"N":"{row.index}"}},{shown}"model":{{"S":{_often(row.model)}}},'
        f'"version":{{"S":{_often(row.version)}}},"source":{{"N":"{row.source}"}},'
        f'"labeled_at_unix_us":{{"N":"{row.labeled_at_unix_us}"}},'
        f'"captured_at_unix_us":{{"N":"{row.captured_at_unix_us}"}},{sku}'
        f'"instance_id":{{"S":{_often(row.instance_id)}}},'
        f'"journal_id":{{"S":{_often(row.journal_id)}}},'
        f'"journal_number":{{"N":"{row.journal_number}"}}{expires}}}}}}}'
    )


def _shown(confidence: float) -> str:
    kind = "N" if math.isfinite(confidence) else "S"
    return f'"confidence":{{"{kind}":"{_confidence(confidence)}"}},'
