"""The one client for life: its settings, its hooks, and how it is built beside the event loop.

What botocore would let pass as a success is found here: an answer that is cut, empty, no JSON or
of another checksum confirms nothing. No retry, no back-off: those are the writer's.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import aioboto3  # type: ignore[import-untyped]
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

from labeler.errors import ConfigError
from labeler.stores.dynamodb.errors import GarbledError

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb import DynamoDBClient

__all__ = ["DynamoSettings", "open_client", "with_body"]

IDLE_S_MAX = 10.0
"""An idle connection is closed by us sooner than by a load balancer or NAT in between."""
READ_CONNECTIONS = 4
"""Beside those of the writes: a read must not wait for writes that hang."""


@dataclass(frozen=True)
class DynamoSettings:
    """The section `[dynamodb]` of the configuration."""

    table: str
    region: str
    endpoint_url: str
    billing_mode: Literal["on_demand", "provisioned"]
    read_capacity_units: int
    write_capacity_units: int
    retention_s: int
    sku_index: bool
    create: bool
    connect_timeout_ms: int
    read_timeout_ms: int
    connections_max: int


@dataclass(frozen=True)
class _Ready:
    """A body that is sent in place of what the serializer makes of nothing."""

    body: bytes


def with_body(body: bytes) -> Any:
    """`RequestItems` of a `batch_write_item` whose body is ready-made."""
    return _Ready(body)


async def open_client(settings: DynamoSettings) -> DynamoDBClient:
    """The client, made in a thread: it reads certificates and descriptions of the service.

    Errors: `ConfigError` where there are no credentials, or their configuration is broken.
    """
    return await asyncio.to_thread(asyncio.run, _open(settings))


async def _open(settings: DynamoSettings) -> DynamoDBClient:
    session = aioboto3.Session()
    try:
        if await session.get_credentials() is None:
            raise ConfigError(
                "configuration: no AWS credentials were found for writer.store = dynamodb; set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
                setting="dynamodb",
            )
        client: DynamoDBClient = await session.client(
            "dynamodb",
            region_name=settings.region,
            endpoint_url=settings.endpoint_url or None,
            config=_config(settings),
        ).__aenter__()
    except (BotoCoreError, OSError, ValueError) as error:
        raise ConfigError(
            f"configuration: the AWS client cannot be made: {type(error).__name__}: {error}",
            setting="dynamodb",
        ) from error
    events = client.meta.events
    events.register("provide-client-params.dynamodb.BatchWriteItem", _keep_body)
    events.register("before-call.dynamodb.BatchWriteItem", _put_body)
    events.register("before-parse.dynamodb", _check_answer)
    return client


def _config(settings: DynamoSettings) -> AioConfig:
    return AioConfig(
        retries={"total_max_attempts": 1, "mode": "standard"},
        parameter_validation=False,
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_ms / 1000,
        max_pool_connections=settings.connections_max + READ_CONNECTIONS,
        connector_args={"keepalive_timeout": IDLE_S_MAX},
        # A text of our own is not composed anew for each call.
        user_agent="labeler",
        # Only what the settings name is written to: no address from the environment or a profile.
        ignore_configured_endpoint_urls=True,
        account_id_endpoint_mode="disabled",
        disable_request_compression=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _keep_body(
    params: Mapping[str, Any], context: dict[str, Any], **_: object
) -> Mapping[str, Any] | None:
    items = params["RequestItems"]
    if not isinstance(items, _Ready):
        return None
    context["labeler_body"] = items.body
    return {"RequestItems": {}}


def _put_body(params: dict[str, Any], context: Mapping[str, Any], **_: object) -> None:
    body = context.get("labeler_body")
    if body is not None:
        params["body"] = body


def _check_answer(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Reads a success as what it must be: botocore takes a page of HTML for an empty answer."""
    if response_dict["status_code"] >= 300:
        return
    body: bytes = response_dict["body"]
    checksum = response_dict["headers"].get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(body)):
        raise GarbledError(f"an answer of {len(body)} bytes does not have its checksum")
    if response_dict["status_code"] != 200:
        raise GarbledError(f"an answer with HTTP status {response_dict['status_code']}")
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise GarbledError(f"an answer of {len(body)} bytes is no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise GarbledError(f"an answer of {len(body)} bytes is no JSON object")
    # A write's answer is read from here; its shapes need no second reading.
    if response_dict["context"].get("operation_name") == "BatchWriteItem":
        customized_response_dict["UnprocessedItems"] = answer.get("UnprocessedItems")
        response_dict["body"] = b"{}"
