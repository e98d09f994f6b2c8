"""The work of `labeler dlq redrive`: the store is opened, written in small groups, and closed.

A letter is removed only after the store has it for good. A kill in between leaves both, and the
next redrive writes the same row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from labeler.cli.dlq_select import Found
from labeler.config import Config, state_path, store_settings
from labeler.loop import LoopThread
from labeler.stores import registry
from labeler.stores.base import Outcome, Status, Store, StoreContext, StoreUnavailableError
from labeler.writer.dead_letters import DeadLetter
from labeler.writer.redrive import groups, write_again

__all__ = ["Tally", "rewrite"]

_CALL_S = 60.0
_CLOSE_S = 5.0
_BUSY = "the store has too much to do for some of them"


@dataclass
class Tally:
    """What became of the letters; `left`: those that the store did not answer for."""

    stored: int = 0
    superseded: int = 0
    refused: int = 0
    left: int = 0


def rewrite(config: Config, found: Found, chosen: Sequence[DeadLetter]) -> tuple[Tally, str]:
    """The tally, and why some are left, empty where none is."""
    tally = Tally(left=len(chosen))
    if not chosen:
        return tally, ""
    name, loop = config.settings.writer.store, LoopThread()
    try:
        context = StoreContext(state_path(config), store_settings(config.settings))
        store = registry.open_store(name, context)
        try:
            loop.call(store.ensure(), _CALL_S)
            for group in groups(chosen, store.limits.rows_max):
                _settle(found, name, group, _write(loop, store, group), tally)
        except StoreUnavailableError as error:
            return tally, error.message
        except TimeoutError:
            return tally, f"the store gave no answer in {_CALL_S:.0f} s"
        finally:
            with suppress(TimeoutError, StoreUnavailableError):
                loop.call(store.close(), _CLOSE_S)
    finally:
        loop.stop(_CLOSE_S)
    return tally, _BUSY if tally.left else ""


def _write(loop: LoopThread, store: Store, group: Sequence[DeadLetter]) -> list[Outcome]:
    return loop.call(write_again(store, [letter.row for letter in group]), _CALL_S)


def _settle(
    found: Found,
    name: str,
    group: Sequence[DeadLetter],
    outcomes: Sequence[Outcome],
    tally: Tally,
) -> None:
    done: list[int] = []
    refused: list[DeadLetter] = []
    for letter, outcome in zip(group, outcomes, strict=True):
        if outcome.status is Status.UNPROCESSED:
            continue
        tally.left -= 1
        if outcome.status is Status.REFUSED:
            tally.refused += 1
            refused.append(replace(letter, reason=outcome.reason, store=name))
        else:
            done.append(letter.id)
            tally.stored += outcome.status is Status.STORED
            tally.superseded += outcome.status is Status.SUPERSEDED
    found.letters.remove(done)
    found.letters.refused(refused)
