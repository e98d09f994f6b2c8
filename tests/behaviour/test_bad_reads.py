"""Bad arguments of the calls beside the label path: `GetLabel`, `ListLabels`, `ModelService`.

Each is refused by field, value and expectation, in so few words that every client can take them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from labeler.v1 import label_pb2, model_pb2
from tests.support.accounting import balanced
from tests.support.service import Service
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, Wire, error_of, floats, request, wire

Get, Rows = label_pb2.GetLabelRequest, label_pb2.ListLabelsRequest
Load, Unload = model_pb2.LoadModelRequest, model_pb2.UnloadModelRequest
ROBOT, SEQUENCE = "1 to 128 bytes", "1 to 9223372036854775807"
TOKEN = "the next_page_token of this query's last page"
NAME = "1 to 64 of a-z"
BAD: dict[str, tuple[Any, str, str, str]] = {
    "get, no robot": (Get(sequence=1), "robot_id", "empty", ROBOT),
    "get, long robot": (
        Get(robot_id="r" * 129, sequence=1),
        "robot_id",
        "129 bytes",
        "at most 128",
    ),
    "get, no sequence": (Get(robot_id="r"), "sequence", "missing", SEQUENCE),
    "get, sequence 0": (Get(robot_id="r", sequence=0), "sequence", "0", SEQUENCE),
    "get, 2^63": (Get(robot_id="r", sequence=1 << 63), "sequence", str(1 << 63), SEQUENCE),
    "list, no robot": (Rows(), "robot_id", "0 bytes", ROBOT),
    "list, long robot": (Rows(robot_id="r" * 129), "robot_id", "129 bytes", ROBOT),
    "list, large page": (Rows(robot_id="r", page_size=1001), "page_size", "1001", "0 to 1000"),
    "list, largest page": (
        Rows(robot_id="r", page_size=(1 << 32) - 1),
        *("page_size", "4294967295", "0 to 1000"),
    ),
    "list, no token": (Rows(robot_id="r", page_token="no token"), "page_token", "no token", TOKEN),
    "list, long token": (
        Rows(robot_id="r", page_token="x" * 1_000_000),
        *("page_token", "xxx… (1000002 bytes)", TOKEN),
    ),
    "list, a token of emoji": (
        Rows(robot_id="r", page_token="🤖" * 1000),
        *("page_token", "🤖… (4002 bytes)", TOKEN),
    ),
    "list, times reversed": (
        Rows(robot_id="r", from_unix_us=2_000, to_unix_us=1_000),
        *("to_unix_us", "1000", "above from_unix_us (2000), or 0"),
    ),
    "list, an empty span": (
        Rows(robot_id="r", from_unix_us=5, to_unix_us=5),
        *("to_unix_us", "5", "above from_unix_us (5), or 0"),
    ),
    "load, no name": (Load(), "name", "empty", "a model's name"),
    "load, long name": (Load(name="m" * 129), "name", "129 bytes", "at most 128 bytes"),
    "load, very long name": (Load(name="m" * 1_000_000), "name", "1000000 bytes", "at most 128"),
    "load, long version": (
        Load(name="m", version="1" * 129),
        "version",
        "129 bytes",
        "at most 128",
    ),
    "load, a path": (Load(name="../m"), "name", '"../m"', NAME),
    "load, a path as version": (Load(name="m", version="../1"), "version", '"../1"', NAME),
    "unload, no name": (Unload(), "name", "empty", "a model's name"),
    "unload, long name": (Unload(name="m" * 100_000), "name", "100000 bytes", "at most 128 bytes"),
    "unload, long version": (
        Unload(name="m", version="1" * 129),
        "version",
        "129 bytes",
        "at most",
    ),
}


@pytest.fixture
def stubs(service: Service) -> Iterator[Wire]:
    with wire(service.address) as open_wire:
        yield open_wire


def method(stubs: Wire, message: object) -> Callable[..., Any]:
    """The call that takes this message."""
    calls: dict[type, Callable[..., Any]] = {
        Get: stubs.labels.GetLabel,
        Rows: stubs.labels.ListLabels,
        Load: stubs.models.LoadModel,
        Unload: stubs.models.UnloadModel,
    }
    return calls[type(message)]


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_a_bad_argument_is_refused_by_field_value_and_expectation(
    stubs: Wire, case: tuple[Any, str, str, str]
) -> None:
    message, field, value, expected = case
    with pytest.raises(grpc.RpcError) as refused:
        method(stubs, message)(message, timeout=20)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    error = error_of(refused.value)
    assert error.field == field
    assert value in error.value
    assert expected in error.expected
    assert str(refused.value.details()) == f"{field} is {error.value}, expected {error.expected}"


@pytest.mark.parametrize(
    "message", [Load(name="nope"), Unload(name="nope"), Load(name="nope", version="7")]
)
def test_a_model_that_is_not_there_is_not_found_by_name(stubs: Wire, message: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        method(stubs, message)(message, timeout=20)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert "nope" in str(refused.value.details())


def test_times_of_any_size_are_searched_and_a_token_is_tied_to_them(
    service: Service, stubs: Wire
) -> None:
    for sequence in (1, 2):
        stubs.labels.Label(request("times", sequence, floats([2.5] * WIDTH)))
    most = (1 << 63) - 1
    eventually(lambda: len(stubs.labels.ListLabels(Rows(robot_id="times")).labels) == 2)
    spans = [(0, 0), (-most - 1, most), (-1, 0), (0, most), (1, most), (-most, -1), (most, 0)]
    found = [
        len(
            stubs.labels.ListLabels(
                Rows(robot_id="times", from_unix_us=start, to_unix_us=end)
            ).labels
        )
        for start, end in spans
    ]
    assert found == [2, 2, 2, 2, 2, 0, 0]
    page = stubs.labels.ListLabels(Rows(robot_id="times", page_size=1))
    for other in (Rows(robot_id="other"), Rows(robot_id="times", from_unix_us=1)):
        other.page_token = page.next_page_token
        with pytest.raises(grpc.RpcError) as refused:
            stubs.labels.ListLabels(other)
        assert error_of(refused.value).field == "page_token"
    balanced(service)
