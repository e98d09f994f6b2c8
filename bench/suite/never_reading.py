"""Connections that open a stream, send more than its replies have room for, and never read.

They cost nothing while they are held, and make no measurement. HTTP/2 by hand: no client library
leaves its replies unread.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labeler.v1 import label_pb2, types_pb2

__all__ = ["never_reading"]

_MESSAGES = 80
"""More than a stream may leave unanswered, by labeler's default."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4
_WINDOW_BYTES = 64
_WIDTH = 24


@contextmanager
def never_reading(address: str, count: int) -> Iterator[None]:
    """Holds `count` such connections to `host:port` while the block runs."""
    with ExitStack() as stack:
        for number in range(count):
            stack.enter_context(_connected(address, f"never-reads-{time.time_ns()}-{number}"))
        yield


def _connected(address: str, robot_id: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    window = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WINDOW_BYTES)
    hello = _PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_HEADERS, _END_HEADERS, 1, _head())
    messages = (_frame(_DATA, 0, 1, _message(robot_id, n)) for n in range(1, _MESSAGES + 1))
    connection.sendall(hello + b"".join(messages))
    return connection


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _head() -> bytes:
    """The call's headers, each a literal that is not indexed."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/labeler.v1.LabelService/LabelStream",
        ":authority": "robot",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    texts = (text.encode() for header in headers.items() for text in header)
    strings = [bytes((len(text),)) + text for text in texts]
    return b"".join(
        b"\0" + name + value for name, value in zip(strings[::2], strings[1::2], strict=True)
    )


def _message(robot_id: str, sequence: int) -> bytes:
    payload = types_pb2.Payload(floats=[2.5] * _WIDTH)
    request = label_pb2.LabelRequest(robot_id=robot_id, sequence=sequence, payload=payload)
    request.timeout_us = 60_000_000
    body = request.SerializeToString()
    return struct.pack(">BI", 0, len(body)) + body
