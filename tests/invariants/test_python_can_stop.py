"""Invariant 1, seen from outside: a Python that stands still stops no label.

The service's interpreter is held for five seconds (three in the quick form): read-back and model
operations end at their deadlines, labels go on and are journaled. Then Python wakes, everything is
delivered, and nothing that expired is done after all. That the path makes no call that takes the
GIL is tested in `test_borders.py`; a Python that never wakes in `behaviour/test_read_back.py`.

Full form: about 10 s.
"""

import os
import sys
from collections.abc import Iterator
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
from tests.support.waiting import eventually
from tests.support.wire import Wire, error_of, floats, request, wire

HELD = Path(__file__).parent.parent / "support" / "held_python.py"
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
# Of the wire's own: grpcio's `timeout` would end the call at the client, before the answer.
SOON = (("grpc-timeout", "400m"),)


class Python:
    """The interpreter of a service that was started by `held_python.py`."""

    def __init__(self, folder: Path) -> None:
        self.fifo = folder / "hold"
        os.mkfifo(self.fifo)
        self._told = self.fifo.with_suffix(".told")
        self._holds = 0

    @property
    def prefix(self) -> tuple[str, ...]:
        return (sys.executable, str(HELD), str(self.fifo))

    def hold(self, ms: int) -> None:
        """Returns once it is held."""
        self.fifo.write_text(f"{ms}\n")
        self._holds += 1
        eventually(lambda: self._lines("held") == self._holds)

    @property
    def is_held(self) -> bool:
        """Whether the last hold goes on."""
        return self._lines("let go") < self._holds

    def _lines(self, text: str) -> int:
        return self._told.read_text().splitlines().count(text)


@pytest.fixture
def python(tmp_path: Path) -> Python:
    return Python(tmp_path)


@pytest.fixture
def served(start_service: StartService, tmp_path: Path, python: Python) -> Service:
    root = tmp_path / "models"
    for version in ("1", "2"):
        write_identity(root, version=version, offset=float(version))
    models = settings(root) | {"models__load": [f"{NAME}@1"]}
    return start_service(prefix=python.prefix, control__timeout_ms=500, **models)


@pytest.fixture
def stubs(served: Service) -> Iterator[Wire]:
    with wire(served.address) as open_wire:
        yield open_wire


def begin_control_calls(stubs: Wire) -> dict[str, Any]:
    """One call of each kind that Python answers; none has a time limit at the client."""
    unload = model_pb2.UnloadModelRequest(name=NAME)
    load = model_pb2.LoadModelRequest(name=NAME, version="2")
    return {
        "GetLabel": stubs.labels.GetLabel.future(
            label_pb2.GetLabelRequest(robot_id="unknown", sequence=1)
        ),
        "ListLabels": stubs.labels.ListLabels.future(
            label_pb2.ListLabelsRequest(robot_id="before")
        ),
        "UnloadModel": stubs.models.UnloadModel.future(unload, metadata=SOON),
        "LoadModel": stubs.models.LoadModel.future(load, metadata=SOON),
        "ListModels": stubs.models.ListModels.future(model_pb2.ListModelsRequest(), metadata=SOON),
    }


@counts("held_ms", quick=3_000, full=5_000, full_timeout_s=120)
def test_labels_go_on_while_python_stands_still_and_all_is_delivered_when_it_wakes(
    served: Service, stubs: Wire, python: Python, held_ms: int
) -> None:
    since = Since(served)
    stubs.labels.Label(request("before", 1, floats([1.0, 2.0, 3.0, 4.0])))
    eventually(lambda: since(names.RECORDS_STORED.name) == 1)

    python.hold(held_ms)
    calls = begin_control_calls(stubs)
    labelled = 0
    while labelled < 200 or not all(call.done() for call in calls.values()):
        labelled += 1
        reply = stubs.labels.Label(request("during", labelled, floats([float(labelled)] * 4)))
        assert reply.durability == types_pb2.DURABILITY_JOURNALED
        pending = label_pb2.GetLabelRequest(robot_id="during", sequence=labelled)
        assert stubs.labels.GetLabel(pending).label.label == reply.label, "of this process"
    assert python.is_held, "all of this without Python"
    for name, call in calls.items():
        assert call.exception().code() == LATE, name
        assert "stage queue" in str(call.exception().details()), name

    eventually(lambda: not python.is_held, timeout_s=30)
    eventually(lambda: since(names.RECORDS_STORED.name) == labelled + 1, timeout_s=30)
    held = stored(served.database)
    assert len(held) == labelled + 1
    listed = stubs.labels.ListLabels(label_pb2.ListLabelsRequest(robot_id="during"))
    assert len(listed.labels) == min(100, labelled)
    balanced(served)
    assert since.ended("expired") == len(calls)
    assert since(names.CONTROL_EXPIRED.name) == len(calls)


def test_an_operation_that_expired_while_python_stood_still_is_not_done_later(
    served: Service, stubs: Wire, python: Python
) -> None:
    """The control side may have taken the request, and wake with it in its hands."""
    for number in range(1, 4):
        python.hold(1_200)
        unload = model_pb2.UnloadModelRequest(name=NAME)
        with pytest.raises(grpc.RpcError) as late:
            stubs.models.UnloadModel(unload, metadata=SOON)
        assert late.value.code() == LATE
        assert not error_of(late.value).label_exists
        assert python.is_held
        eventually(lambda: not python.is_held, timeout_s=30)
        # Answered after whatever was taken before it: operations run one after the other.
        load = model_pb2.LoadModelRequest(name=NAME, version="2", standby=True)
        assert not stubs.models.LoadModel(load).model.serving, "version 1 still serves"
        reply = stubs.labels.Label(request("after", number, floats([0.0] * 4)))
        assert reply.version == "1"
        stubs.models.UnloadModel(model_pb2.UnloadModelRequest(name=NAME, version="2"))
    balanced(served)
