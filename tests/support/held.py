"""A model that is busy while a test does something, and what a service has done since.

A busy model is one run of a holdable version (`made_models`). A bulk row waits behind it, so that
the count of batches tells whether that run still goes on: its end forms the next batch. What did
not fit into the run is tried again beside a longer one: no test depends on the machine's speed.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from labeler.telemetry import names
from labeler.v1 import types_pb2
from tests.support.made_models import NAME, holding, settings, write_identity
from tests.support.metrics import OUTCOMES, Metrics
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import Wire, floats, request

T = TypeVar("T")
WIDTH = 4
ROWS_A_HOLD = 2
"""Rows that each hold computes and journals: the one that holds, and the one behind it."""
_STEPS = 80_000  # about 0.25 s
_TRIES = 6
_holds = itertools.count(1)


def holdable(root: Path) -> dict[str, Any]:
    """The settings of a service that serves a holdable identity model, made below `root`."""
    write_identity(root, WIDTH, holdable=True)
    return settings(root)


def start_holdable(start_service: StartService, root: Path, **extra: Any) -> Service:
    """A service of the test's own that serves one."""
    return start_service(**(holdable(root) | extra))


def values(number: int) -> list[float]:
    """A payload that no other number below 2^24 has, exact in 32 bits."""
    return [float(number), float(number % 7), 1.0, 0.5]


def queued(service: Service, priority: str = "robot") -> int:
    """Rows of this priority that wait for a model now."""
    return int(service.metrics().sum(names.QUEUE_ROWS.name, priority=priority))


class Since:
    """What a service has done since this was made."""

    def __init__(self, service: Service) -> None:
        """Takes the first scrape."""
        self._service, self._before = service, service.metrics()

    def __call__(self, name: str, **labels: str) -> int:
        """By how much the metric has risen."""
        after = self._service.metrics()
        return int(after.sum(name, **labels) - self._before.sum(name, **labels))

    @property
    def computed(self) -> int:
        """Rows that models have been given."""
        return self(f"{names.BATCH_ROWS.name}_sum")

    @property
    def journaled(self) -> int:
        """Records."""
        return self(names.RECORDS_JOURNALED.name)

    def ended(self, outcome: str) -> int:
        """Requests of all methods that ended so."""
        assert outcome in OUTCOMES
        return self(names.REQUESTS.name, outcome=outcome)


class OverError(BaseException):
    """The run has ended; not an error of the one who waits."""


class Hold:
    """One run that is under way; `since` counts from before it."""

    def __init__(self, service: Service, stubs: Wire, steps: int, width: int = WIDTH) -> None:
        """Begins it, and puts the bulk row behind it."""
        eventually(lambda: not service.metrics().sum(names.REQUESTS_IN_FLIGHT.name), timeout_s=60)
        self.since = Since(service)
        self._service, number = service, next(_holds)
        before = self._batches()
        row = request(f"holder-{service.pid}", number, floats(holding(steps, width)))
        row.timeout_us = 300_000_000
        behind = request(f"behind-{service.pid}", number, floats(holding(0, width)))
        behind.timeout_us, behind.priority = row.timeout_us, types_pb2.PRIORITY_BULK
        self._calls = [stubs.labels.Label.future(row)]
        eventually(lambda: self._batches() > before, timeout_s=60)
        self._calls.append(stubs.labels.Label.future(behind))
        eventually(lambda: queued(service, "bulk") >= 1 or self._calls[0].done())
        self._batch = before + 1

    def _batches(self) -> float:
        return self._service.metrics().sum(names.BATCHES.name, model=NAME)

    def goes_on(self) -> bool:
        """Whether no batch has been formed since."""
        return self._batches() == self._batch

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition while the run goes on. Errors: `OverError` once it does not."""

        def met_or_over() -> bool:
            if condition():
                return True
            if self.goes_on():
                return False
            raise OverError

        eventually(met_or_over, timeout_s=100)

    def end(self) -> None:
        """Waits for it."""
        for call in self._calls:
            call.result(timeout=110)


@contextmanager
def busy(service: Service, stubs: Wire, steps: int = _STEPS, width: int = WIDTH) -> Iterator[Hold]:
    """The model is in a run from here on; this ends with it."""
    hold = Hold(service, stubs, steps, width)
    try:
        yield hold
    finally:
        hold.end()


def while_busy(
    service: Service, stubs: Wire, attempt: Callable[[Hold, int], T], width: int = WIDTH
) -> tuple[T, Since]:
    """What `attempt(hold, try)` gave while the model was in one run, and the counts of that try.

    Errors: those of an attempt that was in time; `AssertionError` where none was.
    """
    for number in range(_TRIES):
        with busy(service, stubs, _STEPS << number, width) as hold:
            try:
                outcome = attempt(hold, number)
            except (AssertionError, pytest.fail.Exception, OverError):
                if hold.goes_on():
                    raise
            else:
                if hold.goes_on():
                    return outcome, hold.since
    raise AssertionError(f"no run of {_STEPS << _TRIES} steps was long enough")


def nothing_left(scrape: Metrics) -> None:
    """No queue place, no room in the journal, nothing in flight. Errors: `AssertionError`."""
    left = {
        name: scrape.sum(name)
        for name in (
            names.QUEUE_ROWS.name,
            names.REQUESTS_IN_FLIGHT.name,
            names.JOURNAL_UNCOMMITTED.name,
        )
    }
    assert not any(left.values()), left
