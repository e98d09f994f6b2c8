"""S78: attempts went on after the deadline. S02: a caller that gave up was still worked for."""

import asyncio

import pytest

import labeler
from labeler.v1 import label_pb2, types_pb2
from tests.support.scripted import Answer, Script, ScriptedServer, a_label
from tests.support.waiting import eventually

VALUES = [0.5] * 24
UNAVAILABLE = types_pb2.Error(code=14, message="the service is draining; use another instance")


def overloaded(retry_after_ms: int) -> types_pb2.Error:
    """A refusal that says how long to wait."""
    return types_pb2.Error(code=8, message="queue is full", retry_after_ms=retry_after_ms)


def failing_first(times: int, error: types_pb2.Error) -> Script:
    """A script that fails this many requests, then answers."""
    left = iter([error] * times)

    def script(request: label_pb2.LabelRequest) -> Answer:
        return next(left, None) or a_label(request)

    return script


def silent(_: label_pb2.LabelRequest) -> Answer:
    return None


def ask(server: ScriptedServer, kind: str, timeout_ms: int) -> labeler.Label:
    """One label by the blocking or the asyncio client."""
    if kind == "sync":
        with labeler.Client(server.address) as client:
            client.wait_ready()
            return client.label("r1", 1, VALUES, timeout_ms=timeout_ms)

    async def ask_async() -> labeler.Label:
        async with labeler.AsyncClient(server.address) as client:
            await client.wait_ready()
            return await client.label("r1", 1, VALUES, timeout_ms=timeout_ms)

    return asyncio.run(ask_async())


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
def test_an_unavailable_service_is_tried_again_within_the_deadline(kind: str) -> None:
    with ScriptedServer(failing_first(2, UNAVAILABLE)) as server:
        label = ask(server, kind, timeout_ms=2_000)

        assert (label.label, len(server.received)) == ("Move-Forward", 3)


@both
def test_each_attempt_carries_what_is_left_of_the_deadline(kind: str) -> None:
    with ScriptedServer(failing_first(2, UNAVAILABLE)) as server:
        ask(server, kind, timeout_ms=2_000)

        timeouts = [request.timeout_us for request in server.received]
        assert timeouts == sorted(timeouts, reverse=True)
        assert len(set(timeouts)) == 3
        assert max(timeouts) <= 2_000_000


@both
def test_a_short_deadline_ends_the_attempts_and_the_error_says_so(kind: str) -> None:
    with ScriptedServer(lambda _: UNAVAILABLE) as server:
        with pytest.raises(labeler.LabelerError, match=r"\(deadline 20 ms, [12] attempt") as failed:
            ask(server, kind, timeout_ms=20)

        assert len(server.received) <= failed.value.attempts <= 2


@both
def test_the_time_to_wait_is_obeyed(kind: str) -> None:
    with ScriptedServer(failing_first(1, overloaded(300))) as server:
        ask(server, kind, timeout_ms=5_000)

        first, second = (request.timeout_us for request in server.received)
        assert first - second >= 300_000


@both
def test_a_time_to_wait_beyond_the_deadline_ends_the_call_at_once(kind: str) -> None:
    with ScriptedServer(lambda _: overloaded(60_000)) as server:
        with pytest.raises(labeler.OverloadedError, match="1 attempt") as failed:
            ask(server, kind, timeout_ms=30_000)

        assert (failed.value.retry_after_ms, len(server.received)) == (60_000, 1)


@both
def test_a_silent_service_costs_no_more_than_the_deadline(kind: str) -> None:
    with ScriptedServer(silent) as server, pytest.raises(labeler.DeadlinePassedError) as failed:
        ask(server, kind, timeout_ms=50)

    assert "deadline 50 ms, 1 attempt" in failed.value.message


def test_a_call_without_a_timeout_has_the_clients() -> None:
    with ScriptedServer() as server, labeler.Client(server.address) as client:
        client.wait_ready()
        client.label("r1", 1, VALUES)

        assert 0 < server.received[0].timeout_us <= 150_000


def test_a_cancelled_task_ends_its_call_on_the_service() -> None:
    ended: list[str] = []

    async def leave(server: ScriptedServer) -> None:
        async with labeler.AsyncClient(server.address) as client:
            task = asyncio.create_task(client.label("r1", 1, VALUES, timeout_ms=30_000))
            await asyncio.to_thread(eventually, lambda: server.received)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            ended.append("in time")

    with ScriptedServer(silent) as server:
        asyncio.run(leave(server))

    assert ended == ["in time"]


def test_the_last_calls_receipt_goes_with_the_next_request_once() -> None:
    with ScriptedServer() as server, labeler.Client(server.address) as client:
        client.wait_ready()
        label = client.label("r1", 1, VALUES, timeout_ms=5_000)
        client.label("r2", 1, VALUES, timeout_ms=5_000)
        client.label("r1", 2, VALUES, timeout_ms=5_000)

        receipts = [request.last_receipt.sequence for request in server.received]
        assert receipts == [0, 0, 1]
        assert server.received[2].last_receipt.round_trip_us == label.round_trip_us
