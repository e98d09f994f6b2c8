"""The state of a label stream: what was sent, what was answered, what is still owed.

Pure: time is an argument, in seconds of one monotonic clock; the two streams around it bring the
threads or tasks. Every request that was sent gets exactly one result: a label, the row's error, or,
when its time is over without an answer, `DeadlinePassedError`; unless the stream ends before.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from labeler.client.batches import Result
from labeler.client.failures import from_row
from labeler.client.options import Settings
from labeler.client.replies import label_from, receipt_of
from labeler.client.requests import LabelQuery, Receipts, build_request, check_timeout_ms
from labeler.errors import (
    DeadlinePassedError,
    InternalError,
    InvalidRequestError,
    LabelerError,
    OverloadedError,
    UnavailableError,
)
from labeler.v1 import label_pb2

__all__ = ["StreamState"]

_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class _Sent:
    robot_id: str
    sent_s: float
    deadline_s: float
    timeout_ms: int


class StreamState:
    """What a stream owes its caller; not thread-safe by itself."""

    def __init__(self, settings: Settings, receipts: Receipts) -> None:
        """Start with nothing sent."""
        self._settings = settings
        self._receipts = receipts
        self._sent: dict[int, _Sent] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._results: deque[Result] = deque()
        self._reason: LabelerError | None = None
        self._unanswered: tuple[int, ...] = ()
        self._ended = False

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has its result, and each result was taken."""
        return not self._sent and not self._results

    def send(self, query: LabelQuery, now_s: float) -> label_pb2.LabelRequest:
        """Check a query, note it as sent, and return its message.

        Errors: `InvalidRequestError`; `OverloadedError` when `stream_rows_max` requests wait for an
        answer or for their reader; `UnavailableError` after the stream's end.
        """
        if self._ended:
            raise self._end_error()
        request = build_request(query, self._settings)
        timeout_ms = check_timeout_ms(query.timeout_ms, self._settings.timeout_ms)
        if request.sequence in self._sent:
            held = f"{request.sequence:,}, which waits for its answer on this stream"
            expected = "a sequence that is not under way"
            message = f"sequence is {held}, expected {expected}"
            raise InvalidRequestError(message, field="sequence", value=held, expected=expected)
        if len(self._sent) + len(self._results) >= self._settings.stream_rows_max:
            most = self._settings.stream_rows_max
            raise OverloadedError(f"{most:,} requests of this stream wait; read results first")
        request.timeout_us = timeout_ms * 1000
        receipt = self._receipts.take(query.robot_id)
        if receipt is not None:
            request.last_receipt.CopyFrom(receipt)
        sent = _Sent(query.robot_id, now_s, now_s + timeout_ms / 1000, timeout_ms)
        self._sent[request.sequence] = sent
        heapq.heappush(self._deadlines, (sent.deadline_s, request.sequence))
        return request

    def reply(self, reply: label_pb2.LabelStreamResponse, now_s: float) -> None:
        """Take a reply. One that comes after its request's time is over is dropped."""
        sent = self._sent.pop(reply.sequence, None)
        if sent is None:
            return
        kind = reply.WhichOneof("result")
        if kind == "response":
            label = label_from(reply.response, int((now_s - sent.sent_s) * 1e6))
            label.sequence = reply.sequence
            self._receipts.put(sent.robot_id, receipt_of(label))
            self._results.append(label)
        elif kind == "error":
            self._results.append(from_row(reply.error, reply.sequence))
        else:
            message = "the reply came without a result"
            self._results.append(InternalError(message, sequence=reply.sequence))

    def end(self, reason: LabelerError | None) -> None:
        """Note that the stream is over; `reason` is None where the service ended it in peace."""
        if not self._ended:
            self._ended = True
            self._reason = reason
            self._unanswered = tuple(self._sent)
            self._sent.clear()

    def take(self, now_s: float) -> Result | None:
        """Return the next result, None where there is none yet.

        Errors: `UnavailableError` after the stream's end, once all results were taken.
        """
        self._expire(now_s)
        if self._results:
            return self._results.popleft()
        if self._ended:
            raise self._end_error()
        return None

    @property
    def over(self) -> bool:
        """Whether iteration ends: nothing is owed, by the service or by the stream's end."""
        return self.idle and not self._unanswered

    def wait_s(self, now_s: float) -> float | None:
        """Return seconds until the next request's time is over, None while nothing is under way."""
        self._forget_answered()
        return max(0.0, self._deadlines[0][0] - now_s) if self._deadlines else None

    def _end_error(self) -> UnavailableError:
        """Make the error that says what the end left open."""
        unanswered, reason = self._unanswered, self._reason
        why = "the service ended it" if reason is None else reason.message
        shown = ", ".join(str(sequence) for sequence in unanswered[:_SHOWN_MAX])
        more = f" and {len(unanswered) - _SHOWN_MAX} more" if len(unanswered) > _SHOWN_MAX else ""
        owed = f"unanswered sequences: {shown}{more}" if unanswered else "everything was answered"
        message = f"the stream is over: {why}; {owed}"
        error = UnavailableError(message, unanswered=unanswered)
        error.__cause__ = reason
        return error

    def _expire(self, now_s: float) -> None:
        """Give each request whose time is over its result."""
        self._forget_answered()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, sequence = heapq.heappop(self._deadlines)
            sent = self._sent.pop(sequence)
            message = f"no answer on the stream (deadline {sent.timeout_ms} ms, 1 attempt)"
            error = DeadlinePassedError(message, sequence=sequence)
            error.attempts = 1
            self._results.append(error)
            self._forget_answered()

    def _forget_answered(self) -> None:
        """Drop the heads whose request is answered; a sequence may have been sent again since."""
        while self._deadlines:
            deadline_s, sequence = self._deadlines[0]
            sent = self._sent.get(sequence)
            if sent is not None and sent.deadline_s == deadline_s:
                return
            heapq.heappop(self._deadlines)
