"""The ways to ask for the same rows: one by one, in batches, over a stream; how each row ended."""

from collections.abc import Callable

import pytest

from labeler.v1 import label_pb2
from tests.support.held import values
from tests.support.wire import Wire, floats, request

_BATCH_ROWS_MAX = 1_000


def rows(robot_id: str, count: int, **fields: object) -> list[label_pb2.LabelRequest]:
    """Rows of one robot, numbered from 1, each with a payload of its own."""
    return [request(robot_id, n, floats(values(n)), **fields) for n in range(1, count + 1)]


def unary(stubs: Wire, asked: list[label_pb2.LabelRequest]) -> list[int]:
    """The status code of each row, sent by itself."""
    calls = [stubs.labels.Label.future(row) for row in asked]
    return [0 if (e := call.exception(timeout=90)) is None else e.code().value[0] for call in calls]


def batch(stubs: Wire, asked: list[label_pb2.LabelRequest]) -> list[int]:
    """The same of batches."""
    codes = []
    for first in range(0, len(asked), _BATCH_ROWS_MAX):
        some = label_pb2.LabelBatchRequest(requests=asked[first : first + _BATCH_ROWS_MAX])
        codes += [result.error.code for result in stubs.labels.LabelBatch(some).results]
    return codes


def stream(stubs: Wire, asked: list[label_pb2.LabelRequest]) -> list[int]:
    """The same of a stream."""
    replies = {reply.sequence: reply for reply in stubs.labels.LabelStream(iter(asked))}
    return [replies[row.sequence].error.code for row in asked]


Send = Callable[[Wire, list[label_pb2.LabelRequest]], list[int]]
ways = pytest.mark.parametrize("send", [unary, batch, stream])
"""The argument `send` of a test that holds for each way."""
