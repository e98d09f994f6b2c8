"""Requests: what a robot may ask, checked by field before it is sent, and put on the wire's form.

Pure: no channel, no clock. Never converts values: float32 goes as 32-bit, float64 (and lists of
Python floats) as 64-bit, everything else is an error that names the field.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

import numpy as np

from labeler.client.options import DURABILITIES, Durability, Settings, nearest
from labeler.errors import InvalidRequestError
from labeler.v1 import label_pb2, types_pb2

__all__ = [
    "BATCH_ROWS_MAX",
    "LabelFields",
    "LabelQuery",
    "Receipts",
    "Values",
    "build_request",
    "check_name",
    "check_page",
    "check_robot_id",
    "check_sequence",
    "check_timeout_ms",
    "make_query",
]

BATCH_ROWS_MAX = 1_000
ROBOT_ID_BYTES_MAX = 128
SKU_BYTES_MAX = 64
SEQUENCE_MAX = 2**63 - 1
PAGE_SIZE_MAX = 1_000
RECEIPT_ROBOTS_MAX = 1_024
_TIMEOUT_MS_MAX = 3_600_000
_INT64 = 2**63

Values = np.ndarray[Any, Any] | Sequence[float]
"""One row of sensor values: a 1-D float32 or float64 array, or a list or tuple of Python floats."""

Priority = Literal["ROBOT", "BULK"]

_DURABILITY_NUMBERS: dict[str, Any] = {
    name: types_pb2.Durability.Value(f"DURABILITY_{name}") for name in DURABILITIES
}
_PRIORITY_NUMBERS: dict[str, Any] = {
    name: types_pb2.Priority.Value(f"PRIORITY_{name}") for name in ("ROBOT", "BULK")
}
_LITTLE = sys.byteorder == "little"
_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)


class LabelFields(TypedDict, total=False):
    """What a label request may say beside robot, sequence and values; see `LabelQuery`."""

    sku: str
    want_scores: bool
    timeout_ms: int | None
    durability: Durability | None
    durability_required: bool
    priority: Priority | None
    model: str | None
    version: str | None
    captured_at_unix_us: int


@dataclass(slots=True, eq=False)
class LabelQuery:
    """One request for a label.

    `robot_id` (1 to 128 bytes) and `sequence` (1 to 2^63-1) are its idempotency key: the same key
    with the same values may be sent again and gets the first reply. `values`: the model's `width`
    values. None means the client's option for `timeout_ms`, `durability` and `model`, the server's
    default for `priority`, the serving one for `version`. `durability_required`: not reaching the
    level in time is an error. `captured_at_unix_us`: the robot's clock, stored only. `sku`: at most
    64 bytes.
    """

    robot_id: str
    sequence: int
    values: Values
    sku: str = ""
    want_scores: bool = False
    timeout_ms: int | None = None
    durability: Durability | None = None
    durability_required: bool = False
    priority: Priority | None = None
    model: str | None = None
    version: str | None = None
    captured_at_unix_us: int = 0


def make_query(robot_id: str, sequence: int, values: Values, options: LabelFields) -> LabelQuery:
    """Make a query of a call's arguments. Errors: `InvalidRequestError` for an unknown name."""
    try:
        return LabelQuery(robot_id, sequence, values, **options)
    except TypeError:
        known = [field.name for field in fields(LabelQuery)]
        for name, value in options.items():
            if name not in known:
                raise _invalid(name, repr(value), f"a known field{nearest(name, known)}") from None
        raise


def build_request(query: LabelQuery, settings: Settings) -> label_pb2.LabelRequest:
    """Check a query and make its message, without deadline and receipt.

    Errors: `InvalidRequestError`, with the field, what it holds and what was expected.
    Values go as raw bytes, the cheapest form: message and serialising take 2.4 µs with 24 float32
    values, 0.5 µs more than without; as packed floats 11.9 (extended by the array) or 4.2 (by its
    list). With 1,000 values it is 3.7 µs against 293 or 62.
    """
    check_robot_id(query.robot_id)
    request = label_pb2.LabelRequest(
        robot_id=query.robot_id, sequence=check_sequence(query.sequence)
    )
    _put_values(request.payload.raw, query.values)
    model = settings.model if query.model is None else query.model
    if model != "":
        request.model = _text("model", model)
    if query.version is not None and query.version != "":
        request.version = _text("version", query.version)
    durability = settings.durability if query.durability is None else query.durability
    if durability is not None:
        request.durability = _choice("durability", durability, _DURABILITY_NUMBERS)
    if query.priority is not None:
        request.priority = _choice("priority", query.priority, _PRIORITY_NUMBERS)
    if query.sku != "":
        request.sku = _text("sku", query.sku, SKU_BYTES_MAX)
    if query.want_scores is not False:
        request.want_scores = _flag("want_scores", query.want_scores)
    if query.durability_required is not False:
        request.durability_required = _flag("durability_required", query.durability_required)
    if query.captured_at_unix_us != 0:
        captured = _integer("captured_at_unix_us", query.captured_at_unix_us, -_INT64, _INT64 - 1)
        request.captured_at_unix_us = captured
    return request


def check_robot_id(robot_id: object) -> None:
    """Errors: `InvalidRequestError` where it is no text of 1 to 128 bytes."""
    if not robot_id:
        raise _invalid("robot_id", repr(robot_id), f"1 to {ROBOT_ID_BYTES_MAX} bytes of text")
    _text("robot_id", robot_id, ROBOT_ID_BYTES_MAX)


def check_name(field: str, name: object) -> None:
    """Errors: `InvalidRequestError` where it is empty or no text of at most 128 bytes."""
    if not name:
        raise _invalid(field, repr(name), "a name")
    _text(field, name)


def check_sequence(sequence: object) -> int:
    """Return the sequence as an int. Errors: `InvalidRequestError` outside of 1 to 2^63-1."""
    return _integer("sequence", sequence, 1, SEQUENCE_MAX)


def check_timeout_ms(timeout_ms: int | None, default_ms: int) -> int:
    """Return the timeout, or the default for None. Errors: `InvalidRequestError`."""
    if timeout_ms is None:
        return default_ms
    return _integer("timeout_ms", timeout_ms, 1, _TIMEOUT_MS_MAX)


def check_page(robot_id: str, from_unix_us: int, to_unix_us: int, page_size: int) -> None:
    """Check the arguments of a listing. Errors: `InvalidRequestError`."""
    check_robot_id(robot_id)
    _integer("from_unix_us", from_unix_us, 0, SEQUENCE_MAX)
    _integer("to_unix_us", to_unix_us, 0, SEQUENCE_MAX)
    _integer("page_size", page_size, 1, PAGE_SIZE_MAX)


class Receipts:
    """What robots measured for their last call, each handed out once; bounded in robots."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._by_robot: dict[str, label_pb2.Receipt] = {}

    def put(self, robot_id: str, receipt: label_pb2.Receipt) -> None:
        """Keep the robot's receipt; the robot that was silent longest makes room."""
        with self._lock:
            self._by_robot.pop(robot_id, None)
            if len(self._by_robot) >= RECEIPT_ROBOTS_MAX:
                del self._by_robot[next(iter(self._by_robot))]
            self._by_robot[robot_id] = receipt

    def take(self, robot_id: str) -> label_pb2.Receipt | None:
        """Hand out the robot's receipt and forget it, so that no call is counted twice."""
        with self._lock:
            return self._by_robot.pop(robot_id, None)


def _put_values(raw: types_pb2.RawValues, values: object) -> None:
    """Write the values as little-endian bytes with their type."""
    if isinstance(values, np.ndarray):
        array = values
        if isinstance(values, np.ma.MaskedArray):
            raise _invalid("values", "a masked array", "an array without a mask")
    elif isinstance(values, list | tuple):
        strange = next((value for value in values if not isinstance(value, float)), None)
        if strange is not None:
            held = f"a {type(values).__name__} with the {type(strange).__name__} {strange!r:.40}"
            raise _invalid("values", held, "Python floats only, or a float32 or float64 array")
        array = np.array(values, _FLOAT64)
    else:
        expected = "a numpy array of float32 or float64, or a list of Python floats"
        raise _invalid("values", f"a {type(values).__name__}", expected)
    if array.ndim != 1 or array.size == 0:
        raise _invalid("values", f"of shape {array.shape}", "one row of at least one value")
    if array.dtype == _FLOAT32:
        raw.dtype = types_pb2.DTYPE_FLOAT32
    elif array.dtype == _FLOAT64:
        raw.dtype = types_pb2.DTYPE_FLOAT64
    else:
        native = "float32 or float64 in native byte order; nothing is converted silently"
        raise _invalid("values", f"of dtype {array.dtype.str} ({array.dtype})", native)
    raw.data = array.tobytes() if _LITTLE else array.byteswap().tobytes()


def _text(field: str, value: object, bytes_max: int = 128) -> str:
    """Return the text where it is text and fits."""
    if not isinstance(value, str):
        raise _invalid(field, repr(value), "a str")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise _invalid(field, ascii(value), "text that UTF-8 can hold") from None
    if size > bytes_max:
        raise _invalid(field, f"{size:,} bytes long", f"at most {bytes_max} bytes")
    return value


def _integer(field: str, value: object, least: int, most: int) -> int:
    """Return a Python int of any integer type but bool, within bounds."""
    if type(value) is not int:
        if not isinstance(value, np.integer):
            raise _invalid(field, repr(value), f"an int from {least:,} to {most:,}")
        value = int(value)
    if not least <= value <= most:
        raise _invalid(field, f"{value:,}", f"an int from {least:,} to {most:,}")
    return value


def _flag(field: str, value: object) -> bool:
    """Return a bool where it is one."""
    if not isinstance(value, bool):
        raise _invalid(field, repr(value), "True or False")
    return value


def _choice(field: str, value: object, numbers: dict[str, Any]) -> Any:
    """Return the wire's number of a name."""
    number = numbers.get(value) if isinstance(value, str) else None
    if number is None:
        near = nearest(str(value).upper(), numbers)
        raise _invalid(field, repr(value), f"None or one of {', '.join(numbers)}{near}")
    return number


def _invalid(field: str, value: str, expected: str) -> InvalidRequestError:
    """Make the error in the form that the server uses for the same mistake."""
    message = f"{field} is {value}, expected {expected}"
    return InvalidRequestError(message, field=field, value=value, expected=expected)
