"""S48, trap 11: a process that serves forks, and its children use what they have inherited.

A child is refused at once, with the way out, and whatever it does when it leaves, the parent goes
on and its journal is whole. Full counts: about 15 s. The client's part is
`test_client_in_a_fork.py`.
"""

import inspect
import os
import re
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labeler._core import Engine, journal_verify
from tests.support.counts import counts
from tests.support.forking import uses_of
from tests.support.load import Fleet, robots
from tests.support.repo import ROOT
from tests.support.service import environment
from tests.support.threads import settled
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = ROOT / "tests" / "support" / "forking.py"
CODES = {
    "_exit": 0,
    "sys.exit": 0,
    "last reference": 0,
    "exception": 1,
    "terminated": -15,
    "interrupted": -2,
}
BESIDE = ("multiprocessing fork", "multiprocessing spawn", "multiprocessing forkserver")


class Forking:
    """The program, by lines."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment({}),
        )
        self.pid = self._process.pid
        self.address = self._said()

    def ask(self, way: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(f"{way}\n")
        self._process.stdin.flush()
        return self._said()

    def end(self) -> int:
        assert self._process.stdin
        self._process.stdin.close()
        return self._process.wait(60)

    def close(self) -> None:
        self._process.kill()
        with self._process:  # closes its pipes, waits
            pass

    def _said(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@contextmanager
def forking(state_dir: Path) -> Iterator[Forking]:
    """The program, which is gone at the end."""
    program = Forking(state_dir)
    try:
        yield program
    finally:
        program.close()


def test_each_method_of_the_engine_is_among_those_that_a_child_tries() -> None:
    promised = {name for name in vars(Engine) if not name.startswith("_")}
    tried = re.findall(r'"(\w+)": (?:engine\.|lambda: engine\.)', inspect.getsource(uses_of))
    assert promised - set(tried) == {"start"}


@counts("forks", quick=20, full=200, full_timeout_s=600)
def test_children_of_a_serving_process_are_refused_and_their_end_changes_nothing(
    tmp_path: Path, seed: int, forks: int
) -> None:
    ways = list(CODES)
    with forking(tmp_path / "state") as program:
        with Fleet(program.address, robots(4), seed) as fleet:
            eventually(lambda: fleet.acknowledged() > 20, timeout_s=30)
            threads = settled(program.pid)
            for number in range(forks):
                way = ways[number % len(ways)]
                assert program.ask(way) == str(CODES[way]), way
            before = fleet.acknowledged()
            eventually(lambda: fleet.acknowledged() > before + 20, timeout_s=30)
        assert settled(program.pid) == threads
        assert program.end() == 0
    refused = [error for robot in fleet.robots for error in robot.refused]
    assert not refused
    verified = journal_verify(str(tmp_path / "state" / "journal"))
    assert not verified["damage"], verified


def test_multiprocessing_works_or_is_refused_at_once_in_each_of_its_ways(tmp_path: Path) -> None:
    with forking(tmp_path / "state") as program:
        assert {way: program.ask(way) for way in BESIDE} == dict.fromkeys(BESIDE, "0")
        assert program.end() == 0


def test_a_program_that_is_started_with_all_open_files_inherits_none_of_ours(
    tmp_path: Path,
) -> None:
    with forking(tmp_path / "state") as program:
        assert literal_eval(program.ask("inherited")) == []
        assert program.end() == 0


IMPORTS = """
import os, sys
import labeler, labeler._core, labeler._core.loadgen, labeler.service, labeler.cli.app
assert len(os.listdir("/proc/self/task")) == 1, "threads"
import numpy  # its BLAS has a pool of its own
before = len(os.listdir("/proc/self/task"))
import labeler.client
assert len(os.listdir("/proc/self/task")) == before, "threads of the client"
links = [f"/proc/self/fd/{number}" for number in range(3, 256)]
opened = [os.readlink(link) for link in links if os.path.exists(link)]
assert not [name for name in opened if name.startswith(("socket:", "pipe:", "anon_"))], opened
"""

PRE_FORK = """
import os, sys
import labeler, labeler.client, labeler.service
from tests.support.forking import settings
from labeler._core import Engine

def work(number):
    engine = Engine.start(settings(f"{sys.argv[1]}-{number}"))
    import labeler
    with labeler.Client(engine.grpc_address(), timeout_ms=30_000) as client:
        client.wait_ready(30_000)
        assert client.label("robot", 1, [2.5] * 24).label
    engine.stop()

children = []
for number in range(2):
    child = os.fork()
    if child == 0:
        work(number)
        sys.exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def run(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=environment({}), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_import_alone_starts_no_thread_and_opens_no_socket() -> None:
    run(IMPORTS)


def test_workers_of_a_server_that_imports_us_before_it_forks_serve(tmp_path: Path) -> None:
    run(PRE_FORK, str(tmp_path / "worker"))
