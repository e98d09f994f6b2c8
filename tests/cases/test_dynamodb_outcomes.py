"""What DynamoDB says of a write, through a real service: each row ends as it was told, once.

Cases W04, W06, W08 and W34, and the limit of writes under way. Full counts: about 15 s.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

import labeler
from labeler.telemetry import names
from labeler.writer.dead_letters import DeadLetters
from tests.support.accounting import balanced
from tests.support.audit import nothing_lost, pending, through
from tests.support.counts import counts
from tests.support.dynamodb import DynamoServers
from tests.support.faults.kinds import Poison, ServerError, Slow, Throttle, Unprocessed
from tests.support.load import readings
from tests.support.place import Place, placed
from tests.support.waiting import eventually

BATCH_ROWS = 25


@pytest.fixture(scope="module")
def one_service(
    dynamodb_servers: DynamoServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A service that remembers one answered label, and forgets it with the next."""
    table = dynamodb_servers.get("ministack").table().create()
    folder = tmp_path_factory.mktemp("outcomes")
    with placed(table, folder, 13, path__dedupe_rows_max=1) as found:
        yield found


@pytest.fixture
def place(one_service: Place, seed: int) -> Iterator[Place]:
    """The same service, with a clean record and robots of the test's own."""
    one_service.proxy.off()
    one_service.proxy.record.clear()
    one_service.new_robots(seed, 4)
    yield one_service
    one_service.proxy.off()


@pytest.mark.parametrize("marked", [[50], [30, 31], [0, 99]], ids=lambda marked: f"{marked} of 100")
def test_a_poisoned_row_is_a_dead_letter_alone_and_costs_ten_calls_at_most(
    place: Place, marked: list[int], seed: int
) -> None:
    """Case W06, dyno #82: one among a hundred, and two in one batch."""
    first = [(robot.robot_id, n) for n in range(1, 26) for robot in place.fleet]
    bad = [first[number] for number in marked]
    before = extra(place)
    with place.proxy.on(Poison(keys=bad, message="a marked item")):
        queries = place.tell_at_once(100, seed)
        place.audited(dead=len(bad))
    assert [(query.robot_id, query.sequence) for query in queries] == first
    assert set(first) - place.table.rows().keys() == set(bad)
    assert extra(place) - before <= 10 * len(bad)
    assert not place.proxy.record.sent_again()
    with closing(DeadLetters(place.service.state_dir)) as letters:
        reasons = {one.row.key: one.reason for one in letters.list(1000) if one.row.key in bad}
    assert reasons.keys() == set(bad)
    assert all("a marked item" in reason for reason in reasons.values()), reasons


@counts("places", quick=5, full=BATCH_ROWS, full_timeout_s=120)
def test_a_row_is_refused_alone_at_each_place_of_a_batch(
    place: Place, places: int, seed: int
) -> None:
    """Case W06: from the first to the last of a full write, among rows that are good."""
    robot, rounds = place.fleet[0], 0
    left = {number * (BATCH_ROWS - 1) // (places - 1) for number in range(places)}
    place.fleet[:] = [robot]
    while left:
        bad = (robot.robot_id, robot.sent + 1 + min(left))
        with place.proxy.on(Poison(keys=[bad])):
            place.tell_at_once(BATCH_ROWS, seed + rounds)
            eventually(lambda: place.count(names.RECORDS_PENDING) == 0)
        first = place.proxy.record.writes(bad)[0]
        if len(first.keys) == BATCH_ROWS:  # else its rows were taken by two writes
            left.discard(first.keys.index(bad))
        rounds += 1
        assert rounds < 4 * BATCH_ROWS
    assert place.audited(dead=rounds).stored == rounds * (BATCH_ROWS - 1)
    assert not place.proxy.record.sent_again()


def extra(place: Place) -> float:
    """Calls beyond one a write: those of the halves."""
    return place.count(names.WRITER_WRITES) - place.count(names.WRITER_BATCHES)


def test_one_key_five_times_and_again_while_its_resend_waits_is_one_row(
    place: Place, seed: int
) -> None:
    """Case W08, feast #2483."""
    robot_id, values = place.fleet[0].robot_id, readings(random.Random(seed))
    with labeler.Client(place.service.address, timeout_ms=5000) as client:
        with place.proxy.on(Unprocessed(keys=[(robot_id, 7)])) as rule:
            answers = [
                result
                for result in client.label_batch([labeler.LabelQuery(robot_id, 7, values)] * 5)
                if isinstance(result, labeler.Label)
            ]
            eventually(lambda: rule.hits >= 2)
            answers.append(client.label(robot_id, 7, values))
    assert len(answers) == 6
    assert len({(answer.label, answer.confidence) for answer in answers}) == 1
    balanced(place.service)
    assert [key for key in place.table.rows() if key[0] == robot_id] == [(robot_id, 7)]
    assert place.proxy.record.keys[robot_id, 7].stored == 1
    assert "ValidationException" not in place.proxy.record.outcomes
    through(place.proxy)


def two_answers(place: Place, client: labeler.Client, rng: random.Random) -> Iterator[float]:
    """The confidences of two records of one key, beyond what the service remembers."""
    robot_id, other = place.fleet[0].robot_id, place.fleet[1]
    for _ in range(2):
        yield client.label(robot_id, 7, readings(rng)).confidence
        other.sent += 1
        told = client.label(other.robot_id, other.sent, readings(rng))
        other.acknowledged[other.sent] = told.label


def test_a_row_that_is_given_back_for_ever_holds_up_neither_its_robot_nor_others(
    place: Place, seed: int
) -> None:
    """Case W04: it waits, is seen to wait, and arrives in the end."""
    key = (place.fleet[0].robot_id, 3)
    with place.proxy.on(Unprocessed(keys=[key])) as rule:
        place.tell_at_once(100, seed)
        others = {(robot.robot_id, n) for robot in place.fleet for n in robot.acknowledged} - {key}
        eventually(lambda: others <= place.table.rows().keys(), timeout_s=30)
        hits = rule.hits
        eventually(lambda: rule.hits >= hits + 3)
        assert place.count(names.WRITER_WAITING_ROBOTS) == place.count(names.RECORDS_PENDING) == 1
        assert place.count(names.JOURNAL_AGE) > 0
        # A confirmation is on disk a while after it is counted.
        eventually(lambda: pending(place.service.state_dir).keys() == {key})
        assert nothing_lost(place.fleet, place.table, place.service.state_dir).pending == 1
    place.audited()
    again = [one for one, what in place.proxy.record.keys.items() if what.sent > 1]
    assert {robot for robot, _ in again} == {key[0]}
    assert not place.proxy.record.sent_again()


def test_what_came_later_stays_when_the_earlier_was_given_back(place: Place, seed: int) -> None:
    """Case W34, RisingWave #25985: v1 is held back as unprocessed while v2 arrives."""
    key, rng = (place.fleet[0].robot_id, 7), random.Random(seed)
    superseded = place.count(names.RECORDS_SUPERSEDED)
    with labeler.Client(place.service.address, timeout_ms=5000) as client:
        with place.proxy.on(Unprocessed(keys=[key])) as rule:
            answers = two_answers(place, client, rng)
            next(answers)
            eventually(lambda: rule.hits >= 1)
            last = next(answers)
            next(answers, None)
            eventually(lambda: place.count(names.WRITER_HELD) == 2)
    balanced(place.service)
    assert float(place.table.rows()[key]["confidence"]) == pytest.approx(last, rel=1e-6)
    assert place.count(names.RECORDS_SUPERSEDED) - superseded == 1
    assert place.proxy.record.keys[key].stored == 1
    through(place.proxy)


def test_a_write_that_was_given_up_and_is_applied_late_leaves_an_acknowledged_answer(
    place: Place, seed: int
) -> None:
    """Case W34's limit: what a client has given up, the store may still apply, after the newer.

    No batch write can prevent that: the row is one of the answers, not surely the last.
    """
    key, rng = (place.fleet[0].robot_id, 7), random.Random(seed)
    record = place.proxy.record
    with labeler.Client(place.service.address, timeout_ms=5000) as client:
        with place.proxy.on(Slow(600.0, "request", calls=1, keys=[key])) as rule:
            answers = two_answers(place, client, rng)
            both = [next(answers)]
            eventually(lambda: rule.hits == 1 and record.keys[key].stored == 1)
            both.append(next(answers))
            next(answers, None)
            balanced(place.service)
            assert record.keys[key].stored == 2
        eventually(lambda: record.late == 1)
    row = float(place.table.rows()[key]["confidence"])
    assert any(row == pytest.approx(answer, rel=1e-6) for answer in both)
    through(place.proxy)


def test_a_throttle_halves_the_writes_under_way_and_an_outage_leaves_one(
    place: Place, seed: int
) -> None:
    """AIMD, as the gauge shows it."""
    limit = names.WRITER_LIMIT
    with place.proxy.on(ServerError(calls=1)):
        place.tell(5, seed)
        place.audited()
    while place.count(limit) < 16:
        place.tell_at_once(400, seed)
        balanced(place.service)
    with place.proxy.on(Throttle("table", calls=1)) as rule:
        place.tell(5, seed)
        eventually(lambda: rule.hits == 1)
        place.audited()
    assert 8 <= place.count(limit) <= 10
    with place.proxy.on(ServerError()) as rule:
        place.tell(5, seed)
        eventually(lambda: rule.hits >= 3)
        assert place.count(limit) == 1
    place.audited()
