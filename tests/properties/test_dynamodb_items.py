"""A row as an item of DynamoDB: nothing is lost, and its size is what the servers say it is.

Cases W22, W26, W28. Random rows print their seed by Hypothesis.
"""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from labeler.stores.base import StoredRow
from labeler.stores.dynamodb.items import (
    ITEM_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_ROWS_MAX,
    batch_body,
    item_of,
    key_of,
    number_bytes,
    refusal,
    row_of,
    size_bytes,
)
from tests.support.dynamodb import DynamoTable, servers
from tests.support.repo import read
from tests.support.stores import row

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
whole = st.integers(-(2**63), 2**64 - 1)
floats32 = st.floats(width=32)
rows = st.builds(
    StoredRow,
    robot_id=texts.filter(bool),
    sequence=whole,
    label=texts,
    index=whole,
    confidence=floats32,
    model=texts,
    version=texts,
    source=whole,
    labeled_at_unix_us=whole,
    captured_at_unix_us=whole,
    sku=texts,
    instance_id=texts,
    journal_id=texts,
    journal_number=whole,
)
retentions = st.sampled_from([0, 604_800])


def same(one: StoredRow, other: StoredRow) -> bool:
    """Equal, where NaN is NaN and -0.0 is 0."""
    return repr(one._replace(confidence=one.confidence + 0.0)) == repr(
        other._replace(confidence=other.confidence + 0.0)
    )


@given(rows, retentions)
def test_a_row_comes_back_from_its_item(written: StoredRow, retention_s: int) -> None:
    item = item_of(written, retention_s)
    assert same(row_of(item), written)
    assert key_of(item) == written.key
    assert ("expires_at_unix_s" in item) == bool(retention_s)


@given(st.lists(rows, min_size=1, max_size=25), retentions)
@settings(max_examples=50)
def test_the_ready_made_body_is_what_the_plain_way_sends(
    batch: list[StoredRow], retention_s: int
) -> None:
    plain = [{"PutRequest": {"Item": item_of(written, retention_s)}} for written in batch]
    body = batch_body("a-table", batch, retention_s)
    assert json.loads(body) == {"RequestItems": {"a-table": plain}}
    assert body.isascii()


@given(floats32.filter(math.isfinite))
@settings(max_examples=500)
def test_a_confidence_is_a_decimal_of_at_most_nine_digits_with_every_bit(value: float) -> None:
    text = item_of(row(1, confidence=value))["confidence"]["N"]
    assert struct.pack("<f", float(text)) == struct.pack("<f", value + 0.0)
    assert len(re.sub(r"e.*|[-.]", "", text).strip("0")) <= 9


@given(rows)
def test_what_others_left_out_or_added_is_no_error(written: StoredRow) -> None:
    item: dict[str, Any] = {
        "robot_id": {"S": written.robot_id},
        "sequence": {"N": str(written.sequence)},
        "theirs": {"M": {"deep": {"L": [{"NULL": True}]}}},
    }
    found = row_of(item)
    assert found.key == written.key
    assert math.isnan(found.confidence)
    assert found.label == ""


@pytest.mark.parametrize(
    ("text", "number"), [("7.0", 7), ("1E+3", 1000), ("9223372036854775807.0", 2**63 - 1)]
)
def test_a_whole_number_is_read_in_any_form(text: str, number: int) -> None:
    assert key_of({"robot_id": {"S": "r"}, "sequence": {"N": text}}) == ("r", number)


def bound(name: str) -> int:
    """A constant of the core's limits."""
    [value] = re.findall(rf"\bconst {name}: \w+ = ([0-9_]+)", read("rust_core/src/limits.rs"))
    return int(value)


def label_bytes_max() -> int:
    """What a model's manifest may have as a label."""
    [value] = re.findall(r"label\.len\(\) <= (\d+)", read("rust_core/src/models/manifest.rs"))
    return int(value)


@pytest.mark.parametrize("character", ["a", "\x01", "\U0010ffff"])
def test_the_biggest_label_that_the_service_takes_is_far_below_dynamodb_s_bounds(
    character: str,
) -> None:
    width = len(character.encode())
    model = character * (bound("MODEL_NAME_BYTES_MAX") // width)
    biggest = row(
        2**63 - 1,
        robot_id=character * (bound("ROBOT_ID_BYTES_MAX") // width),
        label=character * (label_bytes_max() // width),
        index=2**32 - 1,
        confidence=-1.1754942e-38,
        model=model,
        version=model,
        source=2**31 - 1,
        labeled_at_unix_us=2**63 - 1,
        captured_at_unix_us=2**64 - 1,
        sku=character * (bound("SKU_BYTES_MAX") // width),
        instance_id=character * 64,
        journal_id=character * 64,
        journal_number=2**64 - 1,
    )
    assert size_bytes(biggest, 315_360_000) < ITEM_BYTES_MAX // 100
    body = batch_body("t" * 255, [biggest] * REQUEST_ROWS_MAX, 315_360_000)
    assert len(body) < REQUEST_BYTES_MAX // 50


def accepts(table: DynamoTable, item: dict[str, Any]) -> bool:
    """The server's verdict on one item; any other refusal than for the size is an error."""
    try:
        table.server.client().put_item(TableName=table.name, Item=item)
    except ClientError as error:
        if "size" not in str(error).lower():
            raise
        return False
    return True


FILLS = {"ascii": "x", "two bytes": "é", "four bytes": "\U0001f916"}


@pytest.mark.parametrize("fill", FILLS)
def test_an_item_near_the_bound_is_taken_exactly_when_we_say_so(
    labels_table: DynamoTable, fill: str
) -> None:
    """Numbers are counted with a byte to spare: we may refuse a few bytes early, never late."""
    character = FILLS[fill]
    width = len(character.encode())
    empty = row(1, label="", labeled_at_unix_us=1_234_567)
    fits = (ITEM_BYTES_MAX - size_bytes(empty)) // width
    verdicts = set()
    for extra in range(-1, 16, 2):
        long = empty._replace(label=character * (fits + extra))
        ours, theirs = not refusal(long), accepts(labels_table, item_of(long, 1))
        assert theirs or not ours
        assert ours or not theirs or extra * width <= 12
        verdicts.add(ours)
    assert verdicts == {True, False}


SHORT = ["0", "1", "12", "123", "-1", "-123456789", "1.5", "0.0001234567"]
LONG = ["9" * 38, "0." + "1" * 38, "1234567890123456789", "9223372036854775807"]


def weighs(labels_table: DynamoTable, number: str) -> None:
    """Many of one number, in whichever form it is sent, with a text that fills up the rest."""
    count = 2000
    numbers = {f"n{place:05}": {"N": number} for place in range(count)}
    weight = sum(len(name) + number_bytes(number) for name in numbers)
    keys = {"robot_id": {"S": "r"}, "sequence": {"N": "1"}}
    rest = ITEM_BYTES_MAX - weight - len("robot_id" + "r" + "sequence") - 3 - len("fill")
    assert accepts(labels_table, {**keys, **numbers, "fill": {"S": "x" * rest}})
    # And at most two bytes a number more than it does.
    over = "x" * (rest + 2 * count + 4)
    assert not accepts(labels_table, {**keys, **numbers, "fill": {"S": over}})


@pytest.mark.parametrize("number", SHORT + LONG)
def test_a_number_weighs_no_more_at_the_server_than_with_us(
    labels_table: DynamoTable, number: str
) -> None:
    weighs(labels_table, number)


@servers("dynoxide")
@pytest.mark.parametrize("number", ["1e125", "1e-130", "100000", "1.50000e10"])
def test_zeros_at_the_ends_of_a_number_weigh_nothing(
    labels_table: DynamoTable, number: str
) -> None:
    """Of AWS's rule ministack knows the leading zeros only: it weighs 1e125 as 126 digits."""
    weighs(labels_table, number)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"robot_id": ""}, "robot_id is 0 bytes"),
        ({"robot_id": "r" * 2049}, "2,049 bytes"),
        ({"robot_id": "é" * 1025}, "2,050 bytes"),
        ({"label": "x" * ITEM_BYTES_MAX}, f"takes {ITEM_BYTES_MAX:,}"),
        ({"sku": "\ud800"}, "no Unicode"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_dynamodb_cannot_hold_is_told_with_its_size(
    changed: dict[str, Any], word: str
) -> None:
    assert word in refusal(row(1, **changed))
    assert refusal(row(1)) == ""
