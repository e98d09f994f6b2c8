"""`GetLabel` and `ListLabels`, and a Python that is too busy to answer them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from labeler.v1 import label_pb2, types_pb2
from tests.support.service import Service, environment
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, Wire, error_of, floats, request, wire

FAR = [2.5] * WIDTH
STORED = types_pb2.DURABILITY_STORED


@pytest.fixture
def stubs(service: Service) -> Iterator[Wire]:
    with wire(service.address) as open_wire:
        yield open_wire


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:128]


def get(stubs: Wire, robot_id: str, sequence: int) -> label_pb2.StoredLabel:
    asked = label_pb2.GetLabelRequest(robot_id=robot_id, sequence=sequence)
    reply: label_pb2.GetLabelResponse = stubs.labels.GetLabel(asked)
    return reply.label


def test_a_label_is_read_back_at_once_and_then_from_the_store(stubs: Wire, robot_id: str) -> None:
    asked = request(robot_id, 5, floats(FAR), sku="sku-1", captured_at_unix_us=9)
    reply = stubs.labels.Label(asked)
    at_once = get(stubs, robot_id, 5)
    assert (at_once.label, at_once.sku) == (reply.label, "sku-1")
    assert at_once.durability >= types_pb2.DURABILITY_JOURNALED
    eventually(lambda: get(stubs, robot_id, 5).durability == STORED)
    page = stubs.labels.ListLabels(label_pb2.ListLabelsRequest(robot_id=robot_id))
    stored = page.labels[0]
    assert (stored.label, stored.model, stored.sequence) == (reply.label, reply.model, 5)
    at_once.durability = STORED
    assert stored == at_once, "on its way to the store no field takes another's place"


def test_an_unknown_label_is_not_found_and_says_that_another_pod_may_hold_it(stubs: Wire) -> None:
    with pytest.raises(grpc.RpcError) as missing:
        get(stubs, "nobody", 1)
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
    assert "another pod" in str(missing.value.details())


def test_labels_are_listed_by_descending_sequence_in_pages(stubs: Wire, robot_id: str) -> None:
    sequences = [3, 1, 2, 7, 5]
    for sequence in sequences:
        stubs.labels.Label(request(robot_id, sequence, floats(FAR)))
    eventually(lambda: all(get(stubs, robot_id, n).durability == STORED for n in sequences))
    listed: list[int] = []
    token = ""
    while True:
        asked = label_pb2.ListLabelsRequest(robot_id=robot_id, page_size=2, page_token=token)
        page = stubs.labels.ListLabels(asked)
        listed += [label.sequence for label in page.labels]
        token = page.next_page_token
        if not token:
            break
    assert listed == [7, 5, 3, 2, 1]


def test_a_bad_page_is_refused_by_name(stubs: Wire) -> None:
    asked = {
        "robot_id": label_pb2.ListLabelsRequest(),
        "page_size": label_pb2.ListLabelsRequest(robot_id="r", page_size=1_001),
        "page_token": label_pb2.ListLabelsRequest(robot_id="r", page_token="no token"),
    }
    for field, message in asked.items():
        with pytest.raises(grpc.RpcError) as refused:
            stubs.labels.ListLabels(message)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error_of(refused.value).field == field


BUSY = Path(__file__).parent.parent / "support" / "busy_python.py"


def test_a_python_that_never_answers_ends_the_read_back_while_labels_go_on(tmp_path: Path) -> None:
    command = [sys.executable, str(BUSY), str(tmp_path / "state")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment({})
    ) as process:
        assert process.stdout
        try:
            address = process.stdout.readline().strip()
            with wire(address) as stubs:
                # No deadline of the client's: what ends it is the server's own.
                asked = label_pb2.GetLabelRequest(robot_id="r", sequence=1)
                waiting = stubs.labels.GetLabel.future(asked)
                for n in range(1, 101):
                    assert stubs.labels.Label(request("robot", n, floats(FAR))).label
                with pytest.raises(grpc.RpcError) as ended:
                    waiting.result(timeout=30)
                assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                assert "stage queue" in str(ended.value.details())
        finally:
            process.kill()
