"""Real servers of DynamoDB's API for tests: `ministack` (PyPI) and `dynoxide` (npm, Linux x86-64).

One process a kind and a session, on loopback, in memory; each test has a table of its own. They are
two opinions of one API: what each wrongly accepts is listed in
`tests/contract/test_dynamodb_servers.py`, and the fault proxy refuses it in their place.

Where `dynoxide` can't run (no Node, another platform) its tests are skipped loudly;
`LABELER_REQUIRE_NODE=1` turns that into a failure. Nothing here speaks to AWS.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import botocore.config  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import pytest

from tests.support.waiting import eventually

Kind = Literal["ministack", "dynoxide"]
KINDS: tuple[Kind, ...] = get_args(Kind)
REGION = "eu-central-1"
PACKAGE = Path(__file__).parent / "node"
START_S = 60.0
# Starts a command that ends with the thread that started it: a killed session leaves nothing.
WITH_US = """
import os, sys
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
os.execv(sys.argv[1], sys.argv[1:])
"""

# What a process needs to reach a server here, and what keeps it from asking anybody else.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTONLY",
    "AWS_SECRET_ACCESS_KEY": "no-secret",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

Row = dict[str, Any]
Key = tuple[str, int]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class DynamoServer:
    """A server that runs: `client` speaks to it as a test's second look, never as the product."""

    kind: Kind
    url: str
    pid: int
    region: str = REGION
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    def client(self, url: str = "", **config: Any) -> Any:
        """A botocore client of this server, or of the proxy at `url`: one attempt, nothing checked.

        `config`: more of botocore's `Config`, such as `read_timeout`.
        """
        return client(url or self.url, **config)

    def table(self, name: str = "") -> DynamoTable:
        """A table that no other test uses; it does not exist until somebody creates it."""
        return DynamoTable(self, name or f"labels-{os.getpid()}-{next(_numbers)}")


@dataclass(frozen=True)
class DynamoTable:
    """A table of a server, by name; what is read is read behind the product's back."""

    server: DynamoServer
    name: str

    def create(self, url: str = "", **more: Any) -> DynamoTable:
        """Makes it as the product's `ensure` is meant to: by robot and sequence, on demand."""
        description = {
            "TableName": self.name,
            "KeySchema": [
                {"AttributeName": "robot_id", "KeyType": "HASH"},
                {"AttributeName": "sequence", "KeyType": "RANGE"},
            ],
            "AttributeDefinitions": [
                {"AttributeName": "robot_id", "AttributeType": "S"},
                {"AttributeName": "sequence", "AttributeType": "N"},
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
        self.server.client(url).create_table(**(description | more))
        return self

    def delete(self) -> None:
        """Takes it away with all rows."""
        self.server.client().delete_table(TableName=self.name)

    def items(self) -> list[dict[str, Any]]:
        """All items in DynamoDB's own form, such as `{"sequence": {"N": "7"}}`."""
        found: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        client = self.server.client()
        while True:
            page = client.scan(TableName=self.name, ConsistentRead=True, **more)
            found += page["Items"]
            if not page.get("LastEvaluatedKey"):
                return found
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def rows(self) -> dict[Key, Row]:
        """All rows by (robot_id, sequence), with plain values."""
        rows = [plain(item) for item in self.items()]
        found = {(str(row["robot_id"]), int(row["sequence"])): row for row in rows}
        assert len(found) == len(rows), f"{self.server.kind} holds a key twice"
        return found


def plain(item: Mapping[str, Mapping[str, Any]]) -> Row:
    """An item with plain values: whole numbers as int, others as Decimal, the rest as it is."""
    return {name: _plain(*next(iter(value.items()))) for name, value in item.items()}


def _plain(kind: str, value: Any) -> Any:
    if kind != "N":
        return value
    number = Decimal(value)
    return int(number) if number == number.to_integral_value() else number


@cache
def _session() -> Any:
    return botocore.session.Session()  # reads its descriptions of the API for half a second


@cache
def client(url: str, **config: Any) -> Any:
    """A botocore client with the test's credentials: one attempt, parameters unchecked.

    The same one for the same arguments, with its connections; threads may share it.
    """
    settings = {
        "parameter_validation": False,
        "retries": {"total_max_attempts": 1},
        "connect_timeout": 10,
        "read_timeout": 30,
        "proxies": {},
    }
    return _session().create_client(
        "dynamodb",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        config=botocore.config.Config(**(settings | config)),
    )


def servers(*kinds: Kind) -> pytest.MarkDecorator:
    """Marks a test to use the fixture `dynamodb` with these kinds only."""
    return pytest.mark.parametrize("dynamodb", kinds, indirect=True)


class DynamoServers:
    """The session's servers: each is started when a test first asks for it.

    They end with the thread that asked, at the latest.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[Kind, tuple[DynamoServer, subprocess.Popen[bytes]]] = {}

    def get(self, kind: Kind) -> DynamoServer:
        """The server of a kind. Errors: skips the test where it can't be had."""
        if kind not in self._running:
            self._running[kind] = _start(kind, self._folder)
        server, process = self._running[kind]
        assert process.poll() is None, f"{kind} ended by itself: {process.returncode}"
        return server

    def close(self) -> None:
        """Ends them all."""
        for _, process in self._running.values():
            _end(process)
        self._running.clear()


@contextmanager
def dynamo_server(kind: Kind = "ministack") -> Iterator[DynamoServer]:
    """A server of one's own, for what is run by hand or outside of a test's session."""
    with tempfile.TemporaryDirectory() as folder:
        running = DynamoServers(Path(folder))
        try:
            yield running.get(kind)
        finally:
            running.close()


def _start(kind: Kind, folder: Path) -> tuple[DynamoServer, subprocess.Popen[bytes]]:
    port = free_port()
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    if kind == "ministack":
        command, variables = _ministack(port, place)
    else:
        command, variables = _dynoxide(port), dict(os.environ)
    log = place / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WITH_US, *command],
            cwd=place,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: process.poll() is not None or _answers(url), START_S)
        assert process.poll() is None, f"{kind} did not start:\n{log.read_text()}"
    except BaseException:
        _end(process)
        raise
    return DynamoServer(kind, url, process.pid), process


def _answers(url: str) -> bool:
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.ListTables",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIATESTONLY/20260101/"
        f"{REGION}/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature=0",
        "X-Amz-Date": "20260101T000000Z",
    }
    request = urllib.request.Request(url, b"{}", headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as reply:
        return bool(reply.status == 200)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def free_port() -> int:
    """A port of loopback that nobody listens on; a moment later somebody might."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _ministack(port: int, place: Path) -> tuple[list[str], dict[str, str]]:
    variables = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb",
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "PERSIST_STATE": "0",
        "LOG_LEVEL": "WARNING",
        "TMPDIR": str(place),
    }
    return [str(Path(sys.executable).with_name("ministack"))], variables


def _dynoxide(port: int) -> list[str]:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        _skip(f"no dynoxide for {platform.system()} on {platform.machine()}")
    binary = node_modules() / "@dynoxide" / "linux-x64" / "dynoxide"
    return [str(binary), "serve", "--host", "127.0.0.1", "--port", str(port)]


def node_modules() -> Path:
    """Where the packages of `tests/support/node` are, installed on first use beside this Python.

    The folder is named after the lock file's content, so that another lock is another folder.
    """
    files = [PACKAGE / "package.json", PACKAGE / "package-lock.json"]
    content = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    parent = Path(sys.prefix) / "node"
    parent.mkdir(exist_ok=True)
    made = parent / content
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _install(files, made)
    return made / "node_modules"


def _install(files: list[Path], made: Path) -> None:
    if shutil.which("npm") is None:
        _skip("no Node: `npm` is not on PATH")
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        for file in files:
            shutil.copy(file, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            _skip(f"no packages from npm: {done.stderr.strip()[-500:]}")
        os.rename(folder, made)
        os.mkdir(folder)  # for the context's end


def _skip(why: str) -> None:
    if os.environ.get("LABELER_REQUIRE_NODE") == "1":
        pytest.fail(f"LABELER_REQUIRE_NODE=1, but there is {why}", pytrace=False)
    pytest.skip(why)
