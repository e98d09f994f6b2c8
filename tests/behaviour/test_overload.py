"""Five times what the service can do: bounded, refused cheaply with a wait, alive, and soon over.

The model's cost is known, so that saturation is low and five times of it is cheap to send. The
service has one CPU. Nothing here asserts a time: recovery is waited for with a generous limit (the
aim is 2 s), and probes have five times the second that an orchestrator gives them. Full counts:
about 45 s.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import labeler
from labeler._core import loadgen
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.made_models import settings, write_identity
from tests.support.sending import ended, run, sender
from tests.support.service import Service, StartService
from tests.support.waiting import eventually

MIB = 1 << 20
ROBOT_ROWS_MAX, BULK_ROWS_MAX, BATCH_ROWS_MAX = 256, 128, 4
COST = 2_000
"""Of the model: some 6 ms a run, so some 600 labels/s."""
TIMES = {"ROBOT": 3, "BULK": 2}
"""Of saturation: robots alone are too many, so that bulk has no turn at all."""
PATIENCE_MS = 60_000
"""Longer than the overload, in which bulk has no turn: nothing expires."""
PROBE_S = 5.0
GROWTH_BYTES_MAX = 32 * MIB
ROW = {"width": 4, "payload": "raw_float32", "timeout_ms": PATIENCE_MS}
VALUES = [0.0, 1.0, 0.0, 0.0]


@dataclass
class Usage:
    """What the service has used and done so far."""

    cpu_us: float
    infer_us: float
    received: int
    answered: int
    rows: int
    journaled: int
    batches: int
    bulk_batches: int
    bytes_max: int

    def since(self, before: Usage) -> Usage:
        """What was added."""
        return Usage(
            *(
                now - then
                for now, then in zip(vars(self).values(), vars(before).values(), strict=True)
            )
        )

    @property
    def path_us(self) -> float:
        """CPU a request, the model's run left out."""
        return (self.cpu_us - self.infer_us) / self.received

    @property
    def label_us(self) -> float:
        """CPU a label, all in all."""
        return self.cpu_us / self.answered


def infer_us(service: Service) -> float:
    """CPU of the model's thread, which the kernel counts in steps of 10 ms."""
    for stat in Path(f"/proc/{service.pid}/task").glob("*/stat"):
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        if name.startswith("infer-"):
            user, system = rest.split()[11:13]
            return (int(user) + int(system)) * 10_000
    raise AssertionError("no thread of the model")


def usage(service: Service) -> Usage:
    found = service.status()
    process, [queue] = found["process"], found["queues"]
    label = found["methods"]["Label"]
    return Usage(
        cpu_us=process["cpu_user_us"] + process["cpu_system_us"],
        infer_us=infer_us(service),
        received=label["received"],
        answered=label["answered"],
        rows=queue["rows_total"],
        journaled=found["journal"]["journaled_total"],
        batches=queue["batches_total"],
        bulk_batches=queue["bulk_batches_total"],
        bytes_max=process["resident_bytes_max"],
    )


@pytest.fixture
def service(start_service: StartService, tmp_path: Path) -> Service:
    """With one CPU, a costly model and short queues."""
    taskset = shutil.which("taskset")
    assert taskset, "util-linux is on every Linux that we test on"
    write_identity(tmp_path / "models", cost=COST)
    return start_service(
        prefix=(taskset, "-c", "0"),
        path__queue_rows_max=ROBOT_ROWS_MAX,
        path__bulk_queue_rows_max=BULK_ROWS_MAX,
        path__batch_rows_max=BATCH_ROWS_MAX,
        path__dedupe_rows_max=2_000,  # full early: what it holds is no growth
        **settings(tmp_path / "models"),
    )


def saturated(service: Service) -> Usage:
    """What a second of a closed loop costs that keeps batches full and the queue short."""
    before = usage(service)
    schedule = {"shape": "saturate", "in_flight": 4 * BATCH_ROWS_MAX}
    assert run(sender(service.address, schedule=schedule, **ROW))["errors"] == {}
    return usage(service).since(before)


def overload(service: Service, priority: str, rate_per_s: float, lasts_s: int) -> loadgen.Sender:
    made = sender(
        service.address, priority=priority, robot_prefix=f"{priority}-", robots=200, connections=8,
        duration_s=lasts_s, schedule={"shape": "constant", "rate_per_s": rate_per_s}, **ROW,
    )  # fmt: skip
    made.connect()
    return made


class Probe:
    """Liveness, as an orchestrator asks for it; and one robot's call, as it is refused."""

    def __init__(self, service: Service, channel: grpc.Channel, client: labeler.Client) -> None:
        self._service, self._client = service, client
        self._health = health_pb2_grpc.HealthStub(channel)
        self.alive = 0
        self.rows_max = {"robot_rows": 0, "bulk_rows": 0}
        self.waits_ms: list[int] = []

    def look(self) -> None:
        """One look at everything. Errors: where liveness is not told in time."""
        request = health_pb2.HealthCheckRequest(service="labeler.live")
        told = self._health.Check(request, timeout=PROBE_S).status
        assert told == health_pb2.HealthCheckResponse.SERVING
        self.alive += 1
        [queue] = self._service.status()["queues"]
        self.rows_max = {name: max(most, queue[name]) for name, most in self.rows_max.items()}
        try:
            self._client.label("prober", 1 + self.alive, VALUES)
        except labeler.OverloadedError as refused:
            self.waits_ms.append(refused.retry_after_ms)


@counts("seconds", quick=3, full=30, full_timeout_s=300)
def test_five_times_saturation_is_refused_in_time_and_is_over_when_it_ends(
    service: Service, seconds: int
) -> None:
    """S18, trap 6. A tiny queue is in cases/test_small_queues.py."""
    calm = saturated(service)
    per_s = calm.answered / calm.cpu_us * 1e6  # as if the CPU were ours alone: no more is possible
    senders = [overload(service, kind, times * per_s, seconds) for kind, times in TIMES.items()]
    start = usage(service)
    with (
        grpc.insecure_channel(service.address) as channel,
        labeler.Client(service.address, timeout_ms=PATIENCE_MS, attempts_max=1) as client,
    ):
        probe = Probe(service, channel, client)
        for made in senders:
            made.fire()
        crowded, over_s = start, time.monotonic() + seconds
        while not (senders[0].wait(100) & senders[1].wait(100)):
            probe.look()
            seen = usage(service)
            crowded = crowded if senders[0].wait(1) else seen  # robots still come
        results = [ended(made) for made in senders]
        loaded, crowded = usage(service).since(start), crowded.since(start)
        eventually(lambda: idle(service), timeout_s=20)
        print(f"idle {time.monotonic() - over_s:.2f} s after the last was sent; the aim is 2 s")
        assert client.label("afterwards", 1, VALUES).label == "at-1"
    print(f"{per_s:.0f} labels/s at saturation, {calm.label_us:.0f} µs CPU each; then {loaded};")
    print(f"{loaded.path_us:.0f} µs a request but for the model, {probe.alive} looks, {crowded}")
    assert sum(map(judged, results)) > loaded.answered, "it was no overload"
    assert probe.alive >= seconds
    assert probe.waits_ms, "the prober was never refused"
    assert min(probe.waits_ms) > 0
    assert probe.rows_max["robot_rows"] <= ROBOT_ROWS_MAX
    assert probe.rows_max["bulk_rows"] <= BULK_ROWS_MAX
    assert loaded.rows == loaded.journaled == loaded.answered, "a refusal costs no run, no record"
    assert loaded.path_us <= calm.label_us / 2, "a refusal is cheaper than a label"
    assert crowded.bulk_batches <= crowded.batches / 10, "robots go first"
    assert usage(service).since(start).bytes_max <= GROWTH_BYTES_MAX
    balanced(service)


def judged(result: loadgen.Result) -> int:
    """How many were refused; nothing else went wrong."""
    assert set(result["errors"]) <= {"RESOURCE_EXHAUSTED"}, result["errors"]
    return result["errors"].get("RESOURCE_EXHAUSTED", 0)


def idle(service: Service) -> bool:
    found: dict[str, Any] = service.status()
    waiting = sum(queue["robot_rows"] + queue["bulk_rows"] for queue in found["queues"])
    return not waiting and not found["methods"]["Label"]["in_flight"]
