"""Invariant 6: a robot's row waits for at most one running bulk batch, whose cost is bounded.

Checked by counting the bulk batches that begin between a robot's arrival and its own batch. Case
S14 (vLLM #40004): whatever bulk has taken (queue places, room in the journal, places of those who
wait for the store), a robot is not told that something is full. Bulk may starve: then it expires.
That a first bulk batch, whose cost nobody knows yet, is one row, is in `path/batch.rs`.

Full counts: about 60 s.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, types_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import write_locked
from tests.support.held import Hold, Since, queued, start_holdable, values, while_busy
from tests.support.made_models import NAME, holding, settings, write_identity
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import Wire, floats, request, wire

BULK, ROBOT = types_pb2.PRIORITY_BULK, types_pb2.PRIORITY_ROBOT
STORED = types_pb2.DURABILITY_STORED
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
LATE = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
HOUR_US = 3_600_000_000
BULK_STEPS = 25_000  # about 70 ms


def rows(robot_id: str, count: int, **fields: object) -> list[label_pb2.LabelRequest]:
    fields = {"timeout_us": HOUR_US} | fields
    return [request(robot_id, n, floats(values(n)), **fields) for n in range(1, count + 1)]


def batch(stubs: Wire, asked: list[label_pb2.LabelRequest]) -> Any:
    return stubs.labels.LabelBatch.future(label_pb2.LabelBatchRequest(requests=asked))


@pytest.fixture
def stubs_of() -> Iterator[Any]:
    opened = []

    def of(service: Service) -> Wire:
        context = wire(service.address)
        opened.append(context)
        return context.__enter__()

    yield of
    for context in opened:
        context.__exit__(None, None, None)


@counts("robots", quick=8, full=100, full_timeout_s=300)
@pytest.mark.parametrize("way", ["unary", "stream", "batch"])
def test_no_bulk_batch_begins_while_a_robots_row_waits(
    start_service: StartService, tmp_path: Path, stubs_of: Any, robots: int, way: str
) -> None:
    """Each bulk row holds the model, and its cost makes it a batch of its own.

    A robot that is seen in the queue has arrived; bulk batches begun until then are counted in
    the same scrape or later. Those whose records stand before the robot's began before its own.
    Where rows held the model for too short to see most of them, others hold it twice as long.
    """
    service = start_holdable(start_service, tmp_path / "models")
    stubs = stubs_of(service)
    for number in range(5):
        bulk_id, robot_id = f"bulk-{number}", f"robot-{number}"
        payload = floats(holding(BULK_STEPS << number))
        bulk = [
            request(bulk_id, n, payload, timeout_us=HOUR_US, priority=BULK)
            for n in range(1, 4 * robots + 20)
        ]
        since = Since(service)
        working = batch(stubs, bulk)
        arrived: dict[int, int] = {}
        for sequence in range(1, robots + 1):
            eventually(lambda: queued(service) == 0)
            call = _send(stubs, way, request(robot_id, sequence, floats(values(sequence))))
            while not call.is_set():
                scrape = service.metrics()
                if scrape.sum(names.QUEUE_ROWS.name, priority="robot"):
                    arrived[sequence] = since(names.BULK_BATCHES.name)
                    break
            assert call.wait(60)
            assert not working.done(), "the test needs bulk until its end"
        working.cancel()
        balanced(service)
        numbers = _journal_numbers(service)
        for sequence, begun in arrived.items():
            before = sum(
                1
                for key, n in numbers.items()
                if key[0] == bulk_id and n < numbers[robot_id, sequence]
            )
            assert before <= begun, (
                f"robot {sequence}: {before - begun} bulk batches went before it"
            )
        if len(arrived) >= robots // 2:
            return
    raise AssertionError(f"few of {robots} robots were seen in the queue, however long it was held")


def _send(stubs: Wire, way: str, row: label_pb2.LabelRequest) -> threading.Event:
    """Sends a robot's row and returns at once; the event is its answer."""
    done = threading.Event()
    row.priority = ROBOT
    if way == "stream":
        replies = stubs.labels.LabelStream(iter([row]))

        def read() -> None:
            list(replies)
            done.set()

        threading.Thread(target=read, daemon=True).start()
        return done
    call = batch(stubs, [row]) if way == "batch" else stubs.labels.Label.future(row)
    call.add_done_callback(lambda _: done.set())
    return done


def _journal_numbers(service: Service) -> dict[tuple[str, int], int]:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT robot_id, sequence, journal_number FROM labels")
        return {(robot_id, sequence): number for robot_id, sequence, number in found}


def test_a_bulk_batch_is_cut_to_the_cost_that_a_robot_may_wait_for(
    start_service: StartService, tmp_path: Path, stubs_of: Any
) -> None:
    """Runs cost about 1 ms whatever is in them, `bulk_run_us_max` is 0.1 ms: one row a run."""
    root = tmp_path / "models"
    write_identity(root, cost=300)
    small = {"path__bulk_run_us_max": 100, "path__batch_rows_max": 64}
    service = start_service(**(settings(root) | small))
    stubs, since = stubs_of(service), Since(service)
    results = batch(stubs, rows("bulk", 50)).result(timeout=60).results
    assert all(result.HasField("response") for result in results)
    assert since(names.BULK_BATCHES.name) == since.computed == 50
    balanced(service)


def test_bulk_starves_while_robots_ask_and_then_expires_and_is_counted(
    start_service: StartService, tmp_path: Path, stubs_of: Any
) -> None:
    """Robots that wait leave bulk no turn; it ends by its deadline, uncomputed."""
    service = start_holdable(start_service, tmp_path / "models", path__batch_rows_max=1)
    stubs, since = stubs_of(service), Since(service)
    robots = [
        stubs.labels.Label.future(request("robot", n, floats(holding(15_000)), timeout_us=HOUR_US))
        for n in range(1, 61)
    ]
    eventually(lambda: since(names.REQUESTS_RECEIVED.name, method="Label") == 60)
    asked = rows("bulk", 20, timeout_us=300_000)
    results = batch(stubs, asked).result(timeout=60).results
    assert {result.error.code for result in results} == {LATE}
    assert not all(robot.done() for robot in robots), "robots asked all the time"
    assert all(robot.result(timeout=60).label for robot in robots)
    balanced(service)
    assert since(names.BULK_BATCHES.name) == 0
    assert since(names.REQUESTS.name, method="LabelBatch", outcome="expired") == 20


# ------------------------------------------------- S14: whatever bulk has taken


def refused(results: Any) -> int:
    return sum(result.error.code == FULL for result in results)


def test_a_robot_is_not_told_full_while_bulk_has_every_place_of_its_queue(
    start_service: StartService, tmp_path: Path, stubs_of: Any
) -> None:
    small = {"path__bulk_queue_rows_max": 64, "path__batch_rows_max": 16}
    service = start_holdable(start_service, tmp_path / "models", **small)
    stubs = stubs_of(service)

    def attempt(hold: Hold, number: int) -> tuple[Any, list[Any]]:
        flood = batch(stubs, rows(f"bulk-{number}", 500))
        hold.until(lambda: queued(service, "bulk") == 64)
        asked = rows(f"robot-{number}", 50)
        robots = [stubs.labels.Label.future(row) for row in asked]
        hold.until(lambda: queued(service) == 50)
        return flood, robots

    (flood, robots), _ = while_busy(service, stubs, attempt)
    assert all(robot.result(timeout=60).label for robot in robots)
    assert refused(flood.result(timeout=60).results) == 500 - 63, "bulk is what is shed"
    balanced(service)


def test_a_robot_is_not_told_full_while_bulk_has_taken_the_journals_memory(
    start_service: StartService, tmp_path: Path, stubs_of: Any
) -> None:
    """Records of 2,000 scores and a memory bound of 1 MiB: about a hundred fit."""
    root = tmp_path / "models"
    write_identity(root, width=2_000, holdable=True)
    service = start_service(journal__memory_bytes_max=1 << 20, **settings(root))
    stubs = stubs_of(service)
    long = [0.0] * 1_996

    def attempt(hold: Hold, number: int) -> tuple[Any, list[Any]]:
        asked = [
            request(f"bulk-{number}", n, floats([*values(n), *long]), timeout_us=HOUR_US)
            for n in range(1, 301)
        ]
        flood = batch(stubs, asked)
        hold.until(lambda: hold.since(names.ERRORS.name, code="RESOURCE_EXHAUSTED") > 0)
        robots = [
            stubs.labels.Label.future(request(f"robot-{number}", n, floats([*values(n), *long])))
            for n in range(1, 11)
        ]
        hold.until(lambda: queued(service) == 10 or any(robot.done() for robot in robots))
        return flood, robots

    (flood, robots), since = while_busy(service, stubs, attempt, width=2_000)
    assert all(robot.result(timeout=60).label for robot in robots)
    assert refused(flood.result(timeout=60).results) > 100, "bulk is what is shed"
    assert since(names.ERRORS.name, code="RESOURCE_EXHAUSTED") > 100
    balanced(service)


def test_a_robot_that_needs_the_store_is_not_told_full_while_bulk_waits_for_it(
    start_service: StartService, stubs_of: Any
) -> None:
    service = start_service(path__stored_waiters_max=40)
    stubs = stubs_of(service)
    wish = {"durability": STORED, "durability_required": True}
    far = [2.5] * 24
    with write_locked(service.database):
        flood = batch(stubs, [request("bulk", n, floats(far), **wish) for n in range(1, 101)])
        eventually(
            lambda: service.metrics().sum(names.ERRORS.name, code="RESOURCE_EXHAUSTED") == 70
        )
        robots = [
            stubs.labels.Label.future(request("robot", n, floats(far), **wish))
            for n in range(1, 11)
        ]
        eventually(lambda: service.metrics().requests("Label").parts["in_flight"] == 10)
    assert all(robot.result(timeout=60).durability == STORED for robot in robots)
    assert refused(flood.result(timeout=60).results) == 70, "three quarters of 40 were taken"
    balanced(service)


def test_rows_of_a_model_do_not_wait_behind_bulk_of_another(
    start_service: StartService, tmp_path: Path, stubs_of: Any
) -> None:
    root = tmp_path / "models"
    write_identity(root, name="other")
    write_identity(root, holdable=True)
    models = settings(root) | {"models__load": [NAME, "other"]}
    service = start_service(**models)
    stubs = stubs_of(service)

    def attempt(hold: Hold, number: int) -> list[label_pb2.LabelResponse]:
        flood = batch(stubs, rows(f"bulk-{number}", 200))
        hold.until(lambda: queued(service, "bulk") == 201)
        asked = rows(f"robot-{number}", 20, model="other")
        answers = [stubs.labels.Label(row) for row in asked]
        assert not flood.done()
        return answers

    answers, _ = while_busy(service, stubs, attempt)
    assert {answer.model for answer in answers} == {"other"}
    balanced(service)
