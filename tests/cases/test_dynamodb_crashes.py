"""A service that writes to DynamoDB is killed at random moments, under faults drawn by a seed.

W02, W36 and W48 beside a store that fails: every acknowledged label is there once. Full
counts: about 4 minutes.
"""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from labeler.writer.dead_letters import FILE_NAME, DeadLetters
from tests.support.accounting import balanced
from tests.support.audit import at_dynamodb, nothing_lost, pending
from tests.support.counts import counts
from tests.support.dynamodb import DynamoServers
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials
from tests.support.faults.kinds import (
    Broken,
    Fault,
    Hang,
    Poison,
    Reset,
    ServerError,
    Slow,
    Throttle,
    Unprocessed,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.load import Fleet, Robot, robots
from tests.support.place import Place
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


@counts("kills", quick=2, full=100, full_timeout_s=1200)
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


def test_a_kill_between_a_dead_letter_and_its_confirmation_leaves_one_of_it(
    dynamodb_servers: DynamoServers, start_service: StartService, tmp_path: Path, seed: int
) -> None:
    """Case W36: the letter is synced, its record still in the journal: it is in one place.

    Nobody may read what the journal would not show: the letters' mode is the segments'.
    """
    table = dynamodb_servers.get("ministack").table().create()
    disk, bad = FaultyDisk(tmp_path / "disk"), [("robot-000", 2), ("robot-001", 12)]
    with FaultProxy(table.server.url, seed) as proxy:
        settings: dict[str, Any] = at_dynamodb(table, proxy.url)
        settings["prefix"] = (*disk.prefix, *settings["prefix"])
        place = Place(start_service(**settings), table, proxy, robots(2))
        poison = proxy.on(Poison(keys=bad))
        place.tell_at_once(20, seed)
        place.audited(dead=1)
        disk.breaks("sync_kills", "/dead_letters.sqlite3", "once")
        place.tell_at_once(20, seed + 1)
        assert place.service.wait() == -signal.SIGKILL
        left = nothing_lost(place.fleet, table, place.service.state_dir)
        with closing(DeadLetters(place.service.state_dir)) as letters:
            assert [letter.row.key for letter in letters.list()] == bad
        assert bad[1] in pending(place.service.state_dir), "it was not confirmed"
        files = [place.service.state_dir / FILE_NAME, *place.service.state_dir.glob("journal/s*")]
        assert len({file.stat().st_mode for file in files}) == 1
        assert left.dead == 2
        poison.off()  # delivered again, the row would be taken
        proxy.record.clear()
        place.letters_before = 1
        place.service = start_service(place.service.state_dir, **settings)
        place.audited(dead=2)
        assert not proxy.record.writes(bad[1]), "its place is known"
