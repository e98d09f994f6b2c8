"""Every metric of the service, once: name, kind, unit, labels, meaning.

Code, tests and docs/metrics.md take the names from here; nothing else spells one. Labels have few
values each: stages, model versions that are or were loaded, methods, outcomes, error codes. Robots,
SKUs and names that clients make up never become a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ALL", "BATCH_ROWS_BOUNDS", "STAGE_US_BOUNDS", "Metric"]

Kind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True)
class Metric:
    """A metric's name as it is scraped. A counter's name ends in `_total`."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str


# Up to the alarm at 300 ms, with the budget of 150 ms as a bound of its own.
_MS = 1000
STAGE_US_BOUNDS: tuple[int, ...] = (
    *(10, 20, 50, 100, 200, 500),
    *(1 * _MS, 2 * _MS, 5 * _MS, 10 * _MS, 20 * _MS, 50 * _MS),
    *(100 * _MS, 150 * _MS, 200 * _MS, 300 * _MS, 500 * _MS, 1000 * _MS),
)
"""Upper bounds of the buckets of times."""

BATCH_ROWS_BOUNDS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper bounds of the buckets of batch rows: the shapes that batches are padded to."""

_MODEL = ("model", "version")

UP = Metric("labeler_serving", "gauge", "", (), "1 while labels are served, 0 while draining.")
BUILD = Metric(
    "labeler_build", "info", "", ("version", "profile", "instance_id"), "What runs, and who."
)
STARTED = Metric(
    "labeler_start_time_unix_us", "gauge", "µs", (), "Wall time of the start, as a stamp."
)
UPTIME = Metric("labeler_uptime_us", "gauge", "µs", (), "Time since the start.")
PROCESS_CPU = Metric(
    "process_cpu_seconds_total", "counter", "s", (), "CPU time of the process, both sides."
)
PROCESS_RSS = Metric("process_resident_memory_bytes", "gauge", "bytes", (), "Memory in RAM.")
PROCESS_VIRTUAL = Metric("process_virtual_memory_bytes", "gauge", "bytes", (), "Address space.")
PROCESS_START = Metric(
    "process_start_time_seconds", "gauge", "s", (), "Wall time of the process's start."
)
PROCESS_FILES = Metric("process_open_fds", "gauge", "files", (), "Open files.")
PROCESS_FILES_MAX = Metric("process_max_fds", "gauge", "files", (), "The limit on open files.")

STAGE_US = Metric(
    "labeler_stage_us",
    "histogram",
    "µs",
    ("stage", *_MODEL),
    "Time a label spent in a stage; a skipped stage is not observed.",
)
REQUESTS_RECEIVED = Metric(
    "labeler_requests_received_total",
    "counter",
    "requests",
    ("method",),
    "Requests that came in; a batch counts its rows. The sum of all outcomes and in flight.",
)
REQUESTS = Metric(
    "labeler_requests_total",
    "counter",
    "requests",
    ("method", "outcome"),
    "Requests that ended: answered, rejected, expired, cancelled or failed.",
)
REQUESTS_IN_FLIGHT = Metric(
    "labeler_requests_in_flight", "gauge", "requests", ("method",), "Requests not yet ended."
)
ERRORS = Metric(
    "labeler_errors_total", "counter", "requests", ("code",), "Refusals by gRPC status code."
)

QUEUE_ROWS = Metric(
    "labeler_queue_rows",
    "gauge",
    "rows",
    (*_MODEL, "priority"),
    "Rows that wait for the model: robots' and bulk.",
)
MODEL_SERVING = Metric(
    "labeler_model_serving",
    "gauge",
    "",
    _MODEL,
    "1 for the version that answers requests without one.",
)
BATCHES = Metric("labeler_batches_total", "counter", "batches", _MODEL, "Runs of the model.")
BULK_BATCHES = Metric(
    "labeler_bulk_batches_total", "counter", "batches", _MODEL, "Runs that held bulk rows only."
)
BATCH_ROWS = Metric("labeler_batch_rows", "histogram", "rows", _MODEL, "Rows in a run.")

DEDUPE_ROWS = Metric("labeler_dedupe_rows", "gauge", "rows", (), "Requests remembered.")
DEDUPE_REPLAYS = Metric(
    "labeler_dedupe_replays_total", "counter", "requests", (), "Retries that got the first reply."
)
DEDUPE_JOINS = Metric(
    "labeler_dedupe_joins_total", "counter", "requests", (), "Retries that joined one in flight."
)
DEDUPE_CONFLICTS = Metric(
    "labeler_dedupe_conflicts_total", "counter", "requests", (), "Keys used for another payload."
)

RECORDS_JOURNALED = Metric(
    "labeler_records_journaled_total",
    "counter",
    "records",
    (),
    "Labels that entered the journal: stored, superseded, dead and pending together.",
)
RECORDS_STORED = Metric(
    "labeler_records_stored_total", "counter", "records", (), "Labels that the store confirmed."
)
RECORDS_SUPERSEDED = Metric(
    "labeler_records_superseded_total", "counter", "records", (), "Replaced by a later one."
)
RECORDS_DEAD = Metric(
    "labeler_records_dead_total", "counter", "records", (), "Refused by the store for good."
)
RECORDS_PENDING = Metric("labeler_records_pending", "gauge", "records", (), "Not yet stored.")
JOURNAL_AGE = Metric(
    "labeler_journal_oldest_pending_us", "gauge", "µs", (), "Age of the oldest pending record."
)
JOURNAL_UNCONFIRMED = Metric(
    "labeler_journal_unconfirmed_us",
    "gauge",
    "µs",
    (),
    "How long nothing was confirmed although records are pending; 0 if none is.",
)
JOURNAL_LIVE = Metric(
    "labeler_journal_live_bytes", "gauge", "bytes", (), "Bytes of records still pending."
)
JOURNAL_DISK = Metric(
    "labeler_journal_disk_bytes", "gauge", "bytes", (), "Bytes of all segments on disk."
)
JOURNAL_DISK_MAX = Metric(
    "labeler_journal_disk_bytes_max", "gauge", "bytes", (), "Their bound: `journal.disk_bytes_max`."
)
JOURNAL_UNCOMMITTED = Metric(
    "labeler_journal_uncommitted_bytes", "gauge", "bytes", (), "In memory, before their commit."
)
JOURNAL_SEGMENTS = Metric("labeler_journal_segments", "gauge", "files", (), "Segment files.")
JOURNAL_COMMIT_US = Metric(
    "labeler_journal_commit_us", "histogram", "µs", (), "Time of a group commit, sync included."
)
JOURNAL_COMMITS = Metric("labeler_journal_commits_total", "counter", "commits", (), "Commits.")
JOURNAL_NEXT = Metric(
    "labeler_journal_next_number", "gauge", "", (), "The number of the next record."
)
JOURNAL_DURABLE = Metric(
    "labeler_journal_durable_number", "gauge", "", (), "Records below it are on disk."
)
JOURNAL_QUARANTINED = Metric(
    "labeler_journal_quarantined_total", "counter", "groups", (), "Damaged groups set aside."
)

CONNECTIONS = Metric("labeler_connections_open", "gauge", "connections", (), "Open connections.")
CONNECTIONS_TOTAL = Metric(
    "labeler_connections_total", "counter", "connections", (), "Connections accepted."
)
CONNECTIONS_REFUSED = Metric(
    "labeler_connections_refused_total",
    "counter",
    "connections",
    (),
    "Refused at the limit, or since they did not speak HTTP/2 in time.",
)
STREAMS = Metric("labeler_streams_open", "gauge", "streams", (), "Open `LabelStream`s.")
CONNECTION_STREAMS_MAX = Metric(
    "labeler_connection_streams_max",
    "gauge",
    "streams",
    (),
    "Calls that one connection may hold: `transport.streams_per_connection_max`.",
)
CONNECTION_STREAMS_PEAK = Metric(
    "labeler_connection_streams_peak",
    "gauge",
    "streams",
    (),
    "The most `LabelStream`s that one connection has held; at the limit, further ones wait unseen.",
)
GOAWAY = Metric(
    "labeler_goaway_total",
    "counter",
    "connections",
    (),
    "Connections asked to go, by their age or a drain.",
)
GOAWAY_CALM = Metric(
    "labeler_goaway_calm_total",
    "counter",
    "connections",
    (),
    "Connections ended for too many resets (GOAWAY with ENHANCE_YOUR_CALM).",
)
CLOCK_REGRESSIONS = Metric(
    "labeler_clock_regressions_total",
    "counter",
    "steps",
    (),
    "Steps back of the wall clock by over a second; order never rests on it.",
)
LOGS_DROPPED = Metric(
    "labeler_logs_dropped_total",
    "counter",
    "lines",
    ("side",),
    "Log lines dropped since the sink was full: core or control.",
)
PANICS = Metric(
    "labeler_panics_total",
    "counter",
    "panics",
    (),
    "Panics of the core, each with its line in the log; a request's, or a part's that ends it.",
)
CONTROL_QUEUED = Metric(
    "labeler_control_queued", "gauge", "requests", (), "Control requests that wait for an answer."
)
CONTROL_EXPIRED = Metric(
    "labeler_control_expired_total", "counter", "requests", (), "Those answered too late."
)

WRITER_BATCHES = Metric("labeler_writer_batches_total", "counter", "writes", (), "Writes done.")
WRITER_WRITES = Metric(
    "labeler_writer_writes_total", "counter", "calls", (), "Calls of the store, halves included."
)
WRITER_ROWS = Metric("labeler_writer_rows_total", "counter", "rows", (), "Rows stored.")
WRITER_DEAD = Metric(
    "labeler_writer_dead_total", "counter", "rows", (), "Rows that became dead letters."
)
WRITER_UNPROCESSED = Metric(
    "labeler_writer_unprocessed_total", "counter", "rows", (), "Rows that the store gave back."
)
WRITER_FAILURES = Metric(
    "labeler_writer_failures_total", "counter", "writes", (), "Writes that failed as a whole."
)
WRITER_RETRIES = Metric(
    "labeler_writer_retries_total", "counter", "writes", (), "Writes tried again after a failure."
)
WRITER_CRASHES = Metric(
    "labeler_writer_crashes_total", "counter", "faults", (), "Faults that the writer survived."
)
WRITER_PROBLEMS = Metric(
    "labeler_writer_problems_total", "counter", "tries", ("kind",), "Failed tries by their reason."
)
WRITER_PROBLEM = Metric(
    "labeler_writer_problem", "gauge", "-", ("kind",), "1 for why nothing is stored now; else 0."
)
WRITER_WRITE_US = Metric(
    "labeler_writer_write_us_total", "counter", "µs", (), "Time spent in the store's writes."
)
WRITER_UNDER_WAY = Metric(
    "labeler_writer_writes_under_way", "gauge", "writes", (), "Writes that have not ended."
)
WRITER_LIMIT = Metric(
    "labeler_writer_concurrency_limit", "gauge", "writes", (), "Writes that may be under way now."
)
WRITER_HELD = Metric("labeler_writer_held_rows", "gauge", "rows", (), "Taken, not yet confirmed.")
WRITER_WAITING_ROWS = Metric(
    "labeler_writer_waiting_rows", "gauge", "rows", (), "Held rows of robots that wait alone."
)
WRITER_WAITING_ROBOTS = Metric(
    "labeler_writer_waiting_robots", "gauge", "robots", (), "Robots whose rows the store gave back."
)
WRITER_LAG = Metric(
    "labeler_writer_lag_us", "gauge", "µs", (), "How long the oldest held row has been held."
)
WRITER_FAILING = Metric(
    "labeler_writer_failing_us", "gauge", "µs", (), "How long the store has failed; 0 if it works."
)
ADOPTED_JOURNALS = Metric(
    "labeler_adopted_journals", "gauge", "journals", (), "Of `writer.adopt`, being delivered now."
)
ADOPTED_PENDING = Metric(
    "labeler_adopted_pending", "gauge", "records", (), "Labels in those, not yet stored."
)
LOOP_LAG = Metric(
    "labeler_loop_lag_us",
    "histogram",
    "µs",
    (),
    "How late timers of the control side's event loop are.",
)

ALL: tuple[Metric, ...] = tuple(
    value for value in dict(globals()).values() if isinstance(value, Metric)
)
"""Every metric, in the order of this file."""
