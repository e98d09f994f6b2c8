"""Starts what is measured, as a process of its own, and reads what the system knows of it.

The one place that knows how each kind of server is started, how it says that it is ready, and when
its work is done. Measures no label and builds nothing: `make bench` has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.suite.burning import burns_on_demand
from bench.suite.metrics import STAGES
from labeler.telemetry.reader import read_page

__all__ = ["BINARIES", "Server", "ServerError", "Spec", "running"]

BINARIES = Path(__file__).resolve().parent.parent.parent / "target" / "release"
_READY_S = 60.0
_SETTLED_S = 120.0
_STOP_S = 60.0
_POLL_S = 0.05
_BURN = "burn"
_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
_PATH_THREADS = ("transport", "infer-", "committer")


class ServerError(Exception):
    """A server did not start, or did not finish its work; the message has the end of its log."""


@dataclass(frozen=True)
class Spec:
    """What is started. Sides with equal specs share one process."""

    kind: Literal["echo", "labeler"]
    threads: int
    config: Path | None = None
    burns: bool = False
    """Whether a Python thread of it burns when it is told to."""


@dataclass
class Server:
    """A running server. CPU times are µs since its start, all threads; path: the label path's."""

    spec: Spec
    pid: int
    address: str
    admin_address: str
    burn_flag: Path
    """Says whether it burns, where it does so on demand; a file beside it may say so of another."""
    _before: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def begin(self) -> None:
        """A run is about to start."""
        self._before = self._cpu_us()

    def finish(self) -> dict[str, float]:
        """Waits until the run's work is done, and says what was seen of it (see `figures_of`).

        Errors: `ServerError` when work is left after two minutes.
        """
        after = self._cpu_us()
        if self.spec.kind == "echo":
            return {}
        status = self._status()
        seen = _stage_figures(status) | {"backlog_rows": float(status["journal"]["pending"])}
        total, path = (now - then for now, then in zip(after, self._before, strict=True))
        if total > 0:
            seen["path_cpu_share"] = path / total
        if seen["backlog_rows"]:
            self._settle()
            seen["server_cpu_after_us"] = self._cpu_us()[0] - after[0]
        return seen

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLED_S
        while pending := self._status()["journal"]["pending"]:
            if time.monotonic() > deadline:
                raise ServerError(f"{pending} labels are not stored after {_SETTLED_S:.0f} s")
            time.sleep(4 * _POLL_S)

    def _status(self) -> dict[str, Any]:
        return read_page(self.admin_address, "/status")

    def _cpu_us(self) -> tuple[float, float]:
        whole = _stat(Path(f"/proc/{self.pid}/stat"))[1]
        threads = [_stat(stat) for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return whole, sum(us for name, us in threads if name.startswith(_PATH_THREADS))


@contextmanager
def running(spec: Spec, folder: Path) -> Iterator[Server]:
    """A server from its ready line to its end; its log and state are in `folder`.

    Errors: `ServerError` with what it said, when it ends or stays silent for a minute.
    """
    folder.mkdir()
    log = folder / "log"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("LABELER_")}
    if spec.burns:
        kept |= burns_on_demand(folder / _BURN)
    with log.open("wb") as out:
        process = subprocess.Popen(
            _command(spec, folder), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=kept
        )
    try:
        yield _ready(spec, process, folder)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _command(spec: Spec, folder: Path) -> Sequence[str]:
    if spec.kind == "echo":
        return [str(BINARIES / "echo"), "127.0.0.1:0", str(spec.threads)]
    command = [sys.executable, "-m", "labeler.cli", "serve", "--state-dir", str(folder / "state")]
    command += ["--grpc-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"]
    command += ["--config", str(spec.config)] if spec.config else []
    return [*command, "--set", f"transport.threads={spec.threads}", "--set", "log.format=json"]


def _ready(spec: Spec, process: subprocess.Popen[bytes], folder: Path) -> Server:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        code = process.poll()
        said = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        for line in said:
            if found := _addresses(spec, line):
                return _measurable(Server(spec, process.pid, *found, folder / _BURN))
        if code is not None:
            raise ServerError("\n".join([f"{spec.kind} ended with {code}; it said:", *said[-20:]]))
        time.sleep(_POLL_S)
    raise ServerError(f"{spec.kind} was not ready within {_READY_S:.0f} s")


def _addresses(spec: Spec, line: str) -> tuple[str, str] | None:
    """Of gRPC and of the admin port, from the line that says that it serves."""
    if spec.kind == "echo":
        word, _, address = line.partition(" ")
        return (address, "") if word == "serving" else None
    try:
        fields = json.loads(line).get("fields", {})
    except ValueError:
        return None
    served = fields.get("message") == "serving"
    return (str(fields["grpc_address"]), str(fields["admin_address"])) if served else None


def _measurable(server: Server) -> Server:
    """A debug build is never measured; the others here are started from target/release."""
    if server.spec.kind == "labeler":
        profile = server._status()["profile"]
        if profile != "release":
            raise ServerError(f"this labeler is a {profile} build, whose speed says nothing")
    return server


def _stage_figures(status: Mapping[str, Any]) -> dict[str, float]:
    """Of the last ten seconds at most, as the server shows them."""
    stages = {stage["stage"]: stage for stage in status["stages"]}
    found = {
        f"stage_{name}_us_{share}": float(stages[name][f"us_{share}"])
        for name in STAGES
        for share in ("p50", "p99")
    }
    for share in ("p50", "p99"):
        both = (found[f"stage_{name}_us_{share}"] for name in ("decode", "encode"))
        found[f"decode_encode_us_{share}"] = sum(both)
    return found


def _stat(path: Path) -> tuple[str, float]:
    """Name and CPU time, µs, of a process or thread; ("", 0) where it has ended."""
    try:
        stat = path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0.0
    # The name may hold spaces and parentheses; what follows its last one does not.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], (int(fields[11]) + int(fields[12])) * _TICK_US
