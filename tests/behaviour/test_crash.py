"""kill -9, as one robot sees it: its label is read back, its retry gets the first answer.

The loop of kills under load, and the account of it, are in `tests/invariants/`.
"""

import random

import labeler
from tests.support.database import acknowledged, stored
from tests.support.load import Fleet, Robot, readings, robots
from tests.support.service import StartService
from tests.support.waiting import eventually

ROBOTS = 8


def label_and_kill(start: StartService, fleet: list[Robot], rng: random.Random, seed: int) -> None:
    """One round: starts the service, kills it in the middle of its answers."""
    service = start()
    with Fleet(service.address, fleet, seed) as sending:
        goal = sending.acknowledged() + rng.randrange(1, 600)
        eventually(lambda: sending.acknowledged() >= goal, timeout_s=30)
        service.kill()


def test_nothing_is_stored_that_nobody_asked_for_after_kill_9(
    start_service: StartService, seed: int
) -> None:
    rng, fleet = random.Random(seed), robots(ROBOTS)
    label_and_kill(start_service, fleet, rng, seed)
    last = start_service()
    assert last.stop() == 0
    sent = {robot.robot_id: robot.sent for robot in fleet}
    assert all(1 <= sequence <= sent[robot] for robot, sequence in stored(last.database))


def test_a_label_is_read_back_by_the_client_after_kill_9(
    start_service: StartService, seed: int
) -> None:
    rng, fleet = random.Random(seed), robots(2)
    label_and_kill(start_service, fleet, rng, seed)
    with labeler.Client(start_service().address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        for (robot_id, sequence), label in acknowledged(fleet).items():
            assert client.get(robot_id, sequence).label == label


def test_a_retry_after_kill_9_gets_the_label_that_was_acknowledged(
    start_service: StartService, seed: int
) -> None:
    values = readings(random.Random(seed))
    first = start_service()
    with labeler.Client(first.address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        told = client.label("robot-1", 1, values)
        first.kill()
    with labeler.Client(start_service().address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        again = client.label("robot-1", 1, values)
    assert (again.label, again.source) == (told.label, "REPLAY")
