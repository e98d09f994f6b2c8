"""What stands between the writer and its store: told once when it begins and when it is over."""

from __future__ import annotations

import logging
import time
from typing import get_args

from labeler.stores.base import Problem, StoreUnavailableError

__all__ = ["Trouble"]

_log = logging.getLogger(__name__)


class Trouble:
    """The problem of now, and how often each kind was met. Read from any thread."""

    def __init__(self) -> None:
        """None yet."""
        self._counts: dict[str, int] = dict.fromkeys((*get_args(Problem), "crash"), 0)
        self.kind = self.text = ""
        self.since_s: float | None = None

    def counts(self) -> dict[str, int]:
        """How often each kind was met, since the start."""
        return dict(self._counts)

    def count(self, error: StoreUnavailableError) -> None:
        """One that concerns some rows only: what is stored goes on, and no problem begins."""
        self._counts[error.kind] += 1

    def met(self, error: StoreUnavailableError) -> None:
        """Another try failed; a line of the log where its kind is new."""
        self._begin(error.kind, error.message, None)

    def crashed(self, what: str, error: BaseException) -> None:
        """A fault of ours, of a store or of the core."""
        self._begin("crash", f"{what}: {error!r}", error)

    def over(self) -> None:
        """A write succeeded."""
        if self.since_s is None:
            return
        lasted_ms = int((time.monotonic() - self.since_s) * 1000)
        fields = {"kind": self.kind, "lasted_ms": lasted_ms}
        _log.info("labels are stored again", extra={"fields": fields})
        self.kind, self.text, self.since_s = "", "", None

    def _begin(self, kind: str, text: str, error: BaseException | None) -> None:
        self._counts[kind] += 1
        if self.since_s is None:
            self.since_s = time.monotonic()
        if self.kind != kind:
            fields = {"kind": kind, "reason": text}
            _log.warning(
                "labels wait in the journal: %s", text, extra={"fields": fields}, exc_info=error
            )
        self.kind, self.text = kind, text
