"""Failures: a gRPC status, or a failed row, as one of the errors in `labeler.errors`.

The one place where the client turns wire codes into exceptions. Knows numbers, not gRPC's types,
so that it can be tested without a call. Never raises: a code or detail that it can't read still
becomes an error that says what came.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from labeler.errors import (
    DeadlinePassedError,
    InternalError,
    InvalidRequestError,
    KeyReusedError,
    LabelerError,
    LabelNotFoundError,
    ModelInvalidError,
    ModelNotFoundError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
)
from labeler.v1 import types_pb2

__all__ = ["DETAILS_KEY", "Status", "from_call", "from_row", "from_status"]

DETAILS_KEY = "grpc-status-details-bin"

_CANCELLED = 1
_INVALID_ARGUMENT = 3
_DEADLINE_EXCEEDED = 4
_NOT_FOUND = 5
_ALREADY_EXISTS = 6
_RESOURCE_EXHAUSTED = 8
_FAILED_PRECONDITION = 9
_OUT_OF_RANGE = 11
_INTERNAL = 13
_UNAVAILABLE = 14

_PLAIN: dict[int, type[LabelerError]] = {
    _CANCELLED: RequestCancelledError,
    _ALREADY_EXISTS: KeyReusedError,
    _FAILED_PRECONDITION: ModelInvalidError,
    _INTERNAL: InternalError,
    _UNAVAILABLE: UnavailableError,
}

# Codes with no error of their own; the message begins with their name.
_NAMES = {
    2: "UNKNOWN",
    7: "PERMISSION_DENIED",
    10: "ABORTED",
    12: "UNIMPLEMENTED",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}


class Status(Protocol):
    """What a failed call says, in grpc as in grpc.aio."""

    def code(self) -> Any:
        """Return the status code, whose `value` begins with its number."""

    def details(self) -> str | None:
        """Return the message."""

    def trailing_metadata(self) -> Iterable[Any] | None:
        """Return the trailers, as pairs."""


def from_call(status: Status, method: str) -> LabelerError:
    """Make the error of a failed call of the method, such as `GetLabel`."""
    details = b""
    for key, value in status.trailing_metadata() or ():
        if key == DETAILS_KEY:
            details = value
    return from_status(status.code().value[0], status.details() or "", details, method)


def from_status(code: int, message: str, details: bytes, method: str) -> LabelerError:
    """Make the error of a status; its packed `StatusDetails` may be missing or damaged."""
    return _make(_packed_error(code, message, details), None, method)


def from_row(error: types_pb2.Error, sequence: int | None) -> LabelerError:
    """Make the error of one failed row of a batch or a stream."""
    return _make(error, sequence, "Label")


def _packed_error(code: int, message: str, details: bytes) -> types_pb2.Error:
    """Return the `labeler.v1.Error` in the details, else one of code and message alone."""
    plain = types_pb2.Error(code=code, message=message)
    try:
        for packed in types_pb2.StatusDetails.FromString(details).details:
            error = types_pb2.Error()
            if packed.Unpack(error):
                # The status is what the transport vouches for; details may come without them.
                error.code = code
                error.message = error.message or message
                return error
    except DecodeError:
        return plain
    return plain


def _make(error: types_pb2.Error, sequence: int | None, method: str) -> LabelerError:
    """Choose the class by code and fill its fields."""
    code = error.code
    message = error.message or f"status {_NAMES.get(code, code)} without a message"
    if code in (_INVALID_ARGUMENT, _OUT_OF_RANGE):
        invalid = InvalidRequestError(message, field=error.field, value=error.value)
        invalid.expected = error.expected
        invalid.sequence = sequence
        return invalid
    if code == _DEADLINE_EXCEEDED:
        return DeadlinePassedError(message, label_exists=error.label_exists, sequence=sequence)
    if code == _RESOURCE_EXHAUSTED:
        return OverloadedError(message, retry_after_ms=error.retry_after_ms, sequence=sequence)
    if code == _NOT_FOUND:
        kind = LabelNotFoundError if method == "GetLabel" else ModelNotFoundError
        return kind(message, sequence=sequence)
    plain = _PLAIN.get(code)
    if plain is not None:
        return plain(message, sequence=sequence)
    return InternalError(f"{_NAMES.get(code, f'status {code}')}: {message}", sequence=sequence)
