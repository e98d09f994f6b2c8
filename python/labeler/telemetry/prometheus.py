"""One scrape: a reading of the core and the writer as Prometheus metrics.

Reads merged snapshots only; nothing here touches a thread of the label path. The collector belongs
to a registry of its own, so that two services can live in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from labeler.telemetry import names
from labeler.telemetry.histograms import Counts, buckets
from labeler.telemetry.names import Metric

__all__ = ["Exposition", "Reading"]

_OUTCOMES = ("answered", "rejected", "expired", "cancelled", "failed")


class Reading(Protocol):
    """What can be read of the service at any moment."""

    def snapshot(self) -> Mapping[str, Any]:
        """Counters and gauges of the core, in one consistent reading."""

    def stages(self) -> Sequence[Mapping[str, Any]]:
        """Stage histograms since the start."""

    def writer(self) -> Mapping[str, Any]:
        """The writer's counters and gauges (`WriterStats`)."""

    def adopted(self) -> Mapping[str, int]:
        """`journals` of removed services that are being delivered, and what is `pending`."""

    def build(self) -> Mapping[str, str]:
        """What runs: the labels of `names.BUILD`."""

    def logs_dropped(self) -> int:
        """Log lines that the control side dropped."""


class Exposition:
    """Renders the metrics of one service."""

    def __init__(self, reading: Reading) -> None:
        """Registers the collectors in a registry of its own."""
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Core(reading))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Core(Collector):
    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def describe(self) -> Iterable[Family]:
        """Nothing: the registry must not take a reading when it is made."""
        return ()

    def collect(self) -> Iterator[Family]:
        """All families of one reading."""
        snapshot = self._reading.snapshot()
        yield from _service(snapshot, self._reading.build())
        yield _stages(self._reading.stages())
        yield from _requests(snapshot)
        yield from _queues(snapshot["queues"])
        yield from _dedupe(snapshot["dedupe"])
        yield from _journal(snapshot["journal"])
        yield from _transport(snapshot)
        dropped = {
            "core": snapshot["logs"]["dropped_total"],
            "control": self._reading.logs_dropped(),
        }
        yield _family(names.LOGS_DROPPED, [((side,), dropped[side]) for side in dropped])
        yield _one(names.PANICS, snapshot["panics_total"])
        yield from _writer(self._reading.writer())
        adopted = self._reading.adopted()
        yield _one(names.ADOPTED_JOURNALS, adopted["journals"])
        yield _one(names.ADOPTED_PENDING, adopted["pending"])


Samples = Iterable[tuple[Sequence[str], float]]


def _family(metric: Metric, samples: Samples) -> Family:
    labels = metric.labels
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(metric.name, metric.meaning, labels=labels)
    else:
        assert metric.kind == "gauge"
        family = GaugeMetricFamily(metric.name, metric.meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _one(metric: Metric, value: float) -> Family:
    return _family(metric, [((), value)])


def _times(metric: Metric, counts: Counts, sum_us: int) -> Family:
    family = HistogramMetricFamily(metric.name, metric.meaning)
    family.add_metric([], buckets(counts, names.STAGE_US_BOUNDS), sum_us)
    return family


def _service(snapshot: Mapping[str, Any], build: Mapping[str, str]) -> Iterator[Family]:
    info = InfoMetricFamily(names.BUILD.name, names.BUILD.meaning)
    info.add_metric([], dict(build))
    yield info
    yield _one(names.UP, 1 if snapshot["state"] == "serving" else 0)
    yield _one(names.STARTED, snapshot["started_unix_us"])
    yield _one(names.UPTIME, snapshot["uptime_us"])
    yield _one(names.CLOCK_REGRESSIONS, snapshot["clock_regressions_total"])


def _stages(stages: Sequence[Mapping[str, Any]]) -> Family:
    metric = names.STAGE_US
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for stage in stages:
        family.add_metric(
            [stage["stage"], stage["model"], stage["version"]],
            buckets(stage["counts"], names.STAGE_US_BOUNDS),
            stage["sum_us"],
        )
    return family


def _requests(snapshot: Mapping[str, Any]) -> Iterator[Family]:
    methods: Mapping[str, Mapping[str, int]] = snapshot["methods"]
    received = [((method,), counts["received"]) for method, counts in methods.items()]
    yield _family(names.REQUESTS_RECEIVED, received)
    ended = [
        ((method, outcome), counts[outcome])
        for method, counts in methods.items()
        for outcome in _OUTCOMES
    ]
    yield _family(names.REQUESTS, ended)
    in_flight = [((method,), counts["in_flight"]) for method, counts in methods.items()]
    yield _family(names.REQUESTS_IN_FLIGHT, in_flight)
    yield _family(names.ERRORS, [((code,), n) for code, n in snapshot["errors"].items()])


def _queues(queues: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    keyed = [((queue["model"], queue["version"]), queue) for queue in queues]
    waiting = [
        ((*key, priority), queue[f"{priority}_rows"])
        for key, queue in keyed
        for priority in ("robot", "bulk")
    ]
    yield _family(names.QUEUE_ROWS, waiting)
    yield _family(names.MODEL_SERVING, [(key, int(queue["serving"])) for key, queue in keyed])
    counters = (
        (names.BATCHES, "batches_total"),
        (names.BULK_BATCHES, "bulk_batches_total"),
    )
    for metric, field in counters:
        yield _family(metric, [(key, queue[field]) for key, queue in keyed])
    rows = names.BATCH_ROWS
    family = HistogramMetricFamily(rows.name, rows.meaning, labels=rows.labels)
    for key, queue in keyed:
        counts = buckets(queue["batch_rows"], names.BATCH_ROWS_BOUNDS)
        family.add_metric(key, counts, queue["rows_total"])
    yield family


def _dedupe(dedupe: Mapping[str, int]) -> Iterator[Family]:
    yield _one(names.DEDUPE_ROWS, dedupe["rows"])
    yield _one(names.DEDUPE_REPLAYS, dedupe["replays_total"])
    yield _one(names.DEDUPE_JOINS, dedupe["joins_total"])
    yield _one(names.DEDUPE_CONFLICTS, dedupe["conflicts_total"])


def _journal(journal: Mapping[str, Any]) -> Iterator[Family]:
    single = (
        (names.RECORDS_JOURNALED, "journaled_total"),
        (names.RECORDS_STORED, "stored_total"),
        (names.RECORDS_SUPERSEDED, "superseded_total"),
        (names.RECORDS_DEAD, "dead_total"),
        (names.RECORDS_PENDING, "pending"),
        (names.JOURNAL_AGE, "oldest_pending_us"),
        (names.JOURNAL_UNCONFIRMED, "unconfirmed_us"),
        (names.JOURNAL_LIVE, "live_bytes"),
        (names.JOURNAL_DISK, "disk_bytes"),
        (names.JOURNAL_DISK_MAX, "disk_bytes_max"),
        (names.JOURNAL_UNCOMMITTED, "uncommitted_bytes"),
        (names.JOURNAL_SEGMENTS, "segments"),
        (names.JOURNAL_COMMITS, "commits_total"),
        (names.JOURNAL_NEXT, "next_number"),
        (names.JOURNAL_DURABLE, "durable_number"),
        (names.JOURNAL_QUARANTINED, "quarantined_total"),
    )
    for metric, field in single:
        yield _one(metric, journal[field])
    yield _times(names.JOURNAL_COMMIT_US, journal["commit_us"], journal["commit_us_sum"])


def _transport(snapshot: Mapping[str, Any]) -> Iterator[Family]:
    transport, control = snapshot["transport"], snapshot["control"]
    yield _one(names.CONNECTIONS, transport["connections"])
    yield _one(names.CONNECTIONS_TOTAL, transport["connections_total"])
    yield _one(names.CONNECTIONS_REFUSED, transport["connections_refused_total"])
    yield _one(names.STREAMS, transport["streams"])
    yield _one(names.CONNECTION_STREAMS_MAX, transport["connection_streams_max"])
    yield _one(names.CONNECTION_STREAMS_PEAK, transport["connection_streams_peak"])
    yield _one(names.GOAWAY, transport["goaway_total"])
    yield _one(names.GOAWAY_CALM, transport["goaway_calm_total"])
    yield _one(names.CONTROL_QUEUED, control["queued"])
    yield _one(names.CONTROL_EXPIRED, control["expired_total"])


def _writer(writer: Mapping[str, Any]) -> Iterator[Family]:
    yield _one(names.WRITER_BATCHES, writer["batches_total"])
    yield _one(names.WRITER_WRITES, writer["writes_total"])
    yield _one(names.WRITER_ROWS, writer["rows_total"])
    yield _one(names.WRITER_DEAD, writer["dead_total"])
    yield _one(names.WRITER_UNPROCESSED, writer["unprocessed_total"])
    yield _one(names.WRITER_FAILURES, writer["failures_total"])
    yield _one(names.WRITER_RETRIES, writer["retries_total"])
    yield _one(names.WRITER_CRASHES, writer["crashes_total"])
    problems: Mapping[str, int] = writer["problems"]
    yield _family(names.WRITER_PROBLEMS, [((kind,), problems[kind]) for kind in problems])
    now = writer["problem_kind"]
    yield _family(names.WRITER_PROBLEM, [((kind,), int(kind == now)) for kind in problems])
    yield _one(names.WRITER_WRITE_US, writer["write_us_sum"])
    yield _one(names.WRITER_UNDER_WAY, writer["writes_under_way"])
    yield _one(names.WRITER_LIMIT, writer["concurrency_limit"])
    yield _one(names.WRITER_HELD, writer["held_rows"])
    yield _one(names.WRITER_WAITING_ROWS, writer["waiting_rows"])
    yield _one(names.WRITER_WAITING_ROBOTS, writer["waiting_robots"])
    yield _one(names.WRITER_LAG, writer["lag_us"])
    yield _one(names.WRITER_FAILING, writer["failing_us"])
    yield _times(names.LOOP_LAG, writer["loop_lag_us"], writer["loop_lag_us_sum"])
