"""Floods, bursts of resets, peers that vanish or fall silent, garbage: bounded, others go on.

Each test labels on other connections before and after, ends balanced, and finds no panic in the
log. Case S68's abuse, and issue 6's "Bad input". Full counts: about 90 s.
"""

import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labeler.telemetry import names
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.raw_http2 import PREFACE, Peer, frame, headers, message
from tests.support.service import Service, serve
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request, wire

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, WINDOW, CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    9,
)
END_HEADERS = 4
MEMORY_BYTES_MAX = 64 << 20
STREAM = "/labeler.v1.LabelService/LabelStream"
GOOD = message(request("abuse", 1, floats([2.5] * WIDTH)).SerializeToString())
BURST = 500  # frames in one write

Flood = Callable[[Peer, int], None]


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that soon gives up on a silent peer, for all tests here."""
    started = serve(
        tmp_path_factory.mktemp("abusive-peers") / "state",
        transport__handshake_timeout_ms=300,
        transport__keepalive_interval_ms=1000,
        transport__keepalive_timeout_ms=300,
    )
    try:
        yield started.wait_ready()
    finally:
        started.close()


@pytest.fixture
def watched(hasty: Service) -> Iterator[Service]:
    """Serving before and after, no bigger, balanced, without a panic."""
    service = hasty
    serves(service, 1)
    before, files = memory_bytes(service), open_files(service)
    yield service
    serves(service, 2)
    assert memory_bytes(service) - before < MEMORY_BYTES_MAX
    scrape = balanced(service)
    assert scrape.sum(names.QUEUE_ROWS.name) == 0
    eventually(lambda: service.metrics().sum(names.STREAMS.name) == 0)
    # Files of the journal and of the store may come and go; those of connections would be many.
    eventually(lambda: open_files(service) <= files + 4)
    assert not [line for line in service.stderr if "panicked" in line]


def serves(service: Service, sequence: int) -> None:
    with wire(service.address) as stubs:
        assert stubs.labels.Label(request("neighbour", sequence, floats([2.5] * WIDTH))).label


def memory_bytes(service: Service) -> int:
    (line,) = [
        line
        for line in Path(f"/proc/{service.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) * 1024


def open_files(service: Service) -> int:
    return len(list(Path(f"/proc/{service.pid}/fd").iterdir()))


def repeat(peer: Peer, part: bytes, frames: int) -> None:
    """Sends a frame many times, until the port closes or reads no more."""
    peer.socket.settimeout(1)
    for _ in range(0, frames, BURST):
        if not peer.send(part * BURST):
            return


def settings(peer: Peer, frames: int) -> None:
    repeat(peer, frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)), frames)


def pings(peer: Peer, frames: int) -> None:
    repeat(peer, frame(PING, 0, 0, b"12345678"), frames)


def priorities(peer: Peer, frames: int) -> None:
    repeat(peer, frame(PRIORITY, 0, 99, struct.pack(">IB", 1, 16)), frames)


def windows(peer: Peer, frames: int) -> None:
    repeat(peer, frame(WINDOW, 0, 0, struct.pack(">I", 1)), frames)


def window_overflow(peer: Peer, frames: int) -> None:
    repeat(peer, frame(WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 1)), frames)


def unknown_frames(peer: Peer, frames: int) -> None:
    repeat(peer, frame(0xBE, 0xFF, 7, b"unknown"), frames)


def resets_of_nothing(peer: Peer, frames: int) -> None:
    repeat(peer, frame(RESET, 0, 1, struct.pack(">I", 8)), frames)


def empty_data(peer: Peer, frames: int) -> None:
    peer.send(peer.open(1, headers()))
    repeat(peer, frame(DATA, 0, 1, b""), frames)


def empty_continuations(peer: Peer, frames: int) -> None:
    peer.send(frame(HEADERS, 0, 1, peer.encode(headers())))
    repeat(peer, frame(CONTINUATION, 0, 1, b""), frames)


def full_continuations(peer: Peer, frames: int) -> None:
    peer.send(frame(HEADERS, 0, 1, peer.encode([*headers(), ("x-more", "v" * 1000)])))
    repeat(peer, frame(CONTINUATION, 0, 1, peer.encode([("x-more", "v" * 1000)]) * 100), frames)


def header_bombs(peer: Peer, frames: int) -> None:
    """One large entry of the table, named a thousand times by a byte each, in every call."""
    entry = b"\x40\x06x-bomb\x7f\xa1\x1e" + b"v" * 4000
    for stream in range(1, 2 * max(2, frames // 1000), 2):
        block = peer.encode(headers()) + (entry if stream == 1 else b"") + b"\xbe" * 1000
        peer.send(frame(HEADERS, END_HEADERS, stream, block))


def megabyte_of_headers(peer: Peer, frames: int) -> None:
    block = peer.encode(headers())
    plain = b"".join(
        b"\x00\x03x-" + bytes([97 + n % 26]) + b"\x7f\x81\x07" + b"v" * 1024 for n in range(1024)
    )
    parts = [plain[at : at + 16_000] for at in range(0, len(plain), 16_000)]
    peer.send(frame(HEADERS, 0, 1, block))
    for place, part in enumerate(parts, start=1):
        peer.send(frame(CONTINUATION, END_HEADERS if place == len(parts) else 0, 1, part))


FLOODS: list[Flood] = [
    settings,
    pings,
    priorities,
    windows,
    window_overflow,
    unknown_frames,
    resets_of_nothing,
    empty_data,
    empty_continuations,
    full_continuations,
    header_bombs,
    megabyte_of_headers,
]


@counts("frames", quick=5_000, full=200_000, full_timeout_s=120)
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_from_one_peer_is_bounded_and_harms_nobody(
    watched: Service, flood: Flood, frames: int
) -> None:
    with wire(watched.address) as stubs, Peer(watched.address) as peer:
        stream = stubs.labels.LabelStream(_one_by_one(watched, lambda: flood(peer, frames)))
        assert sorted(reply.response.sequence for reply in stream) == [101, 102]


def _one_by_one(service: Service, between: Callable[[], None]) -> Iterator[object]:
    robot = f"stream-{service.pid}-{random.random()}"
    yield request(robot, 101, floats([2.5] * WIDTH))
    between()
    yield request(robot, 102, floats([2.5] * WIDTH))


@counts("calls", quick=2_000, full=20_000, full_timeout_s=120)
@pytest.mark.parametrize("body", ["headers only", "half a message", "a whole message"])
def test_a_burst_of_calls_that_are_reset_at_once_is_bounded(
    watched: Service, body: str, calls: int
) -> None:
    sent = {"headers only": b"", "half a message": GOOD[:40], "a whole message": GOOD}[body]
    before = balanced(watched).requests("Label")
    with Peer(watched.address) as peer:
        peer.encode(headers())  # the first block fills the table; all later ones are the same
        peer.send(peer.open(1, headers()), peer.reset(1))
        for first in range(3, 2 * calls, 2 * BURST):
            burst = b""
            for stream in range(first, first + 2 * BURST, 2):
                data = peer.data(stream, sent, end=sent is GOOD) if sent else b""
                burst += peer.open(stream, headers()) + data + peer.reset(stream)
            if not peer.send(burst):
                break
        # A call behind them, so that all of them are seen before the connection ends.
        last = peer.call(GOOD, stream=2 * calls + 2 * BURST + 1)
    assert last.code == 0 or peer.closed
    after = balanced(watched).requests("Label")
    if body != "a whole message":
        assert after.parts["rejected"] == before.parts["rejected"], "they left, nobody refused them"
        assert after.entered - before.entered == (last.code == 0)


@counts("peers", quick=150, full=5_000, full_timeout_s=120)
def test_peers_that_vanish_at_any_byte_leave_nothing_behind(
    watched: Service, peers: int, seed: int
) -> None:
    draw = random.Random(seed)
    for number in range(peers):
        with Peer(watched.address, preface=False) as peer:
            method = draw.choice(["Label", "LabelBatch", "LabelStream", "GetLabel"])
            path = f"/labeler.v1.LabelService/{method}"
            whole = b"".join(
                [
                    PREFACE,
                    frame(SETTINGS, 0, 0, b""),
                    peer.open(1, headers(path)),
                    peer.data(1, GOOD, end=draw.random() < 0.5),
                ]
            )
            peer.send(whole[: draw.randint(0, len(whole))])
            if number % 2:
                # A reset in place of an orderly end: what the peer sent may be lost on the way.
                linger = struct.pack("ii", 1, 0)
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    eventually(lambda: watched.metrics().sum(names.CONNECTIONS.name) <= 1)


def _nothing(peer: Peer) -> None:
    """Only connects."""


def _half_a_preface(peer: Peer) -> None:
    peer.send(PREFACE[:10])


def _preface_only(peer: Peer) -> None:
    peer.send(PREFACE)


def _greeting_only(peer: Peer) -> None:
    peer.send(PREFACE, frame(SETTINGS, 0, 0, b""))


def _headers_without_end(peer: Peer) -> None:
    _greeting_only(peer)
    peer.send(frame(HEADERS, 0, 1, peer.encode(headers())))


def _half_a_frame(peer: Peer) -> None:
    _greeting_only(peer)
    peer.send(peer.open(1, headers()), peer.data(1, GOOD)[:20])


def _half_a_message(peer: Peer) -> None:
    _greeting_only(peer)
    peer.send(peer.open(1, headers()), peer.data(1, GOOD[:20], end=False))


def _open_stream(peer: Peer) -> None:
    _greeting_only(peer)
    peer.send(peer.open(1, headers(STREAM)))


SILENT = [
    _nothing,
    _half_a_preface,
    _preface_only,
    _greeting_only,
    _headers_without_end,
    _half_a_frame,
    _half_a_message,
    _open_stream,
]


def test_peers_that_fall_silent_are_closed_by_a_bound(watched: Service) -> None:
    peers = [Peer(watched.address, preface=False) for _ in SILENT]
    for silence, peer in zip(SILENT, peers, strict=True):
        silence(peer)
    serves(watched, 3)
    eventually(lambda: watched.metrics().sum(names.CONNECTIONS.name) == 0, timeout_s=30)
    for peer in peers:
        peer.drain()
        peer.socket.close()


def test_half_a_message_is_ended_by_its_calls_deadline(watched: Service) -> None:
    before = balanced(watched).requests("Label").parts["expired"]
    with Peer(watched.address) as peer:
        peer.send(peer.open(1, headers(grpc_timeout="200m")), peer.data(1, GOOD[:20], end=False))
        answer = peer.answer(1)
        assert (answer.code, answer.error.message) == (4, "the deadline passed in stage decode")
        assert peer.call(GOOD, stream=3).code == 0
    assert balanced(watched).requests("Label").parts["expired"] - before == 1


HELLOS = {
    "HTTP/1.1 upgrade": (b"GET / HTTP/1.1\r\nupgrade: h2c\r\n\r\n", b"HTTP/1.1 505"),
    "HTTP/0.9": (b"GET /\r\n", b"HTTP/1.1 505"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500, b""),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 505"),
    "zeros": (b"\0" * 4096, b""),
    "a preface that turns": (PREFACE[:-1] + b"x", b"HTTP/1.1 505"),
    "a preface, then HTTP/1": (PREFACE + b"GET / HTTP/1.1\r\n\r\n", b""),
}


@pytest.mark.parametrize("case", HELLOS.values(), ids=HELLOS.keys())
def test_what_is_no_http_2_is_answered_or_closed(
    watched: Service, case: tuple[bytes, bytes]
) -> None:
    said, expected = case
    host, port = watched.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(said)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert answer.startswith(expected)


@counts("peers", quick=200, full=10_000, full_timeout_s=120)
def test_random_garbage_is_closed(watched: Service, peers: int, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(peers):
        with Peer(watched.address, preface=False) as peer:
            greeting = PREFACE + frame(SETTINGS, 0, 0, b"") if number % 2 else b""
            peer.send(greeting + draw.randbytes(draw.randint(1, 2000)))
            peer.socket.shutdown(socket.SHUT_WR)
            peer.drain()
