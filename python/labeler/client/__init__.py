"""The client: what robots import. Needs grpcio, protobuf and numpy, nothing of the server.

`Client` blocks, `AsyncClient` is for asyncio; both are thin around pure modules: options, requests,
plans, retries, replies, failures, streams. Never imports `_core` or the control side.
"""

from labeler.client.aio import AsyncClient
from labeler.client.aio_stream import AsyncLabelStream
from labeler.client.batches import Result
from labeler.client.options import ClientOptions, Durability
from labeler.client.replies import Label, ModelVersion, StoredLabel, Timing
from labeler.client.requests import LabelFields, LabelQuery
from labeler.client.sync import Client
from labeler.client.sync_stream import LabelStream

__all__ = [
    "AsyncClient",
    "AsyncLabelStream",
    "Client",
    "ClientOptions",
    "Durability",
    "Label",
    "LabelFields",
    "LabelQuery",
    "LabelStream",
    "ModelVersion",
    "Result",
    "StoredLabel",
    "Timing",
]
