"""S56: a user's id in a metric's labels made series that never went away (3 GB in two weeks).

Robots, SKUs, unknown models and methods that clients make up add no series, and the scrape grows
by nothing but digits. Full counts: about 60 s.
"""

from collections.abc import Iterator

import grpc
import pytest

from labeler.v1 import label_pb2, model_pb2
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.metrics import Metrics
from tests.support.raw_http2 import Peer, headers, message
from tests.support.service import Service
from tests.support.wire import MODEL, WIDTH, Wire, floats, request, wire

PAYLOAD = floats([2.5] * WIDTH)


@pytest.fixture
def stubs(service: Service) -> Iterator[Wire]:
    """With one call of each kind made, whose series may be new."""
    with wire(service.address) as open_wire:
        _robots(open_wire, 1, "warm")
        _unknown_models(service, open_wire, 1)
        _unknown_methods(service, 1)
        yield open_wire


def series(scrape: Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Names with their labels."""
    return {(one.name, tuple(sorted(one.labels.items()))) for one in scrape.samples}


def _robots(stubs: Wire, robots: int, prefix: str) -> None:
    for first in range(0, robots, 1000):
        rows = [
            request(f"{prefix}-{n}", 1, PAYLOAD, sku=f"{prefix}-{n}", durability=1)
            for n in range(first, min(robots, first + 1000))
        ]
        results = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results
        assert all(one.HasField("response") for one in results)


def _unknown_models(service: Service, stubs: Wire, models: int) -> None:
    rows = []
    for number in range(models):
        rows.append(request("r", 1, PAYLOAD, model=f"nope-{number}"))
        rows.append(request("r", 1, PAYLOAD, model=MODEL, version=f"nope-{number}"))
    for first in range(0, len(rows), 1000):
        asked = label_pb2.LabelBatchRequest(requests=rows[first : first + 1000])
        results = stubs.labels.LabelBatch(asked).results
        assert {one.error.code for one in results} == {grpc.StatusCode.NOT_FOUND.value[0]}
    asked_of = [model_pb2.LoadModelRequest(name=f"nope-{n}") for n in range(min(models, 20))]
    for asked_model in asked_of:
        with pytest.raises(grpc.RpcError):
            stubs.models.LoadModel(asked_model)


def _unknown_methods(service: Service, methods: int) -> None:
    with Peer(service.address) as peer:
        for number in range(methods):
            path = [
                f"/labeler.v1.LabelService/Nope{number}",
                f"/labeler.v1.ModelService/Nope{number}",
                f"/no.Such{number}/Call",
            ][number % 3]
            stream = 2 * number + 1
            fields = [*headers(path), (f"x-{number}", "y")]
            assert peer.call(message(b""), fields, stream).code == 12


@counts("robots", quick=3_000, full=100_000, full_timeout_s=120)
def test_distinct_robots_and_articles_add_no_series(
    service: Service, stubs: Wire, robots: int
) -> None:
    before = series(balanced(service))
    _robots(stubs, robots, f"robot-of-{robots}")
    assert series(balanced(service, 120)) == before


@counts("names", quick=300, full=10_000, full_timeout_s=120)
def test_unknown_models_methods_and_pages_add_no_series(
    service: Service, stubs: Wire, names: int
) -> None:
    before = series(balanced(service))
    _unknown_models(service, stubs, names)
    _unknown_methods(service, names)
    for number in range(min(names, 100)):
        with pytest.raises(OSError, match="404"):
            service.get(f"/nope-{number}")
    assert series(balanced(service)) == before
