"""Where the writer puts what the store refuses for good: the dead letters, bounded, on a thread."""

from __future__ import annotations

import logging
import time

from labeler.errors import LabelerError
from labeler.loop import Worker
from labeler.stores.base import StoredRow, StoreUnavailableError
from labeler.writer.dead_letters import DeadLetter, DeadLetters

__all__ = ["Buried"]

_log = logging.getLogger(__name__)


class Buried:
    """The writer's `Graveyard` over the dead letters of its state directory."""

    def __init__(self, letters: DeadLetters, store: str, letters_max: int) -> None:
        """`store` is the name of the store that refuses; at `letters_max` rows must wait."""
        self._letters, self._store, self._letters_max = letters, store, letters_max
        self._worker = Worker("labeler-dead")

    async def bury(self, row: StoredRow, reason: str) -> None:
        """Durable when it returns. Errors: `StoreUnavailableError`: the row is not kept."""
        now_us = time.time_ns() // 1000
        letter = DeadLetter(row, reason, self._store, now_us)
        try:
            await self._worker.call(lambda: self._keep(letter))
        except LabelerError as error:
            text = f"a refused label could not become a dead letter: {error.message}"
            raise StoreUnavailableError(text, kind="disk") from error

    def known(self) -> set[tuple[str, int]]:
        """Journal records that were kept before; of a file that cannot be read, none.

        Those are delivered then, and may be both stored and a dead letter.
        """
        try:
            return self._letters.records()
        except LabelerError as error:
            _log.warning("dead letters cannot be read", extra={"fields": {"reason": error.message}})
            return set()

    def close(self) -> None:
        """Ends the thread and closes the file."""
        self._worker.close()
        self._letters.close()

    def _keep(self, letter: DeadLetter) -> None:
        if self._letters.count() >= self._letters_max:
            limit = f"writer.dead_letters_max ({self._letters_max}) is reached"
            raise LabelerError(f"{limit}; see `labeler dlq list`")
        self._letters.add([letter])
