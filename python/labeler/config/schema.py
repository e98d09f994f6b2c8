"""Every setting of the service: name, default, bounds and meaning, once.

The core's part of it is read by the core under exactly these names. Nothing here reads a file, the
environment or a clock; relations between settings are in `checks.py`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from labeler.config.units import parse_bytes

__all__ = ["Setting", "Settings", "all_sections", "all_settings"]

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>\d{1,5})")
_MODEL = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_REFERENCE = re.compile(f"{_MODEL}(@{_MODEL})?")


def _is_address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("not an address")
    ipaddress.ip_address(match["v6"] or match["v4"])
    return text


def _is_pair(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or not name.strip():
        raise ValueError("not a pair")
    return text


def _is_reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise ValueError("not a model reference")
    return text


def _matches(pattern: str, problem: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem)
        return text

    return check


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Address = Annotated[str, AfterValidator(_is_address)]
Reference = Annotated[str, AfterValidator(_is_reference)]
Table = Annotated[str, AfterValidator(_matches(r"[A-Za-z0-9_.-]{3,255}", "not a table"))]
Region = Annotated[str, AfterValidator(_matches(r"([a-z0-9]+(-[a-z0-9]+)*)?", "not a region"))]
Url = Annotated[str, AfterValidator(_matches(r"(https?://[^\s/?#@]+/?)?", "not a URL"))]
Pair = Annotated[str, AfterValidator(_is_pair)]


def _expects(kind: str, expected: str) -> dict[str, Any]:
    return {"kind": kind, "expected": expected}


def _whole(default: int, least: int, most: int, meaning: str) -> Any:
    extra = _expects("int", f"{least} to {most}")
    return Field(default=default, ge=least, le=most, description=meaning, json_schema_extra=extra)


def _size(default: str, least: str, most: str, meaning: str) -> Any:
    low, high = parse_bytes(least), parse_bytes(most)
    assert isinstance(low, int)
    assert isinstance(high, int)
    extra = _expects("bytes", f"bytes, such as {default}, from {least} to {most}")
    return Field(
        default=parse_bytes(default), ge=low, le=high, description=meaning, json_schema_extra=extra
    )


def _text(default: str, expected: str, meaning: str, least: int = 0) -> Any:
    return Field(
        default=default,
        min_length=least,
        max_length=4096,
        description=meaning,
        json_schema_extra=_expects("text", expected),
    )


def _choice(default: str, choices: str, meaning: str) -> Any:
    extra = _expects("text", f"one of {choices}")
    return Field(default=default, description=meaning, json_schema_extra=extra)


def _flag(default: bool, meaning: str) -> Any:
    extra = _expects("flag", "true or false")
    return Field(default=default, description=meaning, json_schema_extra=extra)


def _address(default: str, meaning: str) -> Any:
    extra = _expects("text", "IP:port, such as 127.0.0.1:50051 or [::]:50051")
    return Field(default=default, description=meaning, json_schema_extra=extra)


class Section(BaseModel):
    """A group of settings. Strict: a number given as text in a file is an error, not a guess."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Transport(Section):
    """The gRPC port: who may connect, and how much one connection or stream may hold."""

    grpc_address: Address = _address("127.0.0.1:50051", "Where gRPC listens; port 0 takes any.")
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = Field(
        default="auto",
        description="Threads that serve connections; `auto` is cgroup quota ∩ affinity.",
        json_schema_extra=_expects("int", '"auto", or 1 to 256'),
    )
    message_bytes_max: Bytes = _size("4MiB", "1KiB", "64MiB", "The largest request.")
    connections_max: int = _whole(
        4096, 1, 1_000_000, "Connections at once; one more is refused before it is read."
    )
    streams_per_connection_max: int = _whole(
        200, 1, 100_000, "Calls at once on one connection, as told to the client."
    )
    stream_window_bytes: Bytes = _size(
        "64KiB", "16KiB", "64MiB", "Unread request bytes one call may hold."
    )
    connection_window_bytes: Bytes = _size(
        "16MiB", "64KiB", "2047MiB", "Unread request bytes one connection may hold."
    )
    header_bytes_max: Bytes = _size("16KiB", "4KiB", "1MiB", "The largest set of headers.")
    handshake_timeout_ms: int = _whole(
        5000, 10, 600_000, "From the connection to the end of its handshake."
    )
    keepalive_interval_ms: int = _whole(
        60_000, 1000, 86_400_000, "Quiet time after which a connection is asked if it lives."
    )
    keepalive_timeout_ms: int = _whole(
        20_000, 100, 3_600_000, "How long that answer may take before the connection is closed."
    )
    connection_age_ms_max: int = _whole(
        1_800_000, 0, 604_800_000, "Age at which a client is told to reconnect; 0 is never."
    )
    connection_age_jitter_pct: int = _whole(
        10, 0, 50, "Spread of that age, so that a fleet does not reconnect at once."
    )
    connection_age_grace_ms: int = _whole(30_000, 0, 3_600_000, "From being told to being closed.")
    stream_in_flight_max: int = _whole(
        64, 1, 65_536, "Unanswered requests of one LabelStream; then it is not read on."
    )
    stream_unread_ms_max: int = _whole(
        10_000, 100, 3_600_000, "A stream whose client reads no replies for so long is ended."
    )
    pending_resets_max: int = _whole(
        1000,
        1,
        1_000_000,
        "Calls reset by the client before they were accepted; with more its connection is ended.",
    )
    local_resets_max: int = _whole(
        100_000,
        1,
        100_000_000,
        "Stream errors of the client in a connection's life; with more it is ended.",
    )


class Path(Section):
    """The label path: deadlines, queues, batches and the window in which a retry is recognised."""

    deadline_ms: int = _whole(150, 1, 600_000, "Deadline of a request that brings none.")
    durability: Literal["BUFFERED", "JOURNALED", "STORED"] = _choice(
        "JOURNALED",
        "BUFFERED, JOURNALED, STORED",
        "What is true of a label when it is acknowledged, unless the request says otherwise.",
    )
    queue_rows_max: int = _whole(4096, 1, 1_000_000, "Robots' rows that may wait for a model.")
    bulk_queue_rows_max: int = _whole(8192, 1, 1_000_000, "Bulk rows that may wait for a model.")
    batch_rows_max: int = _whole(256, 1, 4096, "Rows in one run of a model.")
    delay_us_max: int = _whole(
        0, 0, 1_000_000, "How long an idle model waits for a fuller batch; 0 is not at all."
    )
    bulk_run_us_max: int = _whole(
        2000, 100, 1_000_000, "The longest bulk run that a robot's row may have to wait for."
    )
    dedupe_rows_max: int = _whole(
        65_536, 1, 10_000_000, "Answered requests remembered, so that a retry gets its first reply."
    )
    dedupe_window_ms: int = _whole(60_000, 1, 86_400_000, "How long they are remembered.")
    deadline_margin_us: int = _whole(
        5000, 0, 600_000_000, "Kept of the deadline for the reply when a level is not reached."
    )
    stored_waiters_max: int = _whole(
        1024, 0, 1_000_000, "Requests that may wait for the store at once."
    )
    store_stalled_ms: int = _whole(
        30_000,
        100,
        86_400_000,
        "Health of `labeler.store` fails when nothing is confirmed for so long.",
    )


class Journal(Section):
    """The write-ahead log below `state_dir`: its bounds in bytes, and how often it commits."""

    segment_bytes: Bytes = _size("16MiB", "1MiB", "1GiB", "Size of one segment file.")
    disk_bytes_max: Bytes = _size(
        "4GiB", "8MiB", "16TiB", "Bound on disk; at it requests get RESOURCE_EXHAUSTED."
    )
    memory_bytes_max: Bytes = _size(
        "64MiB", "1MiB", "64GiB", "Bound on what waits for a commit or for the writer, in memory."
    )
    commit_gap_us_min: int = _whole(
        1000,
        0,
        1_000_000,
        "Least time between two commits; the first after a quiet time is at once.",
    )
    copy_forward_live_pct: int = _whole(
        25, 0, 100, "The oldest segment is emptied when less than this of it is still pending."
    )
    reserve_bytes: Bytes = _size(
        "4MiB", "64KiB", "1GiB", "Disk kept for confirmations and deletion when it is full."
    )
    pending_age_ms_max: int = _whole(
        86_400_000,
        0,
        31_536_000_000,
        "While a label waits longer for the store, new ones get RESOURCE_EXHAUSTED; 0 is no bound.",
    )


class Models(Section):
    """Which models are served, and from where they are read."""

    repositories: list[str] = Field(
        default=[],
        description="Folders of NAME/VERSION, searched in this order before the packaged models.",
        json_schema_extra=_expects("list", 'a list of folders, such as ["/srv/models"]'),
    )
    load: list[Reference] = Field(
        default=["kiva-floor"],
        description="Models to load at start: `name` (the newest version) or `name@version`.",
        json_schema_extra=_expects("list", 'a list of models, such as ["kiva-floor@1"]'),
    )
    default: str = _text("kiva-floor", "a model's name", "The model of a request that names none.")
    runtime_library: str = _text(
        "", "a path", "ONNX Runtime's shared library; empty is the onnxruntime package's."
    )


class Control(Section):
    """Requests that the control side answers: read-back and model operations."""

    queue_rows_max: int = _whole(256, 1, 65_536, "Control requests that may wait.")
    timeout_ms: int = _whole(1000, 1, 600_000, "Their deadline, unless the call brings its own.")


class Writer(Section):
    """What moves labels from the journal to the store."""

    store: str = _text("sqlite", "a store's name", "Where labels end.", least=1)
    store_settings: list[Pair] = Field(
        default=[],
        description="Settings of a store from another package; the built-in have a section.",
        json_schema_extra=_expects("list", 'a list of name=value, such as ["path=/srv/rows"]'),
    )
    rows_max: int = _whole(
        1000, 1, 2500, "Rows in one write. A bigger one holds the journal's disk for too long."
    )
    linger_ms: int = _whole(100, 0, 10_000, "How long a write waits to become full.")
    retry_ms_min: int = _whole(50, 1, 600_000, "First bound of the wait after a failed write.")
    retry_ms_max: int = _whole(5000, 1, 3_600_000, "Largest bound of that wait.")
    write_timeout_ms: int = _whole(
        10_000, 10, 3_600_000, "A write that takes longer counts as failed, and is tried again."
    )
    concurrency_max: int = _whole(
        16, 1, 256, "Writes under way at once, where the store takes more than one."
    )
    held_rows_max: int = _whole(
        10_000, 100, 1_000_000, "Rows taken from the journal and not yet confirmed, in memory."
    )
    nice: int = _whole(
        10, 0, 19, "How far the writer's threads step back for the label path; only on Linux."
    )
    dead_letters_max: int = _whole(
        100_000, 1, 1_000_000_000, "Dead letters kept; at it, refused rows wait in the journal."
    )
    adopt: list[str] = Field(
        default=[],
        description="State directories of removed services, whose labels `serve` delivers too.",
        json_schema_extra=_expects("list", 'a list of folders, such as ["/mnt/labeler-2"]'),
    )


class Sqlite(Section):
    """The embedded store."""

    path: str = _text("", "a path", "The database file; empty is `labels.sqlite3` in `state_dir`.")


class Dynamodb(Section):
    """The DynamoDB store, `writer.store = "dynamodb"`; credentials come by AWS's usual chain."""

    table: Table = _text(
        "labeler-labels", "3 to 255 of A-Z a-z 0-9 . _ -", "The table that labels go to."
    )
    region: Region = _text("", "a region, such as eu-central-1", "The region of the table.")
    endpoint_url: Url = _text(
        "", "a URL, such as http://127.0.0.1:4566", "Another address; empty is the region's own."
    )
    billing_mode: Literal["on_demand", "provisioned"] = _choice(
        "on_demand", "on_demand, provisioned", "How writes are paid for."
    )
    read_capacity_units: int = _whole(
        5, 1, 10_000_000, "Units that a provisioned table is made with."
    )
    write_capacity_units: int = _whole(
        1500, 1, 10_000_000, "Units that a provisioned table is made with."
    )
    retention_s: int = _whole(
        0, 0, 315_360_000, "Age at which DynamoDB may delete a label; 0 is never."
    )
    sku_index: bool = _flag(False, "Whether the table has an index by SKU.")
    create: bool = _flag(False, "Whether `serve` makes the table where it is missing.")
    connect_timeout_ms: int = _whole(1000, 10, 60_000, "Bound of a connection's making.")
    read_timeout_ms: int = _whole(3000, 10, 60_000, "How long an answer may stay away.")
    connections_max: int = _whole(
        16, 1, 1000, "Writes under way at once, a connection each; reads have four more."
    )


class Admin(Section):
    """The HTTP port for metrics and status."""

    address: Address = _address("127.0.0.1:9464", "Where the admin port listens; port 0 takes any.")


class Drain(Section):
    """What happens between SIGTERM and the exit."""

    budget_ms: int = _whole(20_000, 0, 3_600_000, "From the signal to the exit, at most.")
    lame_duck_ms: int = _whole(
        0, 0, 3_600_000, "How long new calls are still taken after NOT_SERVING is told."
    )


class Log(Section):
    """Log lines on stderr."""

    level: Literal["trace", "debug", "info", "warn", "error"] = _choice(
        "info", "trace, debug, info, warn, error", "The least severe level that is written."
    )
    format: Literal["auto", "json", "text"] = _choice(
        "auto", "auto, json, text", "`auto` is text on a terminal, else JSON lines."
    )


class Settings(Section):
    """All settings. One state directory belongs to one process."""

    state_dir: str = _text(
        "./labeler-state", "a path", "Journal, SQLite and instance_id; one a process.", least=1
    )
    transport: Transport = Transport()
    path: Path = Path()
    journal: Journal = Journal()
    models: Models = Models()
    control: Control = Control()
    writer: Writer = Writer()
    sqlite: Sqlite = Sqlite()
    dynamodb: Dynamodb = Dynamodb()
    admin: Admin = Admin()
    drain: Drain = Drain()
    log: Log = Log()


@dataclass(frozen=True)
class Setting:
    """One setting as the schema has it; `kind` is int, bytes, text, flag or list."""

    name: str
    kind: str
    expected: str
    default: Any
    meaning: str


def all_settings() -> dict[str, Setting]:
    """Every setting by its dotted name, in the order of the schema."""
    found: dict[str, Setting] = {}
    for name, field in Settings.model_fields.items():
        if _is_section(field.annotation):
            for inner, info in field.annotation.model_fields.items():
                found[f"{name}.{inner}"] = _setting(f"{name}.{inner}", info)
        else:
            found[name] = _setting(name, field)
    return found


def _setting(name: str, field: FieldInfo) -> Setting:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    kind, expected = str(extra["kind"]), str(extra["expected"])
    return Setting(name, kind, expected, field.default, field.description or "")


def _is_section(annotation: Any) -> TypeGuard[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def all_sections() -> dict[str, str]:
    """Each section's name with its meaning."""
    return {
        name: field.annotation.__doc__ or ""
        for name, field in Settings.model_fields.items()
        if _is_section(field.annotation)
    }
