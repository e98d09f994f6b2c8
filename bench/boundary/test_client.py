"""The client: making a request, reading a reply, and whole calls over loopback."""

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from labeler import Client, LabelQuery
from labeler.client.options import Durability
from labeler.v1 import label_pb2

WIDTH = 24
FLOATS = np.full(WIDTH, 2.5, dtype=np.float32)
BATCH_ROWS = 100


@pytest.mark.parametrize("durability", ["BUFFERED", "JOURNALED"])
def test_label(
    benchmark: BenchmarkFixture, client: Client, sequences: Iterator[int], durability: Durability
) -> None:
    """One call of `label`."""
    found = benchmark(lambda: client.label("robot", next(sequences), FLOATS, durability=durability))
    assert found.label


def test_label_batch(benchmark: BenchmarkFixture, client: Client, sequences: Iterator[int]) -> None:
    """One call with 100 rows."""
    found = benchmark(
        lambda: client.label_batch(
            [LabelQuery("robot", next(sequences), FLOATS) for _ in range(BATCH_ROWS)]
        )
    )
    assert len(found) == BATCH_ROWS


def test_request_to_bytes(benchmark: BenchmarkFixture) -> None:
    """Serialization of a request's message, which is protobuf's."""
    request = label_pb2.LabelRequest(robot_id="robot", sequence=1)
    request.payload.floats.extend(FLOATS.tolist())
    assert benchmark(request.SerializeToString)
