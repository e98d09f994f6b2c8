"""The sensors against a slow and plain reference: each ray with each box and each disc, one by one.

A ray that grazes a corner may go either way, so that the reference gives two bounds: everything a
little larger, and everything a little smaller.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeler.fleet.controller import WIDTH
from labeler.fleet.floor import CELL_M, FREE, RACK, WALL, Floor
from labeler.fleet.sensors import RADIUS_M, RANGE_MAX_M, RANGE_MIN_M, TURN, look, neighbours_of

Array = np.ndarray[Any, Any]

GRAZE_M = 1e-4
TOLERANCE_M = 1e-3


def floor_of(rows: int, columns: int, racks: set[tuple[int, int]]) -> Floor:
    """A hall with racks in these cells."""
    cells = np.full((rows, columns), FREE, dtype=np.uint8)
    for row, column in racks:
        cells[row, column] = RACK
    cells[0] = cells[-1] = WALL
    cells[:, 0] = cells[:, -1] = WALL
    return Floor(0, cells)


def box_at(x: float, y: float, way: tuple[float, float], box: tuple[float, ...]) -> float:
    """Where a ray from (x, y) enters the box (x from, to, y from, to); infinity: never."""
    enters, leaves = 0.0, math.inf
    for start, pace, low, high in ((x, way[0], *box[:2]), (y, way[1], *box[2:])):
        if abs(pace) < 1e-12:
            if not low <= start <= high:
                return math.inf
            continue
        first, second = sorted(((low - start) / pace, (high - start) / pace))
        enters, leaves = max(enters, first), min(leaves, second)
    return enters if enters <= leaves else math.inf


def disc_at(x: float, y: float, way: tuple[float, float], radius: float) -> float:
    """Where a ray from the origin meets a disc whose middle is at (x, y); infinity: never."""
    along = x * way[0] + y * way[1]
    aside = abs(x * way[1] - y * way[0])
    if along <= 0 or aside >= radius:
        return math.inf
    return along - math.sqrt(radius**2 - aside**2)


def plain_range(
    floor: Floor, robots: list[tuple[float, float]], robot: int, angle: float, grown: float
) -> float:
    """One sensor's range, m, with all boxes and discs larger by `grown` all round."""
    x, y = robots[robot]
    way = (math.cos(angle), math.sin(angle))
    nearest = math.inf
    for row, column in np.argwhere(floor.cells != FREE).tolist():
        box = (column * CELL_M, (column + 1) * CELL_M, row * CELL_M, (row + 1) * CELL_M)
        larger = tuple(edge + sign * grown for edge, sign in zip(box, (-1, 1, -1, 1), strict=True))
        nearest = min(nearest, box_at(x, y, way, larger))
    for other, (to_x, to_y) in enumerate(robots):
        if other != robot:
            nearest = min(nearest, disc_at(to_x - x, to_y - y, way, RADIUS_M + grown))
    return min(RANGE_MAX_M, max(RANGE_MIN_M, nearest - RADIUS_M))


def seen(floor: Floor, robots: list[tuple[float, float]], headings: list[int]) -> Array:
    """What the sensors read, float32 [robots, 24]."""
    positions = np.array(robots)
    return look(floor, positions, np.array(headings), neighbours_of(positions)).ranges


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Floor, list[tuple[float, float]], list[int]]:
    """A hall of up to 16 m by 16 m, robots that overlap nothing, and where they look."""
    rows, columns = draw(st.integers(6, 32)), draw(st.integers(6, 32))
    place = st.tuples(st.integers(1, rows - 2), st.integers(1, columns - 2))
    racks = draw(st.sets(place, max_size=40))
    # Fractions of a cell that hit borders and middles exactly, besides any other.
    fraction = st.one_of(st.sampled_from([0.0, 0.25, 0.5]), st.floats(0, 0.999))
    robots: list[tuple[float, float]] = []
    for _ in range(draw(st.integers(1, 6))):
        row, column = draw(place)
        x, y = ((cell + draw(fraction)) * CELL_M for cell in (column, row))
        apart = all(math.hypot(x - a, y - b) >= 2 * RADIUS_M for a, b in robots)
        if (row, column) not in racks and apart:
            robots.append((x, y))
    if not robots:
        robots = [(1.25 * CELL_M, 1.25 * CELL_M)]
        racks.discard((1, 1))
    turned = st.one_of(st.sampled_from(range(0, TURN, 450)), st.integers(0, TURN - 1))
    headings = [draw(turned) for _ in robots]
    return floor_of(rows, columns, racks), robots, headings


@given(scenes())
@settings(max_examples=60, deadline=None)
def test_every_ray_ends_where_the_reference_says(
    scene: tuple[Floor, list[tuple[float, float]], list[int]],
) -> None:
    floor, robots, headings = scene

    ranges = seen(floor, robots, headings)

    for robot, heading in enumerate(headings):
        for sensor in range(WIDTH):
            angle = 2 * math.pi * (heading / TURN + sensor / WIDTH)
            least, most = (
                plain_range(floor, robots, robot, angle, grown) for grown in (GRAZE_M, -GRAZE_M)
            )
            found = float(ranges[robot, sensor])
            assert least - TOLERANCE_M <= found <= most + TOLERANCE_M, (robot, sensor)


def test_the_bounds_of_the_reference_are_close_unless_a_ray_grazes() -> None:
    rng = np.random.default_rng(5)
    floor = floor_of(24, 24, {(r, c) for r, c in rng.integers(2, 22, (30, 2)).tolist()})
    free = [(x, y) for y, x in (np.argwhere(floor.cells == FREE) + 0.5) * CELL_M][::40]
    apart = [
        plain_range(floor, free, robot, angle, -GRAZE_M)
        - plain_range(floor, free, robot, angle, GRAZE_M)
        for robot in range(len(free))
        for angle in rng.uniform(0, 2 * math.pi, 24)
    ]

    assert len(apart) > 100
    assert np.mean(np.array(apart) < TOLERANCE_M) > 0.97


def test_a_wall_is_as_far_as_it_is_from_the_rim() -> None:
    floor = floor_of(20, 20, set())  # 10 m by 10 m, walls of half a metre

    [ranges] = seen(floor, [(3.0, 5.0)], [0])

    assert ranges[0] == np.float32(RANGE_MAX_M)  # the wall is at 9.5 m
    assert ranges[12] == pytest.approx(3.0 - 0.5 - RADIUS_M, abs=1e-6)
    assert ranges[6] == pytest.approx(9.5 - 5.0 - RADIUS_M, abs=1e-6)
    assert ranges[18] == pytest.approx(5.0 - 0.5 - RADIUS_M, abs=1e-6)
    assert ranges[10] == pytest.approx(2.5 / math.cos(math.pi / 6) - RADIUS_M, abs=1e-5)


def test_two_robots_see_each_other_from_rim_to_rim() -> None:
    floor = floor_of(40, 40, set())

    ranges = seen(floor, [(8.0, 10.0), (10.0, 10.0)], [0, TURN // 4])

    assert ranges[0, 0] == pytest.approx(2.0 - 2 * RADIUS_M, abs=1e-6)
    assert ranges[1, 6] == pytest.approx(2.0 - 2 * RADIUS_M, abs=1e-6)  # on its left
    assert (np.delete(ranges[0], 0) == np.float32(RANGE_MAX_M)).all()


def test_a_robot_behind_a_rack_is_not_seen() -> None:
    racks = {(row, 19) for row in range(1, 39)}

    [ranges, _] = seen(floor_of(40, 40, racks), [(8.0, 10.0), (11.0, 10.0)], [0, 0])

    assert ranges[0] == pytest.approx(9.5 - 8.0 - RADIUS_M, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), min_size=1, max_size=40),
    st.floats(0.5, 20),
)
def test_neighbours_are_all_pairs_nearer_than_asked(
    robots: list[tuple[float, float]], within_m: float
) -> None:
    near = neighbours_of(np.array(robots), within_m)

    expected = [
        (i, j)
        for i, (x, y) in enumerate(robots)
        for j, (a, b) in enumerate(robots)
        if i != j and (a - x) * (a - x) + (b - y) * (b - y) < within_m**2
    ]
    assert sorted(zip(near.robot.tolist(), near.other.tolist(), strict=True)) == expected
