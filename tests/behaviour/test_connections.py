"""Connections at their limits, and connections whose peers vanish: nothing is left of them.

`tests/behaviour/test_port.py` has what is not gRPC. Full counts: about 30 s.
"""

import os
import random
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import labeler
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.flow_http2 import Robot, endpoint, framed
from tests.support.load import readings
from tests.support.raw_http2 import PREFACE
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request

VALUES = [2.5] * WIDTH


def gauge(service: Service, name: str) -> float:
    return service.metrics().sum(f"labeler_{name}")


def closed_by_peer(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_burst_of_connections_over_the_limit_is_refused_counted_and_recovers(
    start_service: StartService, seed: int
) -> None:
    """As many as the limit are kept, though all of them come before the first is looked at."""
    service = start_service(transport__connections_max=20)
    burst = [socket.create_connection(endpoint(service.address)) for _ in range(100)]
    eventually(lambda: gauge(service, "connections_total") == 100)
    assert gauge(service, "connections_open") == 20
    assert gauge(service, "connections_refused_total") == 80
    assert all(closed_by_peer(one) for one in burst[20:])
    for one in burst:
        one.close()
    eventually(lambda: gauge(service, "connections_open") == 0)
    with labeler.Client(service.address, timeout_ms=20_000) as client:
        assert client.label("after", 1, readings(random.Random(seed))).label
    balanced(service)


def test_a_client_refused_at_the_limit_is_served_once_there_is_room(
    start_service: StartService, seed: int
) -> None:
    service = start_service(transport__connections_max=1)
    values = readings(random.Random(seed))
    with labeler.Client(service.address, timeout_ms=20_000) as first:
        assert first.label("first", 1, values).label
        with labeler.Client(service.address, timeout_ms=500, attempts_max=1) as second:
            with pytest.raises((labeler.UnavailableError, labeler.DeadlinePassedError)):
                second.label("second", 1, values)
            assert first.label("first", 2, values).label
            first.close()
            assert eventually(lambda: second.label("second", 1, values), timeout_s=30).label
    balanced(service)


@pytest.fixture
def few_files(start_service: StartService) -> Iterator[Service]:
    """A service that has files left for eight connections, and no more."""
    service = start_service()
    before = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
    balanced(service)
    open_files = len(os.listdir(f"/proc/{service.pid}/fd"))
    resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (open_files + 8, before[1]))
    yield service
    if service.process.poll() is None:
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, before)


def test_a_service_out_of_files_keeps_its_port_says_so_and_recovers(
    few_files: Service, seed: int
) -> None:
    values = readings(random.Random(seed))
    with labeler.Client(few_files.address, timeout_ms=20_000) as client:
        assert client.label("inside", 1, values).label
        crowd = [socket.create_connection(endpoint(few_files.address)) for _ in range(60)]
        eventually(lambda: few_files.logged("connections cannot be accepted"))
        for sequence in range(2, 22):
            assert client.label("inside", sequence, values).label
        for one in crowd:
            one.close()
        eventually(lambda: few_files.logged("connections are accepted again"), timeout_s=30)
    # A line for each time that it begins, not for each try, of which there are twenty a second.
    said = few_files.logged("connections cannot be accepted")
    assert len(said) <= 1 + len(few_files.logged("connections are accepted again"))
    assert "os error 24" in said[0]["error"]
    with labeler.Client(few_files.address, timeout_ms=20_000) as late:
        late.wait_ready(20_000)
        assert late.label("late", 1, values).label
    balanced(few_files)


def vanish(address: str, way: int, number: int) -> None:
    """A connection that ends in one of eight ways, none of them in order."""
    if way < 2:
        raw = socket.create_connection(endpoint(address))
        raw.sendall(PREFACE[: 24 if way else 12])
        raw.close()
        return
    peer = Robot(address)
    message = request(f"vanishes-{number}", 1, floats(VALUES))
    stream = peer.open("Label" if way % 2 else "LabelStream")
    if way < 4:  # in the middle of a frame
        peer.h2.send_data(stream, framed(message))
        data = peer.h2.data_to_send()
        peer.socket.sendall(data[: len(data) - 7])
    else:
        peer.send(stream, [message], end=way == 7)
    if number % 16 < 8:
        peer.vanish()
    else:
        peer.close()


def threads_of(service: Service) -> int:
    return len(list(Path(f"/proc/{service.pid}/task").iterdir()))


@counts("cycles", quick=160, full=1_000, full_timeout_s=180)
def test_connections_that_vanish_in_any_way_leave_nothing_behind(
    start_service: StartService, cycles: int, seed: int
) -> None:
    service = start_service()
    with labeler.Client(service.address, timeout_ms=20_000) as client:
        client.label("before", 1, readings(random.Random(seed)))
    balanced(service)
    eventually(lambda: gauge(service, "connections_open") == 0)
    files, threads = len(os.listdir(f"/proc/{service.pid}/fd")), threads_of(service)
    for number in range(cycles):
        vanish(service.address, number % 8, number)
    eventually(lambda: gauge(service, "connections_open") == 0, timeout_s=30)
    assert gauge(service, "streams_open") == 0
    balanced(service)
    # Files of the journal and of the store may come and go; those of connections would be many.
    eventually(lambda: len(os.listdir(f"/proc/{service.pid}/fd")) <= files + 4)
    assert threads_of(service) <= threads + 1
