"""HTTP/1.1 by the byte: reads requests with a length, and ends a connection in every way there is.

Written by hand because a server's library closes connections only politely. No chunked requests, no
TLS: DynamoDB's clients send neither to a plain endpoint.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal

End = Literal["keep", "fin", "rst"]


@dataclass(frozen=True)
class Request:
    """What a client sent; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What is sent back. `sent`: so many bytes of it at most; `end`: what the connection does."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: int | None = None
    end: End = "keep"

    def bytes(self) -> bytes:
        """As it goes over the wire, cut where it is cut."""
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}"]
        lines += [f"{name}: {text}" for name, text in self.headers.items()]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        whole = "\r\n".join(lines).encode("latin-1") + self.body
        return whole if self.sent is None else whole[: self.sent]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


CUT = Reply(sent=0, end="fin")
RESET = Reply(sent=0, end="rst")
Handler = Callable[[Request, "Connection"], Awaitable[Reply]]


class Connection(asyncio.Protocol):
    """One client's connection: a request at a time, and who is at the other end or no more."""

    def __init__(self, handle: Handler, known: set[Connection]) -> None:
        self.gone = asyncio.Event()
        """Set when the client has closed its end, or we ours."""
        self.requests = 0
        self.idle_s = 0.0
        """How long it had lain idle when the request that is served now came."""
        self._handle = handle
        self._known = known
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._rest = self._heard = asyncio.get_running_loop().time()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._known.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._known.discard(self)

    def eof_received(self) -> bool:
        self.gone.set()
        return False

    def data_received(self, data: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._buffer += data
        self._next()

    def idle_for(self) -> float:
        """Seconds since anything was read or answered; 0 while a request is served."""
        if self._task is not None:
            return 0.0
        return asyncio.get_running_loop().time() - max(self._rest, self._heard)

    def end(self, how: End) -> None:
        """Closes it with a FIN after what is written, or with a RST at once."""
        self.gone.set()
        if how == "rst":
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                linger = struct.pack("ii", 1, 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        elif how == "fin":
            self._transport.close()

    async def close(self) -> None:
        """Ends it and the request that is being served."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.end("rst")

    def _next(self) -> None:
        if self._task is not None or self.gone.is_set():
            return
        request = self._take()
        if request is not None:
            self.requests += 1
            self.idle_s = asyncio.get_running_loop().time() - self._rest
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            reply = await self._handle(request, self)
            if not self._transport.is_closing():
                self._transport.write(reply.bytes())
            self.end(reply.end) if reply.end != "keep" else None
        finally:
            self._rest = asyncio.get_running_loop().time()
            self._task = None
        self._next()

    def _take(self) -> Request | None:
        head, mark, _ = bytes(self._buffer[:65536]).partition(b"\r\n\r\n")
        if not mark:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): text.strip() for name, _, text in pairs}
        start = len(head) + len(mark)
        end = start + int(headers.get("content-length", "0"))
        if len(self._buffer) < end:
            return None
        method, path, *_ = first.split(" ")
        request = Request(method, path, headers, bytes(self._buffer[start:end]))
        del self._buffer[:end]
        return request


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> bool:
    """Waits until one of them is set; False when the time passed first."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
