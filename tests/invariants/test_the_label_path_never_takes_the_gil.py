"""Invariant 1, as far as Python is concerned: the label path never takes the GIL.

By structure, by counting who takes it, and by labels that pass while it is never given back. Trap
12; case W20 and the aioboto3 row of the peers: a writer at its full rate is no thread of the path.
Full counts: about 15 s.
"""

import struct
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labeler.v1 import label_pb2, types_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.preload import library, prefix
from tests.support.repo import ROOT
from tests.support.service import Service, StartService, environment
from tests.support.threads import names, on_the_label_path
from tests.support.wire import WIDTH, Wire, floats, request, wire

BUSY = ROOT / "tests" / "support" / "busy_python.py"
ROWS = 500
UNARY = 100
PATIENT_US = 60_000_000


def asked(robot: str, sequence: int) -> label_pb2.LabelRequest:
    """A request that waits for the disk, and long enough for a machine that is busy elsewhere."""
    reading = floats([2.5] * WIDTH)
    level = types_pb2.DURABILITY_JOURNALED
    return request(
        robot, sequence, reading, durability=level, durability_required=True, timeout_us=PATIENT_US
    )


def label_all(stubs: Wire, labels: int) -> int:
    """That many labels by batches, then some by stream and some one by one; how many were given."""
    given: int = 0
    for first in range(0, labels, ROWS):
        batch = [asked("batch", first + n + 1) for n in range(ROWS)]
        reply = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=batch))
        given += sum(result.HasField("response") for result in reply.results)
    streamed = stubs.labels.LabelStream(asked("stream", n + 1) for n in range(UNARY))
    given += sum(reply.HasField("response") for reply in streamed)
    alone = [stubs.labels.Label(asked("unary", n + 1)) for n in range(UNARY)]
    return int(given) + sum(bool(reply.label) for reply in alone)


def crates_below(name: str) -> set[str]:
    """All crates that are linked with this one, by the lock file."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    needs = {package["name"]: package.get("dependencies", []) for package in packages}
    found: set[str] = set()
    waiting = [name]
    while waiting:
        crate = waiting.pop().partition(" ")[0]
        if crate not in found:
            found.add(crate)
            waiting += needs[crate]
    return found


def test_the_core_and_the_sender_are_linked_with_nothing_that_knows_python() -> None:
    below = crates_below("labeler-core") | crates_below("labeler-loadgen")
    assert not [crate for crate in below if crate.startswith(("pyo3", "python", "numpy"))]
    assert "pyo3" in crates_below("labeler-bridge")


@contextmanager
def takers(folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """Variables for a service whose takers of the GIL are counted, and the file that has them."""
    file = folder / "takers"
    file.write_bytes(bytes(64 * 24))
    preload = library("gil_watch", folder)
    yield {"LD_PRELOAD": preload, "LABELER_TEST_GIL_COUNTS": str(file)}, file


def counted(file: Path) -> dict[str, int]:
    """How often threads of each name have taken the GIL."""
    rows = struct.iter_unpack("<16sQ", file.read_bytes())
    return {name.rstrip(b"\0").decode(): calls for name, calls in rows if calls}


NAMED = """
import ctypes, threading
from labeler._core import log_fatal

def take():
    ctypes.CDLL(None).prctl(15, b"infer-by-hand")  # PR_SET_NAME
    log_fatal("a call that lets the GIL go and takes it again")

thread = threading.Thread(target=take)
thread.start()
thread.join()
"""


def test_the_watch_sees_a_thread_of_the_path_that_takes_the_gil(tmp_path: Path) -> None:
    with takers(tmp_path) as (variables, file):
        env = environment({}) | variables
        subprocess.run([sys.executable, "-c", NAMED], env=env, check=True, timeout=60)
        assert counted(file)["infer-by-hand"] >= 1


@counts("labels", quick=10_000, full=200_000, full_timeout_s=600)
def test_no_thread_of_the_label_path_ever_asks_for_the_gil(
    start_service: StartService, tmp_path: Path, labels: int
) -> None:
    with takers(tmp_path) as (variables, file):
        # Each line of a log at TRACE is a chance to call Python.
        service: Service = start_service(prefix=prefix(**variables), log__level="trace")
        with wire(service.address) as stubs:
            assert label_all(stubs, labels) == labels + 2 * UNARY
        balanced(service, timeout_s=120)  # the writer has stored all of them, at its full rate
        path = {name for name in names(service.pid).values() if on_the_label_path(name)}
        assert len({name[:5] for name in path}) == 3, path
        python = names(service.pid)[service.pid]
        assert service.stop() == 0
        found = counted(file)
    print(f"GIL taken by {found}; threads of the path: {sorted(path)}")
    assert found.get(python, 0) > 100, "nothing was seen: is Python's interpreter a library here?"
    # Not by name alone: whoever of Rust is not listed here would be no thread of Python either.
    # The process that serves is called after its program until it has taken the command's name.
    assert {name for name in found if not name.startswith("python")} == {python}, found


@counts("labels", quick=10_000, full=100_000, full_timeout_s=600)
def test_labels_pass_and_become_durable_while_python_never_gives_the_gil_back(
    tmp_path: Path, labels: int
) -> None:
    command = [sys.executable, str(BUSY), str(tmp_path / "state")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment({})
    ) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().strip()
            with wire(address) as stubs:
                assert label_all(stubs, labels) == labels + 2 * UNARY
            # What the control side would confirm stays: it has not had a turn.
            stat = [sys.executable, "-m", "labeler.cli", "journal", "verify"]
            done = subprocess.run(
                [*stat, str(tmp_path / "state" / "journal")],
                capture_output=True,
                text=True,
                check=True,
                env=environment({}),
            )
            assert f"{labels + 2 * UNARY} records" in done.stdout.replace(",", "")
        finally:
            process.kill()


def test_a_python_that_never_gives_the_gil_back_does_not_delay_a_signal(tmp_path: Path) -> None:
    command = [sys.executable, str(BUSY), str(tmp_path / "state"), "drain.budget_ms=1000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment({})
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline()
            process.terminate()
            # Whoever waited for Python would wait for ever.
            assert process.wait(60) == 0
        finally:
            process.kill()
