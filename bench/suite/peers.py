"""Other people's servers: what their folders say, their own environments, their processes.

`python -m bench.suite.peers` sets all of them up, and says of each whether it can be measured.
Decides no load and measures nothing. See bench/peers/README.md.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "LICENCES",
    "MODEL",
    "PEER",
    "PEERS",
    "ROOT",
    "Peer",
    "PeerError",
    "end",
    "freeze",
    "peer_names",
    "read_peer",
    "session",
    "set_up",
    "surroundings",
    "thaw",
]

PEER = "peer:"
"""Before a peer's name where a side names its server."""
ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "bench" / "peers"
_ENVIRONMENTS = ROOT / "target" / "peers"
MODEL = ROOT / "python" / "labeler" / "models" / "packaged" / "kiva-floor" / "1"
LICENCES = ("Apache-2.0", "BSD-3-Clause", "ISC", "MIT")
_KEYS = {"about", "licence", "rpc"}
_MAY_SAY = {"payload"}
_STAMP = "requirements.sha256"
_WHY_NOT = "could-not-be-installed"
_INSTALL_S = 900.0
_STOP_S = 10.0
_POLL_S = 0.05


class PeerError(Exception):
    """A peer cannot be measured; the message says why."""


@dataclass(frozen=True)
class Peer:
    """A peer as its folder has it. `rpc` and `payload`: the one call of the sender it answers."""

    name: str
    about: str
    licence: str
    rpc: str
    payload: str = "float"

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return PEERS / self.name

    @property
    def environment(self) -> Path:
        """Its virtual environment, which may not be there."""
        return _ENVIRONMENTS / self.name

    def command(self, arguments: Sequence[str]) -> list[str]:
        """How it is started.

        Errors: `PeerError` where it is not installed as its requirements say now.
        """
        if (why := self.environment.with_suffix("." + _WHY_NOT)).exists():
            raise PeerError(f"could not be installed: {why.read_text(encoding='utf-8').strip()}")
        stamp = self.environment / _STAMP
        if not stamp.exists() or stamp.read_text() != _sha256(self):
            raise PeerError("it is not set up: `make bench-peers` does")
        address = f"127.0.0.1:{_free_port()}"
        server = [str(self.environment / "bin" / "python"), str(self.folder / "server.py")]
        return [*server, "--address", address, "--model", str(MODEL), *arguments]


def peer_names() -> list[str]:
    """All peers, by name."""
    return sorted(path.parent.name for path in PEERS.glob("*/peer.toml"))


def read_peer(name: str) -> Peer:
    """The peer of that name. Errors: `PeerError` where its folder is not as it should be."""
    if name not in peer_names():
        raise PeerError(f"no peer {name!r}; there are: {', '.join(peer_names())}")
    said = tomllib.loads((PEERS / name / "peer.toml").read_text(encoding="utf-8"))
    if set(said) - _MAY_SAY != _KEYS:
        raise PeerError(f"{name}/peer.toml: expected the keys {', '.join(sorted(_KEYS))}")
    if said["licence"] not in LICENCES:
        raise PeerError(f"{name}/peer.toml: licence {said['licence']!r} is none of {LICENCES}")
    return Peer(name, **said)


def set_up(peer: Peer) -> None:
    """Makes its environment, unless it is as its requirements say. Errors: `PeerError`."""
    environment, stamp = peer.environment, peer.environment / _STAMP
    why_not = environment.with_suffix("." + _WHY_NOT)
    if stamp.exists() and stamp.read_text() == _sha256(peer):
        return
    environment.parent.mkdir(parents=True, exist_ok=True)
    why_not.unlink(missing_ok=True)
    uv = str(Path(sys.executable).with_name("uv"))
    python = str(environment / "bin" / "python")
    requirements = str(peer.folder / "requirements.txt")
    install = ["pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    try:
        _uv([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)])
        _uv([uv, *install, "--python", python, "--requirements", requirements])
    except PeerError as error:
        shutil.rmtree(environment, ignore_errors=True)
        why_not.write_text(str(error), encoding="utf-8")
        raise
    stamp.write_text(_sha256(peer))


@contextmanager
def surroundings(store_url: str) -> Iterator[dict[str, str]]:
    """What a peer's process has in its environment beside the caller's own.

    Its temporary folder is its own, and goes with it: one that is killed leaves sockets there. The
    folder's name is short, as those of sockets have to be.
    """
    path = os.pathsep.join([str(ROOT / "python"), str(PEERS)])
    kept = {"PYTHONPATH": path, "STORE_URL": store_url, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as scratch:
        yield kept | {"TMPDIR": scratch}


def session(leader: int) -> list[int]:
    """Its processes: those of the session that `leader` has begun; itself first."""
    found = [pid for pid, its in _sessions() if its == leader and pid != leader]
    return [leader, *sorted(found)]


def freeze(leader: int) -> None:
    """Stops its processes where they are, so that one that spins takes nothing from others."""
    _signal(session(leader), signal.SIGSTOP)


def thaw(leader: int) -> None:
    """Lets them go on."""
    _signal(session(leader), signal.SIGCONT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends all of its processes: first as asked, then whatever is left of its session.

    Returns when none is left, or ten seconds after the last of them was killed.
    """
    process.terminate()
    thaw(process.pid)
    deadline = time.monotonic() + _STOP_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    process.kill()
    process.wait()
    deadline = time.monotonic() + _STOP_S
    # More than once: one may have been begotten while the others were looked for.
    while (left := session(process.pid)[1:]) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)


def main() -> int:
    """Sets up all peers; 0 though some could not be: that is said."""
    for name in peer_names():
        try:
            set_up(read_peer(name))
            print(f"{name}: ready", flush=True)
        except PeerError as error:
            print(f"{name}: could not be installed: {error}", flush=True)
    return 0


def _uv(command: Sequence[str]) -> None:
    kept = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False, env=kept
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(str(error)) from error
    if done.returncode:
        raise PeerError(" ".join(done.stderr.split())[:400] or f"uv ended with {done.returncode}")


def _sha256(peer: Peer) -> str:
    return hashlib.sha256((peer.folder / "requirements.txt").read_bytes()).hexdigest()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _sessions() -> list[tuple[int, int]]:
    """Of each process that runs its id and its session's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            found.append((int(path.parent.name), int(fields[3])))
    return found


def _signal(pids: Sequence[int], which: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, which)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main())
