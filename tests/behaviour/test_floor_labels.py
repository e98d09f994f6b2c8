"""The controller's rules: right at each threshold, and at the next float32 on both sides of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeler.fleet import LABELS, WIDTH, label_of

Array = np.ndarray[Any, Any]

FAR = np.float32(5.0)
# What the documentation of `label_of` says, written down a second time.
AHEAD = (23, 0, 1)
FRONT_ONLY = (22, 2)
LEFT = (1, 2, 3, 4, 5, 6, 7)
RIGHT = (23, 22, 21, 20, 19, 18, 17)
BEHIND = tuple(range(8, 17))
TURNS = {0: "turn-left", 1: "turn-right", 23: "turn-left"}  # away from what is near

STOP, TURN, SLOW = (np.float32(metres) for metres in (0.4, 1.1, 2.2))


def the_label(row: Array) -> str:
    [index] = label_of(row[np.newaxis])
    return LABELS[index]


def with_one(sensor: int, metres: np.float32) -> Array:
    row = np.full(WIDTH, FAR, dtype=np.float32)
    row[sensor] = metres
    return row


def just_below(metres: np.float32) -> np.float32:
    return np.float32(np.nextafter(metres, np.float32(0)))


def just_above(metres: np.float32) -> np.float32:
    return np.float32(np.nextafter(metres, FAR))


@pytest.mark.parametrize("sensor", AHEAD)
@pytest.mark.parametrize(
    ("threshold", "nearer", "not_nearer"),
    [(STOP, "stop", "turn"), (TURN, "turn", "slow-down"), (SLOW, "slow-down", "move-forward")],
)
def test_a_range_ahead_changes_the_label_just_below_its_threshold_and_not_at_it(
    sensor: int, threshold: np.float32, nearer: str, not_nearer: str
) -> None:
    ranges = (just_below(threshold), threshold, just_above(threshold))

    found = [the_label(with_one(sensor, metres)) for metres in ranges]

    expected = [TURNS[sensor] if label == "turn" else label for label in (nearer, not_nearer)]
    assert found == [expected[0], expected[1], expected[1]]


@pytest.mark.parametrize("sensor", FRONT_ONLY)
def test_a_range_at_the_edge_of_the_front_stops_a_robot_and_does_nothing_else(sensor: int) -> None:
    ranges = (just_below(STOP), STOP, just_above(STOP), TURN, just_below(SLOW))

    assert [the_label(with_one(sensor, metres)) for metres in ranges] == ["stop"] + (
        ["move-forward"] * 4
    )


@pytest.mark.parametrize("sensor", [s for s in range(WIDTH) if s not in AHEAD + FRONT_ONLY])
def test_what_is_near_at_the_sides_or_behind_lets_a_robot_go_on(sensor: int) -> None:
    assert the_label(with_one(sensor, np.float32(0.02))) == "move-forward"


def near_ahead() -> Array:
    row = np.full(WIDTH, 2.0, dtype=np.float32)
    row[0] = 1.0
    return row


def test_as_much_room_on_both_sides_turns_left() -> None:
    assert the_label(near_ahead()) == "turn-left"


@pytest.mark.parametrize("sensor", RIGHT)
def test_the_least_more_room_on_the_right_turns_right(sensor: int) -> None:
    row = near_ahead()
    row[sensor] += np.spacing(np.float32(14))  # the least that a sum of 14 m can show

    assert the_label(row) == "turn-right"


@pytest.mark.parametrize("sensor", LEFT)
def test_the_least_less_room_on_the_left_turns_right(sensor: int) -> None:
    row = near_ahead()
    row[sensor] -= np.spacing(np.float32(14))

    assert the_label(row) == "turn-right"


@given(st.lists(st.sampled_from([0.02, 0.3, 1.0, 5.0]), min_size=9, max_size=9))
def test_what_is_behind_changes_no_label(behind: list[float]) -> None:
    for sensor in range(WIDTH):
        for metres in (0.3, 1.0, 2.0, 5.0):
            row = with_one(sensor, np.float32(metres))
            if sensor in BEHIND:
                continue
            before = the_label(row)
            row[list(BEHIND)] = behind
            assert the_label(row) == before


def plainly(row: list[float]) -> str:
    """The rules of `label_of` for one row, in plain Python; its sums are in float32."""
    left = right = np.float32(0)
    for sensor in LEFT:
        left = left + np.float32(row[sensor])
    for sensor in RIGHT:
        right = right + np.float32(row[sensor])
    ahead = min(row[sensor] for sensor in AHEAD)
    if min(ahead, row[22], row[2]) < STOP:
        return "stop"
    if ahead < TURN:
        return "turn-left" if left >= right else "turn-right"
    return "slow-down" if ahead < SLOW else "move-forward"


NEAR_THRESHOLDS = [
    float(value) for edge in (STOP, TURN, SLOW) for value in (just_below(edge), edge)
]


@given(
    st.lists(
        st.one_of(st.sampled_from(NEAR_THRESHOLDS), st.floats(0.03125, 5.0, width=32)),
        min_size=WIDTH,
        max_size=WIDTH,
    )
)
def test_any_row_has_the_label_that_the_rules_give_it_one_by_one(row: list[float]) -> None:
    assert the_label(np.array(row, dtype=np.float32)) == plainly(row)


def test_rows_are_labelled_each_for_itself() -> None:
    rows = np.random.default_rng(3).uniform(0.02, 5, (500, WIDTH)).astype(np.float32)

    labels = label_of(rows)

    assert (labels.dtype, labels.shape) == (np.int16, (500,))
    assert [LABELS[label] for label in labels] == [the_label(row) for row in rows]
