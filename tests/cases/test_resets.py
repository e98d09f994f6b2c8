"""Calls that are cancelled and streams that are reset, by the hundred, on one connection.

Trap 4, S76: what a fleet does must not end its connection, and abuse must. Full counts: about 30 s.
"""

import struct

from labeler.v1 import label_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.flow_http2 import Robot, framed
from tests.support.metrics import Metrics
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request, wire

VALUES = [2.5] * WIDTH
RESETS_AT_ONCE = 199
"""With the stream beside them as many as a connection may hold."""
ENHANCE_YOUR_CALM = 11


def message(robot_id: str, sequence: int) -> label_pb2.LabelRequest:
    return request(robot_id, sequence, floats(VALUES))


class Beside:
    """A stream that goes on beside the abuse, on the same connection."""

    def __init__(self, peer: Robot) -> None:
        self.peer, self.stream, self.sent = peer, peer.open(), 0

    def one_more(self) -> None:
        """Sends a message and waits for its reply. Errors: `AssertionError` where none comes."""
        self.sent += 1
        self.peer.send(self.stream, [message("beside", self.sent)])
        found: list[int] = []

        def replied() -> bool:
            self.peer.read(self.stream)
            found.extend(reply.sequence for reply in self.peer.replies(self.stream))
            assert self.peer.goaway is None, self.peer.goaway
            return found == [self.sent]

        eventually(replied, timeout_s=30)


def calm(scrape: Metrics) -> float:
    return scrape.sum("labeler_goaway_calm_total")


def reset_at_once(peer: Robot, count: int, first: int, whole: bool) -> None:
    """`count` calls begun and reset in one piece of bytes; `whole`: with their message."""
    for number in range(first, first + count):
        stream = peer.open("Label")
        if whole:
            peer.h2.send_data(stream, framed(message("resets", number)), end_stream=False)
        peer.cancel(stream)
    peer.flush()


@counts("rounds", quick=10, full=200, full_timeout_s=300)
def test_streams_reset_in_one_instant_leave_the_stream_and_the_calls_beside_them_alone(
    service: Service, rounds: int
) -> None:
    before = service.metrics()
    peer = Robot(service.address)
    peer.greet()
    beside = Beside(peer)
    with wire(service.address) as others:
        for number in range(rounds):
            first = 1 + number * RESETS_AT_ONCE
            reset_at_once(peer, RESETS_AT_ONCE, first, whole=number % 2 == 1)
            beside.one_more()
            assert others.labels.Label(message("calls", number + 1)).label
    assert not peer.closed
    assert calm(service.metrics()) == calm(before)
    peer.close()
    balanced(service)


@counts("cancels", quick=500, full=5_000, full_timeout_s=300)
def test_cancelled_calls_do_not_end_their_connection(
    start_service: StartService, cancels: int
) -> None:
    """As hedges are: each is cancelled once its twin is answered, on one connection."""
    service = start_service()
    with wire(service.address) as stubs:
        stubs.labels.Label(message("normal", cancels + 1))
        connections = service.metrics().sum("labeler_connections_total")
        for number in range(1, cancels + 1):
            hedge = stubs.labels.Label.future(message("hedge", number))
            if number % 50 == 0:
                assert stubs.labels.Label(message("normal", number)).sequence == number
            hedge.cancel()
        assert stubs.labels.Label(message("normal", cancels + 2)).label
        scrape = service.metrics()
        assert scrape.sum("labeler_connections_total") == connections, "none was opened anew"
        assert calm(scrape) == 0
    assert balanced(service).requests("Label").parts["failed"] == 0


def test_more_resets_than_the_setting_end_the_connection_and_are_counted_by_name(
    start_service: StartService,
) -> None:
    """Also what the fleet's setting is for: the default of HTTP/2 libraries is this one."""
    service = start_service(transport__pending_resets_max=20)
    peer = Robot(service.address)
    peer.greet()

    def ended() -> bool:
        peer.read()
        return peer.goaway is not None or peer.closed

    reset_at_once(peer, RESETS_AT_ONCE, 1, whole=False)
    eventually(ended, timeout_s=30)
    assert peer.goaway == ENHANCE_YOUR_CALM
    eventually(lambda: calm(service.metrics()) == 1)
    assert service.metrics().sum("labeler_goaway_total") == 0, "nobody asked it to go"
    with wire(service.address) as others:
        assert others.labels.Label(message("after", 1)).label
    peer.close()
    balanced(service)


def test_stream_errors_of_a_client_are_bounded_by_their_setting(
    start_service: StartService,
) -> None:
    """Each round overflows the window of a stream, which is that stream's error alone."""
    service = start_service(transport__local_resets_max=30)
    peer = Robot(service.address)
    peer.greet()
    beside = Beside(peer)

    def overflow(count: int) -> None:
        for _ in range(count):
            stream = peer.open("Label")
            peer.flush()
            peer.socket.sendall(struct.pack(">HBBBII", 0, 4, 8, 0, stream, 0x7FFF_FFFF))

    overflow(25)
    beside.one_more()
    overflow(25)
    eventually(lambda: calm(service.metrics()) == 1, timeout_s=30)
    peer.close()
    balanced(service)
