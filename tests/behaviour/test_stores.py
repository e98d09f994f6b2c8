"""What every store keeps to: the same tests on SQLite and on DynamoDB, on each of its servers.

Cases W22, W24, W28.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labeler.errors import InvalidRequestError
from labeler.stores.base import Query, StoredRow
from labeler.stores.dynamodb import DynamoStore
from tests.support.dynamodb import KINDS, DynamoServers, Kind
from tests.support.stores import OpenStore, aws_variables, dynamodb_settings, opened, row


@pytest.fixture(scope="module", params=["sqlite", *KINDS])
def opened_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenStore]:
    """A store of each kind; a DynamoDB client takes long to make, so that tests share it."""
    folder = tmp_path_factory.mktemp("store")
    if request.param == "sqlite":
        with opened("sqlite", {"path": ""}, folder) as found:
            yield found
        return
    kind: Kind = request.param
    servers: DynamoServers = request.getfixturevalue("dynamodb_servers")
    table = servers.get(kind).table()
    with pytest.MonkeyPatch.context() as patch:
        aws_variables(patch, table.server)
        with opened("dynamodb", dynamodb_settings(table, create=True), folder) as found:
            yield found


@pytest.fixture
def store(opened_once: OpenStore, tmp_path: Path) -> Iterator[OpenStore]:
    """An open, empty store."""
    inner = opened_once.store
    if isinstance(inner, DynamoStore):
        inner.settings = replace(inner.settings, table=f"labels-{uuid.uuid4()}")
        opened_once.create()
        yield opened_once
    else:
        with opened("sqlite", {"path": ""}, tmp_path) as found:
            yield found


def sequences(store: OpenStore, **query: object) -> list[int]:
    """Of all pages, in their order."""
    found: list[int] = []
    token = ""
    while True:
        page = store.list(Query("robot-1", page_token=token, **query))  # type: ignore[arg-type]
        found += [item.sequence for item in page.rows]
        token = page.next_page_token
        if not token:
            return found


def test_a_row_comes_back_as_it_was_written(store: OpenStore) -> None:
    written = row(7, confidence=float_of(0.1))
    assert store.statuses(written) == ["stored"]
    assert store.get("robot-1", 7) == written


def test_a_key_that_was_never_written_is_not_found(store: OpenStore) -> None:
    store.write(row(7))
    assert store.get("robot-1", 8) is None
    assert store.get("robot-2", 7) is None
    assert store.get("", 7) is None


@pytest.mark.parametrize(
    "robot_id",
    ["r", " ", "\t", "r" * 128, "r" * 2048, "röbot", "\U0001f916", 'a"\\\n', "nul\x00nul", "\x7f"],
    ids=ascii,
)
def test_a_key_of_any_text_comes_back(store: OpenStore, robot_id: str) -> None:
    written = row(1, robot_id=robot_id, sku=robot_id[:64], label=robot_id)
    assert store.statuses(written) == ["stored"]
    assert store.get(robot_id, 1) == written
    assert list(store.list(Query(robot_id)).rows) == [written]


def test_what_is_no_text_is_refused_alone(store: OpenStore) -> None:
    lone = [row(2, robot_id="\ud800"), row(3, sku="\udfff"), row(4, label="\ud800")]
    found = store.write(row(1), *lone, row(5))
    assert [outcome.status.value for outcome in found] == ["stored", *["refused"] * 3, "stored"]
    assert all(outcome.reason for outcome in found[1:4])
    assert sequences(store) == [5, 1]


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1])
def test_a_whole_number_of_64_bits_keeps_every_digit(store: OpenStore, value: int) -> None:
    written = row(
        value,
        labeled_at_unix_us=1,
        captured_at_unix_us=value,
        journal_number=value,
    )
    assert store.statuses(row(1), written, row(2)) == ["stored"] * 3
    assert store.get("robot-1", value) == written
    assert sequences(store, page_size=1) == [value, 2, 1]


def float_of(value: float) -> float:
    """The float32 that the label path has made of it, widened."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@pytest.mark.parametrize(
    "confidence",
    [
        *(0.0, 1.0, 0.1, 1 / 3, 0.9999999, 1e-45, 1.1754944e-38, 3.4028235e38, 1e38),
        *(-0.1, math.inf, -math.inf, 2**-24, 16_777_216.0, 123_456.79),
    ],
)
def test_a_confidence_keeps_every_bit(store: OpenStore, confidence: float) -> None:
    written = row(1, confidence=float_of(confidence))
    assert store.statuses(row(2), written, row(3)) == ["stored"] * 3
    assert store.get("robot-1", 1) == written
    assert [item.confidence for item in store.list(Query("robot-1")).rows][2] == written.confidence


def test_a_confidence_that_is_not_a_number_stays_so(store: OpenStore) -> None:
    assert store.statuses(row(1, confidence=math.nan), row(2)) == ["stored", "stored"]
    found = store.get("robot-1", 1)
    assert found is not None
    assert math.isnan(found.confidence)
    assert found._replace(confidence=1.0) == row(1, confidence=1.0)


def test_a_confidence_of_minus_zero_is_zero(store: OpenStore) -> None:
    assert store.statuses(row(1, confidence=-0.0)) == ["stored"]
    found = store.get("robot-1", 1)
    assert found is not None
    assert found.confidence == 0


def test_texts_that_are_empty_come_back_empty(store: OpenStore) -> None:
    written = row(1, sku="", label="", model="", version="", instance_id="", journal_id="")
    assert store.statuses(written) == ["stored"]
    assert store.get("robot-1", 1) == written


def test_writing_a_row_again_changes_nothing(store: OpenStore) -> None:
    for _ in range(3):
        assert store.statuses(row(1), row(2)) == ["stored", "stored"]
    assert sequences(store) == [2, 1]
    assert store.get("robot-1", 1) == row(1)


def test_a_later_write_of_a_key_stays(store: OpenStore) -> None:
    store.write(row(1, journal_number=1, label="first", sku="SKU-1", confidence=0.5))
    later = row(1, journal_number=2, label="second", sku="", confidence=math.nan)
    store.write(later)
    found = store.get("robot-1", 1)
    assert found is not None
    assert (found.label, found.sku, found.journal_number) == ("second", "", 2)
    assert math.isnan(found.confidence)


def test_a_row_out_of_order_leaves_a_later_record_of_its_journal(store: OpenStore) -> None:
    """What a redrive writes; another journal's row gives way, since no order is known."""
    held = [row(n, journal_number=5, label="held") for n in range(1, 6)]
    store.write(*held)
    late = [
        row(1, journal_number=4, label="earlier"),
        row(2, journal_number=5, label="the same again"),
        row(3, journal_number=6, label="later"),
        row(4, journal_number=1, label="another's", journal_id="other"),
        row(5, sku="\ud800"),
        row(6, label="new"),
    ]
    told = ["superseded", "stored", "stored", "stored", "refused", "stored"]
    assert store.rewritten(*late) == told
    expected = [item for item, status in zip(late, told, strict=True) if status == "stored"]
    kept = [*expected, held[0], held[4]]
    assert [store.get(*item.key) for item in kept] == kept


def test_two_robots_with_one_sequence_have_a_row_each(store: OpenStore) -> None:
    one, other = row(1), row(1, robot_id="robot-2", label="Turn")
    store.write(one, other)
    assert (store.get("robot-1", 1), store.get("robot-2", 1)) == (one, other)
    assert sequences(store) == [1]


def rows_of(count: int) -> list[StoredRow]:
    """Rows of the robot and of two neighbours, whose ids begin and end as its does."""
    return [
        row(n, robot_id=robot) for robot in ("robot-1", "robot-11", "robot-") for n in range(count)
    ]


@pytest.mark.parametrize("page_size", [1, 4, 22, 23, 24, 1000])
def test_pages_cover_each_row_once_by_descending_sequence(store: OpenStore, page_size: int) -> None:
    store.write(*rows_of(23))
    assert sequences(store, page_size=page_size) == list(range(22, -1, -1))


def test_the_last_full_page_has_no_token(store: OpenStore) -> None:
    store.write(*(row(n) for n in range(1, 6)))
    assert store.list(Query("robot-1", page_size=5)).next_page_token == ""
    assert store.list(Query("robot-1", page_size=4)).next_page_token != ""
    assert store.list(Query("nobody")).rows == []


def test_a_time_filter_is_half_open_and_keeps_pages_full(store: OpenStore) -> None:
    store.write(*(row(n) for n in range(1, 41)))
    query = {"page_size": 4, "from_unix_us": 10_000_000, "to_unix_us": 20_000_000}
    assert sequences(store, **query) == list(range(19, 9, -1))
    assert sequences(store, from_unix_us=38_000_000) == [40, 39, 38]
    assert sequences(store, to_unix_us=3_000_000) == [2, 1]
    first = store.list(Query("robot-1", page_size=4, from_unix_us=10_000_000))
    assert len(first.rows) == 4


@pytest.mark.parametrize(
    "changed", [{"robot_id": "robot-2"}, {"from_unix_us": 1}, {"to_unix_us": 99}]
)
def test_a_page_token_of_another_query_is_refused(
    store: OpenStore, changed: dict[str, object]
) -> None:
    store.write(*(row(n) for n in range(1, 6)))
    token = store.list(Query("robot-1", page_size=2)).next_page_token
    query = Query("robot-1", page_size=2, page_token=token)
    with pytest.raises(InvalidRequestError) as caught:
        store.list(Query(**(query.__dict__ | changed)))
    assert caught.value.field == "page_token"


def test_a_row_that_comes_between_two_pages_moves_none_of_the_others(store: OpenStore) -> None:
    store.write(*(row(n) for n in range(1, 11)))
    page = store.list(Query("robot-1", page_size=5))
    store.write(row(100), row(0))
    token = page.next_page_token
    rest = store.list(Query("robot-1", page_size=5, page_token=token)).rows
    assert [item.sequence for item in rest] == [5, 4, 3, 2, 1]


def test_a_store_that_was_ensured_differs_in_nothing(store: OpenStore) -> None:
    assert list(store.check()) == []
    store.create()
    assert list(store.check()) == []
