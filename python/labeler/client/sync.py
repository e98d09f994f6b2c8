"""The blocking client. What to call stands in `plans.py`; this one calls, waits and times."""

import random
import time
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import numpy as np

from labeler.client.channels import Guard, channel_options, not_ready
from labeler.client.failures import from_call
from labeler.client.health import SERVICE_UNKNOWN
from labeler.client.lanes import Lanes
from labeler.client.options import ClientOptions, check_options
from labeler.client.plans import Plan, Plans, Results
from labeler.client.replies import Label, ModelVersion, StoredLabel
from labeler.client.requests import LabelFields, LabelQuery, Values, check_timeout_ms, make_query
from labeler.client.sync_stream import LabelStream
from labeler.errors import (
    DeadlinePassedError,
    ModelNotFoundError,
    RequestCancelledError,
    UnavailableError,
)
from labeler.v1 import label_pb2

__all__ = ["Client"]

T = TypeVar("T")
Models = list[ModelVersion]

CONNECT_TIMEOUT_S = 10.0


class Client:
    """A robot controller's connection to a label service; one for all of its threads.

    Connects at once, in the background. Every call has a deadline and raises a child of
    `labeler.LabelerError`. A forked child must make its own client.
    """

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        """Check the options and begin to connect; see `ClientOptions` for names and defaults.

        `address`: `host:port` or a gRPC target. Errors: `ConfigError`, naming all that is wrong.
        """
        settings = check_options(address, options)
        self._address = address
        self._guard = Guard("Client")
        self._plans = Plans(self._guard, settings)
        arguments, credentials = channel_options(address, settings), settings.credentials

        def connect() -> grpc.Channel:
            if credentials is None:
                return grpc.insecure_channel(address, arguments)
            return grpc.secure_channel(address, credentials, arguments)

        self._lanes = Lanes(connect, settings.streams_per_connection_max)
        self._methods = self._lanes.first().methods
        # A call that waits for the connection makes it, before a label needs it. Nobody reads its
        # answer. `grpc.channel_ready_future` would do, but its thread raises when the channel is
        # closed under it, and forked children crashed in 20 of 80 runs after it, in 0 of 145 here.
        self._methods["Check"].future(b"", timeout=CONNECT_TIMEOUT_S, wait_for_ready=True)
        self._close = weakref.finalize(self, _close, self._lanes, self._guard)

    def wait_ready(self, timeout_ms: int = 5_000) -> None:
        """Wait for a connection. Errors: `UnavailableError` when the time is over."""
        self._guard.check()
        timeout_s = check_timeout_ms(timeout_ms, timeout_ms) / 1000
        try:
            self._methods["Check"](b"", timeout=timeout_s, wait_for_ready=True)
        except ValueError:
            self._guard.check()
            raise
        except grpc.RpcError as status:
            self._guard.check()
            # Any answer is one: only these two say that there was nobody.
            if isinstance(from_call(status, "Check"), DeadlinePassedError | UnavailableError):
                raise not_ready(self._address, timeout_ms) from status

    def label(
        self, robot_id: str, sequence: int, values: Values, **fields: Unpack[LabelFields]
    ) -> Label:
        """Ask for one label; arguments as in `LabelQuery`.

        Errors: `InvalidRequestError`, `ModelNotFoundError`, `KeyReusedError`, `OverloadedError`,
        `DeadlinePassedError`, `UnavailableError`, `InternalError`; of all calls: `ForkedError`,
        `StoppedError`.
        """
        return self._call(self._plans.label(make_query(robot_id, sequence, values, fields)))

    def label_batch(self, queries: Sequence[LabelQuery]) -> Results:
        """Ask for many labels in one call, 1 to 1,000; the results stand in the queries' order.

        A row that fails is an error in its place. The call's deadline is the longest of its rows'.
        Errors: as `label`, where the call fails as a whole.
        """
        plan = self._plans.batch(queries)
        return self._call(plan) if plan.rows else plan.convert(label_pb2.LabelBatchResponse(), 0)

    def label_rows(
        self,
        robot_id: str,
        first_sequence: int,
        values: np.ndarray[Any, Any],
        **fields: Unpack[LabelFields],
    ) -> Results:
        """Ask for a label of each row of a 2-D array, numbered upwards from `first_sequence`."""
        plan = self._plans.rows(robot_id, first_sequence, values, fields)
        return self._call(plan) if plan.rows else plan.convert(label_pb2.LabelBatchResponse(), 0)

    def stream(self) -> LabelStream:
        """Open a stream of requests and results, for one robot; see `LabelStream`.

        With more than `streams_per_connection_max` open, on a further connection.
        """
        self._guard.check()
        lane = self._lanes.enter()
        try:
            return LabelStream(lane, self._plans, self)
        except ValueError:
            lane.leave()
            self._guard.check()
            raise

    def get(self, robot_id: str, sequence: int, timeout_ms: int | None = None) -> StoredLabel:
        """Read one label back: pending ones of the service's process first, then the store.

        Errors: `LabelNotFoundError`; another pod may still hold it.
        """
        return self._call(self._plans.get(robot_id, sequence, timeout_ms))

    def list(
        self, robot_id: str, from_unix_us: int = 0, to_unix_us: int = 0, page_size: int = 100
    ) -> Iterator[StoredLabel]:
        """Iterate a robot's stored labels by descending sequence; a page is read when it is needed.

        Only labels made in [from, to), where 0 is no bound. Arguments are checked at once.
        """
        return self._pages(self._plans.listing(robot_id, from_unix_us, to_unix_us, page_size))

    def models(self) -> Models:
        """List the loaded versions and those available in the repository."""
        return self._call(self._plans.models())

    def load_model(self, name: str, version: str = "", standby: bool = False) -> ModelVersion:
        """Load and warm a version (empty: the newest), then serve it, unless `standby`.

        Errors: `ModelNotFoundError`, `ModelInvalidError`.
        """
        return self._call(self._plans.load_model(name, version, standby))

    def unload_model(self, name: str, version: str = "") -> Models:
        """Stop a version (empty: all of the model's); what it has taken is still answered."""
        return self._call(self._plans.unload_model(name, version))

    def health(self, service: str = "", timeout_ms: int | None = None) -> str:
        """Ask for a service's state: SERVING, NOT_SERVING, UNKNOWN or SERVICE_UNKNOWN.

        "" means ready for labels; `labeler.live` never fails from load.
        """
        try:
            return self._call(self._plans.health(service, timeout_ms))
        except ModelNotFoundError:
            # NOT_FOUND, the status that the health protocol has for a name that it does not know.
            return SERVICE_UNKNOWN

    def close(self) -> None:
        """Close the connection; open calls and streams end. Idempotent; does nothing in a fork."""
        self._close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        self._guard.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def _pages(self, request: label_pb2.ListLabelsRequest) -> Iterator[StoredLabel]:
        """Read page after page."""
        while True:
            labels, request.page_token = self._call(self._plans.page(request))
            yield from labels
            if not request.page_token:
                return

    def _call(self, plan: Plan[T]) -> T:
        """Call within the deadline, retries included; `StoppedError` where the client is closed."""
        method = self._methods[plan.method]
        attempts = self._plans.attempts(plan, time.monotonic())
        left_s = attempts.begin(time.monotonic())
        while left_s is not None:
            self._guard.check()
            plan.shorten(left_s)
            started_ns = time.perf_counter_ns()
            try:
                response = method(plan.message, timeout=left_s)
            except ValueError:
                # gRPC's word for a channel that was closed since the check.
                self._guard.check()
                raise
            except grpc.RpcError as status:
                error = plan.error(status)
            else:
                round_trip_us = (time.perf_counter_ns() - started_ns) // 1000
                self._plans.budget.answered()
                return plan.convert(response, round_trip_us)
            if isinstance(error, RequestCancelledError):
                # A close ends the calls that are under way.
                self._guard.check()
            wait_s = attempts.wait_s(error, time.monotonic(), random.random())
            if wait_s is None:
                break
            time.sleep(wait_s)
            left_s = attempts.begin(time.monotonic())
        raise attempts.final(error)


def _close(lanes: Lanes, guard: Guard) -> None:
    """Close what a client holds; a fork must not touch the channels of its parent."""
    guard.closed = True
    if not guard.forked:
        for channel in lanes.close():
            channel.close()
