"""S04: an expired `grpc-timeout` had an unclear code, and a malformed one was read as none.

The header is sent as it stands, to every method that takes a call (grpc/grpc-rust#606).
"""

import grpc
import pytest

from labeler.v1 import label_pb2, model_pb2
from tests.support.accounting import balanced
from tests.support.raw_http2 import Answer, Peer, headers, message
from tests.support.service import Service
from tests.support.wire import WIDTH, floats, request

REQUEST = request("timeout-header", 1, floats([2.5] * WIDTH))
REQUEST.timeout_us = 0
BODIES = {
    "LabelService/Label": REQUEST,
    "LabelService/LabelBatch": label_pb2.LabelBatchRequest(requests=[REQUEST]),
    "LabelService/GetLabel": label_pb2.GetLabelRequest(robot_id="r", sequence=1),
    "LabelService/ListLabels": label_pb2.ListLabelsRequest(robot_id="r"),
    "ModelService/LoadModel": model_pb2.LoadModelRequest(name="nope"),
    "ModelService/UnloadModel": model_pb2.UnloadModelRequest(name="nope"),
    "ModelService/ListModels": model_pb2.ListModelsRequest(),
}
EXPIRED = ["0n", "1n", "999n", "0u", "0m", "0S", "0M", "0H", "00000000S"]
MALFORMED = ["123456789m", "-1S", "5x", "", "S", "5", "1.5S", "+5S", " 5S", "5S ", "5 S", "5SS"]
MALFORMED += ["0x5S", "5s", "５S", "1e3m", "99999999999999999999H"]
INVALID, EXCEEDED = (
    code.value[0] for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED)
)


def call(service: Service, method: str, timeout: str) -> Answer:
    with Peer(service.address) as peer:
        fields = headers(f"/labeler.v1.{method}", grpc_timeout=timeout)
        return peer.call(message(BODIES[method].SerializeToString()), fields)


@pytest.mark.parametrize("method", BODIES)
def test_an_expired_call_is_deadline_exceeded_and_nothing_else(
    service: Service, method: str
) -> None:
    for timeout in EXPIRED:
        answer = call(service, method, timeout)
        assert answer.code == EXCEEDED, timeout
        assert "the deadline passed" in answer.error.message
    balanced(service)


@pytest.mark.parametrize("method", [*BODIES, "LabelService/LabelStream"])
def test_a_malformed_timeout_is_refused_by_name_and_never_read_as_none(
    service: Service, method: str
) -> None:
    bodies = BODIES | {"LabelService/LabelStream": REQUEST}
    name = "Models" if "Model" in method else method.partition("/")[2]
    before = service.metrics().requests(name).parts["rejected"]
    for timeout in MALFORMED:
        with Peer(service.address) as peer:
            fields = headers(f"/labeler.v1.{method}", grpc_timeout=timeout)
            answer = peer.call(message(bodies[method].SerializeToString()), fields)
        assert answer.code == INVALID, timeout
        assert answer.error.field == "grpc-timeout"
        assert answer.error.expected == "at most eight digits and a unit of H, M, S, m, u, n"
        assert answer.body == b"", "nothing was computed"
    assert balanced(service).requests(name).parts["rejected"] - before == len(MALFORMED)


def test_the_longest_timeouts_do_not_overflow(service: Service) -> None:
    for unit in "HMSmu":
        for method in ("LabelService/Label", "LabelService/LabelBatch", "ModelService/ListModels"):
            assert call(service, method, f"99999999{unit}").code == 0
    balanced(service)


def test_a_streams_timeout_is_no_limit_to_its_messages(service: Service) -> None:
    with Peer(service.address) as peer:
        fields = headers("/labeler.v1.LabelService/LabelStream", grpc_timeout="1n")
        answer = peer.call(message(REQUEST.SerializeToString()), fields)
    assert answer.code == 0
    reply = label_pb2.LabelStreamResponse.FromString(answer.body[5:])
    assert reply.response.label
    balanced(service)


def test_of_a_calls_deadline_and_its_messages_the_nearer_one_counts(service: Service) -> None:
    for timeout, own_us in (("1u", 5_000_000), ("5S", 1)):
        late = request("timeout-header", 2, floats([2.5] * WIDTH), timeout_us=own_us)
        with Peer(service.address) as peer:
            fields = headers(grpc_timeout=timeout)
            answer = peer.call(message(late.SerializeToString()), fields)
        assert answer.code == EXCEEDED
    balanced(service)
