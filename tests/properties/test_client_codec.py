"""What the client puts on the wire is what it was given, or an error that names the field."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from labeler import InternalError, InvalidRequestError, LabelQuery
from labeler.client import health
from labeler.client.batches import Batch, rows_of
from labeler.client.options import Settings
from labeler.client.replies import label_from
from labeler.client.requests import RECEIPT_ROBOTS_MAX, Receipts, build_request, make_query
from labeler.v1 import label_pb2, types_pb2

SETTINGS = Settings()
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
DTYPES = {types_pb2.DTYPE_FLOAT32: "<f4", types_pb2.DTYPE_FLOAT64: "<f8"}
SEQUENCE_MAX = 2**63 - 1


def sent(query: LabelQuery) -> label_pb2.LabelRequest:
    """The query as the service reads it off the wire."""
    wire = build_request(query, SETTINGS).SerializeToString()
    return label_pb2.LabelRequest.FromString(wire)


def field_of(query: LabelQuery) -> str:
    """The field that the client refuses."""
    with pytest.raises(InvalidRequestError) as refused:
        build_request(query, SETTINGS)
    assert refused.value.field in str(refused.value)
    assert refused.value.expected
    return refused.value.field


@given(hnp.arrays(st.sampled_from(["f4", "f8"]), st.integers(1, 64), elements=None))
def test_an_array_arrives_bit_for_bit_in_its_own_precision(values: Any) -> None:
    raw = sent(LabelQuery("r1", 1, values)).payload.raw

    arrived = np.frombuffer(raw.data, DTYPES[raw.dtype])

    assert arrived.dtype == values.dtype
    assert arrived.tobytes() == values.tobytes()


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_view_with_gaps_arrives_as_its_own_values(width: int, step: int) -> None:
    values = np.arange(width * step, dtype=np.float32)[::step]

    raw = sent(LabelQuery("r1", 1, values)).payload.raw

    assert np.frombuffer(raw.data, "<f4").tolist() == values.tolist()


@given(st.lists(FLOATS, min_size=1, max_size=64))
def test_python_floats_arrive_as_64_bit(values: list[float]) -> None:
    raw = sent(LabelQuery("r1", 1, values)).payload.raw

    assert raw.dtype == types_pb2.DTYPE_FLOAT64
    assert raw.data == struct.pack(f"<{len(values)}d", *values)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, np.int32),
        np.zeros(3, np.float16),
        np.zeros(3, np.longdouble),
        np.zeros(3, np.complex64),
        np.zeros(3, object),
        np.zeros(3, np.dtype(np.float32).newbyteorder()),
        np.zeros((1, 3), np.float32),
        np.float32(1.0),
        np.zeros(0, np.float32),
        np.ma.masked_array(np.zeros(3), mask=[False, True, False]),
        [],
        [1, 2, 3],
        [1.0, True],
        ["1.0"],
        b"\0\0\0\0",
        None,
    ],
    ids=repr,
)
def test_nothing_else_is_taken_for_values(values: Any) -> None:
    assert field_of(LabelQuery("r1", 1, values)) == "values"


@given(st.integers() | st.floats() | st.booleans() | st.text() | st.none())
def test_a_sequence_is_an_int_from_1_to_2_63_or_refused(sequence: Any) -> None:
    query = LabelQuery("r1", sequence, [1.0])
    if type(sequence) is int and 1 <= sequence <= SEQUENCE_MAX:
        assert sent(query).sequence == sequence
    else:
        assert field_of(query) == "sequence"


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_a_robot_id_is_1_to_128_bytes_of_text_or_refused(robot_id: str) -> None:
    query = LabelQuery(robot_id, 1, [1.0])
    surrogates = any("\ud800" <= letter <= "\udfff" for letter in robot_id)
    if not surrogates and 1 <= len(robot_id.encode()) <= 128:
        assert sent(query).robot_id == robot_id
    else:
        assert field_of(query) == "robot_id"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("robot_id", 5),
        ("sku", "x" * 65),
        ("sku", None),
        ("model", 7),
        ("version", 1),
        ("durability", "stored"),
        ("durability", 3),
        ("priority", "robot"),
        ("want_scores", 1),
        ("durability_required", "yes"),
        ("captured_at_unix_us", 1.5),
        ("captured_at_unix_us", 2**63),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(field: str, value: Any) -> None:
    query = LabelQuery("r1", 1, [1.0])
    setattr(query, field, value)

    assert field_of(query) == field


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean `durability`"):
        make_query("r1", 1, [1.0], {"durabilty": "STORED"})  # type: ignore[typeddict-unknown-key]


def test_a_query_without_model_and_durability_takes_the_clients() -> None:
    settings = Settings(model="wall-following", durability="STORED")

    request = build_request(LabelQuery("r1", 1, [1.0]), settings)

    assert (request.model, request.durability) == ("wall-following", types_pb2.DURABILITY_STORED)


@given(st.lists(st.sampled_from(["good", "bad here", "bad there", "no answer"]), min_size=1))
def test_each_row_of_a_batch_gets_its_own_result_in_its_place(kinds: list[str]) -> None:
    queries = [
        LabelQuery("r1", row + 1, [1] if kind == "bad here" else [1.0])
        for row, kind in enumerate(kinds)
    ]
    batch = Batch(queries, SETTINGS)
    response = label_pb2.LabelBatchResponse()
    for kind, query in zip(kinds, queries, strict=True):
        if kind == "good":
            response.results.add().response.sequence = query.sequence
        elif kind == "bad there":
            response.results.add().error.CopyFrom(types_pb2.Error(code=3, field="payload"))
        elif kind == "no answer":
            response.results.add()

    results = batch.results(response, 100)

    classes = {
        "good": "Label",
        "bad here": "InvalidRequestError",
        "bad there": "InvalidRequestError",
        "no answer": "InternalError",
    }
    assert [type(result).__name__ for result in results] == [classes[kind] for kind in kinds]
    assert [result.sequence for result in results] == [query.sequence for query in queries]


def test_a_batch_answered_with_another_number_of_rows_is_an_error() -> None:
    batch = Batch([LabelQuery("r1", 1, [1.0])], SETTINGS)

    with pytest.raises(InternalError, match="1 rows were sent and 0 were answered"):
        batch.results(label_pb2.LabelBatchResponse(), 100)


@pytest.mark.parametrize("rows", [0, 1001])
def test_a_batch_of_none_or_too_many_rows_is_refused(rows: int) -> None:
    with pytest.raises(InvalidRequestError, match="expected 1 to 1,000 rows"):
        Batch([LabelQuery("r1", 1, [1.0])] * rows, SETTINGS)


def test_the_rows_of_an_array_are_numbered_upwards() -> None:
    queries = rows_of("r1", 5, np.zeros((3, 2)), {"sku": "box"})

    assert [(query.sequence, query.sku) for query in queries] == [
        (5, "box"),
        (6, "box"),
        (7, "box"),
    ]


def test_a_value_that_a_newer_server_knows_is_kept_as_its_number() -> None:
    response = label_pb2.LabelResponse.FromString(b"\x40\x63")  # source = 99

    assert label_from(response, 100).source == "99"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32))
def test_the_networks_share_is_the_round_trip_less_the_server_and_never_negative(
    server_us: int, round_trip_us: int
) -> None:
    response = label_pb2.LabelResponse(timing=types_pb2.Timing(total_us=server_us))

    assert label_from(response, round_trip_us).network_us == max(0, round_trip_us - server_us)


@given(st.lists(st.integers(0, 2 * RECEIPT_ROBOTS_MAX)))
def test_a_receipt_is_handed_out_once_and_they_are_bounded(robots: list[int]) -> None:
    receipts = Receipts()
    for number, robot in enumerate(robots):
        receipts.put(str(robot), label_pb2.Receipt(sequence=number + 1))

    taken = [receipts.take(str(robot)) for robot in sorted(set(robots))]

    assert sum(receipt is not None for receipt in taken) == min(len(taken), RECEIPT_ROBOTS_MAX)
    assert all(receipts.take(str(robot)) is None for robot in robots)


def test_the_robot_that_was_silent_longest_makes_room_for_a_receipt() -> None:
    receipts = Receipts()
    for robot in range(RECEIPT_ROBOTS_MAX + 1):
        receipts.put(str(robot), label_pb2.Receipt(sequence=1))

    assert receipts.take("0") is None
    assert receipts.take("1") is not None


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=31))
def test_a_health_request_is_a_string_in_field_1(service: str) -> None:
    name = service.encode()

    encoded = health.encode_request(service)

    assert encoded == (bytes([0x0A, len(name)]) + name if name else b"")


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (b"", "UNKNOWN"),
        (b"\x08\x01", "SERVING"),
        (b"\x08\x02", "NOT_SERVING"),
        (b"\x08\x03", "SERVICE_UNKNOWN"),
    ],
)
def test_a_health_response_is_an_enum_in_field_1(data: bytes, state: str) -> None:
    assert health.decode_response(data) == state


@given(st.binary(min_size=1).filter(lambda data: data[:1] != b"\x08"))
def test_another_health_response_is_an_error_that_shows_it(data: bytes) -> None:
    with pytest.raises(InternalError, match="no known state"):
        health.decode_response(data)
