"""Invariant 4: memory and disk are bounded in bytes; at the bound a caller learns how long to wait.

The store is stalled under load until the journal is full, again and again. Full counts: about 90 s.
"""

from __future__ import annotations

from collections.abc import Callable

import labeler
from labeler._core import loadgen
from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import write_locked
from tests.support.metrics import Metrics
from tests.support.sending import refused, sender, stopped
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH

MIB = 1 << 20
DISK_BYTES_MAX = 8 * MIB
SMALL = {
    "journal__segment_bytes": "1MiB",
    "journal__disk_bytes_max": DISK_BYTES_MAX,
    "journal__reserve_bytes": "64KiB",
    "journal__memory_bytes_max": "1MiB",
    "writer__retry_ms_max": 100,
    "path__dedupe_rows_max": 1000,
}


def flood(service: Service, cycle: int) -> loadgen.Sender:
    """Batches at a rate that no store of ours keeps up with, each label under a key of its own."""
    made = sender(
        service.address,
        rpc="label_batch",
        batch_rows=200,
        robots=100,
        robot_prefix=f"{'long-name-' * 8}{cycle}-",
        duration_s=60,
        timeout_ms=2000,
        schedule={"shape": "constant", "rate_per_s": 50},
    )
    made.connect()
    made.fire()
    return made


def disk_bytes(scrape: Metrics) -> float:
    """What the journal says that it takes."""
    return scrape.sum(names.JOURNAL_DISK.name)


def segment_bytes(service: Service) -> int:
    """What its files really take."""
    files = (service.state_dir / "journal").glob("segment-*")
    return sum(file.stat().st_size for file in files)


@counts("cycles", quick=1, full=10, full_timeout_s=900)
def test_a_store_stalled_under_load_costs_refusals_and_no_memory_or_disk_again_and_again(
    start_service: StartService, cycles: int
) -> None:
    """Cases KServe #6167, Kinesis Producer Library, W52, freenet #5005."""
    service = start_service(**SMALL)
    eventually(service.database.exists)
    at_bound, answered = [], 0
    for cycle in range(cycles):
        with write_locked(service.database):
            load = flood(service, cycle)
            eventually(lambda: refused(load) > 0, timeout_s=60)  # noqa: B023 - called at once
            full = service.metrics()
            goal = refused(load) + 20_000
            eventually(lambda: refused(load) >= goal, timeout_s=60)  # noqa: B023
            later = service.metrics()
            result = stopped(load)
        answered += result["answered"]
        grown = later.sum(names.PROCESS_RSS.name) - full.sum(names.PROCESS_RSS.name)
        assert grown < 16 * MIB, f"20,000 refusals cost {grown / MIB:.1f} MiB"
        assert set(result["errors"]) <= {"RESOURCE_EXHAUSTED"}, result["errors"]
        assert max(disk_bytes(later), segment_bytes(service)) <= DISK_BYTES_MAX
        assert 0 < later.sum(names.JOURNAL_LIVE.name) < disk_bytes(later), "two metrics, not one"
        at_bound.append(disk_bytes(later))
        rest = balanced(service, timeout_s=60)  # by itself, with no step of an operator
        assert rest.records().parts["stored"] == answered, "what was admitted is kept"
        assert rest.sum(names.JOURNAL_LIVE.name) == 0
    assert len(set(at_bound)) == 1, f"disk at the bound in each cycle: {at_bound}"


def test_at_the_bound_every_way_of_asking_is_told_how_long_to_wait(
    start_service: StartService,
) -> None:
    service = start_service(**SMALL)
    eventually(service.database.exists)
    with write_locked(service.database):
        load = flood(service, 0)
        eventually(lambda: refused(load) > 200, timeout_s=60)
        stopped(load)
        with labeler.Client(service.address, timeout_ms=5000, attempts_max=1) as client:
            for way in (call, batch, stream):
                told = refusal(lambda query, way=way: way(client, query))  # type: ignore[misc]
                assert told.retry_after_ms > 0, way
    balanced(service, timeout_s=60)


def call(client: labeler.Client, query: labeler.LabelQuery) -> object:
    """Asks alone; the error, or the label."""
    try:
        return client.label(query.robot_id, query.sequence, query.values)
    except labeler.LabelerError as error:
        return error


def batch(client: labeler.Client, query: labeler.LabelQuery) -> object:
    """Asks in a batch of one row."""
    [result] = client.label_batch([query])
    return result


def stream(client: labeler.Client, query: labeler.LabelQuery) -> object:
    """Asks in a stream."""
    with client.stream() as open_stream:
        open_stream.send(query.robot_id, query.sequence, query.values)
        try:
            return open_stream.receive()
        except labeler.LabelerError as error:
            return error


def refusal(ask: Callable[[labeler.LabelQuery], object]) -> labeler.OverloadedError:
    """Asks until the last room is gone; the refusal."""
    for sequence in range(1, 10_000):
        answer = ask(labeler.LabelQuery("robot-1", sequence, [1.0] * WIDTH))
        if isinstance(answer, labeler.OverloadedError):
            return answer
    raise AssertionError("never refused")
