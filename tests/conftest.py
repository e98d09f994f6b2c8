"""Fixtures that all tests share: the service, a client of it, and a seed that is printed."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import labeler
from tests.support.dynamodb import KINDS, DynamoServer, DynamoServers, DynamoTable
from tests.support.fault_proxy import FaultProxy
from tests.support.service import Service, StartService, serve


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with default settings, shared by all tests that leave it as it is."""
    shared = serve(tmp_path_factory.mktemp("shared-service") / "state")
    try:
        yield shared.wait_ready()
    finally:
        shared.close()


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[labeler.Client]:
    """A client of the shared service."""
    with labeler.Client(service.address, timeout_ms=5000) as shared:
        shared.wait_ready(10_000)
        yield shared


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[StartService]:
    """Starts services of the test's own; all of them are gone when the test ends.

    `start_service(state_dir=None, ready=True, prefix=(), args=(), **settings)`: the state directory
    is the test's own, the same for each start, so that a second one is a restart.
    """
    started: list[Service] = []

    def start(
        state_dir: Path | None = None,
        ready: bool = True,
        prefix: tuple[str, ...] = (),
        args: tuple[str, ...] = (),
        **settings: Any,
    ) -> Service:
        one = serve(state_dir or tmp_path / "state", prefix, args, **settings)
        started.append(one)
        return one.wait_ready() if ready else one

    yield start
    for one in started:
        one.close()
        print(f"--- log of service {one.pid}:", *one.stderr[-40:], sep="\n")


@pytest.fixture(scope="session")
def dynamodb_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServers]:
    """Servers of DynamoDB's API by kind, each started when it is first asked for."""
    running = DynamoServers(tmp_path_factory.mktemp("dynamodb"))
    yield running
    running.close()


@pytest.fixture(params=KINDS)
def dynamodb(request: pytest.FixtureRequest, dynamodb_servers: DynamoServers) -> DynamoServer:
    """A server of DynamoDB's API: the test runs once a kind (`servers(...)` chooses kinds)."""
    return dynamodb_servers.get(request.param)


@pytest.fixture
def labels_table(dynamodb: DynamoServer) -> DynamoTable:
    """An empty table of the test's own, on each server."""
    return dynamodb.table().create()


@pytest.fixture
def fault_proxy(dynamodb: DynamoServer, seed: int) -> Iterator[FaultProxy]:
    """A fault proxy before each server; the product speaks to its `url`."""
    with FaultProxy(dynamodb.url, seed) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def scale() -> int:
    """How much longer than usual the random tests run: LABELER_TEST_SCALE, 1 by default."""
    return int(os.environ.get("LABELER_TEST_SCALE", "1"))


@pytest.fixture
def seed() -> int:
    """The test's seed: LABELER_TEST_SEED, else a fresh one; printed with a failure."""
    chosen = int(os.environ.get("LABELER_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"LABELER_TEST_SEED={chosen}")
    return chosen
