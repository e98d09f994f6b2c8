from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_ROBOT: _ClassVar[Priority]
    PRIORITY_BULK: _ClassVar[Priority]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_BUFFERED: _ClassVar[Durability]
    DURABILITY_JOURNALED: _ClassVar[Durability]
    DURABILITY_STORED: _ClassVar[Durability]

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[Source]
    SOURCE_MODEL: _ClassVar[Source]
    SOURCE_CACHE: _ClassVar[Source]
    SOURCE_REPLAY: _ClassVar[Source]
    SOURCE_FALLBACK: _ClassVar[Source]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT64: _ClassVar[DType]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_ROBOT: Priority
PRIORITY_BULK: Priority
DURABILITY_UNSPECIFIED: Durability
DURABILITY_BUFFERED: Durability
DURABILITY_JOURNALED: Durability
DURABILITY_STORED: Durability
SOURCE_UNSPECIFIED: Source
SOURCE_MODEL: Source
SOURCE_CACHE: Source
SOURCE_REPLAY: Source
SOURCE_FALLBACK: Source
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT64: DType

class RawValues(_message.Message):
    __slots__ = ("dtype", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("floats", "doubles", "raw")
    FLOATS_FIELD_NUMBER: _ClassVar[int]
    DOUBLES_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    floats: _containers.RepeatedScalarFieldContainer[float]
    doubles: _containers.RepeatedScalarFieldContainer[float]
    raw: RawValues
    def __init__(self, floats: _Optional[_Iterable[float]] = ..., doubles: _Optional[_Iterable[float]] = ..., raw: _Optional[_Union[RawValues, _Mapping]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("decode_us", "admit_us", "cache_us", "queue_us", "infer_us", "journal_us", "encode_us", "total_us")
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    ADMIT_US_FIELD_NUMBER: _ClassVar[int]
    CACHE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    INFER_US_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_US_FIELD_NUMBER: _ClassVar[int]
    ENCODE_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    decode_us: int
    admit_us: int
    cache_us: int
    queue_us: int
    infer_us: int
    journal_us: int
    encode_us: int
    total_us: int
    def __init__(self, decode_us: _Optional[int] = ..., admit_us: _Optional[int] = ..., cache_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., infer_us: _Optional[int] = ..., journal_us: _Optional[int] = ..., encode_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "field", "value", "expected", "retry_after_ms", "label_exists")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LABEL_EXISTS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    field: str
    value: str
    expected: str
    retry_after_ms: int
    label_exists: bool
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., value: _Optional[str] = ..., expected: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., label_exists: _Optional[bool] = ...) -> None: ...

class StatusDetails(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
