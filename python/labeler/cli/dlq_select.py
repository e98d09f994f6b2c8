"""Which dead letters a command of `labeler dlq` means, of both kinds: refused and undecodable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from labeler.cli.common import flags_of
from labeler.config import Config, Facts, Sources, load, state_path
from labeler.errors import DiskError, InvalidRequestError
from labeler.stores import registry
from labeler.writer.dead_letters import DeadLetter, DeadLetters
from labeler.writer.undecodable import Undecodable, remove, undecodable

__all__ = ["Found", "Item", "Selection", "checked", "counts", "open_all"]

Item = DeadLetter | Undecodable

_PAGE_ROWS = 500


@dataclass(frozen=True)
class Selection:
    """Those of `ids`, or those that fit `robot` and `reason`, each None for any."""

    ids: Sequence[str] | None = None
    every: bool = False
    robot: str | None = None
    reason: str | None = None

    def must_choose(self) -> None:
        """Errors: `InvalidRequestError` where nothing was said, or too much."""
        filtered = self.robot is not None or self.reason is not None
        if not self.ids and not self.every and not filtered:
            raise InvalidRequestError("say which: ids, --robot, --reason or --all")
        if self.ids and (self.every or filtered):
            raise InvalidRequestError("ids with --all, --robot or --reason: give one of both")

    def fits(self, reason: str) -> bool:
        """Whether a reason is among those meant."""
        return self.reason is None or self.reason.casefold() in reason.casefold()


class Found:
    """The dead letters of a state directory, as they are when they are asked for."""

    def __init__(self, state_dir: Path, letters: DeadLetters) -> None:
        """Only remembers them."""
        self.state_dir, self.letters = state_dir, letters

    def matching(
        self, selection: Selection, after: str = "", limit: int | None = None
    ) -> Iterator[Item]:
        """The refused by id, then the undecodable by number, those behind `after`.

        Errors: `InvalidRequestError` where there is no such id.
        """
        if selection.ids:
            return iter([self._named(text) for text in dict.fromkeys(selection.ids)])
        return islice(self._all(selection, after), limit)

    def redrivable(self, selection: Selection) -> list[DeadLetter]:
        """Errors: `InvalidRequestError` where one is named that can't be written again."""
        selection.must_choose()
        chosen = list(self.matching(selection))
        broken = [item for item in chosen if isinstance(item, Undecodable)]
        if selection.ids and broken:
            raise InvalidRequestError(
                f"{broken[0].id} cannot be redriven: {broken[0].reason()}; "
                "keep it with `labeler dlq export`"
            )
        return [item for item in chosen if isinstance(item, DeadLetter)]

    def drop(self, items: Iterable[Item]) -> int:
        """Removes them for good; how many were there."""
        items = list(items)
        dropped = sum(remove(item) for item in items if isinstance(item, Undecodable))
        return dropped + self.letters.remove(
            [item.id for item in items if isinstance(item, DeadLetter)]
        )

    def _named(self, text: str) -> Item:
        kind, number = _read_id(text)
        found: Item | None = None
        if kind is DeadLetter:
            found = self.letters.get(number)
        else:
            broken = undecodable(self.state_dir)
            found = next((item for item in broken if item.number == number), None)
        if found is None:
            raise InvalidRequestError(
                f"no dead letter {text} in {self.state_dir}; `labeler dlq list` shows them"
            )
        return found

    def _all(self, selection: Selection, after: str) -> Iterator[Item]:
        kind, number = _read_id(after) if after else (DeadLetter, 0)
        after_id = number
        while kind is DeadLetter and (
            page := self.letters.list(_PAGE_ROWS, after_id, selection.robot)
        ):
            yield from (letter for letter in page if selection.fits(letter.reason))
            after_id = page[-1].id
        if selection.robot is None:
            least = number if kind is Undecodable else -1
            behind = (item for item in undecodable(self.state_dir) if item.number > least)
            yield from (item for item in behind if selection.fits(item.reason()))


def _read_id(text: str) -> tuple[type[Item], int]:
    digits = text.removeprefix("u")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        raise InvalidRequestError(f"{text!r} is no dead letter's id, such as 7 or u12")
    return Undecodable if digits != text else DeadLetter, int(digits)


def checked(config: Path | None, sets: Sequence[str] | None, state_dir: str | None) -> Config:
    """The configuration of a command. Errors: `ConfigError`."""
    facts = Facts(stores=registry.names())
    return load(Sources(config, None, flags_of(sets, state_dir=state_dir)), facts)


@contextmanager
def open_all(config: Config) -> Iterator[Found]:
    """The dead letters of its state directory. Errors: `DiskError` where it is no folder."""
    state_dir = state_path(config)
    if not state_dir.is_dir():
        raise DiskError(f"state_dir = {state_dir} is no folder; say which with --state-dir")
    with closing(DeadLetters(state_dir)) as letters:
        yield Found(state_dir, letters)


def counts(found: Found) -> tuple[int, dict[str, int]]:
    """How many there are in all, and by reason."""
    reasons = Counter(item.reason() for item in undecodable(found.state_dir))
    reasons.update(found.letters.counts_by_reason())
    return reasons.total(), dict(reasons.most_common())
