"""Faults of the simulated fleet: each changes what it says, in the robots it says, no more."""

from typing import Any

import numpy as np
import pytest

from labeler.errors import InvalidRequestError
from labeler.fleet import WIDTH, Faults, Fleet, Readings

Array = np.ndarray[Any, Any]

ROBOTS = 200
TICKS = 12
ONE_OF_EACH = {
    "bias": Faults(bias_share=0.2),
    "dust": Faults(dust_share=0.2),
    "dead": Faults(dead_share=0.2),
    "burst": Faults(burst_share=0.2),
    "flap": Faults(flap_share=0.2),
}


def run(faults: Faults | None = None) -> tuple[Fleet, list[Readings]]:
    fleet = Fleet(2, ROBOTS, seed=9, faults=faults)
    return fleet, [fleet.step() for _ in range(TICKS)]


@pytest.fixture(scope="module")
def clean() -> list[Readings]:
    """The run without a fault."""
    return run()[1]


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_fault_changes_its_share_of_the_robots_and_no_other_row(
    kind: str, clean: list[Readings]
) -> None:
    fleet, spoilt = run(ONE_OF_EACH[kind])
    affected = fleet.faults.robots[kind]

    changed = np.zeros(ROBOTS, dtype=bool)
    for before, after in zip(clean, spoilt, strict=True):
        changed |= (before.ranges != after.ranges).any(axis=1) | (before.sends != after.sends)
    assert affected.sum() == 40
    assert np.array_equal(changed, affected)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_fault_never_changes_the_floor_the_robots_or_the_truth(
    kind: str, clean: list[Readings]
) -> None:
    _, spoilt = run(ONE_OF_EACH[kind])

    for before, after in zip(clean, spoilt, strict=True):
        for name in ("true_ranges", "truths", "skus", "positions", "headings"):
            assert np.array_equal(getattr(before, name), getattr(after, name)), name
        if kind in ("burst", "flap"):
            assert np.array_equal(before.ranges, after.ranges)
        else:
            assert np.array_equal(before.sends, after.sends)


@pytest.mark.parametrize("bias_m", [0.25, -0.5])
def test_a_biased_robot_reads_everything_too_far_by_as_much(
    bias_m: float, clean: list[Readings]
) -> None:
    fleet, spoilt = run(Faults(bias_share=0.3, bias_m=bias_m))
    who = fleet.faults.robots["bias"]

    for before, after in zip(clean, spoilt, strict=True):
        expected = np.clip(before.ranges[who] + np.float32(bias_m), np.float32(0.02), 5)
        assert np.array_equal(after.ranges[who], expected)


def test_dust_only_shortens_and_strikes_as_many_readings_as_it_says(clean: list[Readings]) -> None:
    fleet, spoilt = run(Faults(dust_share=0.5, dust_readings=0.2))
    who = fleet.faults.robots["dust"]

    before = np.concatenate([readings.ranges[who] for readings in clean])
    after = np.concatenate([readings.ranges[who] for readings in spoilt])
    assert (after <= before).all()
    assert (after < before).mean() == pytest.approx(0.2, abs=0.01)
    assert after.min() >= np.float32(0.02)
    shortened = (after / before)[(after < before) & (before > 1)]
    assert shortened.mean() == pytest.approx(0.5, abs=0.02)


def test_a_dead_sensor_is_one_of_the_ring_and_reads_the_same_for_ever(
    clean: list[Readings],
) -> None:
    fleet, spoilt = run(Faults(dead_share=0.5, dead_m=3.5))
    who = np.flatnonzero(fleet.faults.robots["dead"])
    which = fleet.faults.dead_sensors[who]

    assert len(np.unique(which)) > WIDTH // 2
    for before, after in zip(clean, spoilt, strict=True):
        assert (after.ranges[who, which] == np.float32(3.5)).all()
        alive = before.ranges.copy()
        alive[who, which] = np.float32(3.5)
        assert np.array_equal(after.ranges, alive)


def test_a_burst_sends_the_same_payload_several_times_in_a_row() -> None:
    fleet, spoilt = run(Faults(burst_share=0.1, burst_factor=4))
    who = fleet.faults.robots["burst"]

    for readings in spoilt:
        assert np.array_equal(readings.sends, np.where(who, 4, 1))
        expected = [robot for robot in range(ROBOTS) for _ in range(4 if who[robot] else 1)]
        assert readings.rows.tolist() == expected


def test_a_flapping_robot_is_silent_and_comes_back_each_at_its_own_phase() -> None:
    fleet = Fleet(2, ROBOTS, faults=Faults(flap_share=1.0, flap_up_ticks=5, flap_down_ticks=2))
    ticks = [fleet.step() for _ in range(21)]

    connected = np.array([readings.connected for readings in ticks])
    assert np.array_equal(connected[:7], connected[7:14])
    assert (connected[:7].sum(axis=0) == 5).all()
    assert (connected[:21].sum(axis=1) < ROBOTS).all()
    falls = (connected[:-1] & ~connected[1:]).sum(axis=0)
    assert ((falls == 2) | (falls == 3)).all()  # one silence of two ticks in seven
    for readings in ticks:
        assert readings.rows.tolist() == np.flatnonzero(readings.connected).tolist()


def test_faults_begin_and_end_when_they_should(clean: list[Readings]) -> None:
    _, spoilt = run(Faults(bias_share=1.0, burst_share=1.0, from_tick=4, until_tick=9))

    changed = [
        bool((before.ranges != after.ranges).any())
        for before, after in zip(clean, spoilt, strict=True)
    ]
    assert changed == [4 <= tick < 9 for tick in range(TICKS)]
    assert [int(readings.sends[0]) for readings in spoilt] == [
        5 if 4 <= tick < 9 else 1 for tick in range(TICKS)
    ]


def test_one_fault_does_not_move_another() -> None:
    alone, dusty = run(Faults(dust_share=0.5))
    both, dusty_and_dead = run(Faults(dust_share=0.5, dead_share=0.5, burst_share=0.3))

    assert np.array_equal(alone.faults.robots["dust"], both.faults.robots["dust"])
    dead = np.flatnonzero(both.faults.robots["dead"])
    for one, two in zip(dusty, dusty_and_dead, strict=True):
        differs = one.ranges != two.ranges
        differs[dead, both.faults.dead_sensors[dead]] = False
        assert not differs.any()


def test_a_larger_share_holds_the_robots_of_a_smaller_one() -> None:
    few, _ = run(Faults(dead_share=0.1))
    many, _ = run(Faults(dead_share=0.4))

    assert (few.faults.robots["dead"] <= many.faults.robots["dead"]).all()
    assert many.faults.robots["dead"].sum() == 80


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bias_share", 1.1),
        ("dust_share", -0.1),
        ("dust_readings", float("nan")),
        ("bias_m", 6.0),
        ("dead_m", -0.1),
        ("burst_factor", 0),
        ("flap_up_ticks", 0),
        ("from_tick", -1),
    ],
)
def test_a_wrong_fault_is_named_with_its_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^faults.{field} = {value}: expected "):
        Faults(**{field: value})
