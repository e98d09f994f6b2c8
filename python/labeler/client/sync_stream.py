"""The blocking stream: a thread reads replies, gRPC's own thread sends requests.

Neither thread knows the stream that the caller holds, only the link behind it: so a dropped stream
is collected, and its call cancelled on the server. Rules live in `streams.py`.
"""

import queue
import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from labeler.client.batches import Result
from labeler.client.channels import Guard
from labeler.client.failures import from_call
from labeler.client.lanes import Lane
from labeler.client.plans import Plans
from labeler.client.requests import LabelFields, Values, make_query
from labeler.client.streams import StreamState
from labeler.errors import LabelerError
from labeler.v1 import label_pb2

__all__ = ["LabelStream"]

CLOSE_TIMEOUT_S = 0.25


class LabelStream:
    """Requests and results of one robot over one call; replies may overtake each other.

    Iterating gives the result of each request sent so far, a `Label` or a `LabelerError` with its
    `sequence`, and ends when nothing is owed; then more may be sent, and iterated. `receive` waits
    for results of requests that another thread sends. Each request has its own deadline, so neither
    waits longer than that for an answer. When the service ends the stream, both raise
    `UnavailableError` with the unanswered sequences.

    Leaving the `with` block, or dropping the last reference, ends the call on the service.
    """

    def __init__(self, lane: Lane, plans: Plans, client: object) -> None:
        """Open the call; a client lives as long as its streams, though nobody else holds it."""
        self._guard = Guard("LabelStream")
        self._client = client
        self._link = _Link(StreamState(plans.settings, plans.receipts), lane)
        self._link.open()
        self._cancel = weakref.finalize(self, _cancel, self._link, self._guard)

    def send(
        self, robot_id: str, sequence: int, values: Values, **fields: Unpack[LabelFields]
    ) -> None:
        """Send one request; arguments as in `LabelQuery`. Does not wait for the answer.

        Errors: `InvalidRequestError`; `OverloadedError` when `stream_rows_max` requests wait for
        an answer or for their reader; `UnavailableError` after the service ended the stream.
        """
        self._guard.check()
        query = make_query(robot_id, sequence, values, fields)
        with self._link.changed:
            self._link.outbox.put(self._link.state.send(query, time.monotonic()))
            # A receiver that waits without a bound has one now.
            self._link.changed.notify_all()

    def receive(self) -> Result:
        """Wait for the next result, also while nothing is under way; for use beside a sender.

        Errors: `UnavailableError` after the service ended the stream.
        """
        self._guard.check()
        link = self._link
        with link.changed:
            while True:
                result = link.state.take(time.monotonic())
                if result is not None:
                    return result
                link.changed.wait(link.state.wait_s(time.monotonic()))
                self._guard.check()

    def close(self) -> None:
        """End the call: in peace when nothing is owed, else by cancelling it. Idempotent."""
        if self._guard.forked or self._guard.closed:
            return
        link = self._link
        with link.changed:
            self._guard.closed = True
            in_peace = link.state.idle
            link.changed.notify_all()
        if in_peace:
            # A reset for each stream that ends would add up against the connection's limits.
            link.outbox.put(None)
            link.done.wait(CLOSE_TIMEOUT_S)
        self._cancel()

    def __iter__(self) -> Iterator[Result]:
        """Return the stream itself."""
        return self

    def __next__(self) -> Result:
        """Wait for the next result of what was sent; ends when nothing is owed."""
        self._guard.check()
        with self._link.changed:
            if self._link.state.over:
                raise StopIteration
        return self.receive()

    def __enter__(self) -> Self:
        """Return the stream itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        self.close()


class _Link:
    """What the threads of a stream share."""

    def __init__(self, state: StreamState, lane: Lane) -> None:
        """Start without a call."""
        self.state = state
        self.lane = lane
        self.changed = threading.Condition()
        self.outbox: queue.SimpleQueue[label_pb2.LabelRequest | None] = queue.SimpleQueue()
        self.done = threading.Event()
        self.call: Any = None

    def open(self) -> None:
        """Start the call and the thread that reads it."""
        # `iter` with a sentinel: gRPC's sending thread ends with the None in the outbox.
        self.call = self.lane.methods["LabelStream"](iter(self.outbox.get, None))
        threading.Thread(target=self.read, name="labeler-stream", daemon=True).start()

    def read(self) -> None:
        """Take replies until the call is over, then say so to whoever waits."""
        reason: LabelerError | None = None
        try:
            for reply in self.call:
                with self.changed:
                    self.state.reply(reply, time.monotonic())
                    self.changed.notify_all()
        except grpc.RpcError as status:
            reason = from_call(status, "LabelStream")
        self.lane.leave()
        with self.changed:
            self.state.end(reason)
            self.changed.notify_all()
        self.outbox.put(None)
        self.done.set()


def _cancel(link: _Link, guard: Guard) -> None:
    """End the call on the service and the threads here; a fork must not touch its parent's call."""
    if not guard.forked:
        link.call.cancel()
        link.outbox.put(None)
