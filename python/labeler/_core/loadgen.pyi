"""The open-loop sender: a plan in, a result out, run by threads that never wait for Python.

A plan is one JSON object; each key has a default but `address`, `schedule` and `duration_s`. Event
k of the schedule goes to robot k % robots with sequence `first_sequence` + k // robots, and takes
row k; of a batch each row counts as one event of this rule. Counts and rates are labels, latencies
those of calls: only `label_batch` has more labels than calls. With `models` robot i asks the one at
i % models.
"""

from typing import TypedDict, final, type_check_only

__all__ = ["Sender"]

@type_check_only
class Latency(TypedDict):
    """µs, each within 0.1 %; zeros where `count` is 0."""

    count: int
    p50: int
    p95: int
    p99: int
    p999: int
    max: int
    mean: float

@type_check_only
class Lag(TypedDict):
    """By how much sends were later than intended, µs."""

    p50: int
    p99: int
    max: int

@type_check_only
class ServerUsage(TypedDict):
    """CPU (µs) and memory of `server_pid` over the measured part; CPU is counted in 10 ms steps."""

    cpu_user_us: float
    cpu_system_us: float
    cpu_us_per_label: float | None
    rss_bytes: int
    rss_bytes_max: int

@type_check_only
class Result(TypedDict):
    """What a run brought, its warm-up left out.

    `planned` = `answered` + all `errors` + `unsent`; `unsent` are those that the sender was too
    late for. Keys of `errors`: gRPC code names, TRANSPORT (the connection broke), TIMEOUT (no
    answer, not even an error), UNANSWERED (at the end), UNFED (no row). Counts with `_total` count
    the warm-up too; `unheard_total` are labels sent of which neither answer nor refusal came.
    `network_us` is the uncorrected latency less the server's own time of the same call.
    """

    planned: int
    sent: int
    answered: int
    errors: dict[str, int]
    unsent: int
    acknowledged_total: int
    sent_total: int
    unheard_total: int
    first_sequence: int
    elapsed_s: float
    rate_planned_per_s: float
    rate_reached_per_s: float
    latency_us: Latency
    latency_uncorrected_us: Latency
    server_us: Latency
    network_us: Latency
    schedule_lag_us: Lag
    sender_cpu_share: float | None
    sender_cpu_us_per_label: float | None
    server: ServerUsage | None
    judged: int
    correct: int
    accuracy: float | None
    by_label: dict[str, dict[str, int]]
    sources: dict[str, int]
    durabilities: dict[str, int]
    models: dict[str, int]
    closed_loop: bool
    valid: bool
    invalid_because: list[str]

@type_check_only
class Interval(TypedDict):
    """What happened since the last `snapshot`; times are 0 where nothing did."""

    answered: int
    latency_us_p50: int
    latency_us_p99: int
    latency_us_p999: int
    schedule_lag_us_p99: int

@type_check_only
class Snapshot(TypedDict):
    """Counts so far, the warm-up left out but in `in_flight`."""

    elapsed_s: float
    planned: int
    sent: int
    answered: int
    errors: dict[str, int]
    in_flight: int
    judged: int
    correct: int
    interval: Interval

@final
class Sender:
    """One run: `connect`, `fire`, `wait`, `result`, each once; `RuntimeError` out of that order.

    Dropping it stops the run.
    """

    def __new__(cls, plan_json: str) -> Sender:
        """Checks the plan and starts nothing.

        Errors: `InvalidRequestError` (`field`, `value`, `expected`), `DiskError` for `acks_file`.
        """
    def feed(self, values: bytes, truths: bytes, skus: bytes) -> None:
        """Adds rows for `"rows": "fed"`; waits while the queue is full.

        `values`: little-endian float32 [n × width]; `truths`: int16 [n], −1 unknown; `skus`: int16
        [n], −1 none, or empty. Once the run is over they are dropped. Errors:
        `InvalidRequestError`.
        """
    def end_feed(self) -> None:
        """Says that no more rows come: the run ends there, what was still planned is UNFED."""
    def connect(self) -> None:
        """Returns when all connections and streams are up.

        Errors: `UnavailableError` with who, why and how long it was tried.
        """
    def fire(self) -> None:
        """Starts the schedule and returns."""
    def wait(self, timeout_ms: int) -> bool:
        """Waits for the end of the run, its last replies included. Whether it is over."""
    def stop(self) -> None:
        """Ends the sending now; what is under way keeps its time limit. Returns at once."""
    def snapshot(self) -> Snapshot:
        """Counts so far, at any time."""
    def result(self) -> Result:
        """What the run brought, once it is over. Errors: what ended it, such as `DiskError`."""
    def write_histograms(self, directory: str) -> list[str]:
        """Writes HdrHistogram logs (`.hlog`, µs); their paths. Errors: `DiskError`."""
