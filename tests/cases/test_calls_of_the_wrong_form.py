"""S68: a call with a missing or wrong content type was a segfault.

Its whole kind: headers, framing and paths that are no gRPC of ours. Each gets a proper status, in
HTTP's words where it is no gRPC at all, and the connection goes on with the next call.
"""

from collections.abc import Callable

import grpc
import pytest

from labeler.v1 import label_pb2
from tests.support.accounting import balanced
from tests.support.raw_http2 import Answer, Headers, Peer, headers, message
from tests.support.service import Service
from tests.support.wire import WIDTH, floats, request

BODY = request("wrong-form", 1, floats([2.5] * WIDTH)).SerializeToString()
GOOD = message(BODY)
LABELS = "/labeler.v1.LabelService/"
UNARY = ["Label", "LabelBatch", "GetLabel", "ListLabels"]
PATHS = [LABELS + method for method in [*UNARY, "LabelStream"]]
PATHS += ["/labeler.v1.ModelService/ListModels", "/grpc.health.v1.Health/Check", "/no.Such/Call"]
INVALID, INTERNAL, UNIMPLEMENTED = (
    code.value[0]
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)


def answered(service: Service, body: bytes, fields: Headers) -> Answer:
    """The answer, after which the same connection must still label."""
    with Peer(service.address) as peer:
        answer = peer.call(body, fields)
        assert peer.call(GOOD, stream=3).code == 0
        return answer


@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_grpc_gets_a_status_of_http_and_computes_nothing(
    service: Service, path: str
) -> None:
    before = balanced(service).sum("labeler_requests_received_total")
    kinds = ["text/plain", "application/json", "application/grpc-web", "application/grpc+json", ""]
    wrong: list[tuple[Headers, str, str]] = [
        (headers(path, content_type=kind), "415", f"content-type is {kind!r}".replace("'", '"'))
        for kind in kinds
    ]
    wrong.append((headers(path, without=["content-type"]), "415", "content-type is missing"))
    for method in ("GET", "PUT", "OPTIONS", "DELETE", "BREW"):
        wrong.append((headers(path, method=method), "405", f"method is {method}, expected POST"))
    for fields, status, said in wrong:
        answer = answered(service, GOOD, fields)
        assert answer.fields[":status"] == status
        assert "grpc-status" not in answer.fields
        assert said.encode() in answer.body
    after = balanced(service).sum("labeler_requests_received_total")
    assert after - before == len(wrong), "only the good call after each"


@pytest.mark.parametrize(
    "fields",
    [
        headers(content_type="application/grpc+proto"),
        headers(content_type="application/grpc; charset=utf-8"),
        headers(without=["te"]),
        headers(without=[":authority"]),
        [*headers(), ("grpc-encoding", "identity")],
        [*headers(), ("x-unknown", "\xff")],
    ],
)
def test_what_other_clients_send_is_taken(service: Service, fields: Headers) -> None:
    assert answered(service, GOOD, fields).code == 0


@pytest.mark.parametrize("method", UNARY)
def test_a_message_that_is_not_whole_is_refused_by_name_and_counted(
    service: Service, method: str
) -> None:
    whole = "one whole gRPC message"
    cases = {
        b"": ("missing", whole),
        b"\0\0": ("cut short", whole),
        message(BODY, length=len(BODY) + 1): ("cut short", whole),
        message(BODY) + b"\0": ("cut short", whole),
        message(b"", length=(4 << 20) + 1): ("4194305 bytes", "at most 4194304 bytes"),
        message(b"", length=(1 << 32) - 1): ("4294967295 bytes", "at most 4194304 bytes"),
        message(BODY) * 2: ("followed by another", "one gRPC message"),
    }
    before = balanced(service).requests(method).parts["rejected"]
    for body, (value, expected) in cases.items():
        answer = answered(service, body, headers(LABELS + method))
        assert answer.code == INVALID, body[:8]
        error = answer.error
        assert error.field == "message"
        assert value in error.value
        assert expected in error.expected
    after = balanced(service).requests(method).parts["rejected"]
    assert after - before == len(cases)


def test_the_models_calls_refuse_what_is_no_message_in_the_same_words(service: Service) -> None:
    before = balanced(service).requests("Models").parts["rejected"]
    path = "/labeler.v1.ModelService/"
    for body in (message(b"\xff\xff"), message(b"\x0a\x7fx"), message(b"x", length=9)):
        for method in ("LoadModel", "UnloadModel", "ListModels"):
            answer = answered(service, body, headers(path + method))
            assert (answer.code, answer.error.field) == (INVALID, "message")
    assert balanced(service).requests("Models").parts["rejected"] - before == 9


def test_a_stream_answers_what_it_owes_and_ends_at_a_message_that_is_not_whole(
    service: Service,
) -> None:
    cases = {
        message(BODY, length=len(BODY) + 1): "cut short",
        message(b"", length=(4 << 20) + 1): "4194305 bytes",
    }
    before = balanced(service).requests("LabelStream").parts["rejected"]
    for body, value in cases.items():
        answer = answered(service, GOOD + body, headers(LABELS + "LabelStream"))
        reply = label_pb2.LabelStreamResponse.FromString(answer.body[5:])
        assert reply.response.sequence == 1
        assert answer.code == INVALID
        assert value in answer.error.value
    assert balanced(service).requests("LabelStream").parts["rejected"] - before == len(cases)


@pytest.mark.parametrize("method", [*UNARY, "LabelStream"])
def test_compression_that_is_unknown_is_refused_as_grpc_says(service: Service, method: str) -> None:
    flagged = message(BODY, flag=1)
    for encoding in ("gzip", "snappy", "deflate;q=1", "\xff"):
        fields = headers(LABELS + method, grpc_encoding=encoding)
        answer = answered(service, flagged, fields)
        assert answer.code == UNIMPLEMENTED
        assert answer.fields["grpc-accept-encoding"] == "identity"
    # gRPC's own rule: the flag without an encoding "MUST fail with INTERNAL".
    plain: list[Callable[..., Headers]] = [
        headers,
        lambda path: headers(path, grpc_encoding="identity"),
    ]
    for fields_of in plain:
        assert answered(service, flagged, fields_of(LABELS + method)).code == INTERNAL
    balanced(service)


def test_an_unknown_method_or_service_is_named(service: Service) -> None:
    before = service.metrics().sum("labeler_errors_total", code="UNIMPLEMENTED")
    paths = ["/no.Such/Label", LABELS + "No", LABELS, "/labeler.v1.ModelService/No", "/", "*"]
    paths += ["/labeler.v1.LabelService/label", LABELS + "ReportOutcome", "/" + "x" * 5000]
    for path in paths:
        answer = answered(service, GOOD, headers(path))
        assert answer.code == UNIMPLEMENTED
        told = answer.fields["grpc-message"]
        assert path[:20].replace('"', "") in told
        assert "labeler.v1.LabelService" in told
        assert len(told) < 2000
    after = balanced(service).sum("labeler_errors_total", code="UNIMPLEMENTED")
    assert after - before == len(paths)


@pytest.mark.parametrize(
    "fields",
    [
        headers(without=[":path"]),
        headers(without=[":method"]),
        headers(without=[":scheme"]),
        [*headers(), ("connection", "close")],
        headers(te="gzip"),
        [*headers(), ("content-length", "3")],
    ],
)
def test_what_http_2_forbids_resets_the_call_and_nothing_else(
    service: Service, fields: Headers
) -> None:
    answer = answered(service, GOOD, fields)
    assert answer.reset is not None
    assert answer.body == b""
    balanced(service)
