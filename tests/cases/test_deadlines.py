"""One deadline a message, from its arrival, whoever names it and however it comes.

Trap 2, S06 (an impatient wave damaged the batcher), messages of a stream, the nearer of two
deadlines, those already past, and the level STORED in an outage. That a stream outlives the default
deadline is in `behaviour/test_batch_and_stream.py`; forms of the header in `deadline.rs`.

Full counts: about 60 s.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, types_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import write_locked
from tests.support.held import (
    ROWS_A_HOLD,
    Hold,
    Since,
    holdable,
    nothing_left,
    queued,
    values,
    while_busy,
)
from tests.support.service import Service, StartService, serving
from tests.support.waiting import eventually
from tests.support.ways import Send, rows, ways
from tests.support.wire import Wire, error_of, floats, request, wire

LATE = grpc.StatusCode.DEADLINE_EXCEEDED
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
JOURNALED, STORED = types_pb2.DURABILITY_JOURNALED, types_pb2.DURABILITY_STORED
PATIENT_US, IMPATIENT_US = 60_000_000, 1_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("deadlines")
    with serving(folder / "state", **holdable(folder / "models")) as one:
        yield one


@pytest.fixture
def stubs(served: Service) -> Iterator[Wire]:
    with wire(served.address) as open_wire:
        yield open_wire


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


@counts("calls", quick=300, full=2_000, full_timeout_s=300)
@ways
def test_an_impatient_wave_leaves_the_next_one_as_it_found_the_first(
    served: Service, stubs: Wire, robot_id: str, send: Send, calls: int
) -> None:
    """S06, in three waves. Only the second one's calls may end late."""
    since = Since(served)
    first = send(stubs, rows(f"{robot_id}-1", calls, timeout_us=PATIENT_US))
    computed = since.computed
    second = send(stubs, rows(f"{robot_id}-2", calls, timeout_us=IMPATIENT_US))
    nothing_left(balanced(served))
    between = Since(served)
    third = send(stubs, rows(f"{robot_id}-3", calls, timeout_us=PATIENT_US))
    assert first == third == [0] * calls
    assert set(second) <= {0, LATE.value[0]}
    print(f"{second.count(LATE.value[0])} of {calls} impatient calls were late")
    nothing_left(balanced(served))
    assert computed == between.computed == between.journaled == calls


def test_each_message_of_a_stream_has_its_own_deadline(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    """Impatient messages end in the order of their deadlines; the others stay, and the stream."""

    def attempt(hold: Hold, number: int) -> tuple[list[Any], Any]:
        timeouts = [90_000, 30_000, 60_000_000, 60_000]
        asked = [
            request(f"{robot_id}-{number}", n, floats(values(n)), timeout_us=timeout)
            for n, timeout in enumerate(timeouts, start=1)
        ]
        replies = stubs.labels.LabelStream(iter(asked))
        early = [next(replies) for _ in range(3)]
        assert queued(served) == 1
        return early, replies

    (early, replies), since = while_busy(served, stubs, attempt)
    assert [reply.sequence for reply in early] == [2, 4, 1]
    assert {reply.error.code for reply in early} == {LATE.value[0]}
    rest = list(replies)
    assert [(reply.sequence, reply.response.label != "") for reply in rest] == [(3, True)]
    balanced(served)
    assert since.computed == ROWS_A_HOLD + 1


@pytest.mark.parametrize(
    ("header", "timeout_us"), [("30m", 60_000_000), ("60S", 30_000), ("30m", 0)]
)
def test_the_nearer_of_the_calls_and_the_messages_deadline_counts(
    served: Service, stubs: Wire, robot_id: str, header: str, timeout_us: int
) -> None:
    def attempt(hold: Hold, number: int) -> tuple[grpc.RpcError, int]:
        row = request(robot_id, number + 1, floats(values(1)), timeout_us=timeout_us)
        with pytest.raises(grpc.RpcError) as late:
            stubs.labels.Label(row, metadata=(("grpc-timeout", header),))
        rows = label_pb2.LabelBatchRequest(requests=[row])
        result = stubs.labels.LabelBatch(rows, metadata=(("grpc-timeout", header),)).results[0]
        return late.value, result.error.code

    (late, code), since = while_busy(served, stubs, attempt)
    assert late.code() == LATE
    assert "stage queue" in str(late.details())
    assert code == LATE.value[0]
    balanced(served)
    assert since.computed == ROWS_A_HOLD


@ways
def test_a_message_whose_deadline_has_passed_on_arrival_is_not_computed(
    served: Service, stubs: Wire, robot_id: str, send: Send
) -> None:
    since = Since(served)
    assert send(stubs, rows(robot_id, 20, timeout_us=1)) == [LATE.value[0]] * 20
    nothing_left(balanced(served))
    assert (since.computed, since.ended("expired")) == (0, 20)


# ---------------------------------------------------------------- STORED in an outage


Waits = Callable[[], list[tuple[int, int]]]


def wait_unary(stubs: Wire, asked: list[label_pb2.LabelRequest]) -> Waits:
    """Code and durability of each row, once they are there."""
    calls = [stubs.labels.Label.future(row) for row in asked]

    def wait() -> list[tuple[int, int]]:
        found = []
        for call in calls:
            failure = call.exception(timeout=60)
            code = failure.code().value[0] if failure else 0
            found.append((code, 0 if failure else call.result().durability))
        return found

    return wait


def wait_stream(stubs: Wire, asked: list[label_pb2.LabelRequest]) -> Waits:
    replies: list[Any] = []

    def read() -> None:
        with suppress(grpc.RpcError):
            replies.extend(stubs.labels.LabelStream(iter(asked)))

    thread = threading.Thread(target=read)
    thread.start()

    def wait() -> list[tuple[int, int]]:
        thread.join(60)
        return [(reply.error.code, reply.response.durability) for reply in replies]

    return wait


@pytest.mark.parametrize("send", [wait_unary, wait_stream])
@pytest.mark.parametrize("required", [False, True])
def test_in_an_outage_a_bounded_number_waits_for_the_store(
    start_service: StartService,
    tmp_path_factory: pytest.TempPathFactory,
    send: Callable[[Wire, list[label_pb2.LabelRequest]], Waits],
    required: bool,
) -> None:
    """One too many gets JOURNALED at once, or is refused where the level is a condition."""
    models = holdable(tmp_path_factory.mktemp("outage"))
    service = start_service(path__stored_waiters_max=5, **models)
    since = Since(service)
    wish = {"durability": STORED, "durability_required": required, "timeout_us": PATIENT_US}
    with wire(service.address) as stubs:
        with write_locked(service.database):
            wait = send(stubs, rows("robot", 20, **wish))
            # Those who do not wait are through, while the store is still away.
            eventually(lambda: since(names.REQUESTS_IN_FLIGHT.name) == 5)
            eventually(lambda: since.journaled == (5 if required else 20))
            if required:
                with pytest.raises(grpc.RpcError) as refused:
                    stubs.labels.Label(request("one-more", 1, floats(values(1)), **wish))
                assert refused.value.code() == FULL
                assert error_of(refused.value).retry_after_ms > 0
        outcomes = wait()
    others = (FULL.value[0], 0) if required else (0, JOURNALED)
    assert sorted(outcomes) == sorted([(0, STORED)] * 5 + [others] * 15)
    nothing_left(balanced(service))


@pytest.mark.parametrize("required", [False, True])
def test_in_an_outage_a_label_is_told_as_journaled_at_its_deadline_or_as_existing(
    start_service: StartService, tmp_path_factory: pytest.TempPathFactory, required: bool
) -> None:
    """A label that exists is no error, unless its level was a condition; and it is stored later."""
    models = holdable(tmp_path_factory.mktemp("outage"))
    service = start_service(**models)
    wish = {"durability": STORED, "durability_required": required, "timeout_us": 200_000}
    with wire(service.address) as stubs:
        with write_locked(service.database):
            calls = [stubs.labels.Label.future(row) for row in rows("robot", 20, **wish)]
            for call in calls:
                failure = call.exception(timeout=60)
                if required:
                    assert failure.code() == LATE
                    assert error_of(failure).label_exists
                else:
                    assert call.result().durability == JOURNALED
        eventually(lambda: service.metrics().records().parts["stored"] == 20)
    nothing_left(balanced(service))
