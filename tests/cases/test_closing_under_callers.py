"""Closing a client under its callers: each is told so, whatever gRPC said. Streams keep theirs."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import labeler
from labeler.v1 import label_pb2, types_pb2
from tests.support.scripted import Answer, Script, ScriptedServer, a_label
from tests.support.waiting import eventually

VALUES = [0.5] * 24
NOBODY = "127.0.0.1:1"
CALLERS = 4
ROUNDS = 10


def silent(_: label_pb2.LabelRequest) -> Answer:
    return None


def wait_first(_: label_pb2.LabelRequest) -> Answer:
    return types_pb2.Error(code=8, message="queue is full", retry_after_ms=300)


def close_under_a_call(server: ScriptedServer) -> None:
    """The blocking client, closed once its call has reached the service."""
    client = labeler.Client(server.address, timeout_ms=30_000)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.label, "r1", 1, VALUES)
        eventually(lambda: server.received)
        client.close()
        call.result(timeout=20)


def close_under_an_async_call(server: ScriptedServer) -> None:
    """The same for asyncio."""

    async def run() -> None:
        client = labeler.AsyncClient(server.address, timeout_ms=30_000)
        call = asyncio.create_task(client.label("r1", 1, VALUES))
        await asyncio.to_thread(eventually, lambda: server.received)
        await client.close()
        async with asyncio.timeout(20):
            await call

    asyncio.run(run())


@pytest.mark.parametrize("close", [close_under_a_call, close_under_an_async_call])
@pytest.mark.parametrize("script", [silent, wait_first])
def test_a_caller_is_told_that_the_client_was_closed(
    script: Script, close: Callable[[ScriptedServer], None]
) -> None:
    with ScriptedServer(script) as server:
        with pytest.raises(labeler.StoppedError):
            close(server)

        assert len(server.received) == 1


def test_a_wait_for_a_connection_ends_with_the_client() -> None:
    client = labeler.Client(NOBODY)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_ready, 60_000)
        client.close()
        with pytest.raises(labeler.StoppedError):
            waiting.result(timeout=20)


def test_an_async_wait_for_a_connection_ends_with_the_client() -> None:
    async def run() -> None:
        client = labeler.AsyncClient(NOBODY)
        waiting = asyncio.create_task(client.wait_ready(60_000))
        await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(20):
            await waiting

    with pytest.raises(labeler.StoppedError):
        asyncio.run(run())


def test_callers_at_any_moment_of_the_close_are_told_the_same() -> None:
    def label_on(client: labeler.Client, robot_id: str, started: threading.Barrier) -> None:
        started.wait(20)
        for sequence in range(1, 1_000_000):
            client.label(robot_id, sequence, VALUES, timeout_ms=20_000)

    with ScriptedServer() as server, ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(ROUNDS):
            client, started = labeler.Client(server.address), threading.Barrier(CALLERS + 1)
            calls = [pool.submit(label_on, client, f"r{n}", started) for n in range(CALLERS)]
            started.wait(20)
            before = len(server.received)
            eventually(lambda before=before: len(server.received) > before)  # type: ignore[misc]
            client.close()
            assert {type(call.exception(20)) for call in calls} == {labeler.StoppedError}


def test_a_stream_keeps_its_client_and_lets_it_go() -> None:
    with ScriptedServer(a_label) as server:
        stream = labeler.Client(server.address).stream()
        gc.collect()
        stream.send("r1", 1, VALUES, timeout_ms=20_000)
        assert next(stream).sequence == 1

        del stream

        assert eventually(lambda: server.streams_open == 0)


def test_an_async_stream_keeps_its_client_and_lets_it_go() -> None:
    async def run(server: ScriptedServer) -> None:
        stream = labeler.AsyncClient(server.address).stream()
        gc.collect()
        await stream.send("r1", 1, VALUES, timeout_ms=20_000)
        assert (await anext(stream)).sequence == 1

        del stream

        assert await asyncio.to_thread(eventually, lambda: server.streams_open == 0)

    with ScriptedServer(a_label) as server:
        asyncio.run(run(server))
