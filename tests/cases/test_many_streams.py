"""S22: hundreds of streams from one client process, above what one connection may hold.

Full counts: about 60 s.
"""

import asyncio
import random

import pytest

import labeler
from labeler import open_files
from labeler.client import AsyncLabelStream, ClientOptions, LabelStream
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.load import readings
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

LIMIT = 200
"""The service's default, and what the documents say."""


async def streams_of_one_client(
    address: str, count: int, seed: int, per_connection: int
) -> list[int]:
    """The sequence that each stream was answered, with all of them open at once."""
    values = readings(random.Random(seed))
    async with labeler.AsyncClient(
        address, timeout_ms=60_000, streams_per_connection_max=per_connection
    ) as client:
        streams: list[AsyncLabelStream] = [client.stream() for _ in range(count)]
        for number, stream in enumerate(streams):
            await stream.send(f"robot-{number}", number + 1, values)
        results = [await stream.receive() for stream in streams]
        for stream in streams:
            await stream.close()
    return [result.sequence or 0 for result in results if isinstance(result, labeler.Label)]


@counts("streams", quick=300, full=2_300, full_timeout_s=200)
def test_more_streams_than_a_connection_holds_are_answered_over_further_connections(
    start_service: StartService, streams: int, seed: int
) -> None:
    open_files.raise_limit()
    service = start_service()
    answered = asyncio.run(streams_of_one_client(service.address, streams, seed, 100))
    assert answered == list(range(1, streams + 1))
    scrape = balanced(service)
    assert scrape.sum("labeler_connections_total") == streams // 100
    assert scrape.sum("labeler_connection_streams_max") == LIMIT
    assert scrape.sum("labeler_connection_streams_peak") == 100
    eventually(lambda: service.metrics().sum("labeler_connections_open") == 0)


def test_streams_above_the_services_limit_end_by_their_deadline_and_the_gauge_shows_it(
    start_service: StartService, seed: int
) -> None:
    """A client that is told too high a number: nothing waits unseen past its deadline."""
    service = start_service(transport__streams_per_connection_max=4)
    values = readings(random.Random(seed))
    with labeler.Client(service.address, streams_per_connection_max=100) as client:
        streams: list[LabelStream] = []
        # Each is there before the next one: of some opened together any may be the one that waits.
        for number in range(4):
            streams.append(stream := client.stream())
            stream.send(f"robot-{number}", 1, values, timeout_ms=60_000)
            assert isinstance(stream.receive(), labeler.Label)
        streams.append(client.stream())
        streams[4].send("robot-4", 1, values, timeout_ms=200)
        assert isinstance(streams[4].receive(), labeler.DeadlinePassedError)
        scrape = service.metrics()
        assert scrape.sum("labeler_connection_streams_peak") == 4
        assert scrape.sum("labeler_connection_streams_max") == 4
        for stream in streams:
            stream.close()
    balanced(service)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_streams_that_end_make_room_on_the_connections_that_are_there(
    service: Service, seed: int, kind: str
) -> None:
    values = readings(random.Random(seed))
    before = service.metrics().sum("labeler_connections_total")
    options: ClientOptions = {"timeout_ms": 60_000, "streams_per_connection_max": 2}

    def blocking() -> None:
        with labeler.Client(service.address, **options) as client:
            for turn in range(1, 6):
                streams = [client.stream() for _ in range(4)]
                for number, stream in enumerate(streams):
                    stream.send(f"{kind}-{number}", turn, values)
                    assert stream.receive().sequence == turn
                    stream.close()

    async def on_a_loop() -> None:
        async with labeler.AsyncClient(service.address, **options) as client:
            for turn in range(1, 6):
                streams = [client.stream() for _ in range(4)]
                for number, stream in enumerate(streams):
                    await stream.send(f"{kind}-{number}", turn, values)
                    assert (await stream.receive()).sequence == turn
                    await stream.close()

    blocking() if kind == "blocking" else asyncio.run(on_a_loop())
    assert service.metrics().sum("labeler_connections_total") - before == 2
    balanced(service)
