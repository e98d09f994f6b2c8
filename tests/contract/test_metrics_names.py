"""Every metric has one name: what is scraped, the registry and the documents say the same."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from labeler.reference import pages
from labeler.telemetry import names
from labeler.telemetry.histograms import buckets, minus, percentile, plus
from labeler.telemetry.prometheus import Exposition
from labeler.telemetry.status import StatusWindow, stages_between
from labeler.writer import WriterStats

ROOT = Path(__file__).parents[2]
METHODS = ("Label", "LabelBatch", "LabelStream", "GetLabel", "ListLabels")
OUTCOMES = ("answered", "rejected", "expired", "cancelled", "failed")


class Reading:
    """A service in the shape of `Engine.snapshot` and `Engine.stages`, with figures of our own."""

    def __init__(self, answered: int = 7, uptime_us: int = 1_000_000) -> None:
        self.answered, self.uptime_us = answered, uptime_us

    def snapshot(self) -> Mapping[str, Any]:
        counts = dict.fromkeys(OUTCOMES, 1) | {
            "received": self.answered + 5,
            "answered": self.answered,
            "in_flight": 1,
        }
        queue = {
            "model": "wall-following",
            "version": "1",
            "serving": True,
            "robot_rows": 3,
            "bulk_rows": 4,
            "batches_total": 5,
            "rows_total": 9,
            "bulk_batches_total": 1,
            "batch_rows": [(1, 3), (4, 2)],
        }
        journal = {
            "journaled_total": 10,
            "stored_total": 6,
            "superseded_total": 1,
            "dead_total": 0,
            "pending": 3,
            "live_bytes": 900,
            "disk_bytes": 16 << 20,
            "disk_bytes_max": 4 << 30,
            "uncommitted_bytes": 0,
            "segments": 1,
            "commits_total": 4,
            "commit_us": [(900, 3), (1500, 1)],
            "commit_us_sum": 4100,
            "oldest_pending_us": 12_000,
            "unconfirmed_us": 900,
            "next_number": 11,
            "durable_number": 10,
            "quarantined_total": 0,
        }
        return {
            "state": "serving",
            "started_unix_us": 1,
            "uptime_us": self.uptime_us,
            "clock_regressions_total": 0,
            "methods": dict.fromkeys(METHODS, counts),
            "queues": [queue],
            "dedupe": {"rows": 1, "replays_total": 2, "joins_total": 3, "conflicts_total": 4},
            "journal": journal,
            "transport": {
                "connections": 1,
                "connections_total": 2,
                "connections_refused_total": 0,
                "streams": 1,
                "connection_streams_max": 200,
                "connection_streams_peak": 1,
                "goaway_total": 0,
                "goaway_calm_total": 0,
            },
            "logs": {"dropped_total": 5},
            "panics_total": 0,
            "control": {"queued": 0, "expired_total": 0},
            "errors": {"INVALID_ARGUMENT": 1},
        }

    def stages(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "stage": stage,
                "model": "wall-following",
                "version": version,
                "count": self.answered,
                "sum_us": 100 * self.answered,
                "counts": [(80, self.answered - 1), (400_000, 1)],
            }
            for stage in ("decode", "infer")
            for version in ("1", "2")
        ]

    def writer(self) -> Mapping[str, Any]:
        return WriterStats(
            batches_total=3,
            rows_total=6,
            problems={"outage": 1},
            loop_lag_us=[(90, 98), (40_000, 2)],
            loop_lag_us_sum=88_000,
        ).as_dict()

    def build(self) -> Mapping[str, str]:
        return {"version": "0.1.0", "profile": "release", "instance_id": "i"}

    def adopted(self) -> Mapping[str, int]:
        return {"journals": 1, "pending": 7}

    def logs_dropped(self) -> int:
        return 2


def scrape() -> dict[str, Any]:
    """Families of one scrape by the name that the registry uses."""
    text = Exposition(Reading()).render()[0].decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    counters = {
        f"{name}_total": family for name, family in found.items() if family.type == "counter"
    }
    return {**found, **counters}


@pytest.mark.parametrize("metric", names.ALL, ids=lambda metric: metric.name)
def test_every_name_of_the_registry_is_scraped_with_its_kind_and_labels(
    metric: names.Metric,
) -> None:
    family = scrape()[f"{metric.name}_info" if metric.kind == "info" else metric.name]
    assert family.type == {"info": "gauge"}.get(metric.kind, metric.kind)
    for sample in family.samples:
        assert set(sample.labels) - {"le"} == set(metric.labels)


def test_nothing_is_scraped_that_the_registry_does_not_name() -> None:
    known = {metric.name.removesuffix("_total") for metric in names.ALL}
    known |= {metric.name for metric in names.ALL} | {"labeler_build_info"}
    assert set(scrape()) <= known


def test_no_other_file_spells_a_metric_s_name() -> None:
    spelled = {metric.name for metric in names.ALL if metric.name.startswith("labeler_")}
    package = ROOT / "python/labeler"
    sources = [path for path in package.rglob("*.py") if path.parent.name != "v1"]
    for path in sources:
        if path.name not in ("names.py", "reference.py"):
            words = set(re.findall(r"labeler_[a-z_]+", path.read_text(encoding="utf-8")))
            assert not words & spelled, path


def test_names_end_in_what_they_are() -> None:
    for metric in names.ALL:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.unit == "µs":
            assert "_us" in metric.name, metric.name
        if metric.unit == "bytes":
            assert "_bytes" in metric.name, metric.name


def test_no_label_can_grow_with_robots_or_requests() -> None:
    allowed = {
        *("stage", "model", "version", "method", "outcome", "code", "priority", "side"),
        *("profile", "instance_id", "kind"),
    }
    assert {label for metric in names.ALL for label in metric.labels} <= allowed


def test_the_accounting_balances_in_a_scrape() -> None:
    found = scrape()

    def total(name: str, method: str) -> float:
        samples = found[name].samples
        return float(sum(s.value for s in samples if s.labels["method"] == method))

    for method in METHODS:
        ended = total("labeler_requests_total", method)
        in_flight = total("labeler_requests_in_flight", method)
        assert total("labeler_requests_received_total", method) == ended + in_flight


def test_a_stage_histogram_has_its_exact_sum_and_cumulative_buckets() -> None:
    samples = [
        s
        for s in scrape()["labeler_stage_us"].samples
        if (s.labels["stage"], s.labels["version"]) == ("infer", "1")
    ]
    buckets_by_bound = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets_by_bound["50.0"] == 0
    assert buckets_by_bound["100.0"] == 6
    assert buckets_by_bound["500000.0"] == 7
    assert buckets_by_bound["+Inf"] == 7
    assert [s.value for s in samples if s.name.endswith("_sum")] == [700]


def test_the_loop_s_lag_is_a_histogram_in_metrics_and_percentiles_in_status() -> None:
    samples = {s.labels.get("le", s.name): s.value for s in scrape()["labeler_loop_lag_us"].samples}
    assert (samples["100.0"], samples["50000.0"], samples["+Inf"]) == (98, 100, 100)
    assert samples["labeler_loop_lag_us_sum"] == 88_000
    window = StatusWindow(Reading())
    writer = window.status()["writer"]
    assert (writer["loop_lag_us_p50"], writer["loop_lag_us_p99"]) == (90, 40_000)
    assert "loop_lag_us" not in writer
    assert window.stages()["loop_lag_us"] == [(90, 98), (40_000, 2)]


def test_two_services_in_one_process_have_metrics_of_their_own() -> None:
    one, other = Exposition(Reading(answered=1)), Exposition(Reading(answered=2))
    assert one.render()[0] != other.render()[0]


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_reference_pages_are_those_made_from_the_code(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == pages()[name], "run: python -m labeler.reference docs"


def test_status_shows_rates_and_percentiles_of_the_window_alone() -> None:
    reading = Reading(answered=100, uptime_us=5_000_000)
    window = StatusWindow(reading)
    window.sample()
    reading.answered, reading.uptime_us = 300, 7_000_000
    status = window.status()
    assert status["labels_per_s"] == 300.0  # three methods that answer labels, 200 each in 2 s
    assert status["stages"][0] == {
        "stage": "decode",
        "count": 400,
        "us_p50": 80,
        "us_p99": 80,
        "us_p999": 80,
    }
    assert status["stages_since_start"][0]["count"] == 600
    assert status["journal"]["commit_us_p99"] == 1500
    assert status["logs_dropped_total"] == 7


def test_status_tells_who_runs_and_what_it_uses() -> None:
    status = StatusWindow(Reading()).status()
    assert (status["instance_id"], status["started_unix_us"]) == ("i", 1)
    process = status["process"]
    assert process["pid"] == os.getpid()
    assert 0 < process["resident_bytes"] <= process["resident_bytes_max"]
    assert process["cpu_user_us"] + process["cpu_system_us"] > 0


def test_the_stages_of_a_span_are_the_difference_of_two_readings() -> None:
    reading = Reading(answered=100)
    window = StatusWindow(reading)
    before = window.stages()
    reading.answered = 300
    [decode, infer] = stages_between(window.stages()["stages"], before["stages"])
    assert (decode["stage"], decode["count"], decode["us_p999"]) == ("decode", 400, 80)
    assert infer["count"] == 400


counts = st.dictionaries(st.integers(0, 10**7), st.integers(1, 1000), max_size=30).map(
    lambda table: sorted(table.items())
)


@given(counts, st.floats(0.0, 1.0))
def test_a_percentile_is_the_value_at_its_rank(histogram: list[tuple[int, int]], q: float) -> None:
    values = [upper for upper, count in histogram for _ in range(count)]
    rank = max(1, -int(-len(values) * q // 1)) if values else 0
    assert percentile(histogram, q) == (values[rank - 1] if values else 0)


@given(counts, counts)
def test_a_difference_and_a_sum_undo_each_other(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert minus(plus([one, other]), other) == one


@given(counts)
def test_buckets_only_grow_and_end_with_everything(histogram: list[tuple[int, int]]) -> None:
    found = [value for _, value in buckets(histogram, names.STAGE_US_BOUNDS)]
    assert found == sorted(found)
    assert found[-1] == sum(count for _, count in histogram)
