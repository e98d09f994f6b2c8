"""Invariant 3: (robot_id, sequence) names one request: one model, one payload.

Within the window the same key and payload joins or replays, another payload, model or version is
refused and counted; the window is bounded in rows and seconds and rebuilt at the start. Outside it
a label may be made again: the store holds one row a key, one of those acknowledged. Case S88.

Full counts: about 40 s.
"""

import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, model_pb2, types_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import stored, write_locked
from tests.support.held import WIDTH, Hold, Since, holdable, queued, values, while_busy
from tests.support.made_models import NAME, write_identity
from tests.support.service import Service, StartService, serving
from tests.support.waiting import eventually
from tests.support.wire import Wire, floats, request, wire

MODEL, REPLAY = types_pb2.SOURCE_MODEL, types_pb2.SOURCE_REPLAY
REUSED = grpc.StatusCode.ALREADY_EXISTS.value[0]
LATE = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


class Said(NamedTuple):
    """How a request was answered; `code` 0 is OK."""

    code: int
    source: int
    scores: list[float]
    version: str


Waiting = Callable[[], Said]


def said(result: label_pb2.LabelResult | label_pb2.LabelStreamResponse) -> Said:
    reply = result.response
    return Said(result.error.code, reply.source, list(reply.scores), reply.version)


def unary(stubs: Wire, asked: label_pb2.LabelRequest) -> Waiting:
    call = stubs.labels.Label.future(asked)

    def wait() -> Said:
        if (failure := call.exception(timeout=60)) is not None:
            return Said(failure.code().value[0], 0, [], "")
        return said(label_pb2.LabelResult(response=call.result()))

    return wait


def batch(stubs: Wire, asked: label_pb2.LabelRequest) -> Waiting:
    call = stubs.labels.LabelBatch.future(label_pb2.LabelBatchRequest(requests=[asked]))
    return lambda: said(call.result(timeout=60).results[0])


def stream(stubs: Wire, asked: label_pb2.LabelRequest) -> Waiting:
    replies = stubs.labels.LabelStream(iter([asked]))
    return cache(lambda: said(next(replies)))


WAYS = (unary, batch, stream)
ways = pytest.mark.parametrize("first", WAYS)
again_ways = pytest.mark.parametrize("again", WAYS)
Way = Callable[[Wire, label_pb2.LabelRequest], Waiting]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two models, of one of them two versions; the first is holdable."""
    folder = tmp_path_factory.mktemp("keys")
    models = holdable(folder / "models")
    write_identity(folder / "models", WIDTH, "2", offset=100.0)
    write_identity(folder / "models", WIDTH, "1", offset=1_000.0, name="other")
    models["models__load"] = [f"{NAME}@1", "other"]
    with serving(folder / "state", **models) as one, wire(one.address) as stubs:
        stubs.models.LoadModel(model_pb2.LoadModelRequest(name=NAME, version="2", standby=True))
        yield one


@pytest.fixture
def stubs(served: Service) -> Iterator[Wire]:
    with wire(served.address) as open_wire:
        yield open_wire


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


def row(robot_id: str, sequence: int, number: int, **fields: object) -> label_pb2.LabelRequest:
    return request(robot_id, sequence, floats(values(number)), want_scores=True, **fields)


# ---------------------------------------------------------------- the same request again


@ways
@again_ways
def test_a_retry_in_flight_joins_and_one_after_the_reply_replays(
    served: Service, stubs: Wire, robot_id: str, first: Way, again: Way
) -> None:
    """Whichever way the first try went and whichever the next one goes."""

    def attempt(hold: Hold, number: int) -> tuple[Waiting, Waiting, int]:
        asked = row(robot_id, number + 1, number, priority=types_pb2.PRIORITY_ROBOT)
        begun = first(stubs, asked)
        hold.until(lambda: queued(served) == 1)
        joined = again(stubs, asked)
        hold.until(lambda: hold.since(names.DEDUPE_JOINS.name) == 1)
        return begun, joined, number

    (begun, joined, number), since = while_busy(served, stubs, attempt)
    assert begun() == Said(0, MODEL, values(number), "1")
    assert joined() == Said(0, REPLAY, values(number), "1")
    assert again(stubs, row(robot_id, number + 1, number))() == joined()
    balanced(served)
    assert since(names.DEDUPE_REPLAYS.name) == 1
    assert since.computed == since.journaled == 3, "the two of the hold, and one of ours"


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
def test_one_who_joined_is_answered_though_the_first_caller_has_left(
    served: Service, stubs: Wire, robot_id: str, leave: str
) -> None:
    """A row whose first caller's deadline has passed is made anew for the one who has time."""

    def attempt(hold: Hold, number: int) -> tuple[Waiting, int]:
        # The runs grow faster than the deadline: one outlasts it on a machine of any speed.
        timeout_us = 100_000 * (number + 1) if leave == "deadline" else 60_000_000
        impatient = row(robot_id, number + 1, number, timeout_us=timeout_us)
        begun = stubs.labels.Label.future(impatient)
        hold.until(lambda: hold.since(names.REQUESTS_RECEIVED.name, method="Label") == 3)
        joined = unary(stubs, row(robot_id, number + 1, number))
        hold.until(lambda: hold.since(names.DEDUPE_JOINS.name) == 1)
        if leave == "cancel":
            begun.cancel()
        outcome = "cancelled" if leave == "cancel" else "expired"
        hold.until(lambda: hold.since.ended(outcome) == 1)
        return joined, number

    (joined, number), since = while_busy(served, stubs, attempt)
    assert joined().scores == values(number)
    balanced(served)
    assert since.computed == since.journaled == 3


# ---------------------------------------------------------------- another request


OTHERS = {
    "payload": row("", 1, 9),
    "model": row("", 1, 1, model="other"),
    "version": row("", 1, 1, version="2"),
}


@again_ways
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_request_under_the_key_is_refused_and_counted(
    served: Service, stubs: Wire, robot_id: str, again: Way, other: label_pb2.LabelRequest
) -> None:
    """MLServer's row, for keys: an answer belongs to a model and a version too."""
    since = Since(served)
    begun = unary(stubs, row(robot_id, 1, 1))()
    assert begun == Said(0, MODEL, values(1), "1")
    changed = label_pb2.LabelRequest()
    changed.CopyFrom(other)
    changed.robot_id = robot_id
    assert again(stubs, changed)().code == REUSED
    assert unary(stubs, row(robot_id, 1, 1))() == begun._replace(source=REPLAY), "unharmed"
    balanced(served)
    assert since(names.DEDUPE_CONFLICTS.name) == 1
    assert since.computed == since.journaled == 1


def test_another_payload_is_refused_while_the_first_is_in_flight(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    def attempt(hold: Hold, number: int) -> tuple[Waiting, list[int], int]:
        begun = unary(stubs, row(robot_id, number + 1, number))
        hold.until(lambda: queued(served) == 1)
        codes = [way(stubs, row(robot_id, number + 1, number + 50))().code for way in WAYS]
        return begun, codes, number

    (begun, codes, number), since = while_busy(served, stubs, attempt)
    assert codes == [REUSED] * 3
    assert begun().scores == values(number)
    balanced(served)
    assert since(names.DEDUPE_CONFLICTS.name) == 3


def test_a_retry_after_the_serving_version_changed_gets_the_first_reply(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    """It asked for whatever serves, and was answered: that answer stays its answer."""
    begun = unary(stubs, row(robot_id, 1, 1))()
    for version in ("2", "1"):
        stubs.models.LoadModel(model_pb2.LoadModelRequest(name=NAME, version=version))
        assert unary(stubs, row(robot_id, 1, 1))() == begun._replace(source=REPLAY)
    named = unary(stubs, row(robot_id, 1, 1, version="1"))()
    assert named == begun._replace(source=REPLAY), "an answer of the version that it names"
    balanced(served)


def test_robots_that_restart_skip_go_back_or_share_an_id_never_get_an_old_label(
    served: Service, stubs: Wire, robot_id: str
) -> None:
    """S88: a used number with another payload is refused, never answered with the old label."""
    since = Since(served)
    sequences = [1, 2, 3, 10, (1 << 63) - 1, 5, 4]
    for number, sequence in enumerate(sequences):
        assert unary(stubs, row(robot_id, sequence, number))().scores == values(number)
    restarted = [unary(stubs, row(robot_id, n, 100 + n))().code for n in (1, 2, 3)]
    assert restarted == [REUSED] * 3
    # Two robots with one id: who comes second with a number is told so.
    mine, twins = row(robot_id, 50, 7), row(robot_id, 50, 8)
    assert unary(stubs, mine)().scores == values(7)
    assert unary(stubs, twins)().code == REUSED
    assert unary(stubs, row(robot_id, 51, 8))().scores == values(8)
    balanced(served)
    assert since(names.DEDUPE_CONFLICTS.name) == 4


# ---------------------------------------------------------------- the window's bounds


def sources(stubs: Wire, sequences: list[int]) -> list[int]:
    return [unary(stubs, row("robot", n, n))().source for n in sequences]


def test_the_window_is_bounded_in_rows_and_forgets_the_oldest(
    start_service: StartService, tmp_path: Path
) -> None:
    small = {"path__dedupe_rows_max": 20}
    service = start_service(**(holdable(tmp_path / "models") | small))
    with wire(service.address) as stubs:
        sources(stubs, list(range(1, 101)))
        assert service.metrics().sum(names.DEDUPE_ROWS.name) == 20
        assert sources(stubs, [100, 81]) == [REPLAY] * 2
        assert sources(stubs, [1, 80]) == [MODEL] * 2, "made again"
        assert service.metrics().sum(names.DEDUPE_ROWS.name) == 20
        batch_of_many = [row("flood", n, n) for n in range(1, 1_001)]
        stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=batch_of_many))
        assert service.metrics().sum(names.DEDUPE_ROWS.name) == 20
    balanced(service)
    assert len(stored(service.database)) == 1_100


def test_the_window_is_bounded_in_seconds_but_keeps_what_is_not_stored(
    start_service: StartService, tmp_path: Path
) -> None:
    short = {"path__dedupe_window_ms": 200}
    service = start_service(**(holdable(tmp_path / "models") | short))
    with wire(service.address) as stubs:
        with write_locked(service.database):
            sources(stubs, [1])
            count = iter(range(100, 1 << 40))

            def later() -> bool:
                sources(stubs, [next(count)])
                return service.metrics().sum("labeler_journal_oldest_pending_us") > 400_000

            eventually(later)
            assert sources(stubs, [1]) == [REPLAY], "not stored, so GetLabel needs it"
        eventually(lambda: not service.metrics().records().parts["pending"])

        def forgotten() -> bool:
            sources(stubs, [next(count)])
            return service.metrics().sum(names.DEDUPE_ROWS.name) < 50

        eventually(forgotten)
        assert sources(stubs, [1]) == [MODEL], "made again"
    balanced(service)


# ---------------------------------------------------------------- after a crash


@pytest.mark.parametrize("where", ["pending", "stored"])
def test_the_window_is_rebuilt_from_the_journal(
    start_service: StartService, tmp_path: Path, where: str
) -> None:
    models = holdable(tmp_path / "models")
    write_identity(tmp_path / "models", WIDTH, "2", offset=100.0)
    models["models__load"] = [f"{NAME}@1"]
    linger = {"writer__linger_ms": 10_000 if where == "pending" else 0}
    service = start_service(**(models | linger))
    with wire(service.address) as stubs:
        begun = [unary(stubs, row("robot", n, n))() for n in range(1, 21)]
        if where == "stored":
            eventually(lambda: service.metrics().sum(names.RECORDS_STORED.name) == 20)
    service.kill()
    service = start_service(**models)
    with wire(service.address) as stubs:
        again = [unary(stubs, row("robot", n, n))() for n in range(1, 21)]
        assert again == [reply._replace(source=REPLAY) for reply in begun]
        assert unary(stubs, row("robot", 1, 99))().code == REUSED
        assert unary(stubs, row("robot", 2, 2, version="1"))().source == REPLAY
        stubs.models.LoadModel(model_pb2.LoadModelRequest(name=NAME, version="2", standby=True))
        assert unary(stubs, row("robot", 3, 3, version="2"))().code == REUSED
    balanced(service)


@counts("kills", quick=2, full=15, full_timeout_s=400)
def test_the_store_has_one_row_a_key_which_is_one_of_those_acknowledged(
    start_service: StartService, tmp_path: Path, kills: int, seed: int
) -> None:
    """Keys are used again with other payloads outside of a window of 8 rows, across kill -9."""
    models = holdable(tmp_path / "models") | {"path__dedupe_rows_max": 8}
    draw = random.Random(seed)
    acknowledged: dict[int, set[str]] = {}
    service = start_service(**models)
    for _ in range(kills):
        with wire(service.address) as stubs:
            for _ in range(150):
                sequence, place = draw.randint(1, 40), draw.randrange(WIDTH)
                payload = [0.0] * WIDTH
                payload[place] = float(draw.randint(1, 1_000))
                asked = request("robot", sequence, floats(payload))
                if unary(stubs, asked)().code == 0:
                    acknowledged.setdefault(sequence, set()).add(f"at-{place}")
        service.kill()
        service = start_service(**models)
    scrape = balanced(service)
    held = {sequence: label for (_, sequence), label in stored(service.database).items()}
    assert held.keys() == acknowledged.keys()
    assert [n for n, label in held.items() if label not in acknowledged[n]] == []
    assert sum(len(labels) > 1 for labels in acknowledged.values()) > 10
    print(f"{scrape.sum(names.RECORDS_SUPERSEDED.name):.0f} superseded since the last start")
