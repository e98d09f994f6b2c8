"""The admin port under bad requests and slow peers: each answered or closed, threads bounded.

On the real service's port. Full counts: about 30 s.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from labeler.telemetry.admin import _REQUEST_S_MAX, CONNECTIONS_MAX
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.service import Service
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request, wire

GET = b"GET /healthz HTTP/1.1\r\n"
BAD = {
    "unknown page": (b"GET /nope HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
    "above the root": (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
    "page in capitals": (b"GET /METRICS HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
    "no page": (b"GET  HTTP/1.1\r\n\r\n", b"pages: /metrics"),
    "POST": (b"POST /metrics HTTP/1.1\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 501"),
    "DELETE": (b"DELETE /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 501"),
    "a method of our own": (b"BREW /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 501"),
    "HTTP/9": (b"GET /metrics HTTP/9.9\r\n\r\n", b"HTTP/1.1 505"),
    "HTTP/x": (b"GET /metrics HTTP/x\r\n\r\n", b"HTTP/1.1 400"),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 505"),
    "one word": (b"metrics\r\n\r\n", b"HTTP/1.1 400"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"HTTP/1.1 400"),
    "a line of 70,000 bytes": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414"),
    "a header of 70,000 bytes": (GET + b"x: " + b"y" * 70_000 + b"\r\n\r\n", b"HTTP/1.1 431"),
    "1,000 headers": (GET + b"x: y\r\n" * 1000 + b"\r\n", b"HTTP/1.1 431"),
    "HTTP/0.9": (b"GET /healthz\r\n", b"live\n"),
    "nothing": (b"", b""),
    "zeros": (b"\0" * 100_000, b"HTTP/1.1 414"),
}


def connect(service: Service) -> socket.socket:
    host, port = service.admin_address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def told(service: Service, said: bytes) -> bytes:
    """The answer to these bytes, after which nothing more is said."""
    with connect(service) as connection:
        answer = b""
        try:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:  # it has answered and closed: what it said is still to be read
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(1 << 16):
                answer += chunk
        return answer


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_answered_with_its_status_and_the_next_is_served(
    service: Service, case: tuple[bytes, bytes]
) -> None:
    said, expected = case
    answer = told(service, said)
    assert answer.startswith(expected), answer[:80]
    *_, body = answer.partition(b"\r\n\r\n")
    assert len(body) < 500, "what was wrong is not sent back whole"
    assert b"<" not in body
    assert service.get("/healthz") == "live\n"


def test_a_page_that_does_not_exist_says_which_do(service: Service) -> None:
    answer = told(service, BAD["unknown page"][0])
    assert b"pages: /metrics /status /stages /healthz" in answer


def test_requests_one_behind_the_other_are_each_answered(service: Service) -> None:
    said = (GET + b"\r\n") * 3 + GET + b"connection: close\r\n\r\n"
    assert told(service, said).count(b"HTTP/1.1 200") == 4


@pytest.fixture
def slow(service: Service) -> Iterator[contextlib.ExitStack]:
    """Holds connections open for the test, then lets them go and sees the threads end."""
    before = threads(service)
    with contextlib.ExitStack() as held:
        yield held
    eventually(lambda: threads(service) <= before)


def threads(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.pid}/task"))


def files(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.pid}/fd"))


@counts("peers", quick=50, full=4_000, full_timeout_s=120)
@pytest.mark.parametrize("said", [b"", GET + b"x-slow: "])
def test_slow_peers_take_a_bounded_number_of_threads_and_delay_nobody(
    service: Service, slow: contextlib.ExitStack, said: bytes, peers: int
) -> None:
    before, open_files = threads(service), files(service)
    for number in range(1, peers + 1):
        connection = slow.enter_context(connect(service))
        connection.sendall(said)
        if number % 25 == 0:
            assert service.get("/healthz") == "live\n"
            assert "labeler_serving 1.0" in service.get("/metrics")
    # The last ones may still be on their way out; what ends is ended by the bound, and not by the
    # time after which a silent peer is given up.
    assert _REQUEST_S_MAX > 5
    eventually(lambda: threads(service) <= before + CONNECTIONS_MAX, timeout_s=5)
    eventually(lambda: files(service) <= open_files + CONNECTIONS_MAX, timeout_s=5)
    with wire(service.address) as stubs:
        assert stubs.labels.Label(request("beside-slow", 1, floats([2.5] * WIDTH))).label
    balanced(service)


def test_a_peer_that_reads_no_answer_delays_nobody(
    service: Service, slow: contextlib.ExitStack
) -> None:
    for _ in range(CONNECTIONS_MAX // 2):
        connection = slow.enter_context(connect(service))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 100)
    assert service.get("/healthz") == "live\n"
    balanced(service)
