"""The writer's window, gate and back-off, for all orders of records, outcomes and times."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from labeler.stores.base import STORED, Outcome, Status
from labeler.writer.backoff import Backoff
from labeler.writer.gate import Gate, Spread
from labeler.writer.window import Held, Window
from tests.support.journaled import stored_row

ROBOTS = ("a", "b", "c")
UNPROCESSED = Outcome(Status.UNPROCESSED)


def backoff(seed: int = 1) -> Backoff:
    return Backoff(0.05, 5.0, random.Random(seed))


class World:
    """A window beside a list of all that happened to it."""

    def __init__(self, rows_max: int = 1000) -> None:
        self.window = Window(rows_max, backoff)
        self.now_s, self.number = 0.0, 0
        self.writes: list[list[Held]] = []
        self.ended: Counter[int] = Counter()
        self.stored: dict[tuple[str, int], list[int]] = {}

    def add(self, robot: int, sequence: int) -> None:
        self.number += 1
        self.window.add([stored_row(self.number, sequence, ROBOTS[robot])], self.now_s)

    def take(self, rows_max: int) -> None:
        batch = self.window.take(rows_max, self.now_s)
        assert len(batch) <= rows_max
        flying = [held.row.key for write in [*self.writes, batch] for held in write]
        assert len(flying) == len(set(flying)), "never two writes of one key in flight"
        if batch:
            self.writes.append(batch)

    def end(self, which: int, back: int, fails: bool) -> None:
        """A write ends: some rows come back, or none of it is known."""
        if not self.writes:
            return
        batch = self.writes.pop(which % len(self.writes))
        if fails:
            self.window.give_back(batch, self.now_s)
            return
        results = [(held, UNPROCESSED if back >> n & 1 else STORED) for n, held in enumerate(batch)]
        for held, outcome in results:
            if outcome is STORED:
                self.stored.setdefault(held.row.key, []).append(held.row.journal_number)
        settled = self.window.settle(results, self.now_s)
        self.ended.update([*settled.stored, *settled.superseded])

    def finish(self) -> None:
        while self.writes:
            self.end(0, 0, False)
        while self.window.held_rows:
            self.now_s += 5.0
            assert self.window.due_s(0.0) is not None, "what is held has its time"
            self.take(7)
            self.end(0, 0, False)


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(1, 5)),
    st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 31), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 6.0])),
    st.tuples(st.just("hurry")),
)


@given(st.lists(STEPS, max_size=80))
def test_every_record_ends_once_and_the_latest_of_a_key_is_stored_last(
    steps: list[Any],
) -> None:
    world = World()
    for name, *arguments in steps:
        if name == "wait":
            world.now_s += arguments[0]
        elif name == "hurry":
            world.window.hurry(world.now_s)
        else:
            getattr(world, name)(*arguments)
        held = world.number - sum(world.ended.values())
        assert world.window.held_rows == held
    world.finish()
    assert world.ended == Counter(range(1, world.number + 1))
    assert not world.window.waiting_robots
    for numbers in world.stored.values():
        assert numbers == sorted(numbers), "an older record never lands after a newer one"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_the_oldest_go_first(sizes: list[int]) -> None:
    world = World()
    for sequence in range(1, sum(sizes) + 1):
        world.add(sequence % 3, sequence)
    order = []
    for size in sizes:
        world.take(size)
        order += [held.row.journal_number for held in world.writes[-1]]
    assert order == sorted(order)


def test_what_a_failed_write_held_goes_first_in_the_next() -> None:
    world = World()
    for sequence in range(1, 11):
        world.add(0, sequence)
    world.take(3)
    world.take(3)
    world.end(1, 0, fails=True)
    world.end(0, 0, fails=True)
    world.take(8)
    assert [held.row.sequence for held in world.writes[0]] == list(range(1, 9))


def test_a_robot_that_comes_back_again_waits_longer_each_time() -> None:
    world = World()
    world.add(0, 1)
    waits = []
    for _ in range(200):
        world.take(5)
        world.end(0, 1, fails=False)
        due_s = world.window.due_s(0.0)
        assert due_s is not None
        waits.append(due_s - world.now_s)
        world.now_s = due_s
    assert max(waits[:3]) <= 0.2
    assert max(waits) > 4.5
    assert max(waits) <= 5.0


def test_a_robot_that_is_well_again_is_served_in_steps_that_double() -> None:
    world = World()
    for sequence in range(1, 20):
        world.add(0, sequence)
    world.take(1)
    world.end(0, 1, fails=False)
    sizes = []
    while world.window.held_rows:
        world.now_s += 10.0
        world.take(100)
        sizes.append(len(world.writes[0]))
        world.end(0, 0, fails=False)
    assert sizes == [1, 2, 4, 8, 4]


def test_robots_that_wait_take_half_of_a_write_at_most() -> None:
    world = World()
    for sequence in range(1, 30):
        world.add(0, sequence)
        world.add(1, sequence)
    world.take(1)
    world.end(0, 1, fails=False)
    for _ in range(4):
        world.now_s += 10.0
        world.take(10)
        assert sum(held.row.robot_id == "a" for held in world.writes[0]) <= 5
        world.end(0, 0, fails=False)


def test_the_gate_grows_by_success_halves_by_throttles_and_probes_after_an_outage() -> None:
    gate = Gate(16, backoff())
    for _ in range(20):
        gate.succeed(gate.begin())
    assert gate.limit == 16
    epochs = [gate.begin() for _ in range(16)]
    assert not gate.is_open(0.0)
    for epoch in epochs:
        gate.throttle(epoch, 0.0, 0.0)
    assert (gate.limit, gate.under_way) == (8, 0), "of those under way together the first counts"
    for _ in range(8):
        gate.succeed(gate.begin())
    assert gate.limit == 8, "from then on by one for each round of writes"
    gate.succeed(gate.begin())
    assert gate.limit == 9
    gate.fail(gate.begin(), 10.0, 0.0)
    assert gate.limit == 1
    wait_s = gate.opens_in_s(10.0)
    assert wait_s is not None
    assert wait_s <= 0.05
    probe = gate.begin()
    assert not gate.is_open(20.0), "the probe goes alone"
    gate.succeed(probe)
    assert gate.limit == 2


def test_a_part_that_is_busy_is_no_throttle_of_the_table() -> None:
    """A quarter of the robots: one of the four partitions of a new table."""
    spread, robots = Spread(), [f"robot-{n}" for n in range(200)]
    back = set(robots[::4])
    rng = random.Random(3)
    for _ in range(500):
        write = set(rng.sample(robots, 25))
        assert not spread.is_wide(write - back, write & back)


def test_next_tries_of_few_busy_robots_are_no_throttle_of_the_table() -> None:
    spread = Spread()
    cool = iter(range(10_000))
    for _ in range(100):
        busy = {f"busy-{n}" for n in range(7)}
        assert not spread.is_wide((), busy)
        assert not spread.is_wide((), {"busy-1", "busy-2"})
        assert not spread.is_wide([f"cool-{next(cool)}"], ())


@given(st.integers(8, 300), st.integers(1, 25), st.integers(0, 99))
def test_a_table_that_gives_back_three_of_four_rows_is_found_in_writes_of_any_size(
    robots: int, rows: int, seed: int
) -> None:
    spread, rng = Spread(), random.Random(seed)
    found = []
    for _ in range(max(40, 400 // rows)):
        write = [f"robot-{rng.randrange(robots)}" for _ in range(rows)]
        back = {robot for robot in write if rng.random() < 0.75}
        found.append(spread.is_wide(set(write) - back, back))
    assert any(found)
    assert not spread.is_wide({f"robot-{n}" for n in range(robots)}, ()), "it gave back nothing"
    assert not spread.is_wide((), {"robot-0"}), "what was heard before is over"


def test_the_gate_keeps_to_the_time_that_the_store_asks_for() -> None:
    gate = Gate(16, backoff())
    gate.throttle(gate.begin(), 100.0, retry_after_s=30.0)
    assert not gate.is_open(129.9)
    assert gate.is_open(130.0)


def test_waits_of_the_gate_grow_until_a_success_and_are_cut_by_a_drain() -> None:
    gate = Gate(4, backoff())
    waits = []
    for _ in range(100):
        gate.fail(gate.begin(), 0.0, 0.0)
        waits.append(gate.opens_in_s(0.0) or 0.0)
    assert max(waits) > 4.5
    gate.hurry(0.1)
    assert gate.is_open(0.1)
    gate.succeed(gate.begin())
    gate.fail(gate.begin(), 0.0, 0.0)
    assert (gate.opens_in_s(0.0) or 0.0) <= 0.05


def test_the_back_off_doubles_to_its_bound_and_draws_from_zero() -> None:
    waits = backoff()
    bounds, draws = [], []
    for _ in range(2000):
        bounds.append(waits.bound_s())
        draws.append(waits.next_s())
    assert bounds[:4] == [0.05, 0.1, 0.2, 0.4]
    assert bounds[-1] == 5.0
    assert all(0 <= draw <= bound for draw, bound in zip(draws, bounds, strict=True))
    assert min(draws[100:]) < 0.5
    assert max(draws[100:]) > 4.5
    waits.reset()
    assert waits.bound_s() == 0.05
