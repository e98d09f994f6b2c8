"""A service that writes to DynamoDB is killed at random moments, under faults drawn by a seed.

W02, W36 and W48 beside a store that fails: every acknowledged label is there once. Full
counts: about 4 minutes.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

from tests.support.accounting import balanced
from tests.support.audit import at_dynamodb, nothing_lost
from tests.support.counts import counts
from tests.support.dynamodb import DynamoServers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials
from tests.support.faults.kinds import (
    Broken,
    Fault,
    Hang,
    Reset,
    ServerError,
    Slow,
    Throttle,
    Unprocessed,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.load import Fleet, Robot, robots
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

MIX: tuple[Fault, ...] = (
    Unprocessed(share=0.4, probability=0.5),
    Throttle("table", probability=0.3),
    Throttle("key_range", probability=0.3),
    ServerError(probability=0.3),
    ServerError(applied=True, probability=0.3),
    Reset("before", probability=0.3),
    Reset("after", probability=0.3),
    Broken("truncated", probability=0.3),
    Hang(probability=0.1),
    Slow(0.2, probability=0.3),
    Credentials("expired", probability=0.3),
)


def labelled(service: Service, fleet: list[Robot], seed: int, count: int) -> None:
    """Until so many more are told, or the service is gone."""
    with Fleet(service.address, fleet, seed) as sending:
        goal = sending.acknowledged() + count
        eventually(lambda: sending.acknowledged() >= goal, timeout_s=60)


@counts("kills", quick=4, full=100, full_timeout_s=1200)
def test_kills_at_random_moments_under_faults_lose_and_double_nothing(
    dynamodb_servers: DynamoServers, start_service: StartService, kills: int, seed: int
) -> None:
    rng = random.Random(seed)
    table = dynamodb_servers.get("ministack").table().create()
    fleet = robots(4)
    with FaultProxy(table.server.url, seed) as proxy:
        for number in range(kills):
            service = start_service(**at_dynamodb(table, proxy.url))
            with ExitStack() as faults:
                for fault in rng.sample(MIX, 3):
                    faults.enter_context(proxy.on(fault))
                labelled(service, fleet, seed + number, count=rng.randint(1, 60))
                service.kill()
        service = start_service(**at_dynamodb(table, proxy.url))
        balanced(service, 60)
        found = nothing_lost(fleet, table, service.state_dir)
    assert found.stored == found.acknowledged >= kills


def test_a_sync_that_fails_beside_a_store_that_fails_costs_no_acknowledged_label(
    dynamodb_servers: DynamoServers, start_service: StartService, tmp_path: Path, seed: int
) -> None:
    """W48: the process ends with 74; what was told is recovered, and arrives."""
    table = dynamodb_servers.get("ministack").table().create()
    with FaultProxy(table.server.url, seed) as proxy:
        settings = at_dynamodb(table, proxy.url)
        started = settings.pop("prefix")
        assert isinstance(started, tuple)
        disk = FaultyDisk(tmp_path / "disk")
        with proxy.on(ServerError(probability=0.5)):
            service = start_service(prefix=(*disk.prefix, *started), **settings)
            fleet = robots(4)
            labelled(service, fleet, seed, count=30)
            disk.breaks("sync_fails", "/journal/segment-", "once")
            with Fleet(service.address, fleet, seed + 1):
                assert service.wait() == 74
        service = start_service(prefix=started, **settings)
        balanced(service, 60)
        nothing_lost(fleet, table, service.state_dir)
