"""Retries: whether a failed attempt is followed by another, and when.

Pure: time and chance are arguments. (robot_id, sequence) names one request, so sending it again is
safe; reads are safe anyway. An attempt follows only UNAVAILABLE, or RESOURCE_EXHAUSTED with a time
to wait, which is obeyed. None starts without time left, and all of a client's calls share a budget.
"""

from labeler.errors import (
    DeadlinePassedError,
    LabelerError,
    OverloadedError,
    UnavailableError,
)

__all__ = ["Attempts", "RetryBudget"]

BACKOFF_S = 0.020
"""Before the second attempt, ±50 %; doubled before each further one."""

ATTEMPT_S_MIN = 0.001
"""An attempt with less time than this can only fail, so it is not made."""


class RetryBudget:
    """At most 10 retries at once, and one more for each 10 calls that were answered.

    So a client whose server is in trouble adds a tenth to its load, not a multiple. Updates from
    several threads may lose each other: that makes it a few retries off, never unbounded.
    """

    RETRIES_MAX = 10.0
    RETRIES_PER_ANSWER = 0.1

    def __init__(self) -> None:
        """Start full, so that a first failed call may be retried."""
        self._retries = self.RETRIES_MAX

    def answered(self) -> None:
        """Count a call that was answered."""
        self._retries = min(self.RETRIES_MAX, self._retries + self.RETRIES_PER_ANSWER)

    def take(self) -> bool:
        """Take one retry out, where one is left."""
        if self._retries < 1.0:
            return False
        self._retries -= 1.0
        return True


class Attempts:
    """The attempts of one call, within its deadline."""

    def __init__(self, timeout_ms: int, attempts_max: int, budget: RetryBudget, now_s: float):
        """Start the deadline at `now_s`, on any monotonic clock in seconds."""
        self.count = 0
        self._timeout_ms = timeout_ms
        self._attempts_max = attempts_max
        self._budget = budget
        self._deadline_s = now_s + timeout_ms / 1000

    def begin(self, now_s: float) -> float | None:
        """Count an attempt; returns the seconds that it may take, at least `ATTEMPT_S_MIN`.

        None where less is left: then there is no attempt. The first one is always made.
        """
        left_s = self._deadline_s - now_s
        if self.count and left_s < ATTEMPT_S_MIN:
            return None
        self.count += 1
        return max(ATTEMPT_S_MIN, left_s)

    def wait_s(self, error: LabelerError, now_s: float, chance: float) -> float | None:
        """Return seconds to the next attempt, None for no further one; `chance` is in [0, 1).

        A retry time that the server gave is never shortened, and spread upwards by a fifth.
        """
        if isinstance(error, UnavailableError):
            wait_s = BACKOFF_S * 2.0 ** (self.count - 1) * (0.5 + chance)
        elif isinstance(error, OverloadedError) and error.retry_after_ms > 0:
            wait_s = error.retry_after_ms / 1000 * (1.0 + 0.2 * chance)
        else:
            return None
        if self.count >= self._attempts_max:
            return None
        # As `begin` reckons it: a sum that rounds otherwise costs a retry that never starts.
        if self._deadline_s - (now_s + wait_s) < ATTEMPT_S_MIN:
            return None
        return wait_s if self._budget.take() else None

    def final(self, error: LabelerError) -> LabelerError:
        """Return the error to raise: it says the deadline and how many attempts there were."""
        error.attempts = self.count
        if isinstance(error, UnavailableError | OverloadedError | DeadlinePassedError):
            plural = "" if self.count == 1 else "s"
            error.message += f" (deadline {self._timeout_ms} ms, {self.count} attempt{plural})"
            error.args = (error.message,)
        return error
