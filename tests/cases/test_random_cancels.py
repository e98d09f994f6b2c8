"""Cancels at random moments, before, in and after the model's run, leave nothing behind.

Trap 1, S12, Ray #50046 (a cancel wedged the batcher for good). Unary calls, batches, streams, and
connections that are cut under them. Exact at the end: received = answered + rejected + expired +
cancelled; queue, permits and in flight are 0; the model computed no row whose caller had left
before its batch was formed; then a normal call is answered.

How long a call needs to reach the server is the machine's: where every cancel of a round came
before that, or after the answer, the next round draws from twice the time.

Full counts: about 60 s.
"""

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, label_pb2_grpc
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.held import Since, nothing_left
from tests.support.made_models import settings, write_identity
from tests.support.service import Service, serving
from tests.support.waiting import eventually
from tests.support.wire import floats, request, wire

WITHIN_S = 0.005
_ROUNDS = 8


class Canceller:
    """Cancels each call that it is given at a random moment of the next `within_s` seconds."""

    def __init__(self, seed: int, within_s: float) -> None:
        self._draw, self._due = random.Random(seed), []  # type: ignore[var-annotated]
        self._within_s = within_s
        self._changed, self._closed, self._next = threading.Condition(), False, 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Canceller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns when the last one is cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def add(self, cancel: Callable[[], object]) -> None:
        with self._changed:
            self._next += 1
            due = time.monotonic() + self._draw.uniform(0, self._within_s)
            heapq.heappush(self._due, (due, self._next, cancel))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and self._due[0][0] > time.monotonic():
                    self._changed.wait(max(0.0, self._due[0][0] - time.monotonic()))
                if not self._due:
                    if self._closed:
                        return
                    self._changed.wait()
                    continue
                cancel = heapq.heappop(self._due)[2]
            cancel()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Runs of about a millisecond: a cancel of 0 to 5 ms falls before, in and after them."""
    folder = tmp_path_factory.mktemp("cancels")
    write_identity(folder / "models", cost=300)
    with serving(folder / "state", **settings(folder / "models")) as one:
        yield one


_robots = itertools.count(1)


@pytest.fixture
def fresh() -> str:
    """A robot that no other test has."""
    return f"robot-{next(_robots)}"


def rows(robot_id: str, first: int, count: int) -> list[label_pb2.LabelRequest]:
    numbers = range(first, first + count)
    return [request(robot_id, n, floats([float(n)] * 4), timeout_us=60_000_000) for n in numbers]


def begin_unary(channel: grpc.Channel, robot_id: str, first: int) -> Any:
    return label_pb2_grpc.LabelServiceStub(channel).Label.future(rows(robot_id, first, 1)[0])


def begin_batch(channel: grpc.Channel, robot_id: str, first: int) -> Any:
    asked = label_pb2.LabelBatchRequest(requests=rows(robot_id, first, 20))
    return label_pb2_grpc.LabelServiceStub(channel).LabelBatch.future(asked)


def begin_stream(channel: grpc.Channel, robot_id: str, first: int) -> Any:
    """Its own thread reads the replies, as they would stay in the client otherwise."""
    replies = label_pb2_grpc.LabelServiceStub(channel).LabelStream(iter(rows(robot_id, first, 20)))

    def read() -> None:
        try:
            for _ in replies:
                pass
        except grpc.RpcError:
            pass

    threading.Thread(target=read, daemon=True).start()
    return replies


def channel_of_its_own(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


@pytest.fixture
def channels(served: Service) -> Iterator[list[grpc.Channel]]:
    opened = [channel_of_its_own(served.address) for _ in range(4)]
    yield opened
    for channel in opened:
        channel.close()


def settled(service: Service, since: Since) -> None:
    """Nothing is left, nothing broke, and a normal call is answered."""
    scrape = balanced(service)
    nothing_left(scrape)
    assert since.ended("failed") == 0
    assert since.journaled == since.computed
    assert since.computed <= since(names.REQUESTS_RECEIVED.name)
    with wire(service.address) as stubs:
        assert stubs.labels.Label(request("after", next(_robots), floats([1.0] * 4))).label
    balanced(service)


def cancelling(
    service: Service,
    seed: int,
    play: Callable[[Canceller, int], None],
    over: Callable[[], bool] = lambda: True,
) -> Since:
    """Plays rounds until the server has seen a cancel; what it has done in them.

    `play(canceller, base)` begins calls with sequences above `base` and gives their cancels away;
    a round has ended when it is `over`.
    Errors: `AssertionError` where something was left behind, or no round was long enough.
    """
    since = Since(service)
    for number in range(_ROUNDS):
        with Canceller(seed, WITHIN_S * 2**number) as canceller:
            play(canceller, 1_000_000 * number)
        eventually(over, timeout_s=30)
        settled(service, since)
        if since.ended("cancelled"):
            return since
    raise AssertionError(f"no cancel within {WITHIN_S * 2**_ROUNDS} s found its call there")


@counts("calls", quick=1_500, full=10_000, full_timeout_s=600)
def test_calls_cancelled_within_5_ms_leave_nothing_behind(
    served: Service, channels: list[grpc.Channel], calls: int, fresh: str, seed: int
) -> None:
    open_calls = []

    def play(canceller: Canceller, base: int) -> None:
        for number in range(1, calls + 1):
            call = begin_unary(channels[number % 4], fresh, base + number)
            canceller.add(call.cancel)
            open_calls.append(call)

    since = cancelling(served, seed, play)
    answered = sum(not _cancelled(call) for call in open_calls)
    print(f"{answered} of {len(open_calls)} were answered before their cancel")
    assert since.ended("answered") >= answered
    assert since.computed <= since.ended("answered") + since.ended("cancelled")


def _cancelled(call: Any) -> bool:
    try:
        call.result(timeout=60)
    except (grpc.FutureCancelledError, grpc.RpcError):
        return True
    return False


@counts("calls", quick=100, full=2_000, full_timeout_s=600)
@pytest.mark.parametrize("begin", [begin_batch, begin_stream])
def test_batches_and_streams_cancelled_within_5_ms_leave_nothing_behind(
    served: Service,
    channels: list[grpc.Channel],
    begin: Callable[[grpc.Channel, str, int], Any],
    calls: int,
    fresh: str,
    seed: int,
) -> None:
    def play(canceller: Canceller, base: int) -> None:
        for number in range(calls):
            call = begin(channels[number % 4], fresh, base + 1 + 20 * number)
            canceller.add(call.cancel)

    cancelling(served, seed, play)


@counts("connections", quick=20, full=300, full_timeout_s=600)
def test_connections_cut_under_their_calls_leave_nothing_behind(
    served: Service, connections: int, fresh: str, seed: int
) -> None:
    def play(canceller: Canceller, base: int) -> None:
        for number in range(connections):
            channel = channel_of_its_own(served.address)
            grpc.channel_ready_future(channel).result(timeout=30)
            first = base + 1 + 1_000 * number
            begun = [begin_unary(channel, fresh, first + place) for place in range(20)]
            begun.append(begin_batch(channel, fresh, first + 100))
            begun.append(begin_stream(channel, fresh, first + 200))
            canceller.add(channel.close)

    cancelling(served, seed, play, lambda: served.metrics().sum(names.CONNECTIONS.name) == 0)
