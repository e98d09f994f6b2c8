"""S86, W32's kind, W16: a wall clock that is stepped, and a process that is stopped for seconds.

Durations come from the monotonic clock, so none is negative or hours long; order comes from the
sequence and the journal. What a stop of the process has made late ends so, and nothing is lost.
"""

import signal
from pathlib import Path

import grpc

import labeler
from labeler.telemetry import names
from labeler.v1 import label_pb2
from tests.support.accounting import balanced
from tests.support.faulty_disk import FaultyDisk
from tests.support.metrics import Metrics
from tests.support.service import StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, Wire, floats, request, wire

HOUR_S = 3600
STEPS_S = (-HOUR_S, 10 * HOUR_S, -600, 0)
"""How far the clock is off, one after the other; each lasts for some labels."""
LABELS = 50
YEARS_US = 10 * HOUR_S * 1_000_000


def label_some(stubs: Wire, first: int) -> list[label_pb2.LabelResponse]:
    return [
        stubs.labels.Label(request("robot", first + n, floats([2.5] * WIDTH)))
        for n in range(LABELS)
    ]


def none_is_negative_or_hours(scrape: Metrics) -> None:
    """All samples that tell a duration or a count since the start."""
    for sample in scrape.samples:
        assert sample.value >= 0, sample
        if "_us" in sample.name and not sample.name.startswith(names.STARTED.name):
            assert sample.value < YEARS_US or sample.name.endswith("_bucket"), sample


def test_a_stepped_clock_makes_no_duration_negative_and_changes_no_order(
    start_service: StartService, tmp_path: Path
) -> None:
    clock = FaultyDisk(tmp_path / "faulty")
    service = start_service(prefix=clock.prefix)
    stamps = []
    with wire(service.address) as stubs:
        replies = label_some(stubs, 1)
        for n, step in enumerate(STEPS_S):
            clock.breaks("clock_back", "-", -step)
            replies += label_some(stubs, 1 + (n + 1) * LABELS)
            none_is_negative_or_hours(service.metrics())
            stamps.append(service.status()["uptime_us"])
        totals = [reply.timing.total_us for reply in replies]
        assert max(totals) < 60_000_000, "less than the least step"
        none_is_negative_or_hours(balanced(service))
        asked = label_pb2.ListLabelsRequest(robot_id="robot", page_size=1000)
        listed = list(stubs.labels.ListLabels(asked).labels)
    assert stamps == sorted(stamps)
    assert [label.sequence for label in listed] == list(range(len(replies), 0, -1))
    numbers = [label.journal_number for label in listed]
    assert numbers == sorted(numbers, reverse=True), "the journal's order is that of the sequences"
    moments = [label.labeled_at_unix_us for label in reversed(listed)]
    assert moments != sorted(moments), "the clock was stepped: its stamps are no order"
    assert service.stop() == 0


def test_a_clock_that_went_back_between_two_lives_hides_no_label(
    start_service: StartService, tmp_path: Path
) -> None:
    clock = FaultyDisk(tmp_path / "faulty")
    first = start_service(prefix=clock.prefix)
    with wire(first.address) as stubs:
        told = label_some(stubs, 1)
    first.kill()
    clock.breaks("clock_back", "-", HOUR_S)
    second = start_service(prefix=clock.prefix)
    with wire(second.address) as stubs:
        again = label_some(stubs, 1)
        assert [reply.label for reply in again] == [reply.label for reply in told]
        assert second.metrics().sum(names.DEDUPE_REPLAYS.name) == LABELS
        label_some(stubs, 1 + LABELS)
    balanced(second)
    assert second.stop() == 0


def test_a_process_that_was_stopped_expires_what_is_late_and_loses_nothing(
    start_service: StartService,
) -> None:
    service = start_service()
    with wire(service.address) as stubs, labeler.Client(service.address, timeout_ms=60_000) as held:
        held.wait_ready(10_000)
        label_some(stubs, 1)
        with held.stream() as stream:
            stream.send("stream", 1, [2.5] * WIDTH)
            assert stream.receive().sequence == 1
            service.process.send_signal(signal.SIGSTOP)
            short = request("late", 1, floats([2.5] * WIDTH), timeout_us=200_000)
            late = stubs.labels.Label.future(short, timeout=0.2)
            patient = stubs.labels.Label.future(request("late", 2, floats([2.5] * WIDTH)))
            stream.send("stream", 2, [2.5] * WIDTH)
            # The caller's own clock ends its call; the service learns of it when it wakes.
            assert late.exception(timeout=30).code() == grpc.StatusCode.DEADLINE_EXCEEDED
            service.process.send_signal(signal.SIGCONT)
            assert patient.result(timeout=30).label, "it has time left"
            assert stream.receive().sequence == 2, "the stream lives on"
        label_some(stubs, 1 + LABELS)
        stored = stubs.labels.ListLabels
        asked = label_pb2.ListLabelsRequest(robot_id="robot", page_size=1000)
        eventually(lambda: len(stored(asked).labels) == 2 * LABELS)
        assert service.metrics().sum(names.CONNECTIONS_TOTAL.name) <= 3, "nobody reconnected"
    balanced(service)
    assert service.stop() == 0
