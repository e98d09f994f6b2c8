"""The one client for life: its settings, and how it is built beside the event loop.

No retry, no back-off: those are the writer's. Its hooks are in `sending`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import aioboto3  # type: ignore[import-untyped]
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

from labeler.errors import ConfigError
from labeler.stores.dynamodb.sending import Sender

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb import DynamoDBClient

__all__ = ["DynamoSettings", "open_client", "renew_credentials"]

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


async def open_client(settings: DynamoSettings) -> DynamoDBClient:
    """The client, made in a thread: it reads certificates and descriptions of the service.

    Errors: `ConfigError` where there are no credentials, or their configuration is broken.
    """
    return await asyncio.to_thread(asyncio.run, _open(settings))


async def _open(settings: DynamoSettings) -> DynamoDBClient:
    session, sender = aioboto3.Session(), Sender()
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
            config=_config(settings, sender),
        ).__aenter__()
    except (BotoCoreError, OSError, ValueError) as error:
        raise ConfigError(
            f"configuration: the AWS client cannot be made: {type(error).__name__}: {error}",
            setting="dynamodb",
        ) from error
    sender.attach(client.meta.events)
    return client


async def renew_credentials(client: DynamoDBClient) -> None:
    """Gives it what the chain of credentials holds now; read in a thread too.

    Botocore keeps for ever what it read from a file, and an instance's keys beyond their end. Where
    there are none now, the old ones stay. Errors: botocore's.
    """
    found = await asyncio.to_thread(asyncio.run, _credentials())
    if found is not None:
        signer: Any = client._request_signer
        signer._credentials = found


async def _credentials() -> Any:
    return await aioboto3.Session().get_credentials()


def _config(settings: DynamoSettings, sender: Sender) -> AioConfig:
    return AioConfig(
        retries={"total_max_attempts": 1, "mode": "standard"},
        parameter_validation=False,
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_ms / 1000,
        max_pool_connections=settings.connections_max + READ_CONNECTIONS,
        http_session_cls=sender.session_class,
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
