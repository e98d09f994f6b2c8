"""How the table should be: made where it is missing, compared with what is there, never altered.

The one thing that is set on a table that exists is its time to live, where none is set: nothing
that is stored changes by that. All else is told, with the way to change it, and left as it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from labeler.stores.base import Difference, StoreUnavailableError
from labeler.stores.dynamodb.client import DynamoSettings
from labeler.stores.dynamodb.errors import is_missing
from labeler.stores.dynamodb.items import EXPIRES

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb import DynamoDBClient

__all__ = ["KEYS", "SKU_INDEX", "Found", "differences", "ensure_table", "look", "wrong_keys"]

KEYS = (("robot_id", "HASH", "S"), ("sequence", "RANGE", "N"))
"""Name, role and type of the table's keys."""
SKU_INDEX = "by-sku"
"""The index from a SKU to its labels by time, where `dynamodb.sku_index` asks for it."""
_SKU_KEYS = (("sku", "HASH", "S"), ("labeled_at_unix_us", "RANGE", "N"))

WAIT_S_MAX = 120.0
"""How long `ensure_table` waits for a table, and for its index, to be usable."""
_POLL_S = 0.5

_MODES = {"on_demand": "PAY_PER_REQUEST", "provisioned": "PROVISIONED"}
_NOTHING = "none"


@dataclass(frozen=True)
class Found:
    """What DescribeTable and DescribeTimeToLive say. `status` is empty where no table is."""

    status: str = ""
    keys: tuple[tuple[str, str, str], ...] = ()
    billing_mode: str = ""
    indexes: Mapping[str, tuple[str, tuple[tuple[str, str, str], ...]]] = field(
        default_factory=dict
    )
    """Each index's status and keys."""
    ttl: str = ""
    """The attribute that items expire by; empty where they don't."""

    @property
    def usable(self) -> bool:
        """Whether it takes writes now; a table whose settings change does."""
        return self.status in ("ACTIVE", "UPDATING")


async def look(client: DynamoDBClient, settings: DynamoSettings, *, ttl: bool = True) -> Found:
    """The table as it is. Errors: those of the client."""
    try:
        table: Mapping[str, Any] = (await client.describe_table(TableName=settings.table))["Table"]
    except ClientError as error:
        if is_missing(error):
            return Found()
        raise
    types = {item["AttributeName"]: item["AttributeType"] for item in table["AttributeDefinitions"]}
    summary = table.get("BillingModeSummary", {})
    status = str(table["TableStatus"])
    return Found(
        status=status,
        keys=_keys(table["KeySchema"], types),
        billing_mode=str(summary.get("BillingMode", "PROVISIONED")),
        indexes={
            str(index["IndexName"]): (
                str(index.get("IndexStatus", "ACTIVE")),
                _keys(index["KeySchema"], types),
            )
            for index in table.get("GlobalSecondaryIndexes", [])
        },
        ttl=await _ttl(client, settings) if ttl and status not in ("CREATING", "DELETING") else "",
    )


def wrong_keys(found: Found) -> Difference | None:
    """The one difference that no label can be written with."""
    if not found.status or found.keys == KEYS:
        return None
    return Difference(
        "key schema",
        _keys_text(KEYS),
        _keys_text(found.keys),
        "a table's keys can't be changed: name another table in dynamodb.table",
    )


def differences(found: Found, settings: DynamoSettings) -> list[Difference]:
    """Everything that is not as the settings ask for, the worst first."""
    name = settings.table
    if not found.status:
        return [Difference("table", name, _NOTHING, "labeler store ensure creates it")]
    wrong = wrong_keys(found)
    told = [wrong] if wrong is not None else []
    if not found.usable:
        told.append(Difference("status", "ACTIVE", found.status, "wait for it"))
    if found.billing_mode != _MODES[settings.billing_mode]:
        told.append(
            Difference(
                "dynamodb.billing_mode",
                _MODES[settings.billing_mode],
                found.billing_mode,
                f"aws dynamodb update-table --table-name {name} --billing-mode "
                f"{_MODES[settings.billing_mode]}{_capacity_text(settings)}, or change the setting",
            )
        )
    return [*told, *_ttl_difference(found, settings), *_index_difference(found, settings)]


async def ensure_table(client: DynamoDBClient, settings: DynamoSettings) -> Found:
    """Makes the table where there is none, waits until it is usable, sets its time to live.

    Errors: those of the client; `StoreUnavailableError` where it takes longer than `WAIT_S_MAX`.
    """
    found = await look(client, settings, ttl=False)
    if not found.status:
        try:
            await client.create_table(**_description(settings))
        except ClientError as error:
            # Another process makes it at this moment.
            if error.response.get("Error", {}).get("Code") != "ResourceInUseException":
                raise
    found = await _usable(client, settings)
    if settings.retention_s and not found.ttl and wrong_keys(found) is None:
        await client.update_time_to_live(
            TableName=settings.table,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRES},
        )
        found = await look(client, settings)
    return found


async def _usable(client: DynamoDBClient, settings: DynamoSettings) -> Found:
    end_s = time.monotonic() + WAIT_S_MAX
    while True:
        found = await look(client, settings)
        waits_for = [name for name, (status, _) in found.indexes.items() if status == "CREATING"]
        if found.usable and not waits_for:
            return found
        if time.monotonic() > end_s:
            state = found.status or "not there"
            raise StoreUnavailableError(
                f"DynamoDB: table {settings.table} is {state} after {WAIT_S_MAX:.0f} s, look at "
                "the service's events and try again",
                kind="table",
            )
        await asyncio.sleep(_POLL_S)


def _description(settings: DynamoSettings) -> Any:
    keys = (*KEYS, *_SKU_KEYS) if settings.sku_index else KEYS
    made: dict[str, Any] = {
        "TableName": settings.table,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, _, kind in keys
        ],
        "KeySchema": _schema(KEYS),
        "BillingMode": _MODES[settings.billing_mode],
    }
    throughput: dict[str, Any] = {}
    if settings.billing_mode == "provisioned":
        throughput["ProvisionedThroughput"] = {
            "ReadCapacityUnits": settings.read_capacity_units,
            "WriteCapacityUnits": settings.write_capacity_units,
        }
    if settings.sku_index:
        made["GlobalSecondaryIndexes"] = [
            {
                "IndexName": SKU_INDEX,
                "KeySchema": _schema(_SKU_KEYS),
                "Projection": {"ProjectionType": "ALL"},
                **throughput,
            }
        ]
    return made | throughput


def _ttl_difference(found: Found, settings: DynamoSettings) -> list[Difference]:
    if found.ttl == EXPIRES or not (found.ttl or settings.retention_s):
        return []
    expected = EXPIRES if settings.retention_s else _NOTHING
    change = (
        f"switch it off: aws dynamodb update-time-to-live --table-name {settings.table} "
        f"--time-to-live-specification Enabled=false,AttributeName={found.ttl}"
        if found.ttl
        else "labeler store ensure sets it"
    )
    return [Difference("time to live", expected, found.ttl or _NOTHING, change)]


def _index_difference(found: Found, settings: DynamoSettings) -> list[Difference]:
    if not settings.sku_index:
        return []
    _, keys = found.indexes.get(SKU_INDEX, ("", ()))
    if keys == _SKU_KEYS:
        return []
    return [
        Difference(
            f"index {SKU_INDEX}",
            _keys_text(_SKU_KEYS),
            _keys_text(keys) if keys else _NOTHING,
            "create it with aws dynamodb update-table (docs/dynamodb.md has the command), "
            "or set dynamodb.sku_index = false",
        )
    ]


async def _ttl(client: DynamoDBClient, settings: DynamoSettings) -> str:
    answer = await client.describe_time_to_live(TableName=settings.table)
    described = answer.get("TimeToLiveDescription", {})
    if described.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        return ""
    return str(described.get("AttributeName", ""))


def _keys(schema: Any, types: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    named = [
        (item["AttributeName"], item["KeyType"], types.get(item["AttributeName"], "?"))
        for item in schema
    ]
    return tuple(sorted(named, key=lambda key: key[1]))


def _schema(keys: tuple[tuple[str, str, str], ...]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": role} for name, role, _ in keys]


def _keys_text(keys: tuple[tuple[str, str, str], ...]) -> str:
    roles = {"HASH": "partition key", "RANGE": "sort key"}
    return ", ".join(f"{roles.get(role, role)} {name} ({kind})" for name, role, kind in keys)


def _capacity_text(settings: DynamoSettings) -> str:
    if settings.billing_mode == "on_demand":
        return ""
    return (
        f" --provisioned-throughput ReadCapacityUnits={settings.read_capacity_units},"
        f"WriteCapacityUnits={settings.write_capacity_units}"
    )
