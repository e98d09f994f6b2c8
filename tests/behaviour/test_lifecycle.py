"""Stopping: SIGTERM finishes what was accepted, a second one leaves at once with nothing lost."""

import random
import signal

import pytest

import labeler
from tests.support.database import lost_or_changed, stored, write_locked
from tests.support.health import HealthWatch
from tests.support.load import Fleet, readings, robots
from tests.support.service import Service, StartService
from tests.support.waiting import eventually


def label_some(service: Service, seed: int, count: int = 200) -> Fleet:
    """A fleet that has been told `count` labels and was stopped."""
    with Fleet(service.address, robots(4), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= count, timeout_s=30)
    return fleet


def test_sigterm_ends_an_idle_service_with_exit_code_0(start_service: StartService) -> None:
    service = start_service()
    assert service.stop() == 0
    assert service.logged("accepted work is finished")
    assert not service.logged("abandoned by the drain")


def test_sigint_drains_as_sigterm_does(start_service: StartService, seed: int) -> None:
    service = start_service()
    fleet = label_some(service, seed)
    service.process.send_signal(signal.SIGINT)
    assert service.wait() == 0
    assert service.logged("draining")
    assert not lost_or_changed(fleet.robots, service.database)


def test_sigterm_turns_health_to_not_serving_before_the_connection_ends(
    start_service: StartService,
) -> None:
    service = start_service(drain__lame_duck_ms=500)
    with HealthWatch(service.address) as watch:
        eventually(lambda: watch.states == ["SERVING"])
        service.terminate()
        eventually(lambda: watch.states[-1] == "ENDED", timeout_s=30)
    assert watch.states[:2] == ["SERVING", "NOT_SERVING"]
    assert service.wait() == 0


def test_sigterm_under_load_stores_all_that_was_acknowledged(
    start_service: StartService, seed: int
) -> None:
    service = start_service()
    with Fleet(service.address, robots(8), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 400, timeout_s=30)
        assert service.stop() == 0
    assert not lost_or_changed(fleet.robots, service.database)


def test_sigterm_stores_what_was_acknowledged_from_memory_alone(
    start_service: StartService, seed: int
) -> None:
    service = start_service()
    with Fleet(service.address, robots(4), seed, durability="BUFFERED") as fleet:
        eventually(lambda: fleet.acknowledged() >= 400, timeout_s=30)
        assert service.stop() == 0
    assert not lost_or_changed(fleet.robots, service.database)


def test_a_caller_during_the_drain_is_told_to_go_elsewhere(
    start_service: StartService, seed: int
) -> None:
    service = start_service()
    with Fleet(service.address, robots(8), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 100, timeout_s=30)
        service.terminate()
        eventually(lambda: all(robot.refused for robot in fleet.robots), timeout_s=30)
    refused = [error for robot in fleet.robots for error in robot.refused]
    assert {type(error) for error in refused} == {labeler.UnavailableError}
    assert service.wait() == 0


def test_a_stream_is_told_to_reconnect_at_sigterm(start_service: StartService, seed: int) -> None:
    service = start_service()
    with labeler.Client(service.address, timeout_ms=5000) as client:
        client.wait_ready(10_000)
        values = readings(random.Random(seed))
        with client.stream() as stream:
            stream.send("robot-1", 1, values)
            assert stream.receive().sequence == 1
            service.terminate()
            with pytest.raises(labeler.UnavailableError):
                stream.receive()
    assert service.wait() == 0


def test_a_second_sigterm_exits_while_the_writer_still_waits_for_the_store(
    start_service: StartService, seed: int
) -> None:
    service = start_service(drain__budget_ms=600_000)
    eventually(service.database.exists)
    with write_locked(service.database):
        fleet = label_some(service, seed)
        service.terminate()
        eventually(lambda: health_refuses(service))
        service.terminate()
        assert service.wait(timeout_s=20) == 0
        assert lost_or_changed(fleet.robots, service.database)
    last = start_service()
    eventually(lambda: not lost_or_changed(fleet.robots, last.database), timeout_s=30)


def test_the_end_of_the_drain_budget_exits_with_nothing_lost(
    start_service: StartService, seed: int
) -> None:
    service = start_service(drain__budget_ms=500)
    eventually(service.database.exists)
    with write_locked(service.database):
        fleet = label_some(service, seed)
        service.terminate()
        assert service.wait(timeout_s=20) == 0
    last = start_service()
    assert last.stop() == 0
    assert not lost_or_changed(fleet.robots, last.database)


def test_a_restart_after_sigterm_finds_an_empty_journal(
    start_service: StartService, seed: int
) -> None:
    first = start_service()
    fleet = label_some(first, seed)
    assert first.stop() == 0
    held = stored(first.database)
    last = start_service()
    assert last.metrics().records().parts["pending"] == 0
    assert last.stop() == 0
    assert stored(last.database) == held
    assert not lost_or_changed(fleet.robots, last.database)


def health_refuses(service: Service) -> bool:
    """Whether the service is draining: its health is NOT_SERVING, or nobody answers any more."""
    with labeler.Client(service.address, timeout_ms=5000) as client:
        try:
            return client.health(timeout_ms=1000) != "SERVING"
        except labeler.LabelerError:
            return True
