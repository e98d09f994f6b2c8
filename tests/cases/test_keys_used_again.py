"""S88: hard to keep ids free of collisions and reuse when clients come and go.

The rule (README, protos): `(robot_id, sequence)` names one request. Within the window a reused
number with another payload is refused and counted; beyond it the request is computed anew. It is
never answered with an old label of another payload.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from labeler.telemetry import names
from labeler.v1 import label_pb2, types_pb2
from tests.support import made_models
from tests.support.accounting import balanced
from tests.support.service import Service, StartService, serve
from tests.support.waiting import eventually
from tests.support.wire import Wire, error_of, floats, request, wire

EXISTS = grpc.StatusCode.ALREADY_EXISTS
LARGEST = (1 << 63) - 1


def asked(
    sequence: int, value: float, robot_id: str = "robot", **fields: Any
) -> label_pb2.LabelRequest:
    """A request whose answer's confidence is its value."""
    return request(robot_id, sequence, floats([value, 0, 0, 0]), **fields)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose window remembers all that these tests send."""
    folder = tmp_path_factory.mktemp("keys")
    made_models.write_identity(folder / "models", width=4)
    settings: dict[str, Any] = made_models.settings(folder / "models")
    started = serve(folder / "state", **settings)
    try:
        yield started.wait_ready()
    finally:
        started.close()


def conflicts(service: Service) -> float:
    return balanced(service).sum(names.DEDUPE_CONFLICTS.name)


def test_within_the_window_a_number_is_never_answered_with_another_payloads_label(
    identity: Service,
) -> None:
    # Restarts at 1, goes backwards, skips, uses the largest: only a number used again is refused.
    sequences = [1, 2, 3, 1, 2, 9, 4, LARGEST, 3, LARGEST, 5]
    used: set[int] = set()
    refused, before = 0, conflicts(identity)
    with wire(identity.address) as stubs:
        for value, sequence in enumerate(sequences, start=1):
            if sequence not in used:
                used.add(sequence)
                assert stubs.labels.Label(asked(sequence, value)).confidence == value
                continue
            refused += 1
            with pytest.raises(grpc.RpcError) as again:
                stubs.labels.Label(asked(sequence, value))
            assert again.value.code() == EXISTS
            error = error_of(again.value)
            assert (error.field, error.value) == ("sequence", str(sequence))
            assert 'robot "robot"' in error.message
    assert refused == 4
    assert conflicts(identity) - before == refused


def test_two_robots_with_one_id_are_told_in_batch_and_stream_too(identity: Service) -> None:
    before = conflicts(identity)
    rows = [
        asked(1, 1, "twin"),
        asked(1, 2, "twin"),
        asked(2, 3, "twin"),
        asked(1, 1, "twin"),
        asked(2, 4, "twin"),
        asked(3, 5, "twin"),
    ]
    with wire(identity.address) as stubs:
        batch = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results
        assert [one.response.confidence for one in batch] == [1, 0, 3, 1, 0, 5]
        assert [one.error.code for one in batch] == [0, EXISTS.value[0], 0, 0, EXISTS.value[0], 0]
        again = [asked(1, 1, "twin"), asked(1, 2, "twin"), asked(4, 6, "twin")]
        replies = list(stubs.labels.LabelStream(iter(again)))
        answered = sorted(one.response.confidence for one in replies if one.HasField("response"))
        assert answered == [1, 6]
        [conflict] = [one.error for one in replies if one.HasField("error")]
        assert conflict.code == EXISTS.value[0]
        # The same number of another robot is another request.
        assert stubs.labels.Label(asked(1, 7, "other")).confidence == 7
    assert conflicts(identity) - before == 3


def test_the_same_payload_for_another_model_or_with_other_signs_is_another_request(
    identity: Service,
) -> None:
    with wire(identity.address) as stubs:
        stubs.labels.Label(asked(1, 0.0, "signs"))
        with pytest.raises(grpc.RpcError) as minus_zero:
            stubs.labels.Label(asked(1, -0.0, "signs"))
        assert minus_zero.value.code() == EXISTS
        # What is no part of the payload may change: it is the same request, answered as before.
        same = asked(
            1, 0.0, "signs", sku="other", priority=types_pb2.PRIORITY_BULK, timeout_us=9_000_000
        )
        assert stubs.labels.Label(same).source == types_pb2.SOURCE_REPLAY
    balanced(identity)


def test_beyond_the_window_a_reused_number_is_computed_anew(
    start_service: StartService, tmp_path: Path
) -> None:
    made_models.write_identity(tmp_path / "models", width=4)
    settings: dict[str, Any] = made_models.settings(tmp_path / "models")
    service = start_service(path__dedupe_rows_max=1, **settings)
    with wire(service.address) as stubs:
        assert stubs.labels.Label(asked(1, 10)).confidence == 10
        _stored(stubs, 1)
        assert stubs.labels.Label(asked(2, 20)).confidence == 20
        _stored(stubs, 2)
        again = stubs.labels.Label(asked(1, 30))
        assert (again.confidence, again.source) == (30, types_pb2.SOURCE_MODEL)
        key = label_pb2.GetLabelRequest(robot_id="robot", sequence=1)
        assert stubs.labels.GetLabel(key).label.confidence == 30
        balanced(service)
        # The store holds one row a key: the last that was acknowledged.
        stubs.labels.Label(asked(3, 40))
        eventually(lambda: len(_listed(stubs)) == 3)
        assert [label.confidence for label in _listed(stubs)] == [40, 20, 30]
    balanced(service)


def _stored(stubs: Wire, sequence: int) -> None:
    key = label_pb2.GetLabelRequest(robot_id="robot", sequence=sequence)
    stored = types_pb2.DURABILITY_STORED
    eventually(lambda: stubs.labels.GetLabel(key).label.durability == stored)


def _listed(stubs: Wire) -> list[label_pb2.StoredLabel]:
    return list(stubs.labels.ListLabels(label_pb2.ListLabelsRequest(robot_id="robot")).labels)
