"""The asyncio stream: one task reads replies, gRPC's own task sends requests.

Neither task knows the stream that the caller holds, only the link behind it: so a dropped stream is
collected, and its call cancelled on the server. Rules live in `streams.py`.
"""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator
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
from labeler.errors import LabelerError, RequestCancelledError
from labeler.v1 import label_pb2

__all__ = ["AsyncLabelStream"]

CLOSE_TIMEOUT_S = 0.25


class AsyncLabelStream:
    """Requests and results of one robot over one call; as `LabelStream`, for asyncio.

    Leaving the `async with` block, also by a cancelled task, or dropping the last reference, ends
    the call on the service.
    """

    def __init__(self, lane: Lane, plans: Plans, client: object) -> None:
        """Open the call, in the running loop; `client` lives as long as the stream."""
        self._guard = Guard("AsyncLabelStream")
        self._client = client
        self._link = _Link(StreamState(plans.settings, plans.receipts), lane)
        self._link.open()
        loop = asyncio.get_running_loop()
        self._cancel = weakref.finalize(self, _cancel, self._link, self._guard, loop)
        # At exit the loop is gone, and the connection ends with the process.
        self._cancel.atexit = False

    async def send(
        self, robot_id: str, sequence: int, values: Values, **fields: Unpack[LabelFields]
    ) -> None:
        """Send one request; arguments as in `LabelQuery`. Does not wait for the answer.

        Errors: as `LabelStream.send`.
        """
        self._guard.check()
        query = make_query(robot_id, sequence, values, fields)
        self._link.post(self._link.state.send(query, time.monotonic()))

    async def receive(self) -> Result:
        """Wait for the next result, also while nothing is under way. Errors: `UnavailableError`."""
        while True:
            self._guard.check()
            result = self._link.state.take(time.monotonic())
            if result is not None:
                return result
            changed = self._link.changed
            try:
                async with asyncio.timeout(self._link.state.wait_s(time.monotonic())):
                    await changed.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """End the call: in peace when nothing is owed, else by cancelling it. Idempotent."""
        if self._guard.forked or self._guard.closed:
            return
        self._guard.closed = True
        link = self._link
        try:
            if link.state.idle:
                link.post(None)
                await asyncio.wait((link.reader,), timeout=CLOSE_TIMEOUT_S)
        finally:
            link.stop()
            self._cancel.detach()
            link.wake()

    def __aiter__(self) -> AsyncIterator[Result]:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> Result:
        """Wait for the next result of what was sent; ends when nothing is owed."""
        self._guard.check()
        if self._link.state.over:
            raise StopAsyncIteration
        return await self.receive()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream; at once where the block ends by an exception."""
        if error is not None and not self._guard.forked:
            self._link.stop()
        await self.close()


class _Link:
    """What the tasks of a stream share."""

    def __init__(self, state: StreamState, lane: Lane) -> None:
        """Start without a call."""
        self.state = state
        self.lane = lane
        self.changed = asyncio.Event()
        self.call: Any = None
        self.reader: asyncio.Task[None]
        self._outbox: deque[label_pb2.LabelRequest | None] = deque()
        self._posted = asyncio.Event()

    def open(self) -> None:
        """Start the call and the task that reads it."""
        self.call = self.lane.methods["LabelStream"](self._requests())
        self.reader = asyncio.create_task(self.read(), name="labeler-stream")

    def post(self, request: label_pb2.LabelRequest | None) -> None:
        """Hand a request to the sending task; None ends the requests."""
        self._outbox.append(request)
        self._posted.set()
        # A receiver that waits without a bound has one now.
        self.wake()

    def wake(self) -> None:
        """Let every receiver look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def stop(self) -> None:
        """End the call on the service and the tasks here."""
        self.call.cancel()
        self.post(None)

    async def read(self) -> None:
        """Take replies until the call is over, then say so to whoever waits."""
        reason: LabelerError | None = None
        try:
            async for reply in self.call:
                self.state.reply(reply, time.monotonic())
                self.wake()
        except grpc.RpcError as status:
            reason = from_call(status, "LabelStream")
        except asyncio.CancelledError:
            reason = RequestCancelledError("its client was closed")
        finally:
            self.lane.leave()
            self.state.end(reason)
            self.post(None)

    async def _requests(self) -> AsyncIterator[label_pb2.LabelRequest]:
        """Yield what is posted, until the None."""
        while True:
            while self._outbox:
                request = self._outbox.popleft()
                if request is None:
                    return
                yield request
            self._posted.clear()
            await self._posted.wait()


def _cancel(link: _Link, guard: Guard, loop: asyncio.AbstractEventLoop) -> None:
    """Cancel from whichever thread collects the stream; a fork leaves its parent's call alone."""
    if not guard.forked and not loop.is_closed():
        loop.call_soon_threadsafe(link.stop)
