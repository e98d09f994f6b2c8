"""Invariant 11: what came in is answered, rejected, expired, cancelled, failed or in flight.

And what was journaled is stored, superseded, dead or pending. Exact at rest; each term that counts
something that happened never falls.
"""

import random
from itertools import pairwise

import pytest

import labeler
from tests.support.accounting import balanced
from tests.support.load import Fleet, readings, robots
from tests.support.service import Service, StartService
from tests.support.waiting import eventually


def every_way(service: Service, seed: int) -> None:
    """Requests that end in as many ways as a client can bring about."""
    values = readings(random.Random(seed))
    with labeler.Client(service.address, attempts_max=1, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        client.label("robot-a", 1, values)
        client.label("robot-a", 1, values)
        with pytest.raises(labeler.KeyReusedError):
            client.label("robot-a", 1, values + 1)
        with pytest.raises(labeler.InvalidRequestError):
            client.label("robot-a", 2, values[:3])
        with pytest.raises(labeler.ModelNotFoundError):
            client.label("robot-a", 3, values, model="no-such")
        rows = [labeler.LabelQuery("robot-b", n, values) for n in range(1, 101)]
        rows += [labeler.LabelQuery("robot-c", 1, values[:5])]
        client.label_batch(rows)
        with client.stream() as stream:
            stream.send("robot-d", 1, values)
            next(iter(stream))
        client.get("robot-a", 1)
        list(client.list("robot-a"))


def test_requests_balance_at_rest_for_each_method(start_service: StartService, seed: int) -> None:
    service = start_service()
    every_way(service, seed)
    scrape = balanced(service)
    assert {"Label", "LabelBatch", "LabelStream"} <= scrape.methods()


def test_records_balance_at_rest(start_service: StartService, seed: int) -> None:
    service = start_service()
    every_way(service, seed)
    balance = balanced(service).records()
    assert balance.parts["stored"] == 102  # robot-a 1, robot-b 100, robot-d 1


def test_requests_balance_after_a_load_that_was_cut_off(
    start_service: StartService, seed: int
) -> None:
    service = start_service()
    with Fleet(service.address, robots(16), seed, timeout_ms=2) as fleet:
        eventually(lambda: sum(robot.sent for robot in fleet.robots) > 2000, timeout_s=30)
    balance = balanced(service).requests("Label")
    assert balance.entered <= sum(robot.sent for robot in fleet.robots)


def test_records_balance_after_kill_9(start_service: StartService, seed: int) -> None:
    first = start_service()
    with Fleet(first.address, robots(8), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 400, timeout_s=30)
        first.kill()
    balanced(start_service())


def test_no_counter_falls_under_load(start_service: StartService, seed: int) -> None:
    service = start_service()
    with Fleet(service.address, robots(4), seed) as fleet:
        scrapes = []
        for goal in range(100, 1100, 100):
            eventually(lambda: fleet.acknowledged() >= goal, timeout_s=30)  # noqa: B023
            scrapes.append(service.metrics())
    for before, after in pairwise(scrapes):
        for name in sorted(n for n in before.names() if n.endswith("_total")):
            assert after.sum(name) >= before.sum(name), name
