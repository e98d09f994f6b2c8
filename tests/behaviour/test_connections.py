"""Connections at their limits: of their number, and of the service's open files.

`tests/behaviour/test_port.py` has what is not gRPC, `test_abusive_peers.py` peers that vanish.
"""

import os
import random
import resource
import socket
from collections.abc import Iterator

import pytest

import labeler
from tests.support.accounting import balanced
from tests.support.flow_http2 import endpoint
from tests.support.load import readings
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH

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
