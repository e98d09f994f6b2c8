"""A seeded fuzz of the port: the bytes of good connections, changed at random.

Whatever comes, the service neither ends nor panics nor grows, and the next label is answered.
Case S68 ("fuzzed in CI"). Full counts: about 60 s.
"""

import random
import socket

import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, model_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.raw_http2 import PREFACE, Peer, frame, headers, message
from tests.support.service import Service
from tests.support.wire import WIDTH, doubles, floats, raw32, raw64, request, wire

FAR = [2.5] * WIDTH
LABELS, MODELS = "/labeler.v1.LabelService/", "/labeler.v1.ModelService/"
FORMS = [floats(FAR), doubles(FAR), raw32(FAR), raw64(FAR)]


def rows(draw: random.Random) -> list[label_pb2.LabelRequest]:
    return [request("fuzz", draw.randint(1, 1 << 62), draw.choice(FORMS)) for _ in range(3)]


def conversation(peer: Peer, draw: random.Random) -> list[bytes]:
    """The frames of a good connection with a few calls."""
    good = rows(draw)
    calls = [
        (LABELS + "Label", message(good[0].SerializeToString())),
        (
            LABELS + "LabelBatch",
            message(label_pb2.LabelBatchRequest(requests=good).SerializeToString()),
        ),
        (LABELS + "LabelStream", b"".join(message(row.SerializeToString()) for row in good)),
        (
            LABELS + "GetLabel",
            message(label_pb2.GetLabelRequest(robot_id="r", sequence=1).SerializeToString()),
        ),
        (
            LABELS + "ListLabels",
            message(label_pb2.ListLabelsRequest(robot_id="r").SerializeToString()),
        ),
        (MODELS + "ListModels", message(b"")),
        (
            MODELS + "LoadModel",
            message(model_pb2.LoadModelRequest(name="nope").SerializeToString()),
        ),
    ]
    parts = [PREFACE, frame(4, 0, 0, b"")]
    for stream, (path, body) in enumerate(draw.sample(calls, k=3)):
        fields = headers(path, grpc_timeout=draw.choice(["1S", "150m", "0n"]))
        parts += [peer.open(1 + 2 * stream, fields), peer.data(1 + 2 * stream, body)]
    return parts


def mutated(parts: list[bytes], draw: random.Random) -> bytes:
    """Frames swapped, lost or doubled; then bytes flipped, cut out, put in, or said twice."""
    changed = list(parts)
    if draw.random() < 0.5:
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(1, len(changed))
            action = draw.randrange(3)
            if action == 0:
                changed[place], changed[-1] = changed[-1], changed[place]
            elif action == 1 and len(changed) > 2:
                del changed[place]
            else:
                changed.insert(place, changed[draw.randrange(1, len(changed))])
    # Most changes spare the greeting, or nothing behind it would ever be reached.
    spared = len(PREFACE) if draw.random() < 0.9 else 0
    text = bytearray(b"".join(changed))
    for _ in range(draw.choice([0, 1, 1, 2, 8, 64])):
        place = draw.randrange(spared, len(text))
        action = draw.randrange(5)
        if action == 0:
            text[place] ^= 1 << draw.randrange(8)
        elif action == 1:
            text[place] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif action == 2:
            del text[place : place + draw.choice([1, 2, 9, 40])]
        elif action == 3:
            text[place:place] = draw.randbytes(draw.choice([1, 4, 9, 100]))
        else:
            text[place:place] = text[place : place + draw.choice([1, 9, 100])]
        if len(text) <= spared:
            break
    return bytes(text)


@counts("connections", quick=200, full=50_000, full_timeout_s=600)
def test_no_bytes_end_or_stop_the_service(service: Service, connections: int, seed: int) -> None:
    draw = random.Random(seed)
    before = balanced(service)
    with wire(service.address) as stubs:
        for number in range(1, connections + 1):
            with Peer(service.address, preface=False) as peer:
                peer.send(mutated(conversation(peer, draw), draw))
                _end(peer)
            if number % 50 == 0:
                good = request(f"fuzz-neighbour-{seed}", number, floats(FAR))
                assert stubs.labels.Label(good).label
    after = balanced(service)
    received = names.REQUESTS_RECEIVED.name
    assert after.sum(received) - before.sum(received) > connections / 10, (
        "the changes are not all fatal"
    )
    grown = after.sum(names.PROCESS_RSS.name) - before.sum(names.PROCESS_RSS.name)
    assert grown < 64 << 20
    assert not [line for line in service.stderr if "panicked" in line]


def _end(peer: Peer) -> None:
    """Says that no more comes, then waits until the port has closed its half too."""
    try:
        peer.socket.shutdown(socket.SHUT_WR)
    except OSError:
        return
    while not peer.closed:
        try:
            if not peer.socket.recv(1 << 16):
                return
        except TimeoutError:
            pytest.fail("the port left a connection open whose peer had ended")
        except OSError:
            return
