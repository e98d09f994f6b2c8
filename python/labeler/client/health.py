"""The health check's two messages, by hand: a string in field 1 out, an enum in field 1 back.

`grpc.health.v1` is one call with two one-field messages, not worth a dependency on a robot.
"""

from labeler.errors import InternalError, InvalidRequestError

__all__ = ["CHECK", "SERVICE_UNKNOWN", "decode_response", "encode_request"]

CHECK = "/grpc.health.v1.Health/Check"
SERVICE_UNKNOWN = "SERVICE_UNKNOWN"
SERVICE_BYTES_MAX = 127
"""So that the length is one byte; no service of ours has a longer name."""

_STATES = ("UNKNOWN", "SERVING", "NOT_SERVING", SERVICE_UNKNOWN)
_FIELD_1_BYTES = 0x0A
_FIELD_1_VARINT = 0x08


def encode_request(service: str) -> bytes:
    """Encode `HealthCheckRequest`; the empty name is the default value, so no bytes at all.

    Errors: `InvalidRequestError` where it is no text of at most 127 bytes.
    """
    name = service.encode() if isinstance(service, str) else None
    if name is None or len(name) > SERVICE_BYTES_MAX:
        expected = f"a str of at most {SERVICE_BYTES_MAX} bytes"
        message = f"service is {service!r:.200}, expected {expected}"
        raise InvalidRequestError(message, field="service", value=repr(service), expected=expected)
    return bytes((_FIELD_1_BYTES, len(name))) + name if name else b""


def decode_response(data: bytes) -> str:
    """Decode `HealthCheckResponse`. Errors: `InternalError` where it is something else."""
    if not data:
        return _STATES[0]
    if len(data) == 2 and data[0] == _FIELD_1_VARINT and data[1] < len(_STATES):
        return _STATES[data[1]]
    raise InternalError(f"the health check answered {data[:16].hex(' ')}, which is no known state")
