"""What is told of a journal record that is none, for each way in which its bytes are wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from labeler.writer.record_bytes import FIELDS, what_is_wrong

PROTO = Path(__file__).parents[2] / "protos/labeler/journal/v1/record.proto"
_FIELD = re.compile(r"^  ((?:repeated )?\w+) (\w+) = (\d+);", re.MULTILINE)


def record_class() -> Any:
    """The record of the same fields, read by protobuf itself."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    message = file.message_type.add(name="Record")
    for number, (name, kind) in FIELDS.items():
        label = "REPEATED" if kind.startswith("repeated ") else "OPTIONAL"
        field = message.field.add(name=name, number=number)
        field.label = FieldDescriptorProto.Label.Value(f"LABEL_{label}")
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.rpartition(' ')[2].upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Record"))


RECORD = record_class()
GOOD = RECORD(
    robot_id="robot-1",
    sequence=2**63 - 1,
    model="kiva-floor",
    version="1",
    label="Move-Forward",
    index=3,
    confidence=0.5,
    scores=[0.5, 0.25],
    payload_digest=b"\xff" * 16,
    source=1,
    labeled_at_unix_us=-1,
    sku="SKU-é",
).SerializeToString(deterministic=True)


def test_the_fields_are_those_of_the_proto() -> None:
    found = _FIELD.findall(PROTO.read_text(encoding="utf-8"))
    assert {int(number): (name, kind) for kind, name, number in found} == FIELDS


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", ""),
        (GOOD, ""),
        (GOOD + b"\xa2\x06\x02ab", ""),  # a field that a newer version has added
        (GOOD[:5], "the bytes end in field 1 (robot_id)"),
        (b"\xff" * 30, "a number between two fields does not end"),
        (b"\x10" + b"\x80" * 20, "a number in field 2 (sequence) does not end"),
        (b"\x80", "the bytes end between two fields"),
        (b"\x12\x01a", "field 2 (sequence) is a text, expected a number"),
        (b"\x08\x01", "field 1 (robot_id) is a number, expected a text"),
        (b"\x39" + b"0" * 8, "field 7 (confidence) is 8 bytes, expected 4 bytes"),
        (b"\x0a\x02\xff\xfe", "field 1 (robot_id) is no UTF-8"),
        (b"\x42\x03abc", "field 8 (scores) is no whole number of floats"),
        (b"\x0f", "field 1 (robot_id) has wire type 7, which no record has"),
        (b"\x02\x00", "there is a field without a number"),
        (b"\xa2\x06\x7fab", "the bytes end in field 100 (not known here)"),
    ],
)
def test_each_fault_is_told(body: bytes, told: str) -> None:
    assert what_is_wrong(body) == told


@given(st.data())
def test_bytes_without_a_fault_are_read_by_protobuf(data: st.DataObject) -> None:
    body = bytearray(GOOD)
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    if not what_is_wrong(cut):
        RECORD.FromString(cut)


@given(st.binary(max_size=60))
def test_any_bytes_get_an_answer_and_those_that_protobuf_refuses_a_reason(body: bytes) -> None:
    told = what_is_wrong(body)
    try:
        RECORD.FromString(body)
    except DecodeError:
        assert told
