"""Hands out a container's credentials over HTTP, as the agent beside it does, and renews them."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Given(BaseHTTPRequestHandler):
    """A container's credentials, as the agent beside it hands them out."""

    def do_GET(self) -> None:
        owner: Any = self.server
        owner.asked.append(self.headers.get("Authorization", "none"))
        body = json.dumps(owner.credentials(owner.asked[-1])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Agent(ThreadingHTTPServer):
    """Gives a key that is named after the token it is asked with, valid for some seconds."""

    daemon_threads = True

    def __init__(self, valid_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Given)
        self.asked: list[str] = []
        self.valid_s = valid_s
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/credentials"

    def credentials(self, token: str) -> dict[str, str]:
        end = datetime.now(UTC) + timedelta(seconds=self.valid_s)
        return {
            "AccessKeyId": f"AKIA-{token}",
            "SecretAccessKey": "secret",
            "Token": "token",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
