"""Waiting for a condition with a deadline; never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout_s: float = 10.0) -> T:
    """The condition's first true value.

    Errors: `AssertionError` with the last value or exception, when `timeout_s` has passed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            value = condition()
            if value:
                return value
            last = value
        except Exception as error:
            last = error
        if time.monotonic() > deadline:
            name = getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {timeout_s} s: {name}; last: {last!r}")
        time.sleep(0.01)
