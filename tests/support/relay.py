"""A TCP relay between a client and a service, which does to their bytes what networks do.

Modes: `pass`; `drop` (takes everything and says nothing, as a router that forgot the link);
`delay` (each piece waits); `crumbs` (segments of one byte). `cut` resets what is open.
"""

import socket
import struct
import threading
from types import TracebackType
from typing import Literal, Self

from tests.support.flow_http2 import endpoint

Mode = Literal["pass", "drop", "delay", "crumbs"]
DELAY_S = 0.05


class Relay:
    """Listens on a port of its own; connections made later get the mode of that time, too."""

    def __init__(self, target: str, mode: Mode = "pass") -> None:
        """Relays to `target`, `host:port`."""
        self.target = target
        self.mode: Mode = mode
        self.connections = 0
        self._links: list[_Link] = []
        self._wait = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it and all that goes through it."""
        self._wait.set()
        self._listener.close()
        self.cut()

    def forget(self) -> None:
        """What is open is dropped in silence from here on; new connections pass."""
        for link in self._links:
            link.forgotten = True

    def cut(self) -> None:
        """Resets what is open, on both sides; new connections pass."""
        # Who is cut may be back before the last of them is: that link is not among these.
        open_now, self._links = self._links, []
        for link in open_now:
            link.reset()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(endpoint(self.target), timeout=10)
            except OSError:
                near.close()
                continue
            self.connections += 1
            link = _Link(self, near, far)
            self._links.append(link)
            link.start()

    def paced(self) -> None:
        """Waits as long as a piece is delayed."""
        self._wait.wait(DELAY_S)


class _Link:
    """Two sockets and the threads between them."""

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        self.relay, self.ends = relay, (near, far)
        self.forgotten = False
        for end in self.ends:
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        near, far = self.ends
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def reset(self) -> None:
        for end in self.ends:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)
            except OSError:
                pass
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self._send(sink, data)
            if not self._silent():
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            if not self._silent():
                self.reset()

    def _send(self, sink: socket.socket, data: bytes) -> None:
        if self._silent():
            return
        if self.relay.mode == "delay":
            self.relay.paced()
        if self.relay.mode == "crumbs":
            for byte in data:
                sink.sendall(bytes((byte,)))
        else:
            sink.sendall(data)

    def _silent(self) -> bool:
        return self.forgotten or self.relay.mode == "drop"
