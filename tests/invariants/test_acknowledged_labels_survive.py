"""Invariant 2: an acknowledged label survives what its level promises: kill -9 and power cuts.

A reply says what is true of its label, so what was promised is taken from the replies themselves.
Full counts: about 150 s for the kills, 60 s for the power cuts.
"""

import random
from pathlib import Path

from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import lost_or_changed, stored
from tests.support.faulty_disk import FaultyDisk
from tests.support.load import Fleet, robots
from tests.support.metrics import Metrics
from tests.support.mixed_load import MixedLoad, Told
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

SMALL = {
    "journal__segment_bytes": "1MiB",
    "journal__disk_bytes_max": "16MiB",
    "journal__reserve_bytes": "64KiB",
}


def live_and_die(service: Service, load: MixedLoad, goal: int) -> None:
    """Loads a service until `goal` labels are acknowledged, and kills it in the middle of more."""
    with load:
        eventually(lambda: load.acknowledged() >= goal, timeout_s=60)
        service.kill()


class Lives:
    """What the admin port says in each life: S58, left-over files make no scrape dearer."""

    def __init__(self) -> None:
        """Nothing has lived yet."""
        self.started = [0.0]
        self.costs: set[int] = set()

    def begin(self, service: Service) -> Metrics:
        """Counters are at 0 again and the start time is a later one; the first scrape."""
        first = service.metrics()
        assert first.sum(names.REQUESTS_RECEIVED.name) == 0
        assert first.sum(names.STARTED.name) > self.started[-1]
        self.started.append(first.sum(names.STARTED.name))
        self.costs.add(len(first.samples))
        return first


def fell(first: Metrics, later: Metrics) -> list[str]:
    """Counters of a life that went back."""
    values = {(one.name, *sorted(one.labels.items())): one.value for one in later.samples}
    counters = [one for one in first.samples if one.name.endswith("_total")]
    assert counters
    return [
        one.name for one in counters if values[(one.name, *sorted(one.labels.items()))] < one.value
    ]


@counts("kills", quick=5, full=50, full_timeout_s=1200)
def test_after_each_kill_9_under_load_every_acknowledged_label_is_stored_as_it_was_told(
    start_service: StartService, tmp_path: Path, seed: int, kills: int
) -> None:
    """Case S58 beside it: each life counts from 0, and a scrape costs the same in all of them."""
    rng, told, lives = random.Random(seed), Told(), Lives()
    for life in range(kills):
        service = start_service()
        first = lives.begin(service)
        load = MixedLoad(service.address, tmp_path, life, seed + life)
        goal = rng.randrange(1, 1000)
        with load:
            eventually(lambda: load.acknowledged() >= goal, timeout_s=60)  # noqa: B023
            assert not fell(first, service.metrics())
            service.kill()
        load.add_to(told)
        held = stored(service.database)
        unstored = {key for key, label in told.of("STORED").items() if held.get(key) != label}
        assert not unstored, "what was told to be stored was in the store at once"
    assert len(lives.costs) == 1, f"samples of the first scrape in each life: {lives.costs}"
    last = start_service()
    balanced(last)
    assert told.of("JOURNALED")
    assert told.of("STORED")
    assert told.of("BUFFERED")
    assert not told.broken(last.database)
    assert not told.torn(last.database), "of what was in memory only the last may be lost"


@counts("cuts", quick=1, full=10, full_timeout_s=600)
def test_after_a_power_cut_that_keeps_only_what_was_synced_no_durable_label_is_missing(
    start_service: StartService, tmp_path: Path, seed: int, cuts: int
) -> None:
    """Cases W76, NATS #7564: sync before the reply, in the journal and in the store."""
    rng, told, state = random.Random(seed), Told(), (tmp_path / "state").resolve()
    for life in range(cuts):
        disk = FaultyDisk(tmp_path / f"disk-{life}", root=state)
        service = start_service(state, prefix=disk.prefix, **SMALL)
        load = MixedLoad(service.address, tmp_path, life, seed + life)
        live_and_die(service, load, goal=rng.randrange(100, 2000))
        load.add_to(told)
        state = disk.mirror.resolve()
    last = start_service(state)
    balanced(last)
    assert told.of("JOURNALED")
    assert not told.broken(last.database)


def test_a_confirmed_label_is_in_the_store_after_a_power_cut_right_then(
    start_service: StartService, tmp_path: Path, seed: int
) -> None:
    """Case W76: a record leaves the journal only when the store's commit is on disk."""
    disk = FaultyDisk(tmp_path / "disk", root=(tmp_path / "state").resolve())
    service = start_service(prefix=disk.prefix, **SMALL)
    with Fleet(service.address, robots(8), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 300, timeout_s=30)
    balanced(service)  # everything is confirmed
    service.kill()
    assert not lost_or_changed(fleet.robots, disk.mirror / service.database.name)
    last = start_service(disk.mirror)
    balanced(last)
    assert not lost_or_changed(fleet.robots, last.database)
