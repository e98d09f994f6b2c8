"""Nobody gets another's answer: scores are the payload, so each reply tells whose row it is.

Cases: batch scatter (issue 6), S10, MLServer's cache, and S08 beside them. Rows come from unary
calls, batches and streams at once, with random cancels, deadlines and retries.

Full counts: about 60 s.
"""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, model_pb2, types_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import stored
from tests.support.held import Since
from tests.support.made_models import NAME, settings, write_identity
from tests.support.service import Service, StartService
from tests.support.wire import Wire, doubles, floats, raw32, raw64, request, wire

WIDTH = 4
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
FORMS = (floats, doubles, raw32, raw64)
BATCH_ROWS = names.BATCH_ROWS.name


def payload_of(number: int) -> list[float]:
    """Values that no other number below 2^22 has, exact in 32 bits, highest at `number % WIDTH`."""
    values = [-float(number) - place for place in range(WIDTH)]
    values[number % WIDTH] = float(number)
    return values


def row(number: int, draw: random.Random, **fields: object) -> label_pb2.LabelRequest:
    """The request of a number, in any form of the payload."""
    payload = draw.choice(FORMS)(payload_of(number))
    return request(f"robot-{number % 97}", number, payload, want_scores=True, **fields)


class Judge:
    """Compares each reply with the row that it answers; keeps what is wrong."""

    def __init__(self) -> None:
        self.answered: set[int] = set()
        self.refused = 0
        self.wrong: list[str] = []

    def reply(self, number: int, reply: label_pb2.LabelResponse) -> None:
        own = (number, f"at-{number % WIDTH}", payload_of(number), float(number))
        got = (reply.sequence, reply.label, list(reply.scores), reply.confidence)
        if got != own:
            self.wrong.append(f"row {number} got {got}")
        self.answered.add(number)

    def error(self, number: int, code: int, text: str) -> None:
        if code != LATE.value[0]:
            self.wrong.append(f"row {number}: {code} {text}")
        self.refused += 1


def groups(numbers: range, size: int) -> list[range]:
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]


def timeout_us(draw: random.Random) -> int:
    """A deadline that a fifth of the rows will not keep."""
    return draw.randint(1, 3_000) if draw.random() < 0.2 else 30_000_000


def by_unary(stubs: Wire, numbers: range, draw: random.Random, judge: Judge) -> None:
    """Calls side by side; some are cancelled at any moment, some sent twice or three times."""
    for group in groups(numbers, 100):
        calls: list[tuple[int, Any]] = []
        for number in group:
            asked = row(number, draw, timeout_us=timeout_us(draw))
            tries = draw.choice((1, 1, 1, 1, 2, 3))
            calls += [(number, stubs.labels.Label.future(asked)) for _ in range(tries)]
            if draw.random() < 0.1:
                draw.choice(calls)[1].cancel()
        for number, call in calls:
            try:
                judge.reply(number, call.result(timeout=60))
            except grpc.FutureCancelledError:
                judge.refused += 1
            except grpc.RpcError as failure:
                judge.error(number, failure.code().value[0], str(failure.details()))


def by_batch(stubs: Wire, numbers: range, draw: random.Random, judge: Judge) -> None:
    """Batches of all sizes, a few at a time; some are cancelled."""
    left = list(numbers)
    while left:
        calls = []
        for _ in range(3):
            size = draw.choice((1, 3, 32, 33, 200, 256, 257))
            group, left = left[:size], left[size:]
            if group:
                rows = [row(number, draw, timeout_us=timeout_us(draw)) for number in group]
                asked = label_pb2.LabelBatchRequest(requests=rows)
                calls.append((group, stubs.labels.LabelBatch.future(asked)))
        if draw.random() < 0.2:
            draw.choice(calls)[1].cancel()
        for group, call in calls:
            try:
                results = call.result(timeout=60).results
            except grpc.FutureCancelledError:
                continue
            assert len(results) == len(group)
            for number, result in zip(group, results, strict=True):
                if result.HasField("response"):
                    judge.reply(number, result.response)
                else:
                    judge.error(number, result.error.code, result.error.message)


def by_stream(stubs: Wire, numbers: range, draw: random.Random, judge: Judge) -> None:
    """Streams of a few hundred messages; replies overtake; some streams are left half-way."""
    for group in groups(numbers, 300):
        asked = [row(number, draw, timeout_us=timeout_us(draw)) for number in group]
        replies = stubs.labels.LabelStream(iter(asked))
        leave_at = draw.randint(0, 299) if draw.random() < 0.2 else None
        for place, reply in enumerate(replies):
            number = reply.sequence
            if number not in group:
                judge.wrong.append(f"a reply to {number}, which the stream did not ask")
            if reply.HasField("response"):
                judge.reply(number, reply.response)
            else:
                judge.error(number, reply.error.code, reply.error.message)
            if place == leave_at:
                replies.cancel()
                break


@pytest.fixture
def served(start_service: StartService, tmp_path: Path) -> Service:
    write_identity(tmp_path / "models", WIDTH)
    return start_service(path__dedupe_rows_max=200_000, **settings(tmp_path / "models"))


@pytest.fixture
def stubs(served: Service) -> Iterator[Wire]:
    with wire(served.address) as open_wire:
        yield open_wire


Way = Callable[[Wire, range, random.Random, Judge], None]


@counts("rows_total", quick=5_000, full=100_000, full_timeout_s=600)
def test_each_reply_is_its_own_rows_bit_for_bit(
    served: Service, stubs: Wire, rows_total: int, seed: int
) -> None:
    since, judges = Since(served), [Judge() for _ in range(6)]
    ways: list[Way] = [by_unary, by_unary, by_batch, by_batch, by_stream, by_stream]
    share = rows_total // len(ways)

    def work(place: int) -> None:
        numbers = range(1 + place * share, 1 + (place + 1) * share)
        with wire(served.address) as own:
            ways[place](own, numbers, random.Random(f"{seed}:{place}"), judges[place])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(ways))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [wrong for judge in judges for wrong in judge.wrong[:5]] == []
    answered = set().union(*(judge.answered for judge in judges))
    print(f"{len(answered)} of {share * len(ways)} rows answered, {since.computed} computed")
    assert len(answered) > share * len(ways) // 2
    replayed_as_answered(stubs, answered, random.Random(seed))
    scrape = balanced(served)
    assert since.computed == since.journaled, "each computed row is journaled, and no other"
    assert scrape.sum(names.QUEUE_ROWS.name) == 0
    assert since.journaled == stored_as_asked(served, answered), "no row was computed twice"


def replayed_as_answered(stubs: Wire, answered: set[int], draw: random.Random) -> None:
    """A retry after the reply gets the first one again, in whatever form it asks."""
    judge = Judge()
    for number in draw.sample(sorted(answered), 200):
        reply = stubs.labels.Label(row(number, draw))
        assert reply.source == types_pb2.SOURCE_REPLAY
        judge.reply(number, reply)
    assert judge.wrong == []


def stored_as_asked(service: Service, answered: set[int]) -> int:
    """The store has each answered row under its key, with its own label. How many rows it has."""
    held = stored(service.database)
    wrong = {key: label for key, label in held.items() if label != f"at-{key[1] % WIDTH}"}
    assert wrong == {}
    assert {(f"robot-{number % 97}", number) for number in answered} <= held.keys()
    return len(held)


@counts("rounds", quick=5, full=100, full_timeout_s=300)
def test_one_payload_sent_to_two_models_and_two_versions_gets_four_answers(
    start_service: StartService, tmp_path: Path, rounds: int
) -> None:
    """MLServer: the key of its cache had no model and no version."""
    root = tmp_path / "models"
    offsets = {(NAME, "1"): 0.0, (NAME, "2"): 100.0, ("other", "1"): 1_000.0, ("other", "2"): 5e3}
    for (name, version), offset in offsets.items():
        write_identity(root, WIDTH, version, offset, name=name)
    load = settings(root) | {"models__load": [f"{NAME}@1", "other@1"]}
    service = start_service(**load)
    with wire(service.address) as stubs:
        for name in (NAME, "other"):
            standby = model_pb2.LoadModelRequest(name=name, version="2", standby=True)
            stubs.models.LoadModel(standby)
        for number in range(1, rounds + 1):
            calls = [
                (offset, stubs.labels.Label.future(asked))
                for place, ((name, version), offset) in enumerate(offsets.items())
                for asked in same_payload(number, 40 * number + 10 * place, name, version)
            ]
            for offset, call in calls:
                expected = [value + offset for value in payload_of(number)]
                assert list(call.result(timeout=60).scores) == expected
    balanced(service)


def same_payload(
    number: int, first: int, name: str, version: str
) -> Iterator[label_pb2.LabelRequest]:
    for sequence in range(first, first + 10):
        payload = floats(payload_of(number))
        fields = {"model": name, "version": version, "want_scores": True}
        yield request("robot", sequence, payload, **fields)


def test_a_request_of_many_rows_is_split_to_the_models_bound_and_joined_in_order(
    start_service: StartService, tmp_path: Path, seed: int
) -> None:
    """S10: a batch limit that counted requests, not rows."""
    write_identity(tmp_path / "models", WIDTH)
    service = start_service(path__batch_rows_max=32, **settings(tmp_path / "models"))
    since, draw, first = Since(service), random.Random(seed), 1
    with wire(service.address) as stubs:
        calls = []
        for size in (20, 33, 20, 1_000, 20, 64, 20, 999):
            numbers = range(first, first + size)
            first += size
            asked = label_pb2.LabelBatchRequest(requests=[row(n, draw) for n in numbers])
            calls.append((numbers, stubs.labels.LabelBatch.future(asked)))
        judge = Judge()
        for numbers, call in calls:
            results = call.result(timeout=60).results
            assert len(results) == len(numbers)
            for number, result in zip(numbers, results, strict=True):
                judge.reply(number, result.response)
        assert judge.wrong == []

        too_many = [request("many", n, floats(payload_of(n))) for n in range(1, 10_001)]
        with pytest.raises(grpc.RpcError) as refused:
            stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=too_many))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "1 to 1000 rows" in str(refused.value.details())
    runs = since(f"{BATCH_ROWS}_count")
    assert since(f"{BATCH_ROWS}_bucket", le="32.0") == runs, "no run had more than 32 rows"
    assert since.computed == first - 1
    balanced(service)


def test_one_row_that_is_wrong_fails_alone_among_those_that_wait_with_it(
    served: Service, stubs: Wire
) -> None:
    """S08: one bad item of a batch failed all callers in it."""
    calls = []
    for number in range(1, 65):
        asked = request("robot", number, floats(payload_of(number)), want_scores=True)
        if number % 8 == 0:
            asked.payload.floats[1] = float("nan") if number % 16 else 1.0
            if number % 16 == 0:
                asked.payload.floats.append(1.0)
        calls.append((number, stubs.labels.Label.future(asked)))
    judge = Judge()
    for number, call in calls:
        if number % 8:
            judge.reply(number, call.result(timeout=60))
        else:
            assert call.exception(timeout=60).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert judge.wrong == []
    balanced(served)
