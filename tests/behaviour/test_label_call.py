"""`Label` on the wire: payload forms, timing, idempotency, durability."""

import threading
from collections.abc import Iterator

import grpc
import pytest

from labeler.fleet import LABELS
from labeler.v1 import label_pb2, types_pb2
from tests.support.service import Service, StartService
from tests.support.wire import (
    WIDTH,
    Wire,
    doubles,
    error_of,
    floats,
    raw32,
    raw64,
    request,
    wire,
)

FAR = [2.5] * WIDTH
# Exact in 32 bits, so that all four forms hold the same values.
MIXED = [0.5 + index / 8 for index in range(WIDTH)]


@pytest.fixture
def stubs(service: Service) -> Iterator[Wire]:
    with wire(service.address) as open_wire:
        yield open_wire


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:128]


def test_all_payload_forms_give_the_same_scores_bit_for_bit(stubs: Wire, robot_id: str) -> None:
    forms = [floats, doubles, raw32, raw64]
    replies = [
        stubs.labels.Label(request(robot_id, n, form(MIXED), want_scores=True))
        for n, form in enumerate(forms, start=1)
    ]
    assert {tuple(reply.scores) for reply in replies} == {tuple(replies[0].scores)}
    assert len(replies[0].scores) == len(LABELS)


def test_a_retry_gets_the_first_reply_again_even_in_another_width(
    stubs: Wire, robot_id: str
) -> None:
    first = stubs.labels.Label(request(robot_id, 1, floats(MIXED), want_scores=True))
    again = stubs.labels.Label(request(robot_id, 1, doubles(MIXED), want_scores=True))
    assert (first.source, again.source) == (types_pb2.SOURCE_MODEL, types_pb2.SOURCE_REPLAY)
    assert (again.label, list(again.scores)) == (first.label, list(first.scores))


def test_a_sequence_used_for_another_payload_is_refused(stubs: Wire, robot_id: str) -> None:
    stubs.labels.Label(request(robot_id, 1, floats(FAR)))
    with pytest.raises(grpc.RpcError) as refused:
        stubs.labels.Label(request(robot_id, 1, floats(MIXED)))
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert error_of(refused.value).field == "sequence"


def test_callers_of_one_key_at_one_time_share_one_record(
    start_service: StartService, robot_id: str
) -> None:
    service = start_service()
    with wire(service.address) as stubs:
        calls = [stubs.labels.Label.future(request(robot_id, 1, floats(FAR))) for _ in range(64)]
        replies = [call.result(timeout=30) for call in calls]
    assert len({reply.label for reply in replies}) == 1
    assert service.metrics().records().entered == 1


@pytest.mark.parametrize("level", ["BUFFERED", "JOURNALED", "STORED"])
def test_a_reply_says_the_level_that_was_asked_for_or_a_stronger_one(
    stubs: Wire, robot_id: str, level: str
) -> None:
    asked = types_pb2.Durability.Value(f"DURABILITY_{level}")
    reply = stubs.labels.Label(request(robot_id, 1, floats(FAR), durability=asked))
    assert reply.durability >= asked


def test_a_store_that_is_slow_weakens_the_level_and_never_loses_the_label(
    start_service: StartService, robot_id: str
) -> None:
    service = start_service(writer__linger_ms=10_000)
    stored = {"durability": types_pb2.DURABILITY_STORED, "timeout_us": 200_000}
    with wire(service.address) as stubs:
        reply = stubs.labels.Label(request(robot_id, 1, floats(FAR), **stored))
        assert reply.durability == types_pb2.DURABILITY_JOURNALED
        with pytest.raises(grpc.RpcError) as late:
            stubs.labels.Label(
                request(robot_id, 2, floats(FAR), durability_required=True, **stored)
            )
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert error_of(late.value).label_exists
        kept = stubs.labels.GetLabel(label_pb2.GetLabelRequest(robot_id=robot_id, sequence=2))
        assert kept.label.durability == types_pb2.DURABILITY_JOURNALED


def test_a_deadline_of_a_microsecond_is_exceeded_and_not_cancelled(
    stubs: Wire, robot_id: str
) -> None:
    with pytest.raises(grpc.RpcError) as late:
        stubs.labels.Label(request(robot_id, 1, floats(FAR), timeout_us=1))
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert not error_of(late.value).label_exists


def test_calls_cancelled_at_random_moments_leave_nothing_behind(
    start_service: StartService, robot_id: str, scale: int
) -> None:
    service = start_service()
    done = threading.Semaphore(0)
    with wire(service.address) as stubs:
        calls = []
        for n in range(1, 1_000 * scale + 1):
            call = stubs.labels.Label.future(request(robot_id, n, floats(FAR)))
            call.add_done_callback(lambda _: done.release())
            calls.append(call)
            # Cancels fall before, in and after the model's run of calls that are under way.
            if n % 3 == 0:
                calls[n // 2].cancel()
        for _ in calls:
            assert done.acquire(timeout=60)
        after = stubs.labels.Label(request(robot_id, 1 << 40, floats(FAR)))
    assert after.label
    balance = service.metrics().requests("Label")
    assert balance.parts["in_flight"] == 0
    assert balance.missing == 0
    assert balance.parts["failed"] == 0
