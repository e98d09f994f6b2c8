"""`LabelBatch` and `LabelStream` on the wire: order, bits, and how long a stream stays."""

import queue
import random
from collections.abc import Iterator
from statistics import median

import pytest

from labeler.v1 import label_pb2
from tests.support.raw_http2 import Peer, headers, message
from tests.support.service import Service
from tests.support.wire import WIDTH, Wire, floats, request, wire

FAR = [2.5] * WIDTH
ROWS_MAX = 1_000


@pytest.fixture
def stubs(service: Service) -> Iterator[Wire]:
    with wire(service.address) as open_wire:
        yield open_wire


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:128]


def batch(rows: list[label_pb2.LabelRequest]) -> label_pb2.LabelBatchRequest:
    return label_pb2.LabelBatchRequest(requests=rows)


def test_a_thousand_rows_are_answered_in_their_order(stubs: Wire, robot_id: str) -> None:
    rows = [request(robot_id, n, floats(FAR)) for n in range(1, ROWS_MAX + 1)]
    results = stubs.labels.LabelBatch(batch(rows)).results
    assert [r.response.sequence for r in results] == list(range(1, ROWS_MAX + 1))
    assert all(r.response.timing.total_us > 0 for r in results)


def test_a_rows_scores_are_the_same_alone_and_among_extremes(
    stubs: Wire, robot_id: str, seed: int
) -> None:
    draw = random.Random(seed)
    payloads = [[draw.uniform(0.34, 5.0) for _ in range(WIDTH)] for _ in range(60)]
    alone = [
        stubs.labels.Label(request(f"{robot_id}-alone", n, floats(p), want_scores=True)).scores
        for n, p in enumerate(payloads, start=1)
    ]
    rows = []
    for n, payload in enumerate(payloads, start=1):
        rows.append(request(f"{robot_id}-row", n, floats(payload), want_scores=True))
        extreme = floats([draw.choice((0.0, 0.34, 5.0)) for _ in range(WIDTH)])
        rows.append(request(f"{robot_id}-extreme", n, extreme))
    results = stubs.labels.LabelBatch(batch(rows)).results
    among = [result.response.scores for result in results[::2]]
    assert [list(scores) for scores in among] == [list(scores) for scores in alone]


def test_a_stream_answers_while_it_is_open_and_outlives_the_default_deadline(
    stubs: Wire, robot_id: str
) -> None:
    sending: queue.Queue[label_pb2.LabelRequest | None] = queue.Queue()
    replies = stubs.labels.LabelStream(iter(sending.get, None))
    for n in range(1, 4):
        # A second without a message is many default deadlines: the stream as a whole has none.
        with pytest.raises(queue.Empty):
            queue.Queue[None]().get(timeout=0.5)
        sending.put(request(robot_id, n, floats(FAR)))
        assert next(replies).response.sequence == n
    sending.put(None)
    assert list(replies) == []


def test_many_messages_of_one_stream_are_all_answered(stubs: Wire, robot_id: str) -> None:
    messages = [request(robot_id, n, floats(FAR)) for n in range(1, 2_001)]
    replies = [reply.response.sequence for reply in stubs.labels.LabelStream(iter(messages))]
    assert sorted(replies) == list(range(1, 2_001))


def test_calls_that_come_together_are_computed_together_once_more_than_few_do(
    service: Service, robot_id: str
) -> None:
    with Peer(service.address) as peer:

        def together(first: int) -> float:
            """Batches that 8 calls took which arrive in one segment."""
            streams = range(first, first + 16, 2)
            before = service.metrics().sum("labeler_batches_total")
            calls = []
            for n in streams:
                body = message(request(robot_id, n, floats(FAR)).SerializeToString())
                calls.append(peer.open(n, headers()) + peer.data(n, body))
            peer.send(*calls)
            assert [peer.answer(n).code for n in streams] == [0] * len(streams)
            return service.metrics().sum("labeler_batches_total") - before

        # The first tell the thread that takes them in that it is busy. A model's thread that had no
        # processor since the batch before has not begun to wait: it takes the first call by itself.
        assert 1 <= together(1) <= 8
        assert median(together(first) for first in range(17, 17 + 16 * 21, 16)) == 1
