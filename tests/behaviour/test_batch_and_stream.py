"""`LabelBatch` and `LabelStream` on the wire: each row and each message stands for itself."""

import queue
import random
from collections.abc import Iterator

import grpc
import pytest

from labeler.v1 import label_pb2
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


def test_one_bad_row_fails_alone_and_rows_keep_their_order(stubs: Wire, robot_id: str) -> None:
    rows = [request(robot_id, n, floats(FAR)) for n in range(1, 33)]
    rows[7].payload.floats[3] = float("nan")
    results = stubs.labels.LabelBatch(batch(rows)).results
    assert [n for n, result in enumerate(results) if result.HasField("error")] == [7]
    assert results[7].error.field == "payload.floats"
    answered = [r.response.sequence for r in results if r.HasField("response")]
    assert answered == [n for n in range(1, 33) if n != 8]
    assert all(r.response.timing.total_us > 0 for r in results if r.HasField("response"))


def test_a_thousand_rows_are_answered_and_one_more_is_refused(stubs: Wire, robot_id: str) -> None:
    rows = [request(robot_id, n, floats(FAR)) for n in range(1, ROWS_MAX + 1)]
    results = stubs.labels.LabelBatch(batch(rows)).results
    assert [r.response.sequence for r in results] == list(range(1, ROWS_MAX + 1))
    rows.append(request(robot_id, ROWS_MAX + 1, floats(FAR)))
    for refused in ([], rows):
        with pytest.raises(grpc.RpcError) as failure:
            stubs.labels.LabelBatch(batch(refused))
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "1 to 1000 rows" in str(failure.value.details())


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


def test_a_bad_message_is_answered_in_its_place_and_the_stream_goes_on(
    stubs: Wire, robot_id: str
) -> None:
    messages = [
        request(robot_id, 1, floats(FAR)),
        request(robot_id, 2, floats(FAR[:5])),
        request(robot_id, 3, floats(FAR)),
    ]
    replies = {reply.sequence: reply for reply in stubs.labels.LabelStream(iter(messages))}
    assert {n for n, reply in replies.items() if reply.HasField("response")} == {1, 3}
    assert replies[2].error.field == "payload.floats"
    assert replies[1].response.timing.encode_us <= replies[1].response.timing.total_us


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
