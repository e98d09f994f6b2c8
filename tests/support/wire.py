"""The service through bare stubs: what a client in another language sees."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from labeler.v1 import label_pb2, label_pb2_grpc, model_pb2_grpc, types_pb2

WIDTH = 24
MODEL = "kiva-floor"


class Wire:
    """A channel with its stubs."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Over an open channel."""
        self.labels = label_pb2_grpc.LabelServiceStub(channel)
        self.models = model_pb2_grpc.ModelServiceStub(channel)


@contextmanager
def wire(address: str) -> Iterator[Wire]:
    """A channel of its own, ready before it is used."""
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        yield Wire(channel)


def floats(values: Sequence[float]) -> types_pb2.Payload:
    """A payload of packed 32-bit values."""
    return types_pb2.Payload(floats=values)


def doubles(values: Sequence[float]) -> types_pb2.Payload:
    """A payload of packed 64-bit values."""
    return types_pb2.Payload(doubles=values)


def raw32(values: Sequence[float]) -> types_pb2.Payload:
    """A payload of raw little-endian 32-bit values."""
    data = struct.pack(f"<{len(values)}f", *values)
    return types_pb2.Payload(raw=types_pb2.RawValues(dtype=types_pb2.DTYPE_FLOAT32, data=data))


def raw64(values: Sequence[float]) -> types_pb2.Payload:
    """A payload of raw little-endian 64-bit values."""
    data = struct.pack(f"<{len(values)}d", *values)
    return types_pb2.Payload(raw=types_pb2.RawValues(dtype=types_pb2.DTYPE_FLOAT64, data=data))


def request(
    robot_id: str, sequence: int, payload: types_pb2.Payload, **fields: object
) -> label_pb2.LabelRequest:
    """A request with a deadline that a noisy machine keeps."""
    message = label_pb2.LabelRequest(robot_id=robot_id, sequence=sequence, payload=payload)
    message.timeout_us = 5_000_000
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def error_of(failure: grpc.RpcError) -> types_pb2.Error:
    """Our own detail of a failed call."""
    metadata = {item.key: item.value for item in failure.trailing_metadata() or ()}
    status = types_pb2.StatusDetails.FromString(metadata["grpc-status-details-bin"])
    error = types_pb2.Error()
    assert any(detail.Unpack(error) for detail in status.details)
    return error
