"""Relations between settings: each is data, and all are checked in the same pass as the values.

A relation is only judged when every setting in it is right by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labeler.config.problems import nearest
from labeler.config.schema import Settings
from labeler.config.stores import has_section
from labeler.config.units import format_bytes
from labeler.open_files import OPEN_FILES_RESERVE

__all__ = ["CHECKS", "NOTHING_KNOWN", "Check", "Facts"]


@dataclass(frozen=True)
class Facts:
    """What the machine and the installation allow; None or empty where that is not asked."""

    open_files_max: int | None = None
    stores: Sequence[str] = field(default=())


NOTHING_KNOWN = Facts()


@dataclass(frozen=True)
class Check:
    """`settings`: those involved, the one to blame first. `expected` is None when all is well."""

    settings: tuple[str, ...]
    expected: Callable[[Settings, Facts], str | None]


def _at_most(value: int, bound: int, text: str) -> str | None:
    return None if value <= bound else f"expected at most {text}"


def _batch_fits_queue(s: Settings, _: Facts) -> str | None:
    bound = s.path.queue_rows_max
    return _at_most(s.path.batch_rows_max, bound, f"path.queue_rows_max ({bound})")


def _batch_fits_bulk_queue(s: Settings, _: Facts) -> str | None:
    bound = s.path.bulk_queue_rows_max
    return _at_most(s.path.batch_rows_max, bound, f"path.bulk_queue_rows_max ({bound})")


def _stream_fits_queue(s: Settings, _: Facts) -> str | None:
    bound = s.path.queue_rows_max
    return _at_most(s.transport.stream_in_flight_max, bound, f"path.queue_rows_max ({bound})")


def _margin_fits_deadline(s: Settings, _: Facts) -> str | None:
    if s.path.deadline_margin_us < s.path.deadline_ms * 1000:
        return None
    return f"expected less than path.deadline_ms ({s.path.deadline_ms} ms)"


def _delay_fits_deadline(s: Settings, _: Facts) -> str | None:
    bound = s.path.deadline_ms * 1000 - s.path.deadline_margin_us
    if s.path.delay_us_max < max(1, bound):
        return None
    return f"expected less than path.deadline_ms less path.deadline_margin_us ({bound} us)"


def _window_outlasts_deadline(s: Settings, _: Facts) -> str | None:
    if s.path.dedupe_window_ms >= s.path.deadline_ms:
        return None
    return f"expected at least path.deadline_ms ({s.path.deadline_ms})"


def _streams_fit_connection(s: Settings, _: Facts) -> str | None:
    # With less, calls that wait unread can hold the whole window, and the others stop with them.
    need = s.transport.stream_window_bytes * s.transport.streams_per_connection_max
    if s.transport.connection_window_bytes >= need:
        return None
    return (
        "expected at least transport.stream_window_bytes x transport.streams_per_connection_max "
        f"({format_bytes(need)})"
    )


def _segments_fit_disk(s: Settings, _: Facts) -> str | None:
    bound = s.journal.disk_bytes_max // 4
    text = f"a quarter of journal.disk_bytes_max ({format_bytes(bound)})"
    return _at_most(s.journal.segment_bytes, bound, text)


def _reserve_fits_disk(s: Settings, _: Facts) -> str | None:
    bound = s.journal.disk_bytes_max // 4
    text = f"a quarter of journal.disk_bytes_max ({format_bytes(bound)})"
    return _at_most(s.journal.reserve_bytes, bound, text)


def _default_is_loaded(s: Settings, _: Facts) -> str | None:
    names = [reference.partition("@")[0] for reference in s.models.load]
    if s.models.default in names or not (names or s.models.default):
        return None
    return f"expected a model of models.load ({', '.join(names) or 'none'})"


def _loaded_once(s: Settings, _: Facts) -> str | None:
    names = [reference.partition("@")[0] for reference in s.models.load]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"expected each model once; twice: {', '.join(twice)}" if twice else None


def _retries_ordered(s: Settings, _: Facts) -> str | None:
    bound = s.writer.retry_ms_max
    return _at_most(s.writer.retry_ms_min, bound, f"writer.retry_ms_max ({bound})")


def _adopts_others_once(s: Settings, _: Facts) -> str | None:
    folders = [os.path.abspath(folder) for folder in s.writer.adopt]
    if os.path.abspath(s.state_dir) in folders:
        return "expected the state directories of others; state_dir is this service's own"
    twice = sorted({folder for folder in folders if folders.count(folder) > 1})
    return f"expected each folder once; twice: {', '.join(twice)}" if twice else None


def _lame_duck_fits_budget(s: Settings, _: Facts) -> str | None:
    bound = s.drain.budget_ms // 2
    return _at_most(s.drain.lame_duck_ms, bound, f"half of drain.budget_ms ({bound})")


def _ports_differ(s: Settings, _: Facts) -> str | None:
    if s.admin.address != s.transport.grpc_address or s.admin.address.endswith(":0"):
        return None
    return "expected another port than transport.grpc_address"


def _connections_fit_files(s: Settings, facts: Facts) -> str | None:
    if facts.open_files_max is None:
        return None
    bound = facts.open_files_max - OPEN_FILES_RESERVE
    text = (
        f"{max(0, bound)}: the limit on open files is {facts.open_files_max}; raise it (ulimit -n)"
    )
    return _at_most(s.transport.connections_max, bound, text)


def _store_exists(s: Settings, facts: Facts) -> str | None:
    if not facts.stores or s.writer.store in facts.stores:
        return None
    known = f"one of {', '.join(facts.stores)}"
    return f"expected {known}{nearest(s.writer.store, facts.stores)}"


def _region_is_named(s: Settings, _: Facts) -> str | None:
    # No region of AWS's own variables: labels would go to another table than the settings say.
    if s.writer.store != "dynamodb" or s.dynamodb.region:
        return None
    return "expected the table's region, such as eu-central-1, since writer.store is dynamodb"


def _store_has_no_section(s: Settings, _: Facts) -> str | None:
    if not s.writer.store_settings or not has_section(s):
        return None
    return f"expected none: the store {s.writer.store} has a section [{s.writer.store}]"


CHECKS: tuple[Check, ...] = (
    Check(("path.batch_rows_max", "path.queue_rows_max"), _batch_fits_queue),
    Check(("path.batch_rows_max", "path.bulk_queue_rows_max"), _batch_fits_bulk_queue),
    Check(("transport.stream_in_flight_max", "path.queue_rows_max"), _stream_fits_queue),
    Check(("path.deadline_margin_us", "path.deadline_ms"), _margin_fits_deadline),
    Check(
        ("path.delay_us_max", "path.deadline_ms", "path.deadline_margin_us"), _delay_fits_deadline
    ),
    Check(("path.dedupe_window_ms", "path.deadline_ms"), _window_outlasts_deadline),
    Check(
        (
            "transport.connection_window_bytes",
            "transport.stream_window_bytes",
            "transport.streams_per_connection_max",
        ),
        _streams_fit_connection,
    ),
    Check(("journal.segment_bytes", "journal.disk_bytes_max"), _segments_fit_disk),
    Check(("journal.reserve_bytes", "journal.disk_bytes_max"), _reserve_fits_disk),
    Check(("models.default", "models.load"), _default_is_loaded),
    Check(("models.load",), _loaded_once),
    Check(("writer.retry_ms_min", "writer.retry_ms_max"), _retries_ordered),
    Check(("writer.adopt", "state_dir"), _adopts_others_once),
    Check(("drain.lame_duck_ms", "drain.budget_ms"), _lame_duck_fits_budget),
    Check(("admin.address", "transport.grpc_address"), _ports_differ),
    Check(("transport.connections_max",), _connections_fit_files),
    Check(("writer.store",), _store_exists),
    Check(("dynamodb.region", "writer.store"), _region_is_named),
    Check(("writer.store_settings", "writer.store"), _store_has_no_section),
)
"""Every relation, in the order in which it is reported."""
