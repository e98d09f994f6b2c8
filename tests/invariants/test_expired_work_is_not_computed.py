"""Invariant 5: a request whose deadline has passed is not computed; cancelled work leaves.

Cases S02, KServe's batcher, TensorFlow Serving's batching, Triton #7512; traps 1 and 2. Every way
in is tried: unary, batch, stream; every way out: deadline, cancel, closed stream, cut connection.
"""

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import labeler
from labeler.telemetry import names
from labeler.v1 import label_pb2, label_pb2_grpc
from tests.support.accounting import balanced
from tests.support.counts import counts
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
from tests.support.made_models import holding
from tests.support.service import Service, serving
from tests.support.waiting import eventually
from tests.support.ways import Send, rows, ways
from tests.support.wire import Wire, error_of, floats, request, wire

LATE = grpc.StatusCode.DEADLINE_EXCEEDED
JOINS = names.DEDUPE_JOINS.name
RECEIVED = names.REQUESTS_RECEIVED.name


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the tests here: each counts what happened since it began."""
    folder = tmp_path_factory.mktemp("expired")
    with serving(folder / "state", **holdable(folder / "models")) as one:
        yield one


@pytest.fixture
def stubs(served: Service) -> Iterator[Wire]:
    with wire(served.address) as open_wire:
        yield open_wire


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


@ways
def test_31_expired_rows_and_a_live_one_compute_one_row(
    served: Service, stubs: Wire, robot_id: str, send: Send
) -> None:
    """TensorFlow Serving's row: one live task drags the expired ones along."""
    living: list[Any] = []

    def attempt(hold: Hold, number: int) -> list[int]:
        live = request(f"{robot_id}-live", number + 1, floats(values(77)))
        living.append(stubs.labels.Label.future(live))
        return send(stubs, rows(f"{robot_id}-{number}", 31, timeout_us=20_000))

    codes, since = while_busy(served, stubs, attempt)
    assert all(waiting.result(timeout=60).label for waiting in living)
    assert codes == [LATE.value[0]] * 31
    balanced(served)
    assert since.computed == since.journaled == ROWS_A_HOLD + 1


@ways
def test_a_refusal_arrives_at_its_deadline_though_the_model_is_busy(
    served: Service, stubs: Wire, robot_id: str, send: Send
) -> None:
    """Triton #7512: a time-out was noticed only when the worker was free.

    The order is the proof: all refusals are here before the run ends that was under way.
    """

    def attempt(hold: Hold, number: int) -> tuple[list[int], int]:
        codes = send(stubs, rows(f"{robot_id}-{number}", 8, timeout_us=30_000))
        return codes, queued(served)

    (codes, left), since = while_busy(served, stubs, attempt)
    assert codes == [LATE.value[0]] * 8
    assert left == 0, "they have left the queue, too"
    balanced(served)
    assert since.ended("expired") == 8
    assert since.computed == since.journaled == ROWS_A_HOLD


def test_a_refusal_says_that_the_queue_was_where_and_that_there_is_no_label(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    def attempt(hold: Hold, number: int) -> grpc.RpcError:
        row = request(robot_id, number + 1, floats(values(1)), timeout_us=20_000)
        with pytest.raises(grpc.RpcError) as late:
            stubs.labels.Label(row)
        return late.value

    late, _ = while_busy(served, stubs, attempt)
    assert late.code() == LATE
    assert "stage queue" in str(late.details())
    assert not error_of(late).label_exists
    balanced(served)


# ---------------------------------------------------------------- cancelled work


Leave = Callable[[], object]


def leave_unary(address: str, asked: list[label_pb2.LabelRequest]) -> Leave:
    """Sends each by itself, over as many connections as the streams of one allow."""
    channels = [
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(0, len(asked), 100)
    ]
    stubs = [label_pb2_grpc.LabelServiceStub(channel) for channel in channels]
    calls = [stubs[n // 100].Label.future(row) for n, row in enumerate(asked)]

    def leave() -> None:
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()

    return leave


def leave_batch(address: str, asked: list[label_pb2.LabelRequest]) -> Leave:
    """Sends all in one batch, and cancels that."""
    channel = grpc.insecure_channel(address)
    stub = label_pb2_grpc.LabelServiceStub(channel)
    call = stub.LabelBatch.future(label_pb2.LabelBatchRequest(requests=asked))

    def leave() -> None:
        call.cancel()
        channel.close()

    return leave


def _streams(
    address: str, asked: list[label_pb2.LabelRequest]
) -> tuple[list[grpc.Channel], list[Any]]:
    """Streams of 50 messages each, which stay open; each on a connection of its own."""
    channels, calls = [], []
    for first in range(0, len(asked), 50):
        channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        sending: queue.Queue[label_pb2.LabelRequest | None] = queue.Queue()
        for row in asked[first : first + 50]:
            sending.put(row)
        stub = label_pb2_grpc.LabelServiceStub(channel)
        channels.append(channel)
        calls.append(stub.LabelStream(iter(sending.get, None)))
    return channels, calls


def leave_stream(address: str, asked: list[label_pb2.LabelRequest]) -> Leave:
    """Sends all in streams, and cancels these."""
    channels, calls = _streams(address, asked)

    def leave() -> None:
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()

    return leave


def leave_connection(address: str, asked: list[label_pb2.LabelRequest]) -> Leave:
    """Sends a half in streams and a half by itself, and closes the connections under them."""
    half = len(asked) // 2
    channels, calls = _streams(address, asked[:half])
    leave_rest = leave_unary(address, asked[half:])

    def leave() -> None:
        for channel in channels:
            channel.close()
        leave_rest()
        calls.clear()

    return leave


@counts("rows_total", quick=200, full=1_000, full_timeout_s=120)
@pytest.mark.parametrize("begin", [leave_unary, leave_batch, leave_stream, leave_connection])
def test_queued_rows_whose_callers_leave_are_not_computed(
    served: Service,
    stubs: Wire,
    robot_id: str,
    begin: Callable[[str, list[label_pb2.LabelRequest]], Leave],
    rows_total: int,
) -> None:
    """KServe's row: the batcher forgot its callers. All leave before the next batch is formed."""
    priority = "bulk" if begin is leave_batch else "robot"
    others = 1 if begin is leave_batch else 0

    def attempt(hold: Hold, number: int) -> None:
        leave = begin(served.address, rows(f"{robot_id}-{number}", rows_total))
        try:
            hold.until(lambda: queued(served, priority) == rows_total + others)
        finally:
            leave()
        hold.until(lambda: queued(served, priority) == others)

    _, since = while_busy(served, stubs, attempt)
    nothing_left(balanced(served))
    assert since.computed == since.journaled == ROWS_A_HOLD
    assert since.ended("cancelled") == rows_total


def test_a_row_that_retries_joined_leaves_with_the_last_of_them(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    def attempt(hold: Hold, number: int) -> int:
        since = hold.since
        row = request(robot_id, number + 1, floats(values(5)))
        calls = [stubs.labels.Label.future(row)]
        hold.until(lambda: queued(served) == 1)
        calls += [stubs.labels.Label.future(row) for _ in range(3)]
        hold.until(lambda: since(JOINS) == 3)
        for call in calls[:2]:
            call.cancel()
        hold.until(lambda: since.ended("cancelled") == 2)
        between = queued(served)
        for call in calls[2:]:
            call.cancel()
        hold.until(lambda: since.ended("cancelled") == 4)
        hold.until(lambda: queued(served) == 0)
        return between

    between, since = while_busy(served, stubs, attempt)
    assert between == 1, "somebody still waited for it"
    nothing_left(balanced(served))
    assert since.computed == ROWS_A_HOLD
    assert since.ended("cancelled") == 4


# ---------------------------------------------------------------- S02: clients that give up


def ask_sync(address: str, robot_id: str, sequence: int) -> None:
    with labeler.Client(address, attempts_max=1) as client:
        client.wait_ready(10_000)
        with pytest.raises(labeler.DeadlinePassedError):
            client.label(robot_id, sequence, values(1), timeout_ms=20)


def ask_asyncio(address: str, robot_id: str, sequence: int) -> None:
    async def ask() -> None:
        async with labeler.AsyncClient(address, attempts_max=1) as client:
            await client.wait_ready(10_000)
            with pytest.raises(labeler.DeadlinePassedError):
                await client.label(robot_id, sequence, values(1), timeout_ms=20)

    asyncio.run(ask())


def ask_grpcio(address: str, robot_id: str, sequence: int) -> None:
    with wire(address) as stubs:
        row = label_pb2.LabelRequest(robot_id=robot_id, sequence=sequence)
        row.payload.CopyFrom(floats(values(1)))
        with pytest.raises(grpc.RpcError) as late:
            stubs.labels.Label(row, timeout=0.02)
        assert late.value.code() == LATE


@pytest.mark.parametrize("ask", [ask_sync, ask_asyncio, ask_grpcio])
def test_a_client_that_gives_up_leaves_no_row_no_record_and_no_late_reply(
    served: Service,
    stubs: Wire,
    robot_id: str,
    ask: Callable[[str, str, int], None],
) -> None:
    """S02: the synchronous client gave up, but its request stayed in the queue and ran."""
    asked = 0

    def attempt(hold: Hold, number: int) -> None:
        nonlocal asked
        # On a busy machine 20 ms may pass before anything is sent.
        while hold.since(RECEIVED) == ROWS_A_HOLD:
            asked += 1
            ask(served.address, robot_id, asked)
        hold.until(lambda: queued(served) == 0)
        hold.until(lambda: served.metrics().requests("Label").parts["in_flight"] == ROWS_A_HOLD)

    _, since = while_busy(served, stubs, attempt)
    nothing_left(balanced(served))
    assert since.computed == since.journaled == ROWS_A_HOLD, "no row of who gave up"
    assert since.ended("answered") == ROWS_A_HOLD, "nobody got a late reply"
    left = since.ended("expired") + since.ended("cancelled")
    assert left == since(RECEIVED) - ROWS_A_HOLD == 1, "each counted once"
    with pytest.raises(grpc.RpcError) as missing:
        stubs.labels.GetLabel(label_pb2.GetLabelRequest(robot_id=robot_id, sequence=asked))
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_row_that_the_model_has_begun_is_journaled_though_its_caller_left(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    """The written rule of trap 1: once inferred, a label is journaled."""
    since = Since(served)
    call = stubs.labels.Label.future(request(robot_id, 1, floats(holding(60_000))))
    eventually(lambda: since.computed == 1)
    call.cancel()
    eventually(lambda: since.journaled == 1)
    kept = stubs.labels.GetLabel(label_pb2.GetLabelRequest(robot_id=robot_id, sequence=1))
    assert kept.label.label == "at-1"
    balanced(served)
