"""The control side's loop says how late it is, of all moments and not of those when it was free."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeler.loop import Lag, LoopThread, Worker
from labeler.telemetry.histograms import percentile
from tests.support.waiting import eventually

STEP_S = 0.5


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    assert thread.stop(20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows priorities by thread")
def test_a_loop_steps_back_and_so_do_the_threads_that_it_calls() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    loop, worker = LoopThread(nice=3), Worker("worker")

    async def both() -> tuple[int, int]:
        theirs = await worker.call(lambda: os.getpriority(os.PRIO_PROCESS, 0))
        return os.getpriority(os.PRIO_PROCESS, 0), theirs

    assert loop.call(both(), 20) == (mine + 3, mine + 3)
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
    turns = loop.call(turn_ns(), 20)
    assert turns in ("", "100000000"), "EEVDF's slice, in kernels that have and show it"
    worker.close()
    assert loop.stop(20)


async def turn_ns() -> str:
    """The longest turn of this thread; empty where the kernel tells of none."""
    try:
        told = Path(f"/proc/self/task/{threading.get_native_id()}/sched").read_text()
    except OSError:
        return ""
    return "".join(re.findall(r"^se\.slice\s*:\s*(\d+)", told, re.M))


def ticking(count: int) -> tuple[Lag, float]:
    """A lag that was on time so often, and the moment of the last time."""
    lag = Lag(STEP_S, 0.0)
    for n in range(1, count + 1):
        assert lag.tick(n * STEP_S) == STEP_S
    return lag, count * STEP_S


def test_a_stall_counts_with_every_tick_that_it_has_missed() -> None:
    """One late tick in 981 would leave the p99 at 0; the loop hung for a tenth of the time."""
    lag, now_s = ticking(980)
    assert lag.tick(now_s + 109 * STEP_S) == STEP_S
    counts = lag.counts()
    assert sum(count for _, count in counts) == 980 + 109
    assert percentile(counts, 0.5) == 0
    assert percentile(counts, 0.99) == pytest.approx(98 * STEP_S * 1e6, rel=0.01)
    assert lag.sum_us == sum(range(109)) * STEP_S * 1e6


def test_a_timer_that_is_early_is_not_late_and_keeps_the_schedule() -> None:
    lag = Lag(STEP_S, 0.0)
    assert lag.tick(0.9 * STEP_S) == pytest.approx(1.1 * STEP_S)
    assert (lag.counts(), lag.sum_us) == ([(0, 1)], 0)


def test_a_process_that_was_stopped_for_a_day_counts_its_ticks_up_to_a_bound() -> None:
    lag = Lag(0.05, 0.0)
    assert lag.tick(86_400.0) == 0.05
    assert sum(count for _, count in lag.counts()) == 10_000
    assert percentile(lag.counts(), 1.0) == pytest.approx(86_400e6, rel=0.01)


@given(st.integers(0, 1 << 40))
def test_a_bound_is_within_a_hundredth_of_its_value(lag_us: int) -> None:
    lag = Lag(1e9, -1e9)
    lag.tick(lag_us / 1e6)
    [(upper, count)] = lag.counts()
    assert count == 1
    assert lag_us - 1 <= upper <= lag_us * 1.01 + 1  # the s of a float are a µs off


def test_a_loop_that_is_held_up_shows_it(loop: LoopThread) -> None:
    held = threading.Event()
    began_s = time.monotonic()
    loop.soon(held.wait, 30)
    eventually(lambda: time.monotonic() > began_s + 0.5)
    held.set()
    worst = eventually(lambda: [n for upper, n in loop.lag.counts() if upper >= 100_000])
    assert sum(worst) >= 5
