"""Batches: many queries in one call, where each row is answered or refused on its own.

Pure. A row that can't be sent gets its error in its place and the others go on; the call as a whole
fails only where the service refuses it as a whole.
"""

from collections.abc import Sequence

import numpy as np

from labeler.client.failures import from_row
from labeler.client.options import Settings
from labeler.client.replies import Label, label_from
from labeler.client.requests import (
    BATCH_ROWS_MAX,
    LabelFields,
    LabelQuery,
    build_request,
    check_sequence,
    check_timeout_ms,
    make_query,
)
from labeler.errors import InternalError, InvalidRequestError, LabelerError
from labeler.v1 import label_pb2

__all__ = ["Batch", "Result", "rows_of"]

Result = Label | LabelerError
"""What a row of a batch or a stream gets."""


class Batch:
    """Queries on their way: `message` is what is sent, `timeout_ms` the longest of its rows'."""

    def __init__(self, queries: Sequence[LabelQuery], settings: Settings) -> None:
        """Check and build every row. Errors: `InvalidRequestError` for none or too many rows."""
        if not 1 <= len(queries) <= BATCH_ROWS_MAX:
            expected = f"1 to {BATCH_ROWS_MAX:,} rows"
            held = f"{len(queries):,} rows"
            raise InvalidRequestError(
                f"requests is {held}, expected {expected}",
                field="requests",
                value=held,
                expected=expected,
            )
        self.message = label_pb2.LabelBatchRequest()
        self.timeout_ms = 0
        self._results: list[Result | None] = [None] * len(queries)
        self._sent: list[int] = []
        for row, query in enumerate(queries):
            try:
                request = build_request(query, settings)
                timeout_ms = check_timeout_ms(query.timeout_ms, settings.timeout_ms)
            except InvalidRequestError as error:
                error.sequence = query.sequence if isinstance(query.sequence, int) else None
                self._results[row] = error
                continue
            request.timeout_us = timeout_ms * 1000
            self.timeout_ms = max(self.timeout_ms, timeout_ms)
            self.message.requests.append(request)
            self._sent.append(row)

    def results(self, response: label_pb2.LabelBatchResponse, round_trip_us: int) -> list[Result]:
        """Put the answers into their rows' places. Errors: `InternalError` for a wrong count."""
        if len(response.results) != len(self._sent):
            raise InternalError(
                f"{len(self._sent)} rows were sent and {len(response.results)} were answered"
            )
        totals_us = [row.response.timing.total_us for row in response.results]
        server_us = max(totals_us, default=0)
        for row, request, answer in zip(
            self._sent, self.message.requests, response.results, strict=True
        ):
            kind = answer.WhichOneof("result")
            if kind == "response":
                self._results[row] = label_from(answer.response, round_trip_us, server_us)
            elif kind == "error":
                self._results[row] = from_row(answer.error, request.sequence)
            else:
                self._results[row] = InternalError(
                    "the row came back without a result", sequence=request.sequence
                )
        return [result for result in self._results if result is not None]


def rows_of(
    robot_id: str, first_sequence: int, values: np.ndarray, options: LabelFields
) -> list[LabelQuery]:
    """Make one query of each row of a 2-D array, numbered upwards from `first_sequence`.

    Errors: `InvalidRequestError` where `values` is no 2-D array, or the sequence is none.
    """
    if not isinstance(values, np.ndarray) or values.ndim != 2:
        shape = f"of shape {values.shape}" if isinstance(values, np.ndarray) else "no numpy array"
        raise InvalidRequestError(
            f"values is {shape}, expected a 2-D numpy array, one row a request",
            field="values",
            value=shape,
            expected="a 2-D numpy array, one row a request",
        )
    first = check_sequence(first_sequence)
    return [make_query(robot_id, first + row, values[row], options) for row in range(len(values))]
