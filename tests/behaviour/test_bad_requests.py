"""Bad requests, alone, among good rows of a batch and among good messages of a stream.

Each is refused by field, value and expectation, before it enters a batch; its neighbours are
answered. Values that are odd but good are answered. Cases S08, S64, S66, W22, W24, W28.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from labeler.v1 import label_pb2, types_pb2
from tests.support import made_models
from tests.support.accounting import balanced
from tests.support.service import Service, serve
from tests.support.waiting import eventually
from tests.support.wire import (
    MODEL,
    WIDTH,
    Wire,
    doubles,
    error_of,
    floats,
    raw32,
    raw64,
    request,
    wire,
)

FAR = [2.5] * WIDTH
FLOAT32, FLOAT64 = types_pb2.DTYPE_FLOAT32, types_pb2.DTYPE_FLOAT64
NAN, INFINITE = float("nan"), float("inf")
DOUBLE_EXTREMES = [0.1, 3.4028234e38, 1e-310, -0.0]
NAMES = ["blanks", "tab", "nul", "nul-end", "emoji", "longest", "sql", "composed", "decomposed"]
ROBOTS = [
    *("   ", "\t\n", "\0robot", "robot\0", "🤖🔧", "r" * 128, "'; drop table labels; --"),
    *("\u00e9", "e\u0301"),
]

Message = label_pb2.LabelRequest


def raw(data: bytes, dtype: Any = FLOAT32) -> types_pb2.Payload:
    return types_pb2.Payload(raw=types_pb2.RawValues(dtype=dtype, data=data))


def plain(robot_id: str = "r", sequence: int | None = 1, **fields: object) -> Message:
    """A good request, then changed; a `sequence` of None is left out."""
    made = request(robot_id, sequence or 0, floats(FAR), **fields)
    if sequence is None:
        made.ClearField("sequence")
    return made


def with_payload(payload: types_pb2.Payload) -> Message:
    return request("r", 1, payload)


@dataclass(frozen=True)
class Bad:
    """A request with what its refusal must name."""

    message: Message
    field: str
    value: str
    expected: str


ROBOT, SEQUENCE = "1 to 128 bytes", "1 to 9223372036854775807"
ONE_FIELD, VALUES = "one of floats, doubles, raw", f"{WIDTH} values for model {MODEL}"
RANGE = "finite values from 0.0 to 10.0"
TYPES = "FLOAT32 (1) or FLOAT64 (2)"
FIRST: Callable[[float], list[float]] = lambda value: [value, *FAR[1:]]  # noqa: E731
LAST: Callable[[float], list[float]] = lambda value: [*FAR[1:], value]  # noqa: E731
BAD = {
    "no robot": Bad(plain(""), "robot_id", "empty", ROBOT),
    "robot of 129 bytes": Bad(plain("r" * 129), "robot_id", "129 bytes", "at most 128 bytes"),
    "robot of 2,049 bytes": Bad(plain("é" * 1024 + "e"), "robot_id", "2049 bytes", "at most 128"),
    "no sequence": Bad(plain(sequence=None), "sequence", "missing", SEQUENCE),
    "sequence 0": Bad(plain(sequence=0), "sequence", "0", SEQUENCE),
    "sequence 2^63": Bad(plain(sequence=1 << 63), "sequence", "9223372036854775808", SEQUENCE),
    "sequence 2^64-1": Bad(
        plain(sequence=(1 << 64) - 1), "sequence", "18446744073709551615", SEQUENCE
    ),
    "long model": Bad(plain(model="m" * 129), "model", "129 bytes", "at most 128 bytes"),
    "long version": Bad(plain(version="1" * 129), "version", "129 bytes", "at most 128 bytes"),
    "long sku": Bad(plain(sku="s" * 65), "sku", "65 bytes", "at most 64 bytes"),
    "priority 7": Bad(plain(priority=7), "priority", "7", "0 to 2"),
    "priority -1": Bad(plain(priority=-1), "priority", "-1", "0 to 2"),
    "durability 4": Bad(plain(durability=4), "durability", "4", "0 to 3"),
    "no payload": Bad(Message(robot_id="r", sequence=1), "payload", "missing", ONE_FIELD),
    "empty payload": Bad(with_payload(types_pb2.Payload()), "payload", "empty", ONE_FIELD),
    "no floats": Bad(with_payload(floats([])), "payload", "empty", ONE_FIELD),
    "no doubles": Bad(with_payload(doubles([])), "payload", "empty", ONE_FIELD),
    "two payloads": Bad(
        with_payload(types_pb2.Payload(floats=FAR, doubles=FAR)),
        *("payload", "more than one field", ONE_FIELD),
    ),
    "three payloads": Bad(
        with_payload(types_pb2.Payload(floats=FAR, doubles=FAR, raw=raw32(FAR).raw)),
        *("payload", "more than one field", ONE_FIELD),
    ),
    "short": Bad(with_payload(floats(FAR[1:])), "payload.floats", "23 values", VALUES),
    "long": Bad(with_payload(doubles([*FAR, 1.0])), "payload.doubles", "25 values", VALUES),
    "short raw": Bad(with_payload(raw64(FAR[1:])), "payload.raw.data", "23 values", VALUES),
    "NaN": Bad(with_payload(floats(FIRST(NAN))), "payload.floats", "NaN at index 0", RANGE),
    "infinity": Bad(with_payload(floats(LAST(INFINITE))), "payload.floats", "inf at index", RANGE),
    "-infinity": Bad(
        with_payload(raw32(LAST(-INFINITE))), "payload.raw.data", "-inf at index 23", RANGE
    ),
    "NaN as double": Bad(with_payload(raw64(LAST(NAN))), "payload.raw.data", "NaN at", RANGE),
    "beyond 32 bits": Bad(
        with_payload(doubles(FIRST(1e308))), "payload.doubles", "1e308 at index 0", RANGE
    ),
    "out of the model's range": Bad(
        with_payload(floats(FIRST(-1.0))), "payload.floats", "-1.0 at index 0", RANGE
    ),
    "no bytes": Bad(with_payload(raw(b"")), "payload.raw.data", "0 bytes", "multiple of 4 bytes"),
    "odd bytes": Bad(
        with_payload(raw(b"12345")), "payload.raw.data", "5 bytes", "a multiple of 4 bytes"
    ),
    "a double and a half": Bad(
        with_payload(raw(b"x" * 12, FLOAT64)), "payload.raw.data", "12 bytes", "multiple of 8"
    ),
    "24 doubles declared as floats": Bad(
        with_payload(raw(raw64(FAR).raw.data)), "payload.raw.data", "48 values", VALUES
    ),
    "24 floats declared as doubles": Bad(
        with_payload(raw(raw32(FAR).raw.data, FLOAT64)), "payload.raw.data", "12 values", VALUES
    ),
    "no type": Bad(with_payload(raw(b"1234", 0)), "payload.raw.dtype", "0", TYPES),
    "unknown type": Bad(with_payload(raw(b"1234", 9)), "payload.raw.dtype", "9", TYPES),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serves `identity`, whose scores are the payload, and `lifted`, where they are 1e38 more."""
    folder = tmp_path_factory.mktemp("bad-requests")
    made_models.write_identity(folder / "models", width=4)
    made_models.write_identity(folder / "models", width=4, offset=1e38, name="lifted")
    served: dict[str, Any] = {
        **made_models.settings(folder / "models"),
        "models__load": ["identity", "lifted"],
    }
    started = serve(folder / "state", **served)
    try:
        yield started.wait_ready()
    finally:
        started.close()


@pytest.fixture
def stubs(service: Service) -> Iterator[Wire]:
    with wire(service.address) as open_wire:
        yield open_wire


def check(error: types_pb2.Error, bad: Bad) -> None:
    """The refusal has the code, names all three, and says them in words too."""
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert error.field == bad.field
    assert bad.value in error.value
    assert bad.expected in error.expected
    assert error.message == f"{error.field} is {error.value}, expected {error.expected}"


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_refused_by_field_value_and_expectation(stubs: Wire, bad: Bad) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stubs.labels.Label(bad.message)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    check(error_of(refused.value), bad)


def test_bad_rows_of_a_batch_are_refused_and_their_neighbours_answered(
    service: Service, stubs: Wire
) -> None:
    rows = []
    for place, bad in enumerate(BAD.values(), start=1):
        rows += [plain("batch-neighbour", place), bad.message]
    before = balanced(service).requests("LabelBatch")
    results = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results
    good, refused = results[::2], results[1::2]
    assert [one.response.sequence for one in good] == list(range(1, len(BAD) + 1))
    for one, bad in zip(refused, BAD.values(), strict=True):
        check(one.error, bad)
    after = balanced(service).requests("LabelBatch")
    assert after.parts["rejected"] - before.parts["rejected"] == len(BAD)
    assert after.parts["answered"] - before.parts["answered"] == len(BAD)


def test_bad_messages_of_a_stream_are_refused_and_their_neighbours_answered(
    service: Service, stubs: Wire
) -> None:
    messages = []
    for place, bad in enumerate(BAD.values(), start=1):
        messages += [plain("stream-neighbour", 1000 + place), bad.message]
    replies = list(stubs.labels.LabelStream(iter(messages)))
    good = [one.response.sequence for one in replies if one.HasField("response")]
    assert sorted(good) == list(range(1001, 1001 + len(BAD)))
    # Replies overtake each other, and most bad ones have one sequence: told by what they say.
    refused = sorted(one.error.message for one in replies if one.HasField("error"))
    assert len(refused) == len(BAD)
    for bad in BAD.values():
        named = [text for text in refused if text.startswith(f"{bad.field} is")]
        assert any(bad.value in text and bad.expected in text for text in named), bad
    balanced(service)


@pytest.mark.parametrize("entry", ["Label", "LabelBatch", "LabelStream"])
def test_an_unknown_model_or_version_is_not_found_beside_good_neighbours(
    service: Service, entry: str
) -> None:
    names = ({"model": "nope"}, {"version": "999"}, {"model": "nope", "version": "1"})
    rows = [plain(f"{entry}-unknown", 1), *(plain("u", 1, **name) for name in names)]
    with wire(service.address) as stubs:
        errors = _errors(stubs, entry, rows)
    assert [error.field for error in errors] == ["model", "version", "version"]
    for error in errors:
        assert error.code == grpc.StatusCode.NOT_FOUND.value[0]
        assert f"{MODEL} 1" in error.message, "what could be asked for is said"
    balanced(service)


def _errors(stubs: Wire, entry: str, rows: list[Message]) -> list[types_pb2.Error]:
    """The errors of all rows but the first, which must be answered."""
    if entry == "LabelBatch":
        results = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results
        assert results[0].HasField("response")
        return [one.error for one in results[1:]]
    if entry == "LabelStream":
        errors = []
        for row in rows:
            (reply,) = stubs.labels.LabelStream(iter([row]))
            assert reply.HasField("error") == bool(row is not rows[0])
            errors.append(reply.error)
        return errors[1:]
    assert stubs.labels.Label(rows[0]).label
    errors = []
    for row in rows[1:]:
        with pytest.raises(grpc.RpcError) as refused:
            stubs.labels.Label(row)
        errors.append(error_of(refused.value))
    return errors


def test_what_cannot_be_scored_never_enters_a_batch(made: Service) -> None:
    before = balanced(made).sum("labeler_batch_rows_sum")
    good = [request("good", n, floats([n, 0, 0, 0])) for n in range(1, 32)]
    bad = [request("bad", 1, floats(values)) for values in ([NAN, 0, 0, 0], [1.0] * 5)]
    rows = [*good[:16], *bad, *good[16:]]
    with wire(made.address) as stubs:
        calls = [stubs.labels.Label.future(row) for row in rows]
        codes = [call.code() for call in calls[16:18]]
        answers = [call.result(30).confidence for call in [*calls[:16], *calls[18:]]]
    assert codes == [grpc.StatusCode.INVALID_ARGUMENT] * 2
    assert answers == [row.payload.floats[0] for row in good]
    assert balanced(made).sum("labeler_batch_rows_sum") - before == len(good)


def changed_bytes(message: Message, old: bytes, new: bytes) -> bytes:
    """A request's bytes with a change that protobuf would not let us make."""
    assert len(old) == len(new)
    text = message.SerializeToString()
    assert text.count(old) == 1
    return text.replace(old, new)


NO_PROTOBUF = {
    "lone surrogate": changed_bytes(plain("XYZ"), b"XYZ", b"\xed\xa0\x80"),
    "no UTF-8": changed_bytes(plain("XYZ"), b"XYZ", b"\xff\xfe\xfd"),
    "cut": plain().SerializeToString()[:-1],
    "floats of 5 bytes": b"\x0a\x01r\x10\x01\x2a\x07\x0a\x0512345",
    "sequence of 11 bytes": b"\x0a\x01r\x10" + b"\xff" * 10 + b"\x01",
    "another type": b"\x08\x01",
    "garbage": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("bad", NO_PROTOBUF.values(), ids=NO_PROTOBUF.keys())
def test_what_is_no_protobuf_is_refused_and_a_stream_goes_on_with_the_next(
    service: Service, bad: bytes
) -> None:
    good = plain("no-protobuf", 1).SerializeToString()
    with grpc.insecure_channel(service.address) as channel:
        path = "/labeler.v1.LabelService/"
        for method, body in (("Label", bad), ("LabelBatch", b"\x0a" + bytes([len(bad)]) + bad)):
            with pytest.raises(grpc.RpcError) as refused:
                call: Any = channel.unary_unary(path + method)
                call(body, timeout=10)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            error = error_of(refused.value)
            assert (error.field, error.expected) == ("message", "protobuf")
        stream: Any = channel.stream_stream(
            path + "LabelStream",
            response_deserializer=label_pb2.LabelStreamResponse.FromString,
        )
        replies = list(stream(iter([good, bad, good]), timeout=10))
    errors = [one.error.field for one in replies if one.HasField("error")]
    assert errors == ["message"]
    assert [one.sequence for one in replies if one.HasField("response")] == [1, 1]
    balanced(service)


def test_a_batch_of_none_and_of_one_row_too_many_are_refused_by_their_number(stubs: Wire) -> None:
    # The rows are two bytes each on the wire and hundreds once decoded: refused before that.
    for rows, value in ((0, "0 rows"), (1001, "over 1000 rows"), (1 << 20, "over 1000 rows")):
        asked = label_pb2.LabelBatchRequest.FromString(b"\x0a\x00" * rows)
        with pytest.raises(grpc.RpcError) as refused:
            stubs.labels.LabelBatch(asked)
        error = error_of(refused.value)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (error.field, error.value) == ("requests", value)
        assert error.expected == "1 to 1000 rows"


def test_a_small_message_never_takes_large_memory(made: Service) -> None:
    good = [request("memory", n, floats([0.0] * 4)) for n in (1, 2)]
    status = Path(f"/proc/{made.pid}/status")
    with wire(made.address) as stubs:
        assert stubs.labels.Label(good[0]).label
        before = _peak_bytes(status)
        most = (4 << 20) - 64
        asked = label_pb2.LabelBatchRequest.FromString(b"\x0a\x00" * (most // 2))
        for _ in range(4):
            with pytest.raises(grpc.RpcError, match="1 to 1000 rows"):
                stubs.labels.LabelBatch(asked)
        assert stubs.labels.Label(good[1]).label
    assert _peak_bytes(status) - before < 16 * most
    balanced(made)


def _peak_bytes(status: Path) -> int:
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_odd_values_are_scored_as_they_are(made: Service) -> None:
    least, most = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    values = [float(least), float(-least), float(most), -0.0]
    with wire(made.address) as stubs:
        payloads = [floats(values), doubles(values), raw32(values), raw64(values)]
        for place, payload in enumerate(payloads, start=1):
            reply = stubs.labels.Label(request("odd", place, payload, want_scores=True))
            assert list(reply.scores) == values
        # What 32 bits do not hold is rounded to them, as the model takes 32.
        extremes = request("odd", 9, doubles(DOUBLE_EXTREMES), want_scores=True)
        scores = stubs.labels.Label(extremes).scores
        assert list(scores) == [float(np.float32(value)) for value in DOUBLE_EXTREMES]
        above = float(np.nextafter(np.float64(most), INFINITE))
        with pytest.raises(grpc.RpcError, match="expected finite values"):
            stubs.labels.Label(request("odd", 10, doubles([above, 0, 0, 0])))
    balanced(made)


@pytest.mark.parametrize("robot_id", ROBOTS, ids=NAMES)
def test_a_robots_name_of_any_text_is_read_back_as_it_is(
    service: Service, stubs: Wire, robot_id: str
) -> None:
    asked = plain(robot_id, 7, sku="\0 🔩", captured_at_unix_us=-(1 << 63))
    assert stubs.labels.Label(asked).label
    key = label_pb2.GetLabelRequest(robot_id=robot_id, sequence=7)
    stored = types_pb2.DURABILITY_STORED
    eventually(lambda: stubs.labels.GetLabel(key).label.durability == stored)
    (label,) = stubs.labels.ListLabels(label_pb2.ListLabelsRequest(robot_id=robot_id)).labels
    assert (label.robot_id, label.sku) == (robot_id, "\0 🔩")
    assert label.captured_at_unix_us == -(1 << 63)
    balanced(service)


def test_the_largest_numbers_are_stored_beside_good_neighbours(
    service: Service, stubs: Wire
) -> None:
    sequences = [1, (1 << 53) + 1, (1 << 63) - 1, 2]
    most = {"captured_at_unix_us": (1 << 63) - 1, "timeout_us": (1 << 64) - 1}
    rows = [plain("largest", n, **most) for n in sequences]
    results = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results
    assert [one.response.sequence for one in results] == sequences
    listed = label_pb2.ListLabelsRequest(robot_id="largest")
    eventually(lambda: len(stubs.labels.ListLabels(listed).labels) == len(sequences))
    labels = stubs.labels.ListLabels(listed).labels
    assert [label.sequence for label in labels] == sorted(sequences, reverse=True)
    assert {label.captured_at_unix_us for label in labels} == {(1 << 63) - 1}
    balanced(service)


def test_a_score_that_is_no_number_fails_its_row_alone_and_is_counted(made: Service) -> None:
    most = float(np.finfo(np.float32).max)
    values = [[float(n), 0, 0, 0] for n in range(1, 25)]
    values.insert(7, [most, 0, 0, 0])
    rows = [request("s", n, floats(v), model="lifted") for n, v in enumerate(values, start=1)]
    before = balanced(made)
    with wire(made.address) as stubs:
        results = stubs.labels.LabelBatch(label_pb2.LabelBatchRequest(requests=rows)).results
    failed = [place for place, one in enumerate(results) if one.HasField("error")]
    assert failed == [7]
    assert results[7].error.code == grpc.StatusCode.INTERNAL.value[0]
    assert "scores that are no numbers" in results[7].error.message
    after = balanced(made)
    ended = [scrape.requests("LabelBatch").parts["failed"] for scrape in (before, after)]
    assert ended[1] - ended[0] == 1
    stored = [scrape.records().parts["stored"] for scrape in (before, after)]
    assert stored[1] - stored[0] == 24
