"""What does not fit is refused at once and says how long to wait; nothing waits in between.

Cases S20 (TEI #811: a full channel was a panic), S24 and hyper #3559 (a layer of waiting calls that
locks with flow control), trap 6, S16 (a slow model beside a fast one). S20 with batches, and S18
(busy was reported as dead), are in `behaviour/test_overload.py`.

Full counts: about 40 s.
"""

import itertools
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, model_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.held import (
    Hold,
    Since,
    holdable,
    nothing_left,
    queued,
    start_holdable,
    values,
    while_busy,
)
from tests.support.made_models import NAME, holding, settings, write_identity
from tests.support.sending import run, sender
from tests.support.service import LABELER, Service, StartService, environment
from tests.support.waiting import eventually
from tests.support.ways import rows
from tests.support.wire import Wire, error_of, floats, raw32, request, wire

FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
TINY = {
    "path__queue_rows_max": 16,
    "path__bulk_queue_rows_max": 16,
    "path__batch_rows_max": 16,
    "transport__stream_in_flight_max": 16,
}


def unharmed(service: Service, since: Since) -> None:
    """Nothing is left, nothing panicked, and the next call is answered."""
    nothing_left(balanced(service))
    assert since.ended("failed") == 0
    assert [line for line in service.stderr if "panic" in line] == []
    with wire(service.address) as stubs:
        assert stubs.labels.Label(request("after", 1, floats([1.0] * 4))).label
    balanced(service)


# ---------------------------------------------------------------- S20: a queue of 16 places


@counts("labels", quick=3_000, full=20_000, full_timeout_s=300)
@pytest.mark.parametrize("rpc", ["label", "label_stream"])
def test_labels_beyond_a_tiny_queue_are_refused_and_no_more(
    start_service: StartService, tmp_path: Path, rpc: str, labels: int
) -> None:
    """All of them in half a second, from 200 connections, onto runs of about 3 ms."""
    write_identity(tmp_path / "models", cost=1_000)
    service = start_service(**(settings(tmp_path / "models") | TINY))
    since = Since(service)
    result = run(
        sender(
            service.address,
            rpc=rpc,
            robots=1_000,
            connections=200,
            width=4,
            timeout_ms=30_000,
            duration_s=0.5,
            schedule={"shape": "constant", "rate_per_s": 2 * labels},
        )
    )
    print(result["answered"], result["errors"])
    assert set(result["errors"]) <= {"RESOURCE_EXHAUSTED"}
    assert result["errors"]["RESOURCE_EXHAUSTED"] > 0
    assert result["answered"] > 0
    unharmed(service, since)
    assert since.computed == since.journaled == result["acknowledged_total"] + 1


def test_a_batch_of_more_rows_than_the_queue_has_places_gets_those_and_refusals(
    start_service: StartService, tmp_path: Path
) -> None:
    service = start_holdable(start_service, tmp_path / "models", **TINY)
    whole = Since(service)
    with wire(service.address) as stubs:

        def attempt(hold: Hold, number: int) -> Any:
            asked = label_pb2.LabelBatchRequest(requests=rows(f"many-{number}", 1_000))
            call = stubs.labels.LabelBatch.future(asked)
            hold.until(lambda: hold.since(names.ERRORS.name, code=FULL.name) == 985)
            return call

        call, since = while_busy(service, stubs, attempt)
        results = call.result(timeout=60).results
        assert [result.HasField("response") for result in results] == [True] * 15 + [False] * 985
        assert all(r.error.code == FULL.value[0] and r.error.retry_after_ms for r in results[15:])
        assert "bulk queue is full (16 rows)" in results[15].error.message
        assert since.computed == 17
    unharmed(service, whole)


def test_a_refusal_brings_the_standard_retry_info_and_keeps_what_waits(
    start_service: StartService, tmp_path: Path
) -> None:
    service = start_holdable(start_service, tmp_path / "models", **TINY)
    whole = Since(service)
    with wire(service.address) as stubs:

        def attempt(hold: Hold, number: int) -> tuple[list[Any], grpc.RpcError, Any]:
            waiting = [stubs.labels.Label.future(row) for row in rows(f"waiting-{number}", 16)]
            hold.until(lambda: queued(service) == 16)
            excess = request(f"excess-{number}", 1, floats(values(1)))
            with pytest.raises(grpc.RpcError) as refused:
                stubs.labels.Label(excess)
            in_stream = next(stubs.labels.LabelStream(iter([excess])))
            return waiting, refused.value, in_stream

        (waiting, refused, in_stream), _ = while_busy(service, stubs, attempt)
        assert refused.code() == FULL
        assert "robot queue is full (16 rows)" in str(refused.details())
        assert error_of(refused).retry_after_ms > 0
        metadata = {item.key: item.value for item in refused.trailing_metadata() or ()}
        assert b"google.rpc.RetryInfo" in metadata["grpc-status-details-bin"]
        assert in_stream.error.code == FULL.value[0]
        assert in_stream.error.retry_after_ms > 0
        assert all(call.result(timeout=60).label for call in waiting)
    unharmed(service, whole)


# ---------------------------------------------------------------- S24: nothing waits unread


@counts("calls", quick=150, full=500, full_timeout_s=300)
@pytest.mark.parametrize("streams", [100, 1_000])
def test_calls_with_bodies_of_64_kib_on_one_connection_all_end(
    start_service: StartService, tmp_path: Path, calls: int, streams: int
) -> None:
    """A layer that let calls wait with their bodies unread would fill the connection's window.

    The model is held while they arrive, and the queue takes 100 of them: the others are refused.
    """
    width = 16_384
    write_identity(tmp_path / "models", width, holdable=True, scores=4)
    service = start_service(
        transport__streams_per_connection_max=streams,
        transport__connection_window_bytes=streams * 65_536,
        **(settings(tmp_path / "models") | {"path__queue_rows_max": 100}),
        path__batch_rows_max=8,
    )
    since, body = Since(service), [0.0] * (width - 4)
    with wire(service.address) as stubs:
        held = stubs.labels.Label.future(request("holder", 1, floats(holding(100_000, width))))
        eventually(lambda: since.computed >= 1)
        begun = [
            stubs.labels.Label.future(
                request("robot", n, raw32([*values(n), *body]), timeout_us=60_000_000)
            )
            for n in range(1, calls + 1)
        ]
        codes = [0 if (e := c.exception(timeout=90)) is None else e.code() for c in begun]
        assert set(codes) <= {0, FULL}
        assert codes.count(0) >= min(100, calls // 2)
        assert held.result(timeout=60).label
        assert since(names.REQUESTS_RECEIVED.name) == calls + 1
    nothing_left(balanced(service))


def test_windows_that_can_lock_are_refused_at_the_start(tmp_path: Path) -> None:
    """One connection's window must hold the first window of each of its calls."""
    lock = {
        "transport__streams_per_connection_max": 1_000,
        "transport__stream_window_bytes": "64KiB",
        "transport__connection_window_bytes": "16MiB",
        "state_dir": str(tmp_path / "state"),
    }
    ended = subprocess.run(
        [LABELER, "serve"], env=environment(lock), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 64
    for told in ("connection_window_bytes", "stream_window_bytes", "streams_per_connection_max"):
        assert told in ended.stderr
    assert not (tmp_path / "state").exists()


# ---------------------------------------------------------------- S16: a slow neighbour


@counts("labels", quick=200, full=2_000, full_timeout_s=300)
def test_a_fast_models_rows_never_wait_for_a_slow_model_a_scrape_or_a_load(
    start_service: StartService, tmp_path: Path, labels: int
) -> None:
    """The order is the proof: all are answered while one run of the slow model goes on."""
    root = tmp_path / "models"
    for version in ("1", "2"):
        write_identity(root, version=version, name="fast")
    models = holdable(root) | {"models__load": [NAME, "fast@1"]}
    service = start_service(**models)
    with wire(service.address) as stubs, background(service, stubs):

        def attempt(hold: Hold, number: int) -> list[label_pb2.LabelResponse]:
            asked = rows(f"fast-{number}", labels, model="fast", version="1")
            calls = []
            for row in asked:
                calls.append(stubs.labels.Label.future(row))
                if len(calls) % 50 == 0:
                    calls[-50].result(timeout=60)
            return [call.result(timeout=60) for call in calls]

        answers, since = while_busy(service, stubs, attempt)
        assert {answer.model for answer in answers} == {"fast"}
        assert since(names.BATCHES.name, model=NAME) == 2, "the one that went on, and its successor"
        threads = threads_of(service)
        assert sum(name.startswith("infer-") for name in threads) >= 2, threads
    balanced(service)


@contextmanager
def background(service: Service, stubs: Wire) -> Iterator[None]:
    """Scrapes, and loads and unloads of another version of the fast model, without a pause."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.is_set():
            service.metrics()

    def reload() -> None:
        for _ in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            stubs.models.LoadModel(
                model_pb2.LoadModelRequest(name="fast", version="2", standby=True)
            )
            stubs.models.UnloadModel(model_pb2.UnloadModelRequest(name="fast", version="2"))

    threads = [threading.Thread(target=scrape), threading.Thread(target=reload)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def threads_of(service: Service) -> list[str]:
    """The names of its threads."""
    tasks, found = Path(f"/proc/{service.pid}/task"), []
    for task in os.listdir(tasks):
        with suppress(FileNotFoundError):
            found.append((tasks / task / "comm").read_text().strip())
    return found
