"""SIGTERM among bad connections, under new clients, and in the middle of a start.

Trap 7, S32, S34, W60. `tests/behaviour/test_lifecycle.py` has the usual ends. Full counts: 30 s.
"""

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc

import labeler
from labeler import config, open_files
from tests.support.counts import counts
from tests.support.database import lost_or_changed, stored
from tests.support.flow_http2 import Robot, endpoint
from tests.support.health import HealthWatch
from tests.support.load import Fleet, readings, robots
from tests.support.made_models import settings, write_identity
from tests.support.raw_http2 import PREFACE
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, Wire, floats, request

VALUES = [2.5] * WIDTH


def open_streams(service: Service) -> float:
    return service.metrics().sum("labeler_streams_open")


def bad_connections(address: str) -> list[socket.socket | Robot]:
    """One that says nothing, one in half a preface, one of HTTP/1.1, one that reads no reply."""
    silent, half, text = (socket.create_connection(endpoint(address)) for _ in range(3))
    half.sendall(PREFACE[:10])
    text.sendall(b"GET / HTTP/1.1\r\nhost: robots\r\n\r\n")
    deaf = Robot(address, window=100)
    deaf.send(deaf.open(), [request("deaf", n, floats(VALUES)) for n in range(1, 11)])
    return [silent, half, text, deaf]


class IdleStreams:
    """Streams of a client that behaves, in a thread: open, used once, then idle."""

    def __init__(self, address: str, count: int) -> None:
        self.ends: list[labeler.UnavailableError] = []
        self._address, self._count = address, count
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        async with labeler.AsyncClient(self._address, timeout_ms=60_000) as client:
            await asyncio.gather(*(self._one(client, n) for n in range(self._count)))

    async def _one(self, client: labeler.AsyncClient, number: int) -> None:
        async with client.stream() as stream:
            await stream.send(f"idle-{number}", 1, VALUES)
            assert isinstance(await stream.receive(), labeler.Label)
            try:
                await stream.receive()
            except labeler.UnavailableError as over:
                self.ends.append(over)


@counts("streams", quick=50, full=500, full_timeout_s=120)
def test_sigterm_among_bad_connections_and_idle_streams_ends_in_the_budget_with_nothing_lost(
    start_service: StartService, streams: int, seed: int
) -> None:
    open_files.raise_limit()
    # Far longer than what it takes: the code would be 0 at the budget's end, too, but with
    # another line.
    service = start_service(drain__budget_ms=6_000, transport__stream_unread_ms_max=600_000)
    bad = bad_connections(service.address)
    idle = IdleStreams(service.address, streams)
    eventually(lambda: open_streams(service) == streams + 1, timeout_s=60)
    with Fleet(service.address, robots(4), seed) as fleet:
        eventually(lambda: fleet.acknowledged() >= 100, timeout_s=60)
        service.terminate()
        assert service.wait() == 0
    idle.join()
    assert len(idle.ends) == streams
    assert all("draining: reconnect elsewhere" in str(end.__cause__) for end in idle.ends)
    assert all(end.unanswered == () for end in idle.ends)
    assert not any("the drain's budget is over" in line for line in service.stderr)
    (left,) = service.logged("abandoned by the drain")
    # The deaf one; the silent and the half one are owed nothing and leave with the listener.
    assert (left["connections"], left["streams"]) == (1, 0)
    (stopped,) = service.logged("stopped")
    assert (stopped["pending"], stopped["complete"]) == (0, True)
    assert not lost_or_changed(fleet.robots, service.database)
    held = stored(service.database)
    assert all((f"idle-{n}", 1) in held for n in range(streams))
    for one in bad:
        one.close()


class Newcomers:
    """A new client every 10 ms, each with one label; what it got, in order, until nobody listens.

    Each entry has the code, and whether health had turned NOT_SERVING before the client began.
    """

    def __init__(self, address: str, watch: HealthWatch) -> None:
        self.got: list[tuple[str, bool]] = []
        self._address, self._watch = address, watch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> list[tuple[str, bool]]:
        self._stop.set()
        self._thread.join(60)
        return self.got

    def _run(self) -> None:
        sequence = 0
        while not self._stop.wait(0.01):
            sequence += 1
            late = "NOT_SERVING" in self._watch.states
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(self._address, options) as channel:
                message = request("newcomer", sequence, floats(VALUES))
                try:
                    Wire(channel).labels.Label(message, timeout=20)
                except grpc.RpcError as error:
                    self.got.append((error.code().name, late))
                else:
                    self.got.append(("OK", late))


def test_new_clients_are_served_through_the_lame_duck_time_and_then_sent_elsewhere(
    start_service: StartService,
) -> None:
    """NOT_SERVING first, the port still open, then GOAWAY; late ones get OK or UNAVAILABLE."""
    service = start_service(drain__lame_duck_ms=900)
    with HealthWatch(service.address) as watch:
        eventually(lambda: watch.states == ["SERVING"])
        newcomers = Newcomers(service.address, watch)
        eventually(lambda: len(newcomers.got) >= 10, timeout_s=30)
        service.terminate()
        assert service.wait() == 0
        eventually(lambda: watch.states[-1] == "ENDED")
        eventually(lambda: newcomers.got[-1][0] == "UNAVAILABLE", timeout_s=30)
        got = newcomers.end()
    assert watch.states == ["SERVING", "NOT_SERVING", "ENDED"]
    assert {code for code, _ in got} == {"OK", "UNAVAILABLE"}
    assert got.count(("OK", True)) >= 5, "the port was open after health said NOT_SERVING"
    codes = [code for code, _ in got]
    assert "OK" not in codes[codes.index("UNAVAILABLE") :], "once it sends away, it stays so"
    held = stored(service.database)
    assert all(("newcomer", n) in held for n, code in enumerate(codes, start=1) if code == "OK")


def test_a_second_sigterm_ends_a_long_lame_duck_time(
    start_service: StartService, seed: int
) -> None:
    service = start_service(drain__lame_duck_ms=600_000, drain__budget_ms=1_200_000)
    with labeler.Client(service.address, timeout_ms=20_000) as client:
        client.wait_ready(20_000)
        service.terminate()
        eventually(lambda: client.health() == "NOT_SERVING", timeout_s=30)
        label = client.label("lame", 1, readings(random.Random(seed)))
        assert label.durability == "JOURNALED"
        service.terminate()
        assert service.wait(timeout_s=30) == 0
    again = start_service()
    eventually(lambda: stored(again.database) == {("lame", 1): label.label}, timeout_s=30)


def test_sigterm_while_models_load_ends_the_start_and_leaves_nothing_locked(
    start_service: StartService, tmp_path: Path
) -> None:
    """Each run of its warm-up takes half a second, and the signal is not put off until the last."""
    write_identity(tmp_path / "slow", cost=700_000, version="1")
    service = start_service(ready=False, **settings(tmp_path / "slow"))
    eventually(lambda: service.logged("journal recovered"), timeout_s=60)
    service.terminate()
    assert service.wait(timeout_s=30) == 0
    assert any("a signal during the start" in line for line in service.stderr)
    assert not service.logged("serving")
    assert start_service().stop() == 0


HALF_START = """
import contextlib, json, os, signal, sys, time
from labeler._core import Engine
from labeler.errors import LabelerError

OURS = ("committer", "transport", "infer", "signals", "drain", "failure", "watchdog")

def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        # One may end between the two readings.
        with contextlib.suppress(OSError):
            names.append(open(f"/proc/self/task/{task}/comm").read().strip())
    return sorted({name.partition("-")[0] for name in names if name.startswith(OURS)})

def left():
    # A thread that has been told to end, or was joined, is still listed for a moment.
    until = time.monotonic() + 5
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    return threads()

good, said = json.loads(sys.argv[1]), []
for changes in json.loads(sys.argv[2]):
    broken = {**good, **{part: {**good[part], **fields} for part, fields in changes.items()}}
    try:
        Engine.start(json.dumps(broken))
    except LabelerError as error:
        said.append([type(error).__name__, left()])
if sys.argv[3] == "end":
    os.kill(os.getpid(), signal.SIGTERM)
engine = Engine.start(json.dumps(good))
until = time.monotonic() + 20
# A thread takes its name when it first runs.
while len(threads()) < 5 and time.monotonic() < until:
    time.sleep(0.01)
said.append([engine.state(), threads()])
os.kill(os.getpid(), signal.SIGTERM)
while engine.state() != "drained" and time.monotonic() < until:
    time.sleep(0.01)
said.append([engine.state(), []])
engine.stop()
print(json.dumps(said))
"""


def half_start(state_dir: Path, then: str) -> subprocess.CompletedProcess[str]:
    """A process in which two starts fail, each later than the other."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        given = {"state_dir": str(state_dir), "transport.grpc_address": address}
        flags = [("--set", f"{name}={value}") for name, value in given.items()]
        core = config.core_json(config.load(config.Sources(None, {}, flags)))
        broken = [
            {"models": {"load": ["kiva-floor", "no-such-model"]}},
            {"transport": {"grpc_address": f"127.0.0.1:{taken.getsockname()[1]}"}},
        ]
        return subprocess.run(
            [sys.executable, "-c", HALF_START, core, json.dumps(broken), then],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )


def test_a_start_that_fails_half_way_leaves_no_thread_no_port_no_lock_and_no_signal(
    tmp_path: Path,
) -> None:
    """The same process starts again in the same place, serves, and drains at SIGTERM."""
    done = half_start(tmp_path / "state", then="start again")
    assert done.returncode == 0, done.stderr
    first, second, third, last = json.loads(done.stdout)
    assert first == ["ConfigError", []]
    assert second == ["InUseError", []]
    assert third == ["serving", ["committer", "failure", "infer", "signals", "transport"]]
    assert last == ["drained", []]


def test_sigterm_after_a_start_that_failed_ends_the_process_as_by_default(tmp_path: Path) -> None:
    """Nobody listens any more: else a program that goes on without us could not be ended."""
    done = half_start(tmp_path / "state", then="end")
    assert done.returncode == -signal.SIGTERM, (done.stdout, done.stderr)
