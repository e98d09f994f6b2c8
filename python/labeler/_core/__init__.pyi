"""The whole border between the label path (Rust) and the control side (Python), typed.

Every call that waits releases the GIL. Each crossing carries a group, never one label. In a forked
child each call raises `ForkedError` at once: the runtime's threads do not exist there.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, final, type_check_only

from labeler._core import loadgen as loadgen

__all__ = [
    "Engine",
    "Journal",
    "build_info",
    "init_logging",
    "journal_dump",
    "journal_stat",
    "journal_verify",
    "loadgen",
    "log_fatal",
    "version",
]

# A journaled label on its way to a store, in the order of `labeler.stores.base.StoredRow`.
_Row = tuple[str, int, str, int, float, str, str, int, int, int, str, str, str, int]

@type_check_only
class Record(TypedDict):
    """One journaled label, as the journal's tools show it."""

    number: int
    robot_id: str
    sequence: int
    model: str
    version: str
    label: str
    index: int
    confidence: float
    scores: list[float]
    source: int
    labeled_at_unix_us: int
    captured_at_unix_us: int
    sku: str

@type_check_only
class ControlRequest(TypedDict):
    """A request that Python answers: `kind` says which of the other keys `body` holds.

    get: robot_id, sequence · list: robot_id, page_size, page_token, from_unix_us, to_unix_us ·
    load_model: name, version, standby · unload_model: name, version · list_models: nothing.
    """

    id: int
    kind: Literal["get", "list", "load_model", "unload_model", "list_models"]
    body: dict[str, Any]
    deadline_ms: int

@type_check_only
class StageHistogram(TypedDict):
    """Latencies of one stage of one model version since the start, merged over all threads.

    `counts` is sparse: (upper bound of the bucket in µs, count), ascending; each within 1 %
    (HdrHistogram, two significant digits). `sum_us` is exact.
    """

    stage: str
    model: str
    version: str
    count: int
    sum_us: int
    counts: list[tuple[int, int]]

@type_check_only
class ModelInfo(TypedDict):
    """A model version; `state` is `available` or `ready`."""

    name: str
    version: str
    state: Literal["available", "ready"]
    serving: bool
    width: int
    labels: list[str]
    precision: str
    sha256: str
    problem: str

def version() -> str:
    """The extension's version, equal to the package's."""

def build_info() -> dict[str, str]:
    """`version`, `profile` (`release` or `debug`), `target`: what `build_info` shows."""

def init_logging(level: str, format: Literal["json", "text"]) -> None:
    """Sends the core's log to stderr, once a process: a bounded queue, what is over is counted."""

def log_fatal(message: str) -> None:
    """Writes one line of the log's schema straight to stderr, before an exit."""

@final
class Engine:
    """The label path: its threads, sockets, models and journal."""

    @staticmethod
    def start(config_json: str) -> Engine:
        """Recovers the journal, loads and warms the models, then opens the port.

        `config_json`: the core's part of the checked configuration (`labeler.config.core_json`).
        Errors: `JournalVersionError`, `InUseError`, `DiskError`, `ModelInvalidError`,
        `RuntimeLibraryError`.
        """
    def grpc_address(self) -> str:
        """`host:port` that it listens on, with the real port where 0 was configured."""
    def instance_id(self) -> str:
        """Who writes: kept in the state directory across restarts."""
    def journal_id(self) -> str:
        """Which journal: made with the journal, kept with it."""
    def state(self) -> Literal["serving", "draining", "drained", "stopped", "failed"]:
        """Where the engine is in its life."""
    def wait_state(
        self, timeout_ms: int
    ) -> Literal["serving", "draining", "drained", "stopped", "failed"]:
        """Waits until the state is not `serving`, or the time is over; returns the state."""
    def exit_code(self) -> int:
        """What the process should exit with: 0, 74 after a failed disk, 70 after others."""
    def take_records(self, rows_max: int, bytes_max: int, timeout_ms: int) -> list[_Row]:
        """The next journaled labels, oldest first, each once; empty when the time is over."""
    def confirm(
        self, numbers: Sequence[int], outcome: Literal["stored", "superseded", "dead"]
    ) -> None:
        """Says that the store has made these records durable (or never will). Idempotent."""
    def take_control(self, rows_max: int, timeout_ms: int) -> list[ControlRequest]:
        """Control requests whose callers still wait; empty when the time is over."""
    def answer_control(self, answers: Sequence[tuple[int, dict[str, Any]]]) -> None:
        """Answers by id.

        A body is the reply's fields as a dict (labels as dicts of `StoredLabel`'s fields):
        `{"label": …}`, `{"labels": […], "next_page_token": …}` or `{"models": [ModelInfo…]}`; or
        `{"error": kind, "message": …}` with kind one of label_not_found, not_found, invalid,
        model_invalid, unavailable, internal.
        """
    def load_model(self, name: str, version: str, standby: bool) -> ModelInfo:
        """Checks, loads and warms a version beside the others, then switches to it. Waits."""
    def unload_model(self, name: str, version: str) -> list[ModelInfo]:
        """Stops a version (empty: all of the model's) and waits until it is gone."""
    def list_models(self) -> list[ModelInfo]:
        """Loaded versions and those available in the repository."""
    def stages(self) -> list[StageHistogram]:
        """Stage latencies since the start. Cost: one merge; no lock that a label waits for long."""
    def snapshot(self) -> dict[str, Any]:
        """Counters and gauges in one consistent reading; keys as in `labeler.telemetry.names`."""
    def drain(self) -> None:
        """What SIGTERM does: NOT_SERVING, streams told, accepted work finished. Returns at once."""
    def stop(self) -> None:
        """Ends all threads, closes the journal. Waits; idempotent."""

@final
class Journal:
    """A journal whose process is gone, open to be delivered: locked and recovered."""

    @staticmethod
    def open(config_json: str, state_dir: str) -> Journal:
        """Opens it; makes none.

        `config_json`: the core's settings of a journal with its `directory`; `state_dir`: where its
        process kept its id. Errors: `InUseError`, `JournalVersionError` (nothing is touched),
        `DiskError`.
        """
    def instance_id(self) -> str:
        """Who has written it."""
    def journal_id(self) -> str:
        """Which journal it is."""
    def take_records(self, rows_max: int, bytes_max: int, timeout_ms: int) -> list[_Row]:
        """As the engine's."""
    def confirm(
        self, numbers: Sequence[int], outcome: Literal["stored", "superseded", "dead"]
    ) -> None:
        """As the engine's."""
    def stats(self) -> dict[str, Any]:
        """What was found, and what became of it. Errors: `DiskError`: it cannot be written.

        Keys: `found`, `damage` (list) at the opening; `pending`, `stored`, `superseded`, `dead`,
        `unconfirmed_us` now.
        """
    def close(self, timeout_ms: int) -> None:
        """Writes the last confirmations, gives the lock back. Waits; idempotent."""

def journal_verify(directory: str) -> dict[str, Any]:
    """Reads every group, touches nothing.

    Keys: `segments`, `groups`, `records`, `damage` (list), `tail_bytes`.
    """

def journal_stat(directory: str) -> dict[str, Any]:
    """Sizes and counts, touches nothing.

    Keys: `journal_id`, `pending`, `oldest_pending`, `next_number`, `live_bytes`, `disk_bytes`,
    `segments` (list).
    """

def journal_dump(directory: str, from_number: int, rows_max: int) -> list[Record]:
    """Records from number `from_number` on, with a further key `pending`; touches nothing."""
