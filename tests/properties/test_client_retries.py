"""No attempt starts without time left, and none follows that was not allowed (S78)."""

from hypothesis import example, given
from hypothesis import strategies as st

from labeler import (
    DeadlinePassedError,
    InternalError,
    InvalidRequestError,
    LabelerError,
    OverloadedError,
    UnavailableError,
)
from labeler.client.retries import ATTEMPT_S_MIN, Attempts, RetryBudget

CHANCES = st.floats(0, 1, exclude_max=True)
FAILURES = st.one_of(
    st.builds(UnavailableError, st.just("draining")),
    st.builds(OverloadedError, st.just("full"), retry_after_ms=st.integers(0, 2_000)),
)


@given(st.integers(1, 5_000), st.integers(1, 10), st.data())
def test_every_attempt_starts_within_the_deadline_and_ends_by_it(
    timeout_ms: int, attempts_max: int, data: st.DataObject
) -> None:
    now_s = 1_000.0
    deadline_s = now_s + timeout_ms / 1000
    attempts = Attempts(timeout_ms, attempts_max, RetryBudget(), now_s)
    wait_s: float | None = 0.0
    while wait_s is not None:
        now_s += wait_s
        left_s = attempts.begin(now_s)

        assert left_s is not None
        assert ATTEMPT_S_MIN <= left_s <= deadline_s - now_s + 1e-6
        assert attempts.count <= attempts_max

        now_s += data.draw(st.floats(0, left_s))
        wait_s = attempts.wait_s(data.draw(FAILURES), now_s, data.draw(CHANCES))


# In the example the sum rounds to the deadline, the difference to less than an attempt's least.
@given(st.floats(0, 1e6), st.integers(1, 5_000), st.integers(1, 100), CHANCES)
@example(1_000.0, 2, 1, 0.0)
def test_an_attempt_that_was_waited_for_begins(
    now_s: float, timeout_ms: int, retry_after_ms: int, chance: float
) -> None:
    attempts = Attempts(timeout_ms, 3, RetryBudget(), now_s)
    attempts.begin(now_s)

    wait_s = attempts.wait_s(OverloadedError("full", retry_after_ms=retry_after_ms), now_s, chance)

    assert wait_s is None or attempts.begin(now_s + wait_s) is not None


@given(st.integers(1, 5_000), st.floats(-0.002, 1.0))
def test_a_wait_that_took_too_long_is_followed_by_no_attempt(
    timeout_ms: int, late_s: float
) -> None:
    attempts = Attempts(timeout_ms, 3, RetryBudget(), 0.0)
    attempts.begin(0.0)
    deadline_s = timeout_ms / 1000

    left_s = attempts.begin(deadline_s + late_s)

    assert (left_s is None) == (deadline_s - (deadline_s + late_s) < ATTEMPT_S_MIN)
    assert attempts.count == (1 if left_s is None else 2)


@given(st.integers(1, 100), CHANCES)
def test_a_time_to_wait_is_never_shortened(retry_after_ms: int, chance: float) -> None:
    attempts = Attempts(150, 3, RetryBudget(), 0.0)
    attempts.begin(0.0)

    wait_s = attempts.wait_s(OverloadedError("full", retry_after_ms=retry_after_ms), 0.0, chance)

    assert wait_s is not None
    assert wait_s >= retry_after_ms / 1000


@given(
    st.sampled_from(
        [
            InternalError("broke"),
            InvalidRequestError("wrong"),
            DeadlinePassedError("late"),
            OverloadedError("full, and nobody knows how long"),
        ]
    )
)
def test_what_another_try_can_not_mend_is_tried_once(error: LabelerError) -> None:
    attempts = Attempts(150, 3, RetryBudget(), 0.0)
    attempts.begin(0.0)

    assert attempts.wait_s(error, 0.0, 0.5) is None


def test_the_final_error_says_the_deadline_and_how_many_attempts_there_were() -> None:
    attempts = Attempts(20, 3, RetryBudget(), 0.0)
    attempts.begin(0.0)
    attempts.begin(0.01)

    error = attempts.final(UnavailableError("the service is draining"))

    assert str(error) == "the service is draining (deadline 20 ms, 2 attempts)"
    assert (error.message, error.attempts) == (str(error), 2)


@given(st.lists(st.sampled_from(["failed", "answered"]), max_size=500))
def test_retries_are_ten_and_a_tenth_of_the_answered_calls_at_most(calls: list[str]) -> None:
    budget = RetryBudget()
    retries = 0
    for call in calls:
        if call == "answered":
            budget.answered()
        else:
            retries += budget.take()

    assert retries <= 10 + calls.count("answered") / 10 + 1e-6
