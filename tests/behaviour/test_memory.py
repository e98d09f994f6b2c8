"""Memory in RAM: flat over labels and reloads, bounded by connections, streams and the window.

Read from the system (Linux), at rest or as the most that was seen. Full counts: about 5 minutes.
"""

import random
import re
import sys
from pathlib import Path

import pytest

import labeler
from labeler._core import loadgen
from labeler.telemetry import names
from tests.support.accounting import at_rest, balanced
from tests.support.counts import counts
from tests.support.made_models import NAME, settings, write_identity
from tests.support.memory import open_files, resident_bytes, threads
from tests.support.repo import read
from tests.support.sending import ended, sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")

WINDOW_ROWS = 65_536
"""The default of `path.dedupe_rows_max`."""
RESIDENT_BYTES_MAX = 150_000_000
FLAT = 1.1
REQUESTS_EACH = 50
"""So many walk once through the buffers of a connection."""
SPARE_BYTES = 3 << 20
"""What the store's cache and the interpreter may still grow by, whatever the connections are."""
DELIVERED_S = 180
"""In which the store takes what labels have left behind, faster than it writes."""


def documented(what: str) -> int:
    """Bytes that docs/configuration.md says that one `what` costs."""
    row = re.search(rf"^\| {what}[^|]*\| ([\d,]+) bytes ", read("docs/configuration.md"), re.M)
    assert row, f"no row for {what!r}"
    return int(row[1].replace(",", ""))


class Batches:
    """Sends labels in `LabelBatch` calls of random sizes, a size a run."""

    def __init__(self, service: Service, rng: random.Random) -> None:
        self._service, self._rng = service, rng
        self.answered = 0

    def send(self, labels: int) -> None:
        """Until so many more are answered, whatever was refused meanwhile."""
        until = self.answered + labels
        while self.answered < until:
            rows = self._rng.randint(1, 1000)
            made = sender(
                self._service.address,
                rpc="label_batch",
                batch_rows=rows,
                robots=300,
                connections=4,
                duration_s=min(2.0, max(0.2, (until - self.answered) / 15_000)),
                schedule={"shape": "constant", "rate_per_s": max(1, 15_000 / rows)},
                timeout_ms=10_000,
            )
            made.connect()
            made.fire()
            self.answered += ended(made)["answered"]


@counts("labels", quick=40_000, full=1_000_000, full_timeout_s=900)
def test_memory_is_flat_over_labels_in_batches_of_random_sizes(
    labels: int, start_service: StartService, seed: int
) -> None:
    """Trap 10; the window is full before the first reading, so it does not grow any more."""
    window = WINDOW_ROWS if labels > 2 * WINDOW_ROWS else 2_000
    service = start_service(path__dedupe_rows_max=window)
    load = Batches(service, random.Random(seed))
    load.send(max(labels // 2, window))
    at_rest(service, DELIVERED_S)
    first = resident_bytes(service)

    seen = []
    while load.answered < labels:
        load.send(labels // 10)
        at_rest(service, DELIVERED_S)
        seen.append(resident_bytes(service))

    print(f"{load.answered} labels, resident {first} then {seen}")
    assert service.metrics().sum(names.DEDUPE_ROWS.name) == window
    assert max(seen) <= FLAT * first, (first, seen)
    balanced(service)


@counts("robots", quick=120, full=2_300, full_timeout_s=600)
def test_memory_with_a_connection_for_each_robot_then_a_stream_too_and_a_full_window(
    robots: int, start_service: StartService
) -> None:
    window = WINDOW_ROWS if robots >= 2_300 else 4_096
    service = start_service(path__dedupe_rows_max=window)
    labels = REQUESTS_EACH * robots
    most_of(service, asked(service, "label_stream", 8, max(window, labels)))
    allowed = resident_bytes(service) + SPARE_BYTES

    most = most_of(service, asked(service, "label", robots, labels))
    print(f"allowed {allowed}, with {robots} connections {most}")
    assert most <= allowed + robots * documented("connection ")
    if robots >= 2_300:
        assert most <= RESIDENT_BYTES_MAX, most

    most = most_of(service, asked(service, "label_stream", robots, labels))
    print(f"allowed {allowed}, with {robots} streams {most}")
    assert most <= allowed + robots * documented("connection with an open stream")
    balanced(service)


@counts("reloads", quick=40, full=500, full_timeout_s=600)
def test_memory_threads_and_files_stay_as_they_are_over_reloads(
    reloads: int, start_service: StartService, tmp_path: Path
) -> None:
    """Case S42; trap 10."""
    for version in ("1", "2"):
        write_identity(tmp_path / "models", width=64, version=version, offset=float(version))
    service = start_service(**settings(tmp_path / "models") | {"models__load": [f"{NAME}@1"]})
    first, last = (0, 0, 0), (0, 0, 0)
    with labeler.Client(service.address, timeout_ms=10_000) as client:
        for reload in range(1, reloads + 1):
            old, new = ("1", "2") if reload % 2 else ("2", "1")
            client.load_model(NAME, new)
            client.unload_model(NAME, old)
            assert client.label("r1", reload, [1.0] * 64).version == new
            if reload == max(10, reloads // 10):
                first = held_by(service)

        def as_before() -> bool:
            """A thread that has done its work, with its file, may be seen once more each time."""
            nonlocal last
            last = held_by(service)
            return last[1] <= first[1] and last[2] <= first[2]

        eventually(as_before, timeout_s=30)

    print(f"after {reloads} reloads {last}, after the first {first}")
    assert last[0] <= FLAT * first[0]
    balanced(service)


def held_by(service: Service) -> tuple[int, int, int]:
    """Bytes in memory, threads, open files, with nothing in flight."""
    at_rest(service)
    return resident_bytes(service), threads(service), open_files(service)


def asked(service: Service, rpc: str, robots: int, labels: int) -> loadgen.Sender:
    """A run that sends so many labels, each robot on a connection of its own."""
    rate = 3_000
    made = sender(
        service.address,
        rpc=rpc,
        robots=robots,
        connections=robots,
        duration_s=labels / rate,
        schedule={"shape": "constant", "rate_per_s": rate},
        timeout_ms=10_000,
    )
    made.connect()
    made.fire()
    return made


def most_of(service: Service, made: loadgen.Sender) -> int:
    """The most memory that the service had until the end of a run."""
    most = 0
    while not made.wait(200):
        most = max(most, resident_bytes(service))
    ended(made)
    return most
