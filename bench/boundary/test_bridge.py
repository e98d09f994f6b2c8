"""The border: what a crossing costs that the service makes a few times a second."""

from collections.abc import Iterator

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from labeler import Client, LabelQuery
from labeler._core import Engine

FLOATS = np.full(24, 2.5, dtype=np.float32)
ROWS = 100


def test_snapshot(benchmark: BenchmarkFixture, engine: Engine) -> None:
    """All counters and gauges."""
    assert benchmark(engine.snapshot)


def test_stages(benchmark: BenchmarkFixture, engine: Engine) -> None:
    """All stage histograms."""
    benchmark(engine.stages)


def test_take_and_confirm(
    benchmark: BenchmarkFixture, engine: Engine, client: Client, sequences: Iterator[int]
) -> None:
    """100 records handed to Python, and confirmed."""

    def journaled() -> None:
        numbers = [next(sequences) for _ in range(ROWS)]
        queries = [LabelQuery("robot", n, FLOATS, durability="JOURNALED") for n in numbers]
        client.label_batch(queries)

    def taken() -> int:
        rows = engine.take_records(ROWS, 1 << 20, 1000)
        engine.confirm([row[-1] for row in rows], "stored")
        return len(rows)

    while engine.take_records(1000, 1 << 20, 0):
        pass
    assert benchmark.pedantic(taken, setup=journaled, rounds=30) == ROWS
