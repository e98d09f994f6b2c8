"""The admin port: metrics, status and liveness over HTTP, on threads of its own.

`/healthz` says that the process lives and reads nothing; gRPC health tells whether it is ready.
Connections are bounded: of those that say nothing the oldest makes room for a new one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from labeler.errors import ConfigError, InUseError
from labeler.telemetry.prometheus import Exposition
from labeler.telemetry.status import StatusWindow

__all__ = ["CONNECTIONS_MAX", "AdminServer"]

_log = logging.getLogger(__name__)
_REQUEST_S_MAX = 10
CONNECTIONS_MAX = 32
"""At once, each on a thread."""


class AdminServer:
    """Bound when made, serving after `start`: a taken port stops the service before it begins."""

    def __init__(self, address: str) -> None:
        """Binds `IP:port`. Errors: `InUseError` (exit code 69), `ConfigError`."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server_class = type("_Server", (_Server,), {"address_family": family})
        try:
            self._server: _Server = server_class((host, int(port)), _Handler)
        except OSError as error:
            raise _cannot_bind(address, error) from error
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="labeler-admin", daemon=True),
            threading.Thread(target=self._sample, name="labeler-sampler", daemon=True),
        ]

    @property
    def address(self) -> str:
        """`host:port` that it listens on."""
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes | bytearray) else host
        return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"

    def start(self, exposition: Exposition, window: StatusWindow) -> None:
        """Begins to serve these, and to sample for `/status`."""
        self._server.exposition, self._server.window = exposition, window
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Closes the port. Idempotent."""
        self._stop.set()
        if self._threads[0].is_alive():
            self._server.shutdown()
        self._server.server_close()

    def _sample(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self._server.window.sample()
            except Exception as error:  # the engine may be gone while this still runs
                _log.debug("no status sample: %r", error)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    exposition: Exposition
    window: StatusWindow

    def __init__(self, *args: Any) -> None:
        """Binds."""
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}
        self._busy: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives the connection a thread, within the bound."""
        if self._admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _admit(self, connection: socket.socket) -> bool:
        """Takes it in; at the bound in the place of the one that has kept silent for longest."""
        with self._lock:
            if len(self._waiting) + len(self._busy) >= CONNECTIONS_MAX:
                if not self._waiting:
                    return False
                silent = next(iter(self._waiting))
                del self._waiting[silent]
                with contextlib.suppress(OSError):
                    silent.shutdown(socket.SHUT_RDWR)
            self._waiting[connection] = None
            return True

    @contextlib.contextmanager
    def busy(self, connection: socket.socket) -> Iterator[None]:
        """While it is answered it makes room for nobody."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._busy.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(connection)
                self._waiting[connection] = None

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection, and gives its place back."""
        with self._lock:
            self._waiting.pop(request, None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        """Binds without asking DNS for this host's name: a resolver that is away delays a start."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One request's fault is that request's: a scraper that hangs up is no traceback."""
        _log.debug("admin request of %s broke off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "labeler"
    sys_version = ""
    timeout = _REQUEST_S_MAX
    server: _Server

    def do_GET(self) -> None:
        """Answers the four pages."""
        with self.server.busy(self.connection):
            self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        try:
            if path == "/healthz":
                self._reply(200, b"live\n", "text/plain; charset=utf-8")
            elif path == "/metrics":
                body, kind = self.server.exposition.render(self.headers.get("Accept", ""))
                self._reply(200, body, kind)
            elif path in ("/status", "/stages"):
                window = self.server.window
                found = window.status() if path == "/status" else window.stages()
                self._reply(200, json.dumps(found).encode(), "application/json")
            else:
                known = b"pages: /metrics /status /stages /healthz\n"
                self._reply(404, known, "text/plain; charset=utf-8")
        except OSError:
            raise
        except Exception as error:
            _log.error("admin page %s failed: %r", path, error, exc_info=error)
            self._reply(500, b"failed, see the log\n", "text/plain; charset=utf-8")

    def _reply(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A refusal as plain text; with a status line too where the request had no version."""
        self.request_version = "HTTP/1.1"
        self.close_connection = True
        reason = message or self.responses.get(code, ("refused", ""))[0]
        text = f"{code}: {reason[:200]}\n".encode(errors="backslashreplace")
        self._reply(code, text, "text/plain; charset=utf-8")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""
        _log.debug(format, *args)


def _cannot_bind(address: str, error: OSError) -> InUseError | ConfigError:
    if error.errno == errno.EADDRINUSE:
        return InUseError(
            f"address {address} is in use: another process has the admin port; "
            "stop it, or set admin.address (--admin-address)"
        )
    reason = error.strerror or str(error)
    return ConfigError(f"admin.address = {address}: this machine cannot listen there: {reason}")
