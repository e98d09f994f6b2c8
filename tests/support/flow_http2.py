"""A robot whose HTTP/2 windows and reads are in the test's hands: it never reads, resets, vanishes.

What it sends is well formed, unlike what `raw_http2` sends. It reads only when it is told to, and
opens its flow-control windows only for streams that it is told to read. Knows gRPC's framing and
nothing of our client.
"""

import socket
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
from google.protobuf.message import Message

from labeler.v1 import label_pb2
from tests.support.waiting import eventually

STREAM_WINDOW = 65_535
GOAWAY = 7


def endpoint(address: str) -> tuple[str, int]:
    """The host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def framed(message: Message) -> bytes:
    """A message as gRPC sends it, not compressed."""
    body = message.SerializeToString()
    return struct.pack(">BI", 0, len(body)) + body


class Robot:
    """One connection. `window`: bytes of replies that one stream may send unread."""

    def __init__(self, address: str, window: int = STREAM_WINDOW) -> None:
        """Connects and says hello; reads nothing."""
        self.socket = socket.create_connection(endpoint(address), timeout=30)
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=True, initial_values={codes.ENABLE_PUSH: 0, codes.INITIAL_WINDOW_SIZE: window}
        )
        self.goaway: int | None = None
        self._raw = bytearray()
        self.closed = False
        self.reset: set[int] = set()
        self.trailers: dict[int, dict[str, str]] = {}
        self._bytes: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._unread: defaultdict[int, int] = defaultdict(int)
        self.h2.initiate_connection()
        self.flush()

    def greet(self) -> None:
        """Waits for the service's settings and windows, which allow more than the defaults."""
        before = self.h2.outbound_flow_control_window

        def greeted() -> bool:
            self.read()
            return self.h2.outbound_flow_control_window > before

        eventually(greeted, timeout_s=30)

    def open(self, method: str = "LabelStream") -> int:
        """Begins a call; its number. Nothing is sent before `flush`."""
        number = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/labeler.v1.LabelService/{method}"),
            (":authority", "robot"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        self.h2.send_headers(number, headers)
        return number

    def send(self, number: int, messages: Iterable[Message], end: bool = False) -> int:
        """Sends messages while the service's window has room; how many."""
        sent = 0
        for message in messages:
            data = framed(message)
            if len(data) > self.h2.local_flow_control_window(number):
                break
            self.h2.send_data(number, data)
            sent += 1
        if end:
            self.h2.end_stream(number)
        self.flush()
        return sent

    def cancel(self, number: int) -> None:
        """Resets a call; nothing is sent before `flush`."""
        self.h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)

    def flush(self) -> None:
        """Sends what is to be sent, in one piece."""
        self.socket.sendall(self.h2.data_to_send())

    def read(self, *streams: int) -> None:
        """Takes what has come, without waiting. Only the windows of `streams` are opened again."""
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        self.socket.settimeout(30)
        if data == b"":
            self.closed = True
        for frame in self._frames(data or b""):
            if frame[3] == GOAWAY:
                (self.goaway,) = struct.unpack(">I", frame[13:17])
            elif self.goaway is None:
                # The library's connection would be over with it; this one goes on.
                for event in self.h2.receive_data(frame):
                    self._happened(event)
        for number in streams:
            if unread := self._unread.pop(number, 0):
                self.h2.acknowledge_received_data(unread, number)
        if not self.closed:
            try:
                self.flush()
            except OSError:
                self.closed = True

    def replies(self, number: int) -> list[label_pb2.LabelStreamResponse]:
        """The replies that have come on a stream."""
        data, found = self._bytes[number], []
        while len(data) >= 5 and len(data) >= 5 + (size := struct.unpack(">I", data[1:5])[0]):
            found.append(label_pb2.LabelStreamResponse.FromString(bytes(data[5 : 5 + size])))
            del data[: 5 + size]
        return found

    def received(self, number: int) -> int:
        """Bytes of replies that have come and were not taken by `replies`; no window opens."""
        self.read()
        return len(self._bytes[number])

    def status(self, number: int) -> str:
        """Waits for the end of a call, reading it; its gRPC status as text, or `reset`."""

        def over() -> bool:
            self.read(number)
            return number in self.trailers or number in self.reset or self.closed

        eventually(over, timeout_s=30)
        return self.trailers.get(number, {}).get("grpc-status", "reset")

    def vanish(self) -> None:
        """Ends the connection by a TCP reset."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()

    def close(self) -> None:
        """Ends the connection by closing the socket."""
        self.socket.close()

    def __del__(self) -> None:
        """A test that fails leaves no socket."""
        self.socket.close()

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """The whole frames that have come."""
        self._raw += data
        while len(self._raw) >= 9:
            size = 9 + int.from_bytes(self._raw[:3], "big")
            if len(self._raw) < size:
                return
            yield bytes(self._raw[:size])
            del self._raw[:size]

    def _happened(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.DataReceived():
                self._bytes[event.stream_id] += event.data
                self._unread[event.stream_id] += event.flow_controlled_length
            case h2.events.TrailersReceived() | h2.events.ResponseReceived():
                self._headers(event.stream_id, event.headers)
            case h2.events.StreamReset():
                self.reset.add(event.stream_id)

    def _headers(self, number: int, headers: Iterable[tuple[Any, Any]]) -> None:
        """Notes headers that hold a status: trailers, or the only headers of a refusal."""
        found = {str(name): str(value) for name, value in headers}
        if "grpc-status" in found:
            self.trailers[number] = found
