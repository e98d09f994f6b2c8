"""Streams that do not read: they hold up nobody, and are ended in time (trap 3).

Batcher and inference never wait for a stream: while some read nothing at all, every message of
the others is answered. Full counts: about 40 s.
"""

from functools import partial

import pytest

from labeler import open_files
from labeler.v1 import label_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.flow_http2 import Robot
from tests.support.sending import run, sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request

VALUES = [2.5] * WIDTH
REPLY_BYTES = 60
"""No reply is shorter: one fills a window of this size."""
RESOURCE_EXHAUSTED = "8"


def messages(robot_id: str, count: int, first: int = 1) -> list[label_pb2.LabelRequest]:
    return [request(robot_id, n, floats(VALUES)) for n in range(first, first + count)]


def streams_open(service: Service) -> float:
    return service.metrics().sum("labeler_streams_open")


def test_eight_streams_that_never_read_hold_up_none_of_the_56_beside_them(
    start_service: StartService,
) -> None:
    """On one connection. The eight send until the service takes no more of them."""
    service = start_service()
    peer = Robot(service.address, window=1_000)
    peer.greet()
    streams = [peer.open() for _ in range(64)]
    deaf, others = streams[:8], streams[8:]
    pushed = [peer.send(n, messages(f"deaf-{n}", 1_000)) for n in deaf]
    assert all(100 < count < 1_000 for count in pushed), "the window of requests is full"

    answered: dict[int, list[int]] = {n: [] for n in others}
    for begin in range(1, 101, 20):
        for number in others:
            assert peer.send(number, messages(f"robot-{number}", 20, begin)) == 20

        def all_answered(upto: int = begin + 19) -> bool:
            peer.read(*others)
            for number in others:
                answered[number] += [reply.sequence for reply in peer.replies(number)]
            return all(len(found) == upto for found in answered.values())

        eventually(all_answered, timeout_s=30)

    assert all(sorted(found) == list(range(1, 101)) for found in answered.values())
    assert not peer.reset
    assert not peer.trailers
    peer.close()
    balanced(service)


def journaled(service: Service, count: int) -> bool:
    return service.metrics().sum("labeler_records_journaled_total") == count


def one_by_one(service: Service, peer: Robot, stream: int, count: int) -> None:
    """Replies that are sent together may be on their way together, to where nobody takes them."""
    for n in range(1, count + 1):
        peer.send(stream, messages("deaf", 1, first=n))
        eventually(partial(journaled, service, n))


@pytest.mark.parametrize(
    ("sent", "half_closed", "unread_ms"),
    # Of a few the last must be journaled before the first is unread for so long.
    [(400, False, 400), (10, False, 3_000), (100, True, 400)],
    ids=["more than fit", "a few", "more than fit, and says that it is done"],
)
def test_a_stream_that_reads_nothing_is_ended_with_resource_exhausted(
    start_service: StartService, sent: int, half_closed: bool, unread_ms: int
) -> None:
    service = start_service(transport__stream_unread_ms_max=unread_ms)
    peer, other = Robot(service.address, window=REPLY_BYTES), Robot(service.address)
    stream, beside = peer.open(), other.open()
    if sent > 64:
        peer.send(stream, messages("deaf", 1))
        # Its window is full: of the others no reply is on its way.
        eventually(lambda: peer.received(stream) == REPLY_BYTES)
        peer.send(stream, messages("deaf", sent - 1, first=2), end=half_closed)
    else:
        one_by_one(service, peer, stream, sent)
    other.send(beside, messages("reads", 1))

    def ended() -> bool:
        other.read(beside)
        left = service.metrics().requests("LabelStream").parts
        # Replies that nobody read are no answers.
        cancelled = left["in_flight"] == 0 and left["cancelled"] > 0
        return cancelled and streams_open(service) == 1

    eventually(ended, timeout_s=30)
    if not half_closed:
        assert peer.status(stream) == RESOURCE_EXHAUSTED
        assert "unread" in peer.trailers[stream]["grpc-message"]
    other.send(beside, messages("reads", 1, first=2))

    def still_answers() -> bool:
        other.read(beside)
        return any(reply.sequence == 2 for reply in other.replies(beside))

    eventually(still_answers)
    for one in (peer, other):
        one.close()
    balanced(service)


def uptime_us(service: Service) -> float:
    return service.metrics().sum("labeler_uptime_us")


def test_a_stream_that_reads_slowly_is_not_ended(start_service: StartService) -> None:
    """It takes a reply or two at a time and never all, each well within the limit, for longer."""
    service = start_service(transport__stream_unread_ms_max=3_000)
    peer = Robot(service.address, window=2 * REPLY_BYTES)
    stream, sent, found = peer.open(), 0, set[int]()

    def one_more(have: int) -> bool:
        peer.read(stream)
        found.update(reply.sequence for reply in peer.replies(stream))
        return len(found) > have

    begin = uptime_us(service)
    while uptime_us(service) < begin + 4_000_000:
        unread = 100 - (sent - len(found))
        sent += peer.send(stream, messages("slow", unread, first=sent + 1))
        eventually(lambda: one_more(len(found)), timeout_s=30)
    while len(found) < sent:
        eventually(lambda: one_more(len(found)), timeout_s=30)
    assert not peer.trailers
    peer.close()
    balanced(service)


def test_a_stream_that_is_reset_takes_its_waiting_requests_with_it(
    start_service: StartService,
) -> None:
    """Trap 1 for streams: work that nobody waits for leaves the queue."""
    service = start_service(path__batch_rows_max=1, transport__stream_in_flight_max=64)
    peer = Robot(service.address, window=REPLY_BYTES)
    stream = peer.open()
    peer.send(stream, messages("leaves", 400))
    eventually(lambda: service.metrics().requests("LabelStream").entered >= 64, timeout_s=30)
    peer.cancel(stream)
    peer.flush()
    eventually(lambda: service.metrics().requests("LabelStream").parts["in_flight"] == 0)
    eventually(lambda: streams_open(service) == 0)
    scrape = balanced(service)
    assert scrape.requests("LabelStream").parts["cancelled"] > 0
    peer.close()


@counts("connections", quick=200, full=2_300, full_timeout_s=300)
def test_every_message_is_answered_while_a_tenth_of_the_connections_never_reads(
    start_service: StartService, connections: int
) -> None:
    open_files.raise_limit()
    service = start_service(transport__stream_unread_ms_max=600_000)
    deaf = [Robot(service.address, window=REPLY_BYTES) for _ in range(connections * 200 // 2_300)]
    for number, peer in enumerate(deaf):
        assert peer.send(peer.open(), messages(f"deaf-{number}", 200)) == 200
    robots = connections - len(deaf)
    plan = {
        "rpc": "label_stream",
        "robots": robots,
        "connections": robots,
        "timeout_ms": 30_000,
        "ready_timeout_ms": 60_000,
        "durability": "JOURNALED",
        "duration_s": 2 if connections < 2_300 else 10,
        "schedule": {"shape": "constant", "rate_per_s": 2 * robots if robots < 1_000 else robots},
    }
    result = run(sender(service.address, **plan))
    assert result["errors"] == {}
    assert result["answered"] == result["sent"] > 0
    assert streams_open(service) >= len(deaf)
    for peer in deaf:
        peer.close()
    balanced(service)
