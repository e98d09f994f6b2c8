"""What a service under measurement writes to: an embedded store, a server beside it, or nothing.

Starts the server, says with which settings a service reaches it, and makes an outage of it. Knows
no service.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.support.dynamodb import ENVIRONMENT, REGION, client, dynamo_server

__all__ = ["OFF", "StoreBeside", "StoreKind", "store_beside"]

StoreKind = Literal["sqlite", "fast-dynamodb", "dynoxide", "ministack"]
OFF = "off"
"""In the place of a kind: a store that takes nothing while a run is on."""

_OFF = Path(__file__).resolve().parent / "off" / "bench_off.py"
"""The store in its place: its folder is on the service's path, its entry point beside it."""
_TABLE = "bench-labels"
_STOP_S = 20.0


@dataclass(frozen=True)
class StoreBeside:
    """`arguments` and `environment` are the service's; `pid` 0 is no process of its own."""

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    url: str = ""
    flag: Path | None = None

    def take_nothing(self, nothing: bool) -> None:
        """From now on: a writer that is off, or an outage of the server that can have one."""
        if self.flag:
            with self.flag.open("r+b") as file:  # in place: the service has mapped it
                file.write(b"\1" if nothing else b"\0")
        else:
            assert self.url, "an embedded store has no outage here"
            os.kill(self.pid, signal.SIGUSR1 if nothing else signal.SIGUSR2)

    def rows(self) -> int:
        """How many items it holds, by its own count."""
        return int(client(self.url).scan(TableName=_TABLE, Select="COUNT")["Count"])


@contextmanager
def store_beside(kind: str, folder: Path) -> Iterator[StoreBeside]:
    """A store of a `StoreKind`, or `OFF`, while the block runs; `folder` is the service's."""
    if kind == OFF:
        yield _off(folder / "off")
    elif kind == "sqlite":
        yield StoreBeside()
    elif kind == "fast-dynamodb":
        with subprocess.Popen(
            [sys.executable, "-m", "bench.suite.fast_dynamodb"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout
                url = f"http://127.0.0.1:{int(process.stdout.readline())}"
                yield _dynamodb(url, process.pid)
            finally:
                process.terminate()
                process.wait(_STOP_S)
    else:
        assert kind in ("dynoxide", "ministack")
        with dynamo_server(kind) as server:  # type: ignore[arg-type]
            server.table(_TABLE).create()
            yield _dynamodb(server.url, server.pid)


def _off(flag: Path) -> StoreBeside:
    flag.write_bytes(b"\0")
    settings = {
        "writer.store": "bench-off",
        "writer.store_settings": f"flag={flag}",
        # What the writer takes before it waits costs CPU, and is no label stored.
        "writer.held_rows_max": "100",
        "writer.write_timeout_ms": "3600000",
    }
    path = os.pathsep.join([str(_OFF.parent), *sys.path])
    return StoreBeside(_set(settings), {"PYTHONPATH": path}, flag=flag)


def _dynamodb(url: str, pid: int) -> StoreBeside:
    settings = {
        "writer.store": "dynamodb",
        "dynamodb.table": _TABLE,
        "dynamodb.region": REGION,
        "dynamodb.endpoint_url": url,
    }
    return StoreBeside(_set(settings), dict(ENVIRONMENT), pid, url)


def _set(settings: Mapping[str, str]) -> list[str]:
    return [part for name, text in settings.items() for part in ("--set", f"{name}={text}")]
