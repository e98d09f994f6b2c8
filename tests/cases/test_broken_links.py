"""Links that break in every way between client and service, through a relay (S28, S80).

Silence, delay, a reset, crumbs of one byte; and a service that is gone or moved. Nothing waits
longer than its deadline, the client finds back by itself, and what is unanswered is sent again.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import labeler
from labeler.client import ClientOptions
from tests.support.accounting import balanced
from tests.support.database import stored
from tests.support.load import readings
from tests.support.relay import Relay
from tests.support.reopening import ReopeningRobot
from tests.support.service import Service, StartService, serve
from tests.support.waiting import eventually

_robots = itertools.count(1)


def watchful(timeout_ms: int) -> ClientOptions:
    """A client that asks early whether its connection lives."""
    return {"timeout_ms": timeout_ms, "keepalive_ms": 1_000, "keepalive_timeout_ms": 300}


@pytest.fixture(scope="module")
def watchful_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that asks quiet connections early whether they live."""
    started = serve(
        tmp_path_factory.mktemp("broken-links") / "state",
        transport__keepalive_interval_ms=1_000,
        transport__keepalive_timeout_ms=300,
    )
    try:
        yield started.wait_ready()
    finally:
        started.close()


@pytest.fixture
def service(watchful_service: Service) -> Service:
    """That one, left by the test before."""
    eventually(lambda: connections(watchful_service) == 0, timeout_s=20)
    return watchful_service


@pytest.fixture
def relay(service: Service) -> Iterator[Relay]:
    with Relay(service.address) as one:
        yield one


@pytest.fixture
def robot_id() -> str:
    """A robot that no other test has."""
    return f"robot-{next(_robots)}"


def connections(service: Service) -> float:
    return service.metrics().sum("labeler_connections_open")


def all_stored(service: Service, robot_id: str, last: int) -> bool:
    held = {key for key in stored(service.database) if key[0] == robot_id}
    return held == {(robot_id, n) for n in range(1, last + 1)}


def test_a_stream_over_a_link_that_went_silent_ends_and_what_is_unanswered_is_sent_again(
    service: Service, relay: Relay, robot_id: str, seed: int
) -> None:
    values = readings(random.Random(seed))
    with labeler.Client(relay.address, **watchful(60_000)) as client:
        client.wait_ready(30_000)
        with client.stream() as stream:
            stream.send(robot_id, 1, values)
            assert stream.receive().sequence == 1
            assert connections(service) == 1
            relay.forget()
            stream.send(robot_id, 2, values)
            stream.send(robot_id, 3, values)
            with pytest.raises(labeler.UnavailableError) as over:
                stream.receive()
        assert over.value.unanswered == (2, 3)
        eventually(lambda: connections(service) == 0, timeout_s=20)
        client.wait_ready(30_000)
        with client.stream() as again:
            for sequence in over.value.unanswered:
                again.send(robot_id, sequence, values)
            found = {again.receive().sequence for _ in over.value.unanswered}
    assert found == {2, 3}
    assert relay.connections == 2
    balanced(service)
    assert all_stored(service, robot_id, 3)


def test_a_stream_that_waits_for_nothing_learns_of_a_silent_link_too(
    service: Service, relay: Relay, robot_id: str, seed: int
) -> None:
    """The reader of a quiet stream must not wait for ever (S28)."""
    with labeler.Client(relay.address, **watchful(60_000)) as client:
        client.wait_ready(30_000)
        with client.stream() as stream:
            stream.send(robot_id, 1, readings(random.Random(seed)))
            assert stream.receive().sequence == 1
            relay.forget()
            with pytest.raises(labeler.UnavailableError, match="everything was answered"):
                stream.receive()
    eventually(lambda: connections(service) == 0, timeout_s=20)
    balanced(service)


def test_an_idle_client_whose_link_went_silent_finds_back(
    service: Service, relay: Relay, robot_id: str, seed: int
) -> None:
    values = readings(random.Random(seed))
    with labeler.Client(relay.address, **watchful(2_500)) as client:
        assert client.label(robot_id, 1, values).label
        relay.forget()
        eventually(lambda: connections(service) == 0, timeout_s=20)
        with suppress(labeler.DeadlinePassedError, labeler.UnavailableError):
            client.label(robot_id, 2, values)
        assert eventually(lambda: client.label(robot_id, 2, values), timeout_s=30).sequence == 2
    balanced(service)
    assert all_stored(service, robot_id, 2)


def test_a_link_that_is_reset_costs_a_caller_nothing_but_a_retry(
    service: Service, relay: Relay, robot_id: str, seed: int
) -> None:
    values = readings(random.Random(seed))
    with labeler.Client(relay.address, **watchful(20_000)) as client:
        for sequence in range(1, 11):
            assert client.label(robot_id, sequence, values).sequence == sequence
            relay.cut()
    eventually(lambda: connections(service) == 0)
    balanced(service)
    assert all_stored(service, robot_id, 10)


def test_a_robot_whose_link_is_cut_again_and_again_loses_and_doubles_nothing(
    service: Service, relay: Relay, robot_id: str, seed: int
) -> None:
    async def run() -> ReopeningRobot:
        async with labeler.AsyncClient(relay.address, **watchful(30_000)) as client:
            robot, stop = ReopeningRobot(client, robot_id, seed), asyncio.Event()
            task = asyncio.create_task(robot.run(stop, pause_s=0.01))

            async def more(seen: Callable[[], int], than: int) -> None:
                while seen() <= than:
                    await asyncio.wait([task], timeout=0.01)
                    assert not task.done(), task.exception()

            for cuts in range(10):
                # Answers that come after the last end are of an open link: a cut that finds none
                # ends nothing.
                await more(lambda: len(robot.ends), cuts - 1)
                await more(lambda: len(robot.answers), len(robot.answers))
                relay.cut()
            stop.set()
            await task
            return robot

    robot = asyncio.run(run())
    assert len(robot.ends) >= 9
    assert not robot.wrong
    balanced(service)
    assert all_stored(service, robot_id, robot.sent)


@pytest.mark.parametrize("mode", ["delay", "crumbs"])
def test_a_link_that_delays_or_crumbles_what_is_sent_changes_no_answer(
    service: Service, relay: Relay, seed: int, mode: str
) -> None:
    """One byte a segment: neither side may think that what it reads is whole."""
    relay.mode = mode  # type: ignore[assignment]
    rng = random.Random(seed)
    rows = [readings(rng) for _ in range(10)]
    with (
        labeler.Client(relay.address, timeout_ms=30_000) as client,
        labeler.Client(service.address, timeout_ms=30_000) as direct,
    ):
        single = [client.label(f"{mode}-single", n, row).label for n, row in enumerate(rows, 1)]
        queries = [labeler.LabelQuery(f"{mode}-batch", n, row) for n, row in enumerate(rows, 1)]
        batch = [result.label for result in client.label_batch(queries)]  # type: ignore[union-attr]
        with client.stream() as stream:
            for n, row in enumerate(rows, start=1):
                stream.send(f"{mode}-stream", n, row)
            streamed = {result.sequence: result for result in stream}
        right = [direct.label(f"{mode}-direct", n, row).label for n, row in enumerate(rows, 1)]
    assert single == batch == right
    assert [streamed[n].label for n in range(1, 11)] == right  # type: ignore[union-attr]
    balanced(service)


def test_a_client_of_three_services_goes_on_with_another_when_its_own_is_stopped(
    start_service: StartService, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """S80, as far as it goes now: a list of addresses in one target, and one that is stopped."""
    folder = tmp_path_factory.mktemp("three")
    states = [folder / f"state-{n}" for n in range(3)]
    services = [start_service(ready=False, state_dir=state) for state in states]
    for one in services:
        one.wait_ready()
    target = "ipv4:" + ",".join(one.address for one in services)
    values = readings(random.Random(seed))
    with labeler.Client(target, timeout_ms=20_000) as client:
        client.wait_ready(20_000)
        assert client.label("robot", 1, values).label
        mine = next(one for one in services if connections(one))
        assert mine.stop() == 0
        left = [one for one in services if one is not mine]
        for sequence in range(2, 12):
            assert client.label("robot", sequence, values).sequence == sequence
        served = [one for one in left if connections(one)]
        assert len(served) == 1, "it stays with one"
        assert served[0].stop() == 0
        assert client.label("robot", 12, values).sequence == 12
    (last,) = [one for one in left if one is not served[0]]
    balanced(last)


def test_a_service_that_comes_back_at_its_address_is_found_again(
    start_service: StartService, seed: int
) -> None:
    """The dead one is tried again, without a new client."""
    values = readings(random.Random(seed))
    first = start_service()
    with labeler.Client(first.address, timeout_ms=500, attempts_max=1) as client:
        assert client.label("robot", 1, values).label
        assert first.stop() == 0
        with pytest.raises((labeler.UnavailableError, labeler.DeadlinePassedError)):
            client.label("robot", 2, values)
        again = start_service(transport__grpc_address=first.address)
        assert eventually(lambda: client.label("robot", 2, values), timeout_s=30).sequence == 2
    balanced(again)
