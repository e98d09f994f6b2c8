"""The port: health, reflection, and what is not gRPC."""

import socket
from typing import Any

import grpc
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
        try:
            stub.Check(health_pb2.HealthCheckRequest(service="no.such"))
        except grpc.RpcError as unknown:
            assert unknown.code() == grpc.StatusCode.NOT_FOUND
        else:
            raise AssertionError("an unknown service has a health")


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


def test_a_tls_hello_on_the_plain_port_is_closed_and_others_are_served(service: Service) -> None:
    assert (
        speak(service.address, b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"x" * 160) == b""
    )
    with wire(service.address) as stubs:
        assert stubs.labels.Label(request("after-tls", 1, floats([2.5] * WIDTH))).label


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


def test_garbage_in_place_of_a_message_is_refused_and_counted(service: Service) -> None:
    before = service.metrics().requests("Label")
    with grpc.insecure_channel(service.address) as channel:
        call = channel.unary_unary("/labeler.v1.LabelService/Label")
        for garbage in (b"\xff\xff\xff\xff", b"\x0a\xff"):
            try:
                call(garbage, timeout=10)
            except grpc.RpcError as refused:
                assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert error_of(refused).field == "message"
            else:
                raise AssertionError("garbage was answered")
    after = service.metrics().requests("Label")
    assert after.parts["rejected"] - before.parts["rejected"] == 2
    assert after.missing == 0


def test_a_message_over_the_limit_is_refused_and_counted(start_service: StartService) -> None:
    service = start_service(transport__message_bytes_max=64 * 1024)
    rows = [request("r", n, floats([2.5] * WIDTH)) for n in range(1, 1_000)]
    with wire(service.address) as stubs:
        try:
            stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows))
        except grpc.RpcError as refused:
            assert refused.code() in (
                grpc.StatusCode.OUT_OF_RANGE,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
            assert "65536" in str(refused.details())
        else:
            raise AssertionError("a message over the limit was read")
    eventually(lambda: service.metrics().requests("LabelBatch").parts["rejected"] == 1)
