"""A stream gives each request exactly one result, whatever the order of replies and deadlines."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from labeler import (
    DeadlinePassedError,
    InvalidRequestError,
    LabelQuery,
    OverloadedError,
    UnavailableError,
)
from labeler.client.options import Settings
from labeler.client.requests import Receipts
from labeler.client.streams import StreamState
from labeler.v1 import label_pb2, types_pb2

ROWS_MAX = 8
SEQUENCES = st.integers(1, 12)


def query(sequence: int, timeout_ms: int) -> LabelQuery:
    """A query with this deadline."""
    return LabelQuery("r1", sequence, [1.0], timeout_ms=timeout_ms)


class Streams(RuleBasedStateMachine):
    """Compares the state with a list of what is owed: sequence, deadline, result where known."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.state = StreamState(Settings(stream_rows_max=ROWS_MAX), Receipts())
        self.waiting: dict[int, float] = {}
        self.ready: list[tuple[int, str]] = []
        self.unanswered: tuple[int, ...] | None = None

    def expire(self) -> None:
        """Move what is late from waiting to ready, earliest deadline first."""
        late = [(at, sequence) for sequence, at in self.waiting.items() if at <= self.now_s]
        for _, sequence in sorted(late):
            del self.waiting[sequence]
            self.ready.append((sequence, "DeadlinePassedError"))

    @precondition(lambda self: self.unanswered is None)
    @rule(sequence=SEQUENCES, timeout_ms=st.integers(1, 50))
    def send(self, sequence: int, timeout_ms: int) -> None:
        if sequence in self.waiting:
            with pytest.raises(InvalidRequestError, match="under way"):
                self.state.send(query(sequence, timeout_ms), self.now_s)
        elif len(self.waiting) + len(self.ready) >= ROWS_MAX:
            with pytest.raises(OverloadedError, match="read results first"):
                self.state.send(query(sequence, timeout_ms), self.now_s)
        else:
            request = self.state.send(query(sequence, timeout_ms), self.now_s)
            assert (request.sequence, request.timeout_us) == (sequence, timeout_ms * 1000)
            self.waiting[sequence] = self.now_s + timeout_ms / 1000

    @precondition(lambda self: self.unanswered is None)
    @rule(sequence=SEQUENCES, good=st.booleans())
    def reply(self, sequence: int, good: bool) -> None:
        reply = label_pb2.LabelStreamResponse(sequence=sequence)
        if good:
            reply.response.sequence = sequence
        else:
            reply.error.CopyFrom(types_pb2.Error(code=13, message="broke"))
        self.state.reply(reply, self.now_s)
        if self.waiting.pop(sequence, None) is not None:
            self.ready.append((sequence, "Label" if good else "InternalError"))

    @rule()
    def take(self) -> None:
        self.expire()
        if not self.ready and self.unanswered is not None:
            with pytest.raises(UnavailableError) as over:
                self.state.take(self.now_s)
            assert over.value.unanswered == self.unanswered
            return
        result = self.state.take(self.now_s)
        if self.ready:
            sequence, kind = self.ready.pop(0)
            assert result is not None
            assert (result.sequence, type(result).__name__) == (sequence, kind)
        else:
            assert result is None

    @rule(passed_ms=st.integers(1, 60))
    def time_passes(self, passed_ms: int) -> None:
        self.now_s += passed_ms / 1000

    @precondition(lambda self: self.unanswered is None)
    @rule()
    def end(self) -> None:
        self.state.end(UnavailableError("draining"))
        self.unanswered = tuple(self.waiting)
        self.waiting.clear()

    @invariant()
    def waits_for_the_earliest_deadline(self) -> None:
        wait_s = self.state.wait_s(self.now_s)
        if self.waiting:
            assert wait_s == max(0.0, min(self.waiting.values()) - self.now_s)
        else:
            assert wait_s is None

    @invariant()
    def is_idle_when_nothing_is_owed(self) -> None:
        assert self.state.idle == (not self.waiting and not self.ready)


TestStreams = Streams.TestCase
TestStreams.settings = settings(deadline=None)


def test_a_late_reply_gives_no_second_result() -> None:
    state = StreamState(Settings(), Receipts())
    state.send(query(1, 10), 0.0)
    late = state.take(0.02)

    state.reply(label_pb2.LabelStreamResponse(sequence=1), 0.03)

    assert isinstance(late, DeadlinePassedError)
    assert state.take(0.03) is None


def test_a_long_list_of_unanswered_sequences_is_shortened_in_the_message_only() -> None:
    state = StreamState(Settings(), Receipts())
    for sequence in range(1, 101):
        state.send(query(sequence, 1_000), 0.0)
    state.end(None)

    with pytest.raises(UnavailableError, match=r"1, 2, .* 20 and 80 more") as over:
        state.take(0.1)

    assert over.value.unanswered == tuple(range(1, 101))
