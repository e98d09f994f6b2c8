"""Invariant 8: every stage is measured, in every request, always.

Whatever way a request takes: each answer adds one observation to each stage that it went through
and none to a skipped one; each stage is between 0 and the total, and they sum to no more. A request
that got no label adds none. Case S54.
"""

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, types_pb2
from tests.support import made_models
from tests.support.accounting import balanced
from tests.support.metrics import Metrics
from tests.support.service import Service, serve
from tests.support.wire import Wire, floats, request, wire

STAGES = ("decode", "admit", "cache", "queue", "infer", "journal", "encode")
JOINED = ("decode", "admit", "cache", "encode")  # what a replayed or joined request goes through
ENTRIES = ("Label", "LabelBatch", "LabelStream")
BUFFERED, STORED = types_pb2.DURABILITY_BUFFERED, types_pb2.DURABILITY_STORED


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its model takes some ms a run, so that callers can join, expire and leave meanwhile."""
    folder = tmp_path_factory.mktemp("stages")
    made_models.write_identity(folder / "models", width=4, cost=500)
    settings: dict[str, Any] = made_models.settings(folder / "models")
    started = serve(folder / "state", path__batch_rows_max=16, **settings)
    try:
        yield started.wait_ready()
    finally:
        started.close()


def observed(scrape: Metrics) -> dict[str, int]:
    """Observations by stage, the total among them."""
    name = f"{names.STAGE_US.name}_count"
    return {stage: int(scrape.sum(name, stage=stage)) for stage in (*STAGES, "total")}


def added(before: Metrics, after: Metrics) -> dict[str, int]:
    """Observations by stage since then."""
    first, last = observed(before), observed(after)
    return {stage: last[stage] - first[stage] for stage in last}


def asked(robot_id: str, sequence: int, **fields: Any) -> label_pb2.LabelRequest:
    return request(robot_id, sequence, floats([float(sequence), 0, 0, 0]), **fields)


def answers(
    stubs: Wire, entry: str, rows: list[label_pb2.LabelRequest]
) -> list[label_pb2.LabelResponse]:
    """The replies of all rows; each must be answered."""
    if entry == "Label":
        return [call.result(60) for call in [stubs.labels.Label.future(row) for row in rows]]
    results: list[Any]
    if entry == "LabelBatch":
        results = list(stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results)
    else:
        results = list(stubs.labels.LabelStream(iter(rows)))
    assert not [one.error for one in results if one.HasField("error")]
    return [one.response for one in results]


def check(timing: types_pb2.Timing, stages: tuple[str, ...] = STAGES) -> None:
    """Each stage fits into the total, and so do all; a skipped one is 0."""
    spent = {stage: getattr(timing, f"{stage}_us") for stage in STAGES}
    assert timing.total_us > 0
    assert all(0 <= us <= timing.total_us for us in spent.values()), timing
    assert sum(spent.values()) <= timing.total_us, timing
    assert not [stage for stage in STAGES if stage not in stages and spent[stage]], timing


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_answer_adds_one_observation_to_every_stage(measured: Service, entry: str) -> None:
    before = balanced(measured)
    rows = [asked(f"each-{entry}", n) for n in range(1, 41)]
    with wire(measured.address) as stubs:
        for reply in answers(stubs, entry, rows):
            check(reply.timing)
            assert reply.timing.journal_us > 0, "the default level waits for an fsync"
            assert reply.timing.infer_us > 0
            # What is in no stage is rounding, one microsecond a stage at most, but for the time in
            # which a row or message waits for its neighbours to be written.
            spent = sum(getattr(reply.timing, f"{stage}_us") for stage in STAGES)
            assert entry != "Label" or reply.timing.total_us - spent <= len(STAGES)
    assert added(before, balanced(measured)) == dict.fromkeys((*STAGES, "total"), len(rows))


@pytest.mark.parametrize("level", [BUFFERED, STORED])
def test_each_level_of_durability_is_measured_as_a_whole(measured: Service, level: int) -> None:
    before = balanced(measured)
    rows = [asked(f"level-{level}", n, durability=level) for n in range(1, 11)]
    with wire(measured.address) as stubs:
        for reply in answers(stubs, "Label", rows):
            check(reply.timing)
    assert added(before, balanced(measured)) == dict.fromkeys((*STAGES, "total"), len(rows))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_replayed_answer_skips_the_queue_the_model_and_the_journal(
    measured: Service, entry: str
) -> None:
    rows = [asked(f"replay-{entry}", n) for n in range(1, 21)]
    with wire(measured.address) as stubs:
        answers(stubs, entry, rows)
        before = balanced(measured)
        for reply in answers(stubs, entry, rows):
            assert reply.source == types_pb2.SOURCE_REPLAY
            check(reply.timing, JOINED)
    expected = {stage: 20 if stage in (*JOINED, "total") else 0 for stage in (*STAGES, "total")}
    assert added(before, balanced(measured)) == expected


def test_a_batch_that_callers_share_is_measured_for_each_by_its_own_way(
    measured: Service,
) -> None:
    before = balanced(measured)
    with wire(measured.address) as stubs:
        rows = [asked("shared", 1 + n // 8) for n in range(64)]
        replies = answers(stubs, "Label", rows)
        first = [reply for reply in replies if reply.source == types_pb2.SOURCE_MODEL]
        for reply in replies:
            check(reply.timing, STAGES if reply.source == types_pb2.SOURCE_MODEL else JOINED)
    assert len(first) == 8
    counted = added(before, balanced(measured))
    assert {counted[stage] for stage in (*JOINED, "total")} == {64}
    assert {counted[stage] for stage in ("queue", "infer", "journal")} == {8}


def test_a_request_that_gets_no_label_adds_no_observation(measured: Service) -> None:
    before = balanced(measured)
    with wire(measured.address) as stubs:
        bad = [
            asked("", 1),
            asked("none", 1, timeout_us=1),
            asked("none", 2, model="nope"),
            request("none", 3, floats([1.0])),
        ]
        for message in bad:
            with pytest.raises(grpc.RpcError):
                stubs.labels.Label(message)
        results = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=bad)).results
        assert all(one.HasField("error") for one in results)
        assert all(one.HasField("error") for one in stubs.labels.LabelStream(iter(bad)))
    assert set(added(before, balanced(measured)).values()) == {0}


def test_whatever_way_requests_take_each_label_is_observed_once_and_nothing_wraps(
    measured: Service, seed: int
) -> None:
    """Answered, replayed, joined, expired, cancelled, refused, side by side and at random."""
    draw = random.Random(seed)
    before = balanced(measured)
    timings: list[types_pb2.Timing] = []
    with wire(measured.address) as stubs:
        calls = []
        for _ in range(300):
            timeout_us = draw.choice([1_000, 5_000, 5_000_000])
            message = asked(f"any-{seed}", draw.randint(1, 100), timeout_us=timeout_us)
            message.durability = draw.choice([BUFFERED, 0, STORED])  # type: ignore[assignment]
            if draw.random() < 0.1:
                message.payload.floats[0] = float("nan")
            calls.append(stubs.labels.Label.future(message))
            if draw.random() < 0.2:
                draw.choice(calls).cancel()
        ended = threading.Semaphore(0)
        for call in calls:
            call.add_done_callback(lambda _: ended.release())
        for _ in calls:
            assert ended.acquire(timeout=60)
        timings = [call.result().timing for call in calls if _answered(call)]
    for timing in timings:
        check(timing)
    after = balanced(measured)
    answered = [scrape.requests("Label").parts["answered"] for scrape in (before, after)]
    counted = added(before, after)
    assert counted["total"] == answered[1] - answered[0]
    assert {counted[stage] for stage in (*JOINED, "total")} == {counted["total"]}
    assert counted["queue"] == counted["infer"] == counted["journal"] <= counted["total"]
    _plausible(measured)


def _answered(call: Any) -> bool:
    return not call.cancelled() and call.code() == grpc.StatusCode.OK


def _plausible(service: Service) -> None:
    """No histogram holds more than has passed since the start: nothing went below zero."""
    page = json.loads(service.get("/stages"))
    for stage in page["stages"]:
        assert all(us <= 2 * page["uptime_us"] for us, _ in stage["counts"]), stage["stage"]
    scrape = service.metrics()
    name = f"{names.STAGE_US.name}_sum"
    total = scrape.sum(name, stage="total")
    assert 0 < sum(scrape.sum(name, stage=stage) for stage in STAGES) <= total


def test_the_registry_the_protos_and_the_core_name_the_same_stages(measured: Service) -> None:
    found = {
        sample.labels["stage"]
        for sample in measured.metrics().samples
        if sample.name == f"{names.STAGE_US.name}_count"
    }
    assert found == {*STAGES, "total"}
    fields = {field.name for field in types_pb2.Timing.DESCRIPTOR.fields}
    assert fields == {f"{stage}_us" for stage in (*STAGES, "total")}
