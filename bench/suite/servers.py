"""Starts what is measured, as a process of its own, and reads what the system knows of it.

The one place that knows how each kind of server is started, how it says that it is ready, and when
its work is done. Measures no label and builds nothing: `make bench` has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.suite import peers
from bench.suite.burning import burns_on_demand
from bench.suite.copies import copied
from bench.suite.metrics import STAGES
from bench.suite.stores import OFF, StoreBeside, store_beside
from labeler.telemetry.histograms import minus, percentile
from labeler.telemetry.reader import read_page

__all__ = ["BINARIES", "Server", "ServerError", "Spec", "running"]

BINARIES = Path(__file__).resolve().parent.parent.parent / "target" / "release"
_READY_S = 120.0
_SETTLED_S = 120.0
_STOP_S = 60.0
_POLL_S = 0.05
_BURN = "burn"
_STATE = "state"
_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
_PATH_THREADS = ("transport", "infer-", "committer")


class ServerError(Exception):
    """A server did not start, or did not finish its work; the message has the end of its log."""


@dataclass(frozen=True)
class Spec:
    """What is started. Sides with equal specs share one process."""

    kind: str
    """`echo`, `labeler`, or `peer:` and the name of a peer."""
    threads: int
    config: Path | None = None
    burns: bool = False
    """Whether a Python thread of it burns when it is told to."""
    store: str = "sqlite"
    """A `StoreKind`, or `OFF`."""
    copies: int = 0
    """Of the packaged model, in the place of the model itself."""
    backlog: bool = False
    """Whether what is left in its journal after a run stays there for the next one."""
    arguments: tuple[str, ...] = ()
    """A peer's own."""
    tree: Path | None = None
    """The work tree whose service it is; this one's where there is none."""

    @property
    def peer(self) -> str:
        """The peer's name; empty for what is ours."""
        return self.kind.partition(peers.PEER)[2]


@dataclass(frozen=True)
class _Seen:
    """A reading: CPU of the process, its label path and the store beside it; what is stored."""

    at_s: float
    cpu_us: float
    path_us: float
    store_us: float
    stored: int
    lag: list[tuple[int, int]]


@dataclass
class Server:
    """A running server. CPU times are µs since its start, all threads; path: the label path's."""

    spec: Spec
    pid: int
    address: str
    admin_address: str
    burn_flag: Path
    """Says whether it burns, where it does so on demand; a file beside it may say so of another."""
    ready_s: float = 0.0
    """From its start to the line that says that it serves."""
    store: StoreBeside = field(default_factory=StoreBeside, repr=False)
    _before: _Seen | None = field(default=None, repr=False)

    def begin(self) -> None:
        """A run is about to start."""
        if self.spec.peer:
            peers.thaw(self.pid)
        if self.spec.store == OFF:
            self.store.take_nothing(True)
        self._before = self._seen()

    def finish(self) -> dict[str, float]:
        """Waits until the run's work is done, and says what was seen of it (see `figures_of`).

        Errors: `ServerError` when work is left after two minutes.
        """
        if self.spec.peer:
            peers.freeze(self.pid)
        after, before = self._seen(), self._before
        if self.spec.kind != "labeler":
            return {}
        assert before, "`begin` comes before `finish`"
        status = self.status()
        seen = _stage_figures(status) | {"backlog_rows": float(status["journal"]["pending"])}
        if after.cpu_us > before.cpu_us:
            seen["path_cpu_share"] = (after.path_us - before.path_us) / (
                after.cpu_us - before.cpu_us
            )
        if self.spec.store == OFF:  # what comes after it is of no run
            self.store.take_nothing(False)
            self.settle()
            return seen
        seen |= _writer_figures(before, after)
        if seen["backlog_rows"] and not self.spec.backlog:
            self.settle()
            seen["server_cpu_after_us"] = self._cpu_us()[0] - after.cpu_us
        return seen

    def workers(self) -> list[int]:
        """Its other processes, whose CPU and memory are its own."""
        return peers.session(self.pid)[1:] if self.spec.peer else []

    def settle(self, timeout_s: float = _SETTLED_S) -> None:
        """Waits until no label waits for the store. Errors: `ServerError`."""
        deadline = time.monotonic() + timeout_s
        while pending := self.status()["journal"]["pending"]:
            if time.monotonic() > deadline:
                raise ServerError(f"{pending} labels are not stored after {timeout_s:.0f} s")
            time.sleep(4 * _POLL_S)

    def status(self) -> dict[str, Any]:
        """The golden figures, as the service shows them."""
        return read_page(self.admin_address, "/status")

    def _seen(self) -> _Seen:
        stages = {} if self.spec.kind != "labeler" else read_page(self.admin_address, "/stages")
        journal = {} if self.spec.kind != "labeler" else self.status()["journal"]
        store = _stat(Path(f"/proc/{self.store.pid}/stat"))[1] if self.store.pid else 0.0
        return _Seen(
            time.monotonic(),
            *self._cpu_us(),
            store_us=store,
            stored=journal.get("stored_total", 0),
            # A service older than this figure has none.
            lag=[(upper, count) for upper, count in stages.get("loop_lag_us", ())],
        )

    def _cpu_us(self) -> tuple[float, float]:
        whole = _stat(Path(f"/proc/{self.pid}/stat"))[1]
        threads = [_stat(stat) for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return whole, sum(us for name, us in threads if name.startswith(_PATH_THREADS))


@contextmanager
def running(spec: Spec, folder: Path, state: Path | None = None) -> Iterator[Server]:
    """A server from its ready line to its end; its log and state are in `folder`.

    `state`: what another one has left, which it begins with a copy of.

    A peer's processes are stopped where they are until a run begins, and again when it is over.

    Errors: `ServerError` with what it said, when it ends or stays silent for two minutes.
    """
    folder.mkdir()
    if state:
        shutil.copytree(state, folder / _STATE)
    with store_beside(spec.store, folder) as store, _process(spec, folder, store) as process:
        server = _ready(spec, process, folder)
        server.store = store
        if spec.peer:
            peers.freeze(server.pid)
        yield server


@contextmanager
def _process(spec: Spec, folder: Path, store: StoreBeside) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / "log"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("LABELER_")}
    if spec.burns:
        kept |= burns_on_demand(folder / _BURN)
    kept |= store.environment
    if spec.tree:
        kept["PYTHONPATH"] = str(spec.tree / "python")
    with ExitStack() as stack:
        if spec.peer:
            kept |= stack.enter_context(peers.surroundings(store.url))
        with log.open("wb") as out:
            process = subprocess.Popen(
                _command(spec, folder, store),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=kept,
                start_new_session=bool(spec.peer),
            )
        stack.callback(peers.end if spec.peer else _end, process)
        yield process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(spec: Spec, folder: Path, store: StoreBeside) -> Sequence[str]:
    if spec.kind == "echo":
        return [str(BINARIES / "echo"), "127.0.0.1:0", str(spec.threads)]
    if spec.peer:
        try:
            return peers.read_peer(spec.peer).command(spec.arguments)
        except peers.PeerError as error:
            raise ServerError(str(error)) from error
    command = [sys.executable, "-m", "labeler.cli", "serve", "--state-dir", str(folder / _STATE)]
    command += ["--grpc-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"]
    command += ["--config", str(spec.config)] if spec.config else []
    command += copied(folder / "models", spec.copies) if spec.copies else []
    command += ["--set", f"transport.threads={spec.threads}", "--set", "log.format=json"]
    return [*command, *store.arguments]


def _ready(spec: Spec, process: subprocess.Popen[bytes], folder: Path) -> Server:
    begin_s = time.monotonic()
    while (now_s := time.monotonic()) < begin_s + _READY_S:
        code = process.poll()
        said = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        for line in said:
            if found := _addresses(spec, line):
                server = Server(spec, process.pid, *found, folder / _BURN, now_s - begin_s)
                return _measurable(server)
        if code is not None:
            raise ServerError("\n".join([f"{spec.kind} ended with {code}; it said:", *said[-20:]]))
        time.sleep(_POLL_S)
    raise ServerError(f"{spec.kind} was not ready within {_READY_S:.0f} s")


def _addresses(spec: Spec, line: str) -> tuple[str, str] | None:
    """Of gRPC and of the admin port, from the line that says that it serves."""
    if spec.kind != "labeler":
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
        profile = server.status()["profile"]
        if profile != "release":
            raise ServerError(f"this labeler is a {profile} build, whose speed says nothing")
    return server


def _writer_figures(before: _Seen, after: _Seen) -> dict[str, float]:
    """Of the whole run, its warm-up too."""
    span_s = after.at_s - before.at_s
    found = {"stored_per_s": (after.stored - before.stored) / span_s}
    if after.store_us:
        found["store_cpu_cores"] = (after.store_us - before.store_us) / span_s / 1e6
    if lag := minus(after.lag, before.lag):
        found["loop_lag_us_p99"] = float(percentile(lag, 0.99))
        found["loop_lag_us_max"] = float(percentile(lag, 1.0))
    return found


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
