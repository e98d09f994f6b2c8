"""Load, promote, roll back and unload, again and again, beside traffic: trap 15.

Each version adds a number of its own to every score, so a reply tells which version made it. What
is stored tells the same of every label, those of the sender too. Full counts: about 60 s.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path

import grpc
import pytest

from labeler.v1 import label_pb2, model_pb2
from tests.support import threads
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.made_models import NAME, settings, write_identity
from tests.support.metrics import Metrics
from tests.support.sending import ended, sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import Wire, floats, request, wire

MIB = 1 << 20
VERSIONS = ("1", "2", "3", "4")
TORN = "9"
APART = 1_000
"""Between the versions' offsets; the payloads' values are less than 5 apart."""
ROWS = [[float(row == place) for place in range(4)] for row in range(4)] * 25
STRAY_FILES = 4
"""A scrape or a read of the store may be under way when they are counted."""
COUNTED = ("_total", "_count", "_sum", "_bucket")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four versions, and one whose file was cut short."""
    folder = tmp_path / "models"
    for version in (*VERSIONS, TORN):
        write_identity(folder, version=version, offset=APART * int(version))
    torn = folder / NAME / TORN / "model.onnx"
    torn.write_bytes(torn.read_bytes()[:-20])
    return folder


@pytest.fixture
def served(start_service: StartService, repository: Path) -> Service:
    """Version 1 alone, and a small dedupe window, so that memory is at its top early."""
    return start_service(
        path__dedupe_rows_max=2_000,
        **(settings(repository) | {"models__load": [f"{NAME}@1"]}),
    )


class Checker:
    """A robot that asks for batches until it is stopped, and looks at each row of each reply.

    Half of its rows name a version, which may be unloaded at any moment: NOT_FOUND is an answer.
    """

    def __init__(self, address: str) -> None:
        self._address, self._stop = address, threading.Event()
        self.versions: dict[str, int] = {}
        """Labels by version."""
        self.last_of: dict[str, int] = {}
        """The last sequence that a version labelled."""
        self.not_found = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        sequence = 1
        with wire(self._address) as stubs:
            while not self._stop.is_set():
                try:
                    self._ask(stubs, sequence)
                except grpc.RpcError as failure:
                    self.wrong.append(str(failure))
                sequence += len(ROWS)

    def _ask(self, stubs: Wire, first: int) -> None:
        asked = [
            request("checker", first + at, floats(row), want_scores=True)
            for at, row in enumerate(ROWS)
        ]
        for at in range(0, len(asked), 2):
            asked[at].model, asked[at].version = NAME, VERSIONS[first % len(VERSIONS)]
        replies = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=asked)).results
        for one, reply in zip(asked, replies, strict=True):
            self._look(one, reply)

    def _look(self, asked: label_pb2.LabelRequest, result: label_pb2.LabelResult) -> None:
        if result.HasField("error"):
            if result.error.code != grpc.StatusCode.NOT_FOUND.value[0] or not asked.version:
                self.wrong.append(str(result.error))
            self.not_found += 1
            return
        reply = result.response
        right = [value + APART * int(reply.version) for value in asked.payload.floats]
        if list(reply.scores) != right or asked.version not in ("", reply.version):
            self.wrong.append(f"asked {asked.version!r}: {reply}")
        self.versions[reply.version] = self.versions.get(reply.version, 0) + 1
        self.last_of[reply.version] = asked.sequence


class Operator:
    """Who changes what is served; each call is true when it returns."""

    def __init__(self, stubs: Wire) -> None:
        self._models = stubs.models

    def load(self, version: str, standby: bool = False, name: str = NAME) -> bool:
        """Whether it serves now."""
        asked = model_pb2.LoadModelRequest(name=name, version=version, standby=standby)
        return bool(self._models.LoadModel(asked).model.serving)

    def unload(self, version: str, name: str = NAME) -> None:
        asked = model_pb2.UnloadModelRequest(name=name, version=version)
        assert [one.version for one in self._models.UnloadModel(asked).unloaded] == [version]

    def ready(self) -> list[tuple[str, str]]:
        listed = self._models.ListModels(model_pb2.ListModelsRequest()).models
        return [(m.name, m.version) for m in listed if m.state == model_pb2.MODEL_STATE_READY]

    def swap(self, old: str, new: str) -> None:
        """Load, promote, roll back, promote again, unload."""
        assert not self.load(new, standby=True)
        assert self.load(new)
        assert self.load(old)
        assert self.load(new)
        self.unload(old)
        assert self.ready() == [(NAME, new)]

    def fail(self) -> None:
        """A load of the file that was cut short: it says so and changes nothing."""
        before = self.ready()
        with pytest.raises(grpc.RpcError) as refused:
            self.load(TORN)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert self.ready() == before


class Held:
    """What the process holds: it must not grow with the operations."""

    def __init__(self, service: Service) -> None:
        running = threads.names(service.pid).values()
        self.inference = sum(name.startswith("infer-") for name in running)
        self.threads = len(running)
        self.files = len(list(Path(f"/proc/{service.pid}/fd").iterdir()))
        self.resident = int(service.status()["process"]["resident_bytes"])


class Rising:
    """Watches that no counter falls, whatever series leave and come back."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, str], float] = {}

    def look(self, scrape: Metrics) -> None:
        fallen = {}
        for sample in scrape.samples:
            if sample.name.endswith(COUNTED):
                key = sample.name, str(sorted(sample.labels.items()))
                if sample.value < self._most.get(key, 0):
                    fallen[key] = (self._most[key], sample.value)
                self._most[key] = sample.value
        assert not fallen


@counts("cycles", quick=12, full=200, full_timeout_s=600)
def test_versions_are_swapped_beside_traffic_and_each_label_is_its_version_s(
    served: Service, cycles: int
) -> None:
    """S36, S38, S42, and trap 15: 1,000 labels/s in the quick form, 5,000 in the full one."""
    rate_per_s = 5_000 if cycles >= 200 else 1_000
    traffic = sender(
        served.address, rpc="label_stream", robots=100, connections=4, width=4, duration_s=3_600,
        schedule={"shape": "constant", "rate_per_s": rate_per_s}, timeout_ms=20_000,
    )  # fmt: skip
    traffic.connect()
    traffic.fire()
    checker, rising = Checker(served.address), Rising()
    early: Held | None = None
    old, versions = VERSIONS[0], cycle(VERSIONS)
    next(versions)
    with wire(served.address) as stubs:
        operator = Operator(stubs)
        for number in range(cycles):
            operator.swap(old, new := next(versions))
            old = new
            if number % 10 == 0:
                operator.fail()
                rising.look(served.metrics())
            if number == max(cycles // 10, 4):
                early = Held(served)
        late = Held(served)
        checker.stop()
        traffic.stop()
        result = ended(traffic)
    rising.look(served.metrics())
    print(f"{result['answered']} labels; {checker.versions}, {checker.not_found} not found")
    assert result["errors"] == {}, result["errors"]
    assert checker.wrong == []
    assert set(result["models"]) == {f"{NAME} {version}" for version in VERSIONS}
    assert set(checker.versions) == set(VERSIONS)
    assert early
    print(
        f"{early.resident} B after {max(cycles // 10, 4) + 1} cycles, {late.resident} B at the end"
    )
    assert late.resident <= early.resident * 1.1 + 8 * MIB
    assert late.inference == 1, "a version's thread ends with its last label"
    assert late.threads <= early.threads
    assert late.files <= early.files + STRAY_FILES
    balanced(served, timeout_s=120)
    gone = next(version for version in checker.last_of if version != old)
    with wire(served.address) as stubs:
        asked = label_pb2.GetLabelRequest(robot_id="checker", sequence=checker.last_of[gone])
        assert stubs.labels.GetLabel(asked).label.version == gone, "labels outlive their version"
    made = result["answered"] + sum(checker.versions.values())
    assert list(stored(served.database)) == []
    assert count(served.database) == made


def stored(database: Path) -> Iterator[tuple[str, float]]:
    """Version and confidence of the stored labels that can't be of their version."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        least = f"confidence - {APART} * CAST(version AS INTEGER)"
        yield from connection.execute(
            f"SELECT version, confidence FROM labels WHERE NOT {least} BETWEEN 0 AND 5"
        )


def count(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        found: int = connection.execute("SELECT count(*) FROM labels").fetchone()[0]
    return found


@counts("rounds", quick=10, full=150, full_timeout_s=300)
def test_two_operators_at_once_are_put_in_order(
    served: Service, repository: Path, rounds: int
) -> None:
    """S38: what one of them does to the other is NOT_FOUND at the most, and nothing is left."""
    write_identity(repository, name="other")
    before = Held(served)
    wrong: list[str] = []

    def operate() -> None:
        with wire(served.address) as stubs:
            operator = Operator(stubs)
            for _ in range(rounds):
                try:
                    operator.load("1", name="other")
                    operator.unload("1", name="other")
                except grpc.RpcError as failure:
                    if failure.code() != grpc.StatusCode.NOT_FOUND:
                        wrong.append(str(failure))

    both = [threading.Thread(target=operate) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert wrong == []
    with wire(served.address) as stubs:
        assert Operator(stubs).ready() == [(NAME, "1")]

    def as_before() -> bool:
        now = Held(served)
        return now.inference == 1 and now.files <= before.files + STRAY_FILES

    eventually(as_before)
    assert Held(served).resident <= before.resident * 1.1 + 8 * MIB
    balanced(served)
