"""Each status that a call or a row can end with is one class of error, with its details."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labeler
from labeler.client.failures import from_row, from_status
from labeler.v1 import types_pb2

CLASSES = {
    grpc.StatusCode.CANCELLED: labeler.RequestCancelledError,
    grpc.StatusCode.UNKNOWN: labeler.InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: labeler.InvalidRequestError,
    grpc.StatusCode.DEADLINE_EXCEEDED: labeler.DeadlinePassedError,
    grpc.StatusCode.NOT_FOUND: labeler.ModelNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: labeler.KeyReusedError,
    grpc.StatusCode.PERMISSION_DENIED: labeler.InternalError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: labeler.OverloadedError,
    grpc.StatusCode.FAILED_PRECONDITION: labeler.ModelInvalidError,
    grpc.StatusCode.ABORTED: labeler.InternalError,
    grpc.StatusCode.OUT_OF_RANGE: labeler.InvalidRequestError,
    grpc.StatusCode.UNIMPLEMENTED: labeler.InternalError,
    grpc.StatusCode.INTERNAL: labeler.InternalError,
    grpc.StatusCode.UNAVAILABLE: labeler.UnavailableError,
    grpc.StatusCode.DATA_LOSS: labeler.InternalError,
    grpc.StatusCode.UNAUTHENTICATED: labeler.InternalError,
}
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def number(code: grpc.StatusCode) -> int:
    """The code's number on the wire."""
    return int(code.value[0])


def packed(error: types_pb2.Error) -> bytes:
    """Status details as the service sends them, with a detail of another type in front."""
    details = types_pb2.StatusDetails(code=error.code, message=error.message)
    details.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\x0a\0")
    details.details.add().Pack(error)
    return details.SerializeToString()


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_status_without_details_is_its_error_with_the_message(code: grpc.StatusCode) -> None:
    error = from_status(number(code), "what happened", b"", "Label")

    assert type(error) is CLASSES[code]
    assert error.message.endswith("what happened")


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_row_is_the_same_error_as_a_call_with_its_sequence(code: grpc.StatusCode) -> None:
    error = from_row(types_pb2.Error(code=number(code), message="what happened"), 7)

    assert (type(error), error.sequence) == (CLASSES[code], 7)


def test_not_found_is_the_label_where_a_label_was_asked_for() -> None:
    code = number(grpc.StatusCode.NOT_FOUND)

    assert type(from_status(code, "", b"", "GetLabel")) is labeler.LabelNotFoundError


def test_the_details_of_a_refused_field_arrive() -> None:
    sent = types_pb2.Error(code=3, message="m", field="payload", value="3", expected="24 values")

    error = from_status(3, "m", packed(sent), "Label")

    assert isinstance(error, labeler.InvalidRequestError)
    assert (error.field, error.value, error.expected) == ("payload", "3", "24 values")


def test_the_time_to_wait_arrives() -> None:
    sent = types_pb2.Error(code=8, message="full", retry_after_ms=40)

    error = from_status(8, "full", packed(sent), "Label")

    assert isinstance(error, labeler.OverloadedError)
    assert error.retry_after_ms == 40


def test_that_a_label_exists_arrives() -> None:
    sent = types_pb2.Error(code=4, message="late", label_exists=True)

    error = from_status(4, "late", packed(sent), "Label")

    assert isinstance(error, labeler.DeadlinePassedError)
    assert error.label_exists


@given(st.integers(0, 2**31 - 1), st.text(), st.binary())
def test_any_status_with_any_details_is_an_error(code: int, message: str, details: bytes) -> None:
    error = from_status(code, message, details, "Label")

    assert isinstance(error, labeler.LabelerError)
    assert error.message
