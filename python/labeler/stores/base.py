"""What a store is: it takes rows in groups, says what became of each, and gives them back by key.

A store that answers `STORED` has made the row durable: the journal forgets it then. Other stores
join through the entry point group `labeler.stores` (see `registry.py`). A store says what happened
and never waits nor tries again by itself: that is the writer's, for all stores alike.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from labeler.errors import InvalidRequestError, LabelerError

__all__ = [
    "STORED",
    "BlockingStore",
    "Difference",
    "Outcome",
    "Page",
    "Problem",
    "Query",
    "Status",
    "Store",
    "StoreContext",
    "StoreLimits",
    "StoreRefusedError",
    "StoreUnavailableError",
    "StoreVersionError",
    "StoredRow",
    "decode_page_token",
    "encode_page_token",
]


Problem = Literal[
    "outage",
    "credentials",
    "clock",
    "table",
    "throttled_account",
    "throttled_table",
    "throttled_key",
    "disk",
    "busy",
]
"""Why a store takes nothing now; the name of it in logs and metrics."""


class StoreUnavailableError(LabelerError):
    """Nothing of this call counts; try again later, `retry_after_s` at the earliest.

    Whatever its `kind`, it is never the fault of a row: no row may be given up for it.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Problem = "outage",
        retry_after_s: float = 0.0,
        sequence: int | None = None,
    ) -> None:
        """Keep what is wrong, and how long the store asks to be left alone, in s."""
        super().__init__(message, sequence=sequence)
        self.kind: Problem = kind
        self.retry_after_s = retry_after_s


class StoreRefusedError(LabelerError):
    """The call was refused for what it holds, without a word of which row; nothing was written."""


class StoreVersionError(LabelerError):
    """The store was written by a newer program; nothing was touched (exit code 65)."""

    exit_code = 65


class Status(Enum):
    """What became of one row of a write."""

    STORED = "stored"
    """Durable: it is the row of its key, or an equal one was."""
    SUPERSEDED = "superseded"
    """Not written: a later record of the same journal holds the key, durably."""
    REFUSED = "refused"
    """The store will never take this row; the others of the write are not touched by it."""
    UNPROCESSED = "unprocessed"
    """Not now: the row's part of the store has too much to do. Try this one again later."""


@dataclass(frozen=True)
class Outcome:
    """A row's status, with the store's reason where it was refused."""

    status: Status
    reason: str = ""


STORED = Outcome(Status.STORED)
"""The outcome of nearly every row: one object, so that a group of them is told by identity."""


class StoredRow(NamedTuple):
    """A label as it is kept: `labeler.v1.StoredLabel` without its durability.

    A tuple in the order of a store's columns, since one is made for each label: a frozen dataclass
    costs three times as much to make.

    `journal_number` orders the rows of one `journal_id`, never those of two. Times are stamps: µs
    of the wall clock. `confidence` may be NaN, and stays so.
    """

    robot_id: str
    sequence: int
    label: str
    index: int  # type: ignore[assignment]  # the label's; nobody asks a row where a value stands
    confidence: float
    model: str
    version: str
    source: int
    labeled_at_unix_us: int
    captured_at_unix_us: int
    sku: str
    instance_id: str
    journal_id: str
    journal_number: int

    @property
    def key(self) -> tuple[str, int]:
        """What names the row in every store."""
        return self.robot_id, self.sequence


@dataclass(frozen=True)
class Query:
    """Rows of one robot by descending sequence, made in [from, to) where that is not 0.

    `timeout_ms` bounds the search: a store that cannot answer in it raises `StoreUnavailableError`.
    """

    robot_id: str
    page_size: int = 100
    page_token: str = ""
    from_unix_us: int = 0
    to_unix_us: int = 0
    timeout_ms: int = 1000


@dataclass(frozen=True)
class Page:
    """Rows, and the token of the next page; empty on the last."""

    rows: Sequence[StoredRow]
    next_page_token: str


class Difference(NamedTuple):
    """What the settings ask of a store, what it is instead, and how that can be changed."""

    name: str
    expected: str
    found: str
    change: str


@dataclass(frozen=True)
class StoreContext:
    """What a store is opened with: the process's state directory and the store's own settings."""

    state_dir: Path
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class StoreLimits:
    """How many rows one write may hold, and how many writes may be under way at once."""

    rows_max: int
    concurrency_max: int = 1


class Store(Protocol):
    """Where labels end. All of it is called on the control side's event loop, and never blocks it.

    A store whose calls block is a `BlockingStore`; `registry.open_store` gives it threads.
    """

    @property
    def limits(self) -> StoreLimits:
        """The most that `write` is given."""

    async def ensure(self) -> None:
        """Makes what is missing (file, table) and checks what is there. Once, before all else."""

    async def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """Writes rows with distinct keys; one outcome a row, in their order.

        Idempotent; no two writes under way hold the same key. Cancelled when it takes too long.
        Errors: `StoreUnavailableError`, `StoreRefusedError`: no row counts as stored.
        """

    async def write_if_newer(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """As `write`, for rows out of their order, beside whoever else writes them.

        In one step with the write: a later record of the same journal stays, the row is SUPERSEDED.
        """

    async def confirm_refusal(self) -> None:
        """Asked before a row is given up: is it the row, and not the store that has changed?

        Errors: `StoreUnavailableError` where the store is not what `ensure` had found.
        """

    async def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        """The row of a key, with all that was confirmed before."""

    async def list(self, query: Query) -> Page:
        """One page. Errors: `InvalidRequestError` for a page token that is not this query's."""

    async def close(self) -> None:
        """Releases files and connections. Idempotent."""


class BlockingStore(Protocol):
    """The same as plain calls: writes come from one thread, reads from another at the same time."""

    @property
    def limits(self) -> StoreLimits:
        """As `Store.limits`; `concurrency_max` is 1."""

    def ensure(self) -> None:
        """As `Store.ensure`."""

    def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        """As `Store.write`; of one journal's records the later number stays, whatever the order."""

    def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        """As `Store.get`."""

    def list(self, query: Query) -> Page:
        """As `Store.list`."""

    def close(self) -> None:
        """As `Store.close`."""


_TOKEN = struct.Struct(">BIQ")
_TOKEN_VERSION = 1


def encode_page_token(query: Query, last_sequence: int) -> str:
    """A token that continues below `last_sequence`, tied to the query's robot and time filter."""
    raw = _TOKEN.pack(_TOKEN_VERSION, _fingerprint(query), last_sequence)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decode_page_token(query: Query) -> int:
    """The sequence below which the query's page begins; 2^63 for the first page.

    Errors: `InvalidRequestError` for a token that is damaged or belongs to another query.
    """
    if not query.page_token:
        return 1 << 63
    try:
        padded = query.page_token + "=" * (-len(query.page_token) % 4)
        raw = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        version, fingerprint, sequence = _TOKEN.unpack(raw)
    except (binascii.Error, struct.error, UnicodeEncodeError):
        version, fingerprint, sequence = 0, 0, 0
    if version != _TOKEN_VERSION or fingerprint != _fingerprint(query):
        expected = "the next_page_token of this query's last page, with the same robot_id and times"
        raise InvalidRequestError(
            f"page_token is {query.page_token!r}, expected {expected}",
            field="page_token",
            value=repr(query.page_token),
            expected=expected,
        )
    return int(sequence)


def _fingerprint(query: Query) -> int:
    parts = (query.robot_id, query.from_unix_us, query.to_unix_us)
    return zlib.crc32(repr(parts).encode("utf-8", "backslashreplace"))
