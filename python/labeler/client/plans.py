"""Plans: each operation of the clients as one call to make, so that both clients only make it.

Pure but for the process check: no channel, no clock. A plan holds the method, the checked message,
the deadline, and what turns the reply into what the caller gets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from labeler.client import health
from labeler.client.batches import Batch, Result, rows_of
from labeler.client.channels import Guard
from labeler.client.failures import Status, from_call
from labeler.client.options import Settings
from labeler.client.replies import (
    Label,
    ModelVersion,
    StoredLabel,
    label_from,
    model_from,
    models_from,
    receipt_of,
    stored_from,
)
from labeler.client.requests import (
    LabelFields,
    LabelQuery,
    Receipts,
    build_request,
    check_name,
    check_page,
    check_robot_id,
    check_sequence,
    check_timeout_ms,
)
from labeler.client.retries import Attempts, RetryBudget
from labeler.errors import LabelerError
from labeler.v1 import label_pb2, model_pb2

__all__ = ["Plan", "Plans", "Results", "StoredPage"]

T = TypeVar("T")
Results = list[Result]
StoredPage = tuple[list[StoredLabel], str]
"""Stored labels, and the token of the next page, empty after the last."""


@dataclass(slots=True)
class Plan(Generic[T]):
    """One call: `convert` takes the reply and the µs that its attempt took.

    `rows`: the messages in it that carry a deadline of their own. `retries`: whether a failed
    attempt may be followed by another. `sequence`: the one request that errors are about, if one.
    """

    method: str
    message: Any
    timeout_ms: int
    convert: Callable[[Any, int], T]
    rows: Sequence[label_pb2.LabelRequest] = ()
    retries: bool = True
    sequence: int | None = None

    def error(self, status: Status) -> LabelerError:
        """Make the error of a failed attempt."""
        error = from_call(status, self.method)
        error.sequence = self.sequence
        return error

    def shorten(self, left_s: float) -> None:
        """Cut the rows' deadlines to what is left of the call's: a later attempt gets no more."""
        left_us = int(left_s * 1e6)
        for row in self.rows:
            row.timeout_us = min(row.timeout_us, left_us)


class Plans:
    """Makes plans, each after the check that this process may call at all."""

    def __init__(self, guard: Guard, settings: Settings) -> None:
        """Start with no receipts and a full budget of retries."""
        self.guard = guard
        self.settings = settings
        self.receipts = Receipts()
        self.budget = RetryBudget()

    def attempts(self, plan: Plan[T], now_s: float) -> Attempts:
        """Start the attempts of a plan."""
        attempts_max = self.settings.attempts_max if plan.retries else 1
        return Attempts(plan.timeout_ms, attempts_max, self.budget, now_s)

    def label(self, query: LabelQuery) -> Plan[Label]:
        """Plan one label: its receipt goes with the robot's next request."""
        self.guard.check()
        request = build_request(query, self.settings)
        timeout_ms = check_timeout_ms(query.timeout_ms, self.settings.timeout_ms)
        request.timeout_us = timeout_ms * 1000
        robot_id = query.robot_id
        receipt = self.receipts.take(robot_id)
        if receipt is not None:
            request.last_receipt.CopyFrom(receipt)

        def convert(response: label_pb2.LabelResponse, round_trip_us: int) -> Label:
            label = label_from(response, round_trip_us)
            self.receipts.put(robot_id, receipt_of(label))
            return label

        sequence = request.sequence
        return Plan("Label", request, timeout_ms, convert, (request,), sequence=sequence)

    def batch(self, queries: Sequence[LabelQuery]) -> Plan[Results]:
        """Plan many labels; with no row that can be sent, the message has no requests."""
        self.guard.check()
        batch = Batch(queries, self.settings)
        rows = batch.message.requests
        return Plan("LabelBatch", batch.message, batch.timeout_ms, batch.results, rows)

    def rows(
        self,
        robot_id: str,
        first_sequence: int,
        values: np.ndarray[Any, Any],
        fields: LabelFields,
    ) -> Plan[Results]:
        """Plan a label of each row of a 2-D array."""
        return self.batch(rows_of(robot_id, first_sequence, values, fields))

    def get(self, robot_id: str, sequence: int, timeout_ms: int | None) -> Plan[StoredLabel]:
        """Plan to read one label."""
        self.guard.check()
        check_robot_id(robot_id)
        request = label_pb2.GetLabelRequest(robot_id=robot_id, sequence=check_sequence(sequence))
        timeout_ms = check_timeout_ms(timeout_ms, self.settings.timeout_ms_read)
        return Plan(
            "GetLabel",
            request,
            timeout_ms,
            lambda got, _: stored_from(got.label),
            sequence=request.sequence,
        )

    def page(self, request: label_pb2.ListLabelsRequest) -> Plan[StoredPage]:
        """Plan to read one page."""
        self.guard.check()
        return Plan("ListLabels", request, self.settings.timeout_ms_read, _page_from)

    def listing(
        self, robot_id: str, from_unix_us: int, to_unix_us: int, page_size: int
    ) -> label_pb2.ListLabelsRequest:
        """Check a listing's arguments and make the request of its first page."""
        self.guard.check()
        check_page(robot_id, from_unix_us, to_unix_us, page_size)
        return label_pb2.ListLabelsRequest(
            robot_id=robot_id,
            page_size=page_size,
            from_unix_us=from_unix_us,
            to_unix_us=to_unix_us,
        )

    def models(self) -> Plan[list[ModelVersion]]:
        """Plan to list model versions."""
        self.guard.check()
        request, timeout_ms = model_pb2.ListModelsRequest(), self.settings.timeout_ms_read
        return Plan("ListModels", request, timeout_ms, lambda got, _: models_from(got.models))

    def load_model(self, name: str, version: str, standby: bool) -> Plan[ModelVersion]:
        """Plan to load a model version, once."""
        self.guard.check()
        check_name("name", name)
        request = model_pb2.LoadModelRequest(name=name, version=version, standby=standby)
        timeout_ms = self.settings.timeout_ms_manage
        return Plan(
            "LoadModel", request, timeout_ms, lambda got, _: model_from(got.model), retries=False
        )

    def unload_model(self, name: str, version: str) -> Plan[list[ModelVersion]]:
        """Plan to unload a model version, once."""
        self.guard.check()
        check_name("name", name)
        request = model_pb2.UnloadModelRequest(name=name, version=version)
        timeout_ms = self.settings.timeout_ms_manage
        return Plan(
            "UnloadModel",
            request,
            timeout_ms,
            lambda got, _: models_from(got.unloaded),
            retries=False,
        )

    def health(self, service: str, timeout_ms: int | None) -> Plan[str]:
        """Plan to ask for a service's state, once."""
        self.guard.check()
        timeout_ms = check_timeout_ms(timeout_ms, self.settings.timeout_ms_read)
        message = health.encode_request(service)
        return Plan("Check", message, timeout_ms, lambda got, _: _state_from(got), retries=False)


def _page_from(page: label_pb2.ListLabelsResponse, _: int) -> StoredPage:
    return [stored_from(label) for label in page.labels], page.next_page_token


def _state_from(got: bytes) -> str:
    return health.decode_response(got)
