"""The port: health, reflection, and what is not gRPC."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from labeler.v1 import label_pb2
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, error_of, floats, request, wire


def speak(address: str, text: bytes) -> bytes:
    """What the port answers to these bytes, until it closes the connection."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(text)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
        return answer


def test_health_is_told_by_name_and_an_unknown_name_is_not_found(service: Service) -> None:
    with grpc.insecure_channel(service.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "labeler.v1.LabelService", "labeler.live"):
            status = stub.Check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="no.such"))
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


def test_reflection_lists_our_services(service: Service) -> None:
    with grpc.insecure_channel(service.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([asked]))
        names = {found.name for found in answer.list_services_response.service}
    assert {"labeler.v1.LabelService", "labeler.v1.ModelService"} <= names
    assert "grpc.health.v1.Health" in names


def test_http_1_is_told_what_the_port_speaks(service: Service) -> None:
    answer = speak(service.address, b"GET / HTTP/1.1\r\nhost: robots\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 505")
    head, body = answer.split(b"\r\n\r\n")
    assert b"gRPC over HTTP/2" in body
    assert f"content-length: {len(body)}".encode() in head


def test_a_silent_connection_is_closed_after_the_handshake_time(
    start_service: StartService,
) -> None:
    service = start_service(transport__handshake_timeout_ms=200)
    assert speak(service.address, b"PRI * HT") == b""


def test_a_connection_over_the_limit_is_closed_and_counted(start_service: StartService) -> None:
    service = start_service(transport__connections_max=1)
    with wire(service.address) as stubs:
        assert stubs.labels.Label(request("one", 1, floats([2.5] * WIDTH))).label
        assert speak(service.address, b"") == b""
        refused = service.metrics().sum("labeler_connections_refused_total")
        assert refused == 1


def test_a_message_over_the_limit_is_refused_and_counted(start_service: StartService) -> None:
    service = start_service(transport__message_bytes_max=64 * 1024)
    rows = [request("r", n, floats([2.5] * WIDTH)) for n in range(1, 1_000)]
    with wire(service.address) as stubs:
        with pytest.raises(grpc.RpcError) as refused:
            stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error_of(refused.value).field == "message"
    assert "at most 65536 bytes" in str(refused.value.details())
    eventually(lambda: service.metrics().requests("LabelBatch").parts["rejected"] == 1)


def test_a_call_whose_message_never_comes_is_ended_by_its_deadline(service: Service) -> None:
    """Takes ten seconds: the time for a message where the call names no deadline."""
    still_sending = threading.Event()

    def nothing() -> Iterator[bytes]:
        still_sending.wait(60)
        yield from ()

    before = service.metrics().requests("Label")
    with grpc.insecure_channel(service.address) as channel:
        call: Any = channel.stream_unary("/labeler.v1.LabelService/Label")
        try:
            with pytest.raises(grpc.RpcError) as ended:
                call(nothing())
        finally:
            still_sending.set()
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    after = service.metrics().requests("Label")
    assert after.parts["expired"] - before.parts["expired"] == 1
