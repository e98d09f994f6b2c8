"""The asyncio client. What to call stands in `plans.py`; this one calls, waits and times."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio
import numpy as np

from labeler.client.aio_stream import AsyncLabelStream
from labeler.client.channels import Guard, channel_options, not_ready
from labeler.client.health import SERVICE_UNKNOWN
from labeler.client.lanes import Lane, Lanes
from labeler.client.options import ClientOptions, check_options
from labeler.client.plans import Plan, Plans, Results
from labeler.client.replies import Label, ModelVersion, StoredLabel
from labeler.client.requests import LabelFields, LabelQuery, Values, check_timeout_ms, make_query
from labeler.errors import ModelNotFoundError
from labeler.v1 import label_pb2

__all__ = ["AsyncClient"]

T = TypeVar("T")
Models = list[ModelVersion]


class AsyncClient:
    """`Client` for asyncio: the same operations, awaited. One for all tasks of one loop.

    A cancelled task cancels its call on the service. Made inside a running loop it begins to
    connect at once, else at its first use, which also binds it to that loop. A program that forks
    beside it should set `GRPC_ENABLE_FORK_SUPPORT=false`: with gRPC's own fork handlers the child
    crashed in 20 of 60 runs, in 0 of 90 without them (grpcio 1.85.3).
    """

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        """Check the options; see `ClientOptions` for names and defaults.

        `address`: `host:port` or a gRPC target. Errors: `ConfigError`, naming all that is wrong.
        """
        self._settings = check_options(address, options)
        self._address = address
        self._guard = Guard("AsyncClient")
        self._plans = Plans(self._guard, self._settings)
        self._lanes = Lanes(self._new_channel, self._settings.streams_per_connection_max)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._connect()

    async def wait_ready(self, timeout_ms: int = 5_000) -> None:
        """Wait for a connection. Errors: `UnavailableError` when the time is over."""
        self._guard.check()
        timeout_ms = check_timeout_ms(timeout_ms, timeout_ms)
        channel: grpc.aio.Channel = self._connect().channel
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (state := channel.get_state(True)) != grpc.ChannelConnectivity.READY:
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            raise not_ready(self._address, timeout_ms) from None
        except grpc.aio.UsageError:
            self._guard.check()
            raise

    async def label(
        self, robot_id: str, sequence: int, values: Values, **fields: Unpack[LabelFields]
    ) -> Label:
        """Ask for one label, as `Client.label`."""
        return await self._call(self._plans.label(make_query(robot_id, sequence, values, fields)))

    async def label_batch(self, queries: Sequence[LabelQuery]) -> Results:
        """Ask for many labels in one call, as `Client.label_batch`."""
        return await self._call_batch(self._plans.batch(queries))

    async def label_rows(
        self,
        robot_id: str,
        first_sequence: int,
        values: np.ndarray[Any, Any],
        **fields: Unpack[LabelFields],
    ) -> Results:
        """Ask for a label of each row of a 2-D array, as `Client.label_rows`."""
        return await self._call_batch(self._plans.rows(robot_id, first_sequence, values, fields))

    def stream(self) -> AsyncLabelStream:
        """Open a stream of requests and results, for one robot; needs the running loop.

        With more than `streams_per_connection_max` open, on a further connection.
        """
        self._guard.check()
        return AsyncLabelStream(self._lanes.enter(), self._plans, self)

    async def get(self, robot_id: str, sequence: int, timeout_ms: int | None = None) -> StoredLabel:
        """Read one label back, as `Client.get`."""
        return await self._call(self._plans.get(robot_id, sequence, timeout_ms))

    def list(
        self, robot_id: str, from_unix_us: int = 0, to_unix_us: int = 0, page_size: int = 100
    ) -> AsyncIterator[StoredLabel]:
        """Iterate a robot's stored labels with `async for`, as `Client.list`."""
        return self._pages(self._plans.listing(robot_id, from_unix_us, to_unix_us, page_size))

    async def models(self) -> Models:
        """List the loaded versions and those available in the repository."""
        return await self._call(self._plans.models())

    async def load_model(self, name: str, version: str = "", standby: bool = False) -> ModelVersion:
        """Load and warm a version, as `Client.load_model`."""
        return await self._call(self._plans.load_model(name, version, standby))

    async def unload_model(self, name: str, version: str = "") -> Models:
        """Stop a version, or all of the model's, as `Client.unload_model`."""
        return await self._call(self._plans.unload_model(name, version))

    async def health(self, service: str = "", timeout_ms: int | None = None) -> str:
        """Ask for a service's state, as `Client.health`."""
        try:
            return await self._call(self._plans.health(service, timeout_ms))
        except ModelNotFoundError:
            # NOT_FOUND, the status that the health protocol has for a name that it does not know.
            return SERVICE_UNKNOWN

    async def close(self) -> None:
        """Close the connection; open calls and streams end. Idempotent; does nothing in a fork."""
        self._guard.closed = True
        if not self._guard.forked:
            for channel in self._lanes.close():
                await channel.close()

    async def __aenter__(self) -> Self:
        """Begin to connect, where that has not begun, and return the client itself."""
        self._guard.check()
        self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()

    def _connect(self) -> Lane:
        """Return the lane of calls; the first time, begin to connect."""
        return self._lanes.first()

    def _new_channel(self) -> grpc.aio.Channel:
        """Make a channel and begin to connect."""
        arguments = channel_options(self._address, self._settings)
        credentials = self._settings.credentials
        channel = (
            grpc.aio.insecure_channel(self._address, arguments)
            if credentials is None
            else grpc.aio.secure_channel(self._address, credentials, arguments)
        )
        channel.get_state(try_to_connect=True)
        return channel

    async def _pages(self, request: label_pb2.ListLabelsRequest) -> AsyncIterator[StoredLabel]:
        """Read page after page."""
        while True:
            labels, request.page_token = await self._call(self._plans.page(request))
            for label in labels:
                yield label
            if not request.page_token:
                return

    async def _call_batch(self, plan: Plan[Results]) -> Results:
        """Call, unless no row of the batch can be sent."""
        if plan.rows:
            return await self._call(plan)
        return plan.convert(label_pb2.LabelBatchResponse(), 0)

    async def _call(self, plan: Plan[T]) -> T:
        """Call within the deadline, retries included; `StoppedError` where the client is closed."""
        self._guard.check()
        method = self._connect().methods[plan.method]
        attempts = self._plans.attempts(plan, time.monotonic())
        left_s = attempts.begin(time.monotonic())
        while left_s is not None:
            self._guard.check()
            plan.shorten(left_s)
            started_ns = time.perf_counter_ns()
            try:
                response = await method(plan.message, timeout=left_s)
            except grpc.aio.UsageError:
                # gRPC's word for a channel that was closed since the check.
                self._guard.check()
                raise
            except asyncio.CancelledError:
                # Also how gRPC says that a close ended the call.
                if not _is_cancelled():
                    self._guard.check()
                raise
            except grpc.RpcError as status:
                error = plan.error(status)
            else:
                round_trip_us = (time.perf_counter_ns() - started_ns) // 1000
                self._plans.budget.answered()
                return plan.convert(response, round_trip_us)
            wait_s = attempts.wait_s(error, time.monotonic(), random.random())
            if wait_s is None:
                break
            await asyncio.sleep(wait_s)
            left_s = attempts.begin(time.monotonic())
        raise attempts.final(error)


def _is_cancelled() -> bool:
    """Whether somebody cancelled the running task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
