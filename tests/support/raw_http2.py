"""HTTP/2 frame by frame on a plain socket: what a broken or hostile peer sends, what comes back.

Checks nothing of what is sent: that is its purpose. Every read has a time limit and a bound.
"""

import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import hpack
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)

from labeler.v1 import types_pb2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LABEL = "/labeler.v1.LabelService/Label"
ANSWER_S = 30.0
_FRAME_BYTES_MAX = 1 << 24
_READ_BYTES = 1 << 16

Headers = Sequence[tuple[str, str]]


def headers(
    path: str = LABEL, without: Iterable[str] = (), **changed: str
) -> list[tuple[str, str]]:
    """The headers of a good gRPC call, without some of them, and with others.

    A name in `changed` has `_` for `-`; pseudo-headers are written `method`, `scheme`.
    """
    found = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "robots",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    for name in without:
        del found[name]
    for name, value in changed.items():
        plain = name.replace("_", "-")
        found[f":{plain}" if f":{plain}" in found else plain] = value
    return list(found.items())


def message(payload: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message with its prefix; `flag` 1 says compressed, `length` lies about its size."""
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """A frame of any type, flags and stream, whether HTTP/2 knows or forbids it."""
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


@dataclass
class Answer:
    """What came back for one call: its headers and trailers together, its bytes, how it ended."""

    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def code(self) -> int | None:
        """The gRPC status code, if one came."""
        return int(self.fields["grpc-status"]) if "grpc-status" in self.fields else None

    @property
    def error(self) -> types_pb2.Error:
        """Our own detail of a failed call."""
        import base64

        text = self.fields["grpc-status-details-bin"]
        status = types_pb2.StatusDetails.FromString(base64.b64decode(text + "=" * (-len(text) % 4)))
        error = types_pb2.Error()
        assert any(detail.Unpack(error) for detail in status.details)
        return error


class Peer:
    """A connection to the port; `closed` and `goaway` say how it ended."""

    def __init__(self, address: str, preface: bool = True) -> None:
        """Connects; with `preface` it also greets, as HTTP/2 asks."""
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.goaway: int | None = None
        self.answers: dict[int, Answer] = {}
        self.pings = 0
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._unread = b""
        if preface:
            self.send(PREFACE, SettingsFrame(0).serialize())

    def __enter__(self) -> Self:
        """The connection itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it, whatever was under way."""
        self.socket.close()

    def send(self, *parts: bytes) -> bool:
        """Sends bytes as they are; false when the port has closed the connection."""
        try:
            self.socket.sendall(b"".join(parts))
        except OSError:
            self.closed = True
        return not self.closed

    def encode(self, fields: Headers) -> bytes:
        """A header block."""
        return bytes(self._encoder.encode(fields))

    def open(self, stream: int, fields: Headers, end: bool = False) -> bytes:
        """The HEADERS frame of a call; `end`: it has no body."""
        sent = HeadersFrame(stream, self.encode(fields))
        sent.flags.add("END_HEADERS")
        if end:
            sent.flags.add("END_STREAM")
        return sent.serialize()

    def data(self, stream: int, body: bytes, end: bool = True) -> bytes:
        """The DATA frames of a body."""
        parts = [body[at : at + 16384] for at in range(0, len(body), 16384)] or [b""]
        frames = [DataFrame(stream, part) for part in parts]
        if end:
            frames[-1].flags.add("END_STREAM")
        return b"".join(one.serialize() for one in frames)

    def reset(self, stream: int) -> bytes:
        """RST_STREAM with CANCEL."""
        return bytes(RstStreamFrame(stream, error_code=8).serialize())

    def call(self, body: bytes, fields: Headers | None = None, stream: int = 1) -> Answer:
        """One call from its headers to its answer."""
        self.send(self.open(stream, headers() if fields is None else fields))
        self.send(self.data(stream, body))
        return self.answer(stream)

    def answer(self, stream: int) -> Answer:
        """What comes back for a call, until it ends, or the connection does."""
        while not self.closed:
            found = self.answers.get(stream)
            if found and (found.ended or found.reset is not None):
                break
            self.read()
        return self.answers.setdefault(stream, Answer())

    def drain(self) -> None:
        """Reads until the port closes the connection."""
        while not self.closed:
            self.read()

    def read(self) -> None:
        """Takes in what is there, at least one read. Errors: `TimeoutError` when nothing comes."""
        try:
            got = self.socket.recv(_READ_BYTES)
        except TimeoutError:
            raise
        except OSError:
            got = b""
        if not got:
            self.closed = True
            return
        self._unread += got
        while len(self._unread) >= 9:
            parsed, length = Frame.parse_frame_header(memoryview(self._unread[:9]))
            assert length < _FRAME_BYTES_MAX
            if len(self._unread) < 9 + length:
                break
            parsed.parse_body(memoryview(self._unread[9 : 9 + length]))
            self._unread = self._unread[9 + length :]
            self._take(parsed)

    def _take(self, taken: Frame) -> None:
        found = self.answers.setdefault(taken.stream_id, Answer()) if taken.stream_id else Answer()
        if isinstance(taken, HeadersFrame):
            for name, value in self._decoder.decode(taken.data):
                found.fields[_text(name)] = _text(value)
        elif isinstance(taken, DataFrame):
            found.body += taken.data
        elif isinstance(taken, RstStreamFrame):
            found.reset = taken.error_code
        elif isinstance(taken, GoAwayFrame):
            self.goaway = taken.error_code
        elif isinstance(taken, SettingsFrame) and "ACK" not in taken.flags:
            self.send(SettingsFrame(0, flags=["ACK"]).serialize())
        elif taken.type == 6 and "ACK" in taken.flags:
            self.pings += 1
        found.ended = found.ended or "END_STREAM" in taken.flags


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
