"""Hands out credentials over HTTP, as AWS's agents beside a process do, and renews them.

A container's agent, STS for a web identity's token, and the metadata service of an instance: each
gives a key that is named after the token it is asked with, so that calls tell which they have.
"""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

_ROLE = "/latest/meta-data/iam/security-credentials/"
_STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult>
<AssumedRoleUser><Arn>arn:aws:sts::000000000000:assumed-role/labeler/pod</Arn>
<AssumedRoleId>AROATEST:pod</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{AccessKeyId}</AccessKeyId>
<SecretAccessKey>{SecretAccessKey}</SecretAccessKey><SessionToken>{Token}</SessionToken>
<Expiration>{Expiration}</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class _Given(BaseHTTPRequestHandler):
    """One request of a client that looks for credentials."""

    def do_GET(self) -> None:
        owner: Any = self.server
        if self.path == _ROLE:
            self._say("labeler")
            return
        instance = self.path.startswith(_ROLE)
        token = owner.instance_token if instance else self.headers.get("Authorization", "none")
        owner.asked.append(token)
        self._say(json.dumps(owner.credentials(token)))

    def do_PUT(self) -> None:
        self._say("a session of the metadata service")

    def do_POST(self) -> None:
        owner: Any = self.server
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        owner.asked.append(asked["WebIdentityToken"][0])
        self._say(_STS.format(**owner.credentials(owner.asked[-1])))

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Agent(ThreadingHTTPServer):
    """Gives credentials that are valid for some seconds; `asked`: the tokens, in order."""

    daemon_threads = True

    def __init__(self, valid_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Given)
        self.asked: list[str] = []
        self.valid_s = valid_s
        self.instance_token = "first"
        """What the metadata service names its key after: it is asked without a token of ours."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def root(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """A container's credentials."""
        return f"{self.root}/credentials"

    def credentials(self, token: str) -> dict[str, str]:
        """As the agents have them in JSON."""
        end = datetime.now(UTC) + timedelta(seconds=self.valid_s)
        return {
            "Code": "Success",
            "AccessKeyId": f"AKIA-{token}",
            "SecretAccessKey": "secret",
            "Token": "token",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def close(self) -> None:
        """Answers nobody any more."""
        self.shutdown()
        self.server_close()
