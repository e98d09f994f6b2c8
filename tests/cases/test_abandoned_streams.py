"""S26: a stream that was left stayed open on the server. S28: a reader waited for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

import labeler
from labeler.v1 import label_pb2, types_pb2
from tests.support.scripted import Answer, ScriptedServer, a_label
from tests.support.waiting import eventually

VALUES = [0.5] * 24


def script(request: label_pb2.LabelRequest) -> Answer:
    """Silent for `silent`, the end of the stream for `end`, else a label."""
    if request.sku == "silent":
        return None
    if request.sku == "end":
        return types_pb2.Error(code=14, message="the service is draining")
    return a_label(request)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as scripted:
        yield scripted


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[labeler.Client]:
    with labeler.Client(server.address, timeout_ms=30_000) as one:
        one.wait_ready()
        yield one


def streams_end(server: ScriptedServer) -> bool:
    """Whether the service sees the end within a second."""
    return eventually(lambda: server.streams_open == 0, timeout_s=1.0)


def test_leaving_the_loop_and_the_block_ends_the_stream(
    server: ScriptedServer, client: labeler.Client
) -> None:
    with client.stream() as stream:
        stream.send("r1", 1, VALUES)
        stream.send("r1", 2, VALUES, sku="silent")
        for _ in stream:
            break
        assert server.streams_open == 1

    assert streams_end(server)


def test_raising_in_the_loop_ends_the_stream(
    server: ScriptedServer, client: labeler.Client
) -> None:
    def read() -> None:
        with client.stream() as stream:
            stream.send("r1", 1, VALUES)
            for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()

    assert streams_end(server)


def test_dropping_the_reference_ends_the_stream(
    server: ScriptedServer, client: labeler.Client
) -> None:
    stream = client.stream()
    stream.send("r1", 1, VALUES)
    for _ in stream:
        break
    assert server.streams_open == 1

    del stream

    assert streams_end(server)


def test_closing_the_client_ends_its_streams(server: ScriptedServer) -> None:
    client = labeler.Client(server.address, timeout_ms=5000)
    stream = client.stream()
    stream.send("r1", 1, VALUES, timeout_ms=30_000)
    next(stream)

    client.close()

    assert streams_end(server)


async def leave_the_loop(client: labeler.AsyncClient) -> None:
    async with client.stream() as stream:
        await stream.send("r1", 1, VALUES)
        await stream.send("r1", 2, VALUES, sku="silent")
        async for _ in stream:
            break


async def raise_in_the_loop(client: labeler.AsyncClient) -> None:
    async def read() -> None:
        async with client.stream() as stream:
            await stream.send("r1", 1, VALUES)
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()


async def cancel_the_task(client: labeler.AsyncClient) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async with client.stream() as stream:
            await stream.send("r1", 1, VALUES)
            await stream.receive()
            reading.set()
            await stream.receive()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def drop_the_reference(client: labeler.AsyncClient) -> None:
    stream = client.stream()
    await stream.send("r1", 1, VALUES)
    await stream.receive()
    del stream


@pytest.mark.parametrize(
    "leave", [leave_the_loop, raise_in_the_loop, cancel_the_task, drop_the_reference]
)
def test_leaving_an_asyncio_stream_in_any_way_ends_it(
    server: ScriptedServer, leave: Callable[[labeler.AsyncClient], Awaitable[None]]
) -> None:
    async def run() -> bool:
        async with labeler.AsyncClient(server.address, timeout_ms=30_000) as client:
            await leave(client)
            assert len(server.received) >= 1
            return await asyncio.to_thread(streams_end, server)

    assert asyncio.run(run())


def test_a_request_without_an_answer_is_an_error_when_its_time_is_over(
    client: labeler.Client,
) -> None:
    with client.stream() as stream:
        stream.send("r1", 1, VALUES, sku="silent", timeout_ms=50)
        stream.send("r1", 2, VALUES)
        results = {result.sequence: result for result in stream}

    assert isinstance(results[1], labeler.DeadlinePassedError)
    assert isinstance(results[2], labeler.Label)


def test_a_stream_that_the_service_ends_names_what_is_unanswered(client: labeler.Client) -> None:
    with client.stream() as stream:
        stream.send("r1", 1, VALUES, sku="silent")
        stream.send("r1", 2, VALUES, sku="end")

        with pytest.raises(labeler.UnavailableError, match="unanswered sequences: 1, 2") as over:
            list(stream)
        assert over.value.unanswered == (1, 2)
        with pytest.raises(labeler.UnavailableError, match="the service is draining"):
            stream.send("r1", 3, VALUES)


def test_an_asyncio_stream_that_the_service_ends_names_what_is_unanswered(
    server: ScriptedServer,
) -> None:
    async def run() -> tuple[int, ...]:
        async with (
            labeler.AsyncClient(server.address, timeout_ms=30_000) as client,
            client.stream() as stream,
        ):
            await stream.send("r1", 1, VALUES, sku="silent")
            await stream.send("r1", 2, VALUES, sku="end")
            with pytest.raises(labeler.UnavailableError) as over:
                await anext(stream)
            return over.value.unanswered

    assert asyncio.run(run()) == (1, 2)


def test_a_stream_that_is_closed_refuses_use(client: labeler.Client) -> None:
    stream = client.stream()
    stream.close()

    with pytest.raises(labeler.StoppedError):
        stream.send("r1", 1, VALUES)


def test_more_requests_than_the_stream_may_hold_are_refused(server: ScriptedServer) -> None:
    with (
        labeler.Client(server.address, stream_rows_max=2, timeout_ms=5000) as client,
        client.stream() as stream,
    ):
        stream.send("r1", 1, VALUES, sku="silent")
        stream.send("r1", 2, VALUES, sku="silent")

        with pytest.raises(labeler.OverloadedError, match="read results first"):
            stream.send("r1", 3, VALUES)
