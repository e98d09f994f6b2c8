from labeler.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LabelRequest(_message.Message):
    __slots__ = ("robot_id", "sequence", "model", "version", "payload", "priority", "durability", "durability_required", "timeout_us", "captured_at_unix_us", "sku", "want_scores", "last_receipt")
    ROBOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_AT_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    SKU_FIELD_NUMBER: _ClassVar[int]
    WANT_SCORES_FIELD_NUMBER: _ClassVar[int]
    LAST_RECEIPT_FIELD_NUMBER: _ClassVar[int]
    robot_id: str
    sequence: int
    model: str
    version: str
    payload: _types_pb2.Payload
    priority: _types_pb2.Priority
    durability: _types_pb2.Durability
    durability_required: bool
    timeout_us: int
    captured_at_unix_us: int
    sku: str
    want_scores: bool
    last_receipt: Receipt
    def __init__(self, robot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., payload: _Optional[_Union[_types_pb2.Payload, _Mapping]] = ..., priority: _Optional[_Union[_types_pb2.Priority, str]] = ..., durability: _Optional[_Union[_types_pb2.Durability, str]] = ..., durability_required: _Optional[bool] = ..., timeout_us: _Optional[int] = ..., captured_at_unix_us: _Optional[int] = ..., sku: _Optional[str] = ..., want_scores: _Optional[bool] = ..., last_receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("sequence", "round_trip_us", "server_us")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    SERVER_US_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    round_trip_us: int
    server_us: int
    def __init__(self, sequence: _Optional[int] = ..., round_trip_us: _Optional[int] = ..., server_us: _Optional[int] = ...) -> None: ...

class LabelResponse(_message.Message):
    __slots__ = ("sequence", "label", "index", "confidence", "scores", "model", "version", "source", "durability", "timing")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    label: str
    index: int
    confidence: float
    scores: _containers.RepeatedScalarFieldContainer[float]
    model: str
    version: str
    source: _types_pb2.Source
    durability: _types_pb2.Durability
    timing: _types_pb2.Timing
    def __init__(self, sequence: _Optional[int] = ..., label: _Optional[str] = ..., index: _Optional[int] = ..., confidence: _Optional[float] = ..., scores: _Optional[_Iterable[float]] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., source: _Optional[_Union[_types_pb2.Source, str]] = ..., durability: _Optional[_Union[_types_pb2.Durability, str]] = ..., timing: _Optional[_Union[_types_pb2.Timing, _Mapping]] = ...) -> None: ...

class LabelBatchRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[LabelRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[LabelRequest, _Mapping]]] = ...) -> None: ...

class LabelBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LabelResult]
    def __init__(self, results: _Optional[_Iterable[_Union[LabelResult, _Mapping]]] = ...) -> None: ...

class LabelResult(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: LabelResponse
    error: _types_pb2.Error
    def __init__(self, response: _Optional[_Union[LabelResponse, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class LabelStreamResponse(_message.Message):
    __slots__ = ("sequence", "response", "error")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    response: LabelResponse
    error: _types_pb2.Error
    def __init__(self, sequence: _Optional[int] = ..., response: _Optional[_Union[LabelResponse, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class GetLabelRequest(_message.Message):
    __slots__ = ("robot_id", "sequence")
    ROBOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    robot_id: str
    sequence: int
    def __init__(self, robot_id: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class GetLabelResponse(_message.Message):
    __slots__ = ("label",)
    LABEL_FIELD_NUMBER: _ClassVar[int]
    label: StoredLabel
    def __init__(self, label: _Optional[_Union[StoredLabel, _Mapping]] = ...) -> None: ...

class ListLabelsRequest(_message.Message):
    __slots__ = ("robot_id", "page_size", "page_token", "from_unix_us", "to_unix_us")
    ROBOT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FROM_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    TO_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    robot_id: str
    page_size: int
    page_token: str
    from_unix_us: int
    to_unix_us: int
    def __init__(self, robot_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., from_unix_us: _Optional[int] = ..., to_unix_us: _Optional[int] = ...) -> None: ...

class ListLabelsResponse(_message.Message):
    __slots__ = ("labels", "next_page_token")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[StoredLabel]
    next_page_token: str
    def __init__(self, labels: _Optional[_Iterable[_Union[StoredLabel, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class StoredLabel(_message.Message):
    __slots__ = ("robot_id", "sequence", "label", "index", "confidence", "model", "version", "source", "durability", "labeled_at_unix_us", "captured_at_unix_us", "sku", "instance_id", "journal_id", "journal_number")
    ROBOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    LABELED_AT_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_AT_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    SKU_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    robot_id: str
    sequence: int
    label: str
    index: int
    confidence: float
    model: str
    version: str
    source: _types_pb2.Source
    durability: _types_pb2.Durability
    labeled_at_unix_us: int
    captured_at_unix_us: int
    sku: str
    instance_id: str
    journal_id: str
    journal_number: int
    def __init__(self, robot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., label: _Optional[str] = ..., index: _Optional[int] = ..., confidence: _Optional[float] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., source: _Optional[_Union[_types_pb2.Source, str]] = ..., durability: _Optional[_Union[_types_pb2.Durability, str]] = ..., labeled_at_unix_us: _Optional[int] = ..., captured_at_unix_us: _Optional[int] = ..., sku: _Optional[str] = ..., instance_id: _Optional[str] = ..., journal_id: _Optional[str] = ..., journal_number: _Optional[int] = ...) -> None: ...
